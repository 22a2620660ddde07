//! A lane over QUIC. The lane's thread passes frames to the connection and takes received bytes from it, without a
//! queue in between.
//!
//! The endpoint's thread does the work of the connection: packets, encryption and acknowledgments. The buffer of a
//! large frame is passed to quinn without a copy, and is returned when the peer has acknowledged the frame. A small
//! frame is copied, so that it does not occupy one of the few buffers until its acknowledgment. Received data is copied
//! once, into the buffer of its frame.
//!
//! Frames are read in order. The position of a frame in the stream is known only after the preceding frames were
//! received. Reading out of order would save no time. It would only save the memory for data that was received after a
//! lost packet.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use zmove_sockopt::TcpInfo;
use zmove_types::{BufferPool, Stopwatch, ThreadState};
use zmove_wire::FrameHeader;

use crate::lane::rate_limiter::{RateLimiter, SharedRate};
use crate::lane::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource, LaneWindow};
use crate::path::PathProbe;

use super::lane_bytes::LaneByteStats;
use super::tolerant::PathAccount;
use super::{DROPPED, QuicConnection, lost, lost_if};

/// One end of a lane over QUIC. Either the dialer or the acceptor sends.
pub(crate) struct QuicLane {
    connection: QuicConnection,
    arrived: VecDeque<Bytes>,
    room: Vec<Bytes>,
    ended: bool,
    /// Maximum number of unacknowledged bytes at which another frame may be passed to the connection.
    outstanding_max: u64,
    /// The limiter of the rate at which the lane sends or receives.
    limiter: RateLimiter,
    /// Number of sent bytes that were charged to the rate.
    counted: u64,
}

impl QuicLane {
    /// Creates a lane on a connection after the exchange of greetings. `lanes` is the total number of lanes. `rate`
    /// limits receiving. The peer can send only a little data before the window is opened.
    pub(crate) fn new(connection: QuicConnection, lanes: u16, rate: SharedRate) -> Self {
        let each = OUTSTANDING_BYTES_MAX / u64::from(lanes.max(1));
        Self {
            connection,
            arrived: VecDeque::with_capacity(CHUNKS_AT_ONCE),
            room: vec![Bytes::new(); CHUNKS_AT_ONCE],
            ended: false,
            outstanding_max: each.clamp(OUTSTANDING_BYTES_MIN, LANE_OUTSTANDING_BYTES_MAX),
            limiter: RateLimiter::new(rate),
            counted: 0,
        }
    }

    /// Passes bytes to the connection. Blocks while the peer's flow control does not allow more bytes to be sent.
    fn write(&mut self, bytes: Bytes) -> Result<(), LaneError> {
        let started = Instant::now();
        let sending = self.connection.sending.as_mut().ok_or(LaneError::Stopped)?;
        let (written, waits) = block_on(sending.write_chunk(bytes));
        if waits > 0 && self.outstanding_max == LANE_OUTSTANDING_BYTES_MAX {
            self.connection
                .lane_bytes
                .note_window_limited(started.elapsed());
        }
        Ok(written.map_err(|error| lost_if(error.into()))?)
    }

    /// Returns the number of bytes to charge before `bytes` are passed to the connection. It includes `bytes` and all
    /// bytes that the connection has sent but that were not charged yet: the handshake, MTU discovery, packet headers
    /// and retransmissions.
    fn bytes_to_charge(&mut self, bytes: usize) -> usize {
        let sent = self.connection.connection.stats().udp_tx.bytes;
        let owed = bytes as u64 + sent.saturating_sub(self.counted);
        self.counted += owed;
        usize::try_from(owed).unwrap_or(usize::MAX)
    }

    fn write_paced(
        &mut self,
        mut bytes: Bytes,
        watch: &mut Stopwatch<'_>,
    ) -> Result<(), LaneError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(self.limiter.piece_bytes().min(bytes.len()));
            if self.limiter.rate.is_set() {
                let owed = self.bytes_to_charge(piece.len());
                self.limiter.throttle_now(owed, watch);
            }
            self.write(piece)?;
            watch.lap(ThreadState::Blocked);
        }
        Ok(())
    }

    /// Fills `out`. Returns the number of bytes filled, which is less than the length of `out` only at the end of the
    /// lane.
    fn fill(&mut self, out: &mut [u8], watch: &mut Stopwatch<'_>) -> Result<usize, LaneError> {
        let mut filled = 0;
        loop {
            while let Some(chunk) = self.arrived.front_mut() {
                let taken = chunk.len().min(out.len() - filled);
                out[filled..filled + taken].copy_from_slice(&chunk[..taken]);
                filled += taken;
                chunk.advance(taken);
                if !chunk.is_empty() {
                    return Ok(filled);
                }
                self.arrived.pop_front();
            }
            if filled == out.len() || self.ended {
                return Ok(filled);
            }
            watch.lap(ThreadState::Busy);
            self.await_chunks(watch)?;
        }
    }

    fn await_chunks(&mut self, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let came = block_on(self.connection.receiving.read_chunks(&mut self.room)).0;
        let came = came.map_err(|error| lost_if(error.into()))?;
        watch.lap(ThreadState::Starved);
        match came {
            Some(chunks) => {
                self.limiter
                    .throttle(self.room[..chunks].iter().map(Bytes::len).sum(), watch);
                self.arrived
                    .extend(self.room[..chunks].iter_mut().map(std::mem::take));
            }
            None => self.ended = true,
        }
        Ok(())
    }
}

/// Maximum number of unacknowledged bytes of one lane. Together with another frame, it fits into the receiver's window
/// for the lane. So a wait for that window always means that the receiver does not read.
const LANE_OUTSTANDING_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of unacknowledged bytes on all lanes of a sender. They may occupy most of the buffers that the
/// sender's readers fill.
const OUTSTANDING_BYTES_MAX: u64 = 64 << 20;
/// Minimum of a lane's limit of unacknowledged bytes. With a lower limit, the connection would run out of data while
/// the next frame is being prepared.
const OUTSTANDING_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of chunks taken from the connection in one call. The connection is locked during the call.
const CHUNKS_AT_ONCE: usize = 64;
/// Minimum size of data that is passed without a copy. Such data fills most of its buffer.
const UNCOPIED_BYTES_MIN: usize = 2 << 20;

impl LaneSink for QuicLane {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let copied = frame.data.len() < UNCOPIED_BYTES_MIN;
        let data_copied: &[u8] = if copied { &frame.data } else { &[] };
        let mut front =
            Vec::with_capacity(FrameHeader::BYTES + frame.head.len() + data_copied.len());
        front.extend_from_slice(&frame.header.encode());
        front.extend_from_slice(&frame.head);
        front.extend_from_slice(data_copied);
        watch.lap(ThreadState::Busy);
        self.connection
            .lane_bytes
            .wait(self.outstanding_max)
            .map_err(|_| LaneError::Closed)?;
        watch.lap(ThreadState::Blocked);
        let front = self.connection.lane_bytes.add(front);
        self.write_paced(front, watch)?;
        if !copied {
            let data = self.connection.lane_bytes.add(frame.data);
            self.write_paced(data, watch)?;
        }
        Ok(())
    }

    fn set_rate(&mut self, rate: SharedRate) {
        self.limiter = RateLimiter::new(rate);
        if self.limiter.rate.is_set() {
            let owed = self.bytes_to_charge(0);
            self.limiter.charge(owed);
        }
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        // QUIC accepts the end of a stream even if the connection is lost.
        if let Some(reason) = self.connection.connection.close_reason() {
            return Err(lost(reason).into());
        }
        Ok(self.connection.finish()?)
    }

    fn breaker(&self) -> LaneBreaker {
        LaneSource::breaker(self)
    }

    fn path(&self) -> PathProbe {
        self.connection.probe()
    }
}

impl QuicConnection {
    pub(crate) fn probe(&self) -> PathProbe {
        let connection = self.connection.clone();
        let lane_bytes = Arc::clone(&self.lane_bytes);
        let account = Arc::clone(&self.account);
        PathProbe::of_quic(move || info(&connection, &lane_bytes.byte_stats(), &account))
    }
}

/// Returns the statistics of the connection and of the lane's unacknowledged bytes, as the corresponding values of TCP.
fn info(
    connection: &quinn::Connection,
    byte_stats: &LaneByteStats,
    account: &PathAccount,
) -> TcpInfo {
    // The lane counts a frame as acknowledged only as a whole, so the connection's own count may be higher.
    let acked = account
        .acked
        .load(Ordering::Relaxed)
        .max(byte_stats.settled);
    let stats = connection.stats();
    let round_trip = stats.path.rtt;
    let mtu = u64::from(stats.path.current_mtu.max(1));
    TcpInfo {
        established: Some(connection.close_reason().is_none()),
        round_trip: Some(round_trip),
        round_trip_min: Some(connection.min_rtt()),
        congestion_window_segments: u32::try_from(stats.path.cwnd / mtu).ok(),
        // The most recently acknowledged bytes were sent one round trip earlier.
        since_data_sent: byte_stats.idle.map(|idle| {
            if idle.is_zero() {
                idle
            } else {
                idle + round_trip
            }
        }),
        segments_retransmitted: u32::try_from(stats.path.lost_packets).ok(),
        bytes_acked: Some(acked),
        bytes_sent: Some(stats.udp_tx.bytes),
        bytes_retransmitted: Some(stats.path.lost_bytes),
        busy: Some(byte_stats.busy),
        receive_window_limited: Some(byte_stats.window_limited),
        send_buffer_limited: Some(Duration::ZERO),
        ..TcpInfo::default()
    }
}

impl LaneSource for QuicLane {
    fn has_window(&self) -> bool {
        true
    }

    fn open_window(&mut self, window: LaneWindow) {
        self.connection
            .connection
            .set_receive_window(window.bytes().into());
    }

    fn receive(
        &mut self,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        Frame::receive_next(pool, watch, |out, watch| self.fill(out, watch))
    }

    fn breaker(&self) -> LaneBreaker {
        let connection = self.connection.connection.clone();
        self.limiter
            .breaker(LaneBreaker::new(move || connection.close(DROPPED, b"")))
    }
}

/// Runs a future on this thread, which sleeps while the future is pending. Also returns the number of waits.
fn block_on<F: Future>(future: F) -> (F::Output, u32) {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
    }
    let mut future = pin!(future);
    let waker = WAKER.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    let mut waits = 0;
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return (output, waits),
            Poll::Pending => thread::park(),
        }
        waits += 1;
    }
}
