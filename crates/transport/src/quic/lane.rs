//! A lane over QUIC: its thread passes frames to the connection and takes arrived bytes, without a queue in between.
//!
//! The connection's work (packets, encryption, acknowledgements) is done by its endpoint's thread. A large frame's
//! buffer goes to quinn as it is and comes back when it has been acknowledged; a small frame is copied, so that the few
//! buffers do not all wait for acknowledgements. Data that has arrived is copied once, into the buffer of its frame.
//!
//! Frames are read in order. A frame's place in the stream is known only when those before it have come, and reading
//! out of order would save no time, only the memory of data behind a lost packet.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use zmove_sockopt::TcpInfo;
use zmove_types::{BufferPool, Doing, Stopwatch};
use zmove_wire::FrameHeader;

use crate::lane::rate_limiter::{RateLimiter, SharedRate};
use crate::lane::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource, LaneWindow};
use crate::path::PathProbe;

use super::lane_bytes::Balance;
use super::tolerant::PathAccount;
use super::{DROPPED, QuicConnection, lost, lost_if};

/// One end of a lane over QUIC; the dialler sends, the acceptor receives, or the other way round.
pub(crate) struct QuicLane {
    connection: QuicConnection,
    arrived: VecDeque<Bytes>,
    room: Vec<Bytes>,
    ended: bool,
    /// The most bytes that may be outstanding when the next frame is passed to the connection.
    outstanding_max: u64,
    /// The share in the rate by which the lane receives or sends.
    limiter: RateLimiter,
    /// The bytes of what is sent that the limiter has counted.
    counted: u64,
}

impl QuicLane {
    /// One of `lanes` lanes, on a connection whose greeting has passed. It receives no faster than `rate`, and lets the
    /// peer send little before its window is opened.
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

    /// Passes one piece to the connection; waits where that has no credit.
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

    /// The bytes that the limiter is to count before `bytes` more are given to the connection: them, and what it has
    /// sent beside all that
    /// was given to it. That is its handshake, its search for the path's MTU, heads of packets, what was lost.
    fn owed(&mut self, bytes: usize) -> usize {
        let sent = self.connection.connection.stats().udp_tx.bytes;
        let owed = bytes as u64 + sent.saturating_sub(self.counted);
        self.counted += owed;
        usize::try_from(owed).unwrap_or(usize::MAX)
    }

    fn write_at_pace(
        &mut self,
        mut bytes: Bytes,
        watch: &mut Stopwatch<'_>,
    ) -> Result<(), LaneError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(self.limiter.piece_bytes().min(bytes.len()));
            if self.limiter.rate.is_set() {
                let owed = self.owed(piece.len());
                self.limiter.throttle_now(owed, watch);
            }
            self.write(piece)?;
            watch.lap(Doing::Blocked);
        }
        Ok(())
    }

    /// Fills `out`; returns how much of it was filled before the peer's orderly end.
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
            watch.lap(Doing::Busy);
            self.await_chunks(watch)?;
        }
    }

    fn await_chunks(&mut self, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let came = block_on(self.connection.receiving.read_chunks(&mut self.room)).0;
        let came = came.map_err(|error| lost_if(error.into()))?;
        watch.lap(Doing::Starved);
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

/// The most bytes that one lane may have outstanding: with one more frame, no more than the receiver's window for it.
/// So a wait for that window means that the receiver does not read, and nothing else.
const LANE_OUTSTANDING_BYTES_MAX: u64 = 16 << 20;
/// The most bytes that all lanes of a sender together may have outstanding: most of the buffers that its readers fill.
const OUTSTANDING_BYTES_MAX: u64 = 64 << 20;
/// The least limit of outstanding bytes: less could not keep a connection busy while the next frame is made.
const OUTSTANDING_BYTES_MIN: u64 = 1 << 20;
/// The most chunks taken at a time: the connection is locked meanwhile.
const CHUNKS_AT_ONCE: usize = 64;
/// The least data that is not copied: it fills most of its buffer.
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
        watch.lap(Doing::Busy);
        self.connection
            .lane_bytes
            .wait(self.outstanding_max)
            .map_err(|_| LaneError::Closed)?;
        watch.lap(Doing::Blocked);
        let front = self.connection.lane_bytes.add(front);
        self.write_at_pace(front, watch)?;
        if !copied {
            let data = self.connection.lane_bytes.add(frame.data);
            self.write_at_pace(data, watch)?;
        }
        Ok(())
    }

    fn hold_to(&mut self, rate: SharedRate) {
        self.limiter = RateLimiter::new(rate);
        if self.limiter.rate.is_set() {
            let owed = self.owed(0);
            self.limiter.book(owed);
        }
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        // QUIC accepts the end of a stream although it will never arrive.
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
        PathProbe::of_quic(move || info(&connection, &lane_bytes.balance(), &account))
    }
}

/// What QUIC and the lane's bytes under way tell, in the terms of TCP.
fn info(connection: &quinn::Connection, balance: &Balance, account: &PathAccount) -> TcpInfo {
    // a frame's bytes are settled together
    let acked = account.acked.load(Ordering::Relaxed).max(balance.settled);
    let stats = connection.stats();
    let round_trip = stats.path.rtt;
    let mtu = u64::from(stats.path.current_mtu.max(1));
    TcpInfo {
        established: Some(connection.close_reason().is_none()),
        round_trip: Some(round_trip),
        round_trip_min: Some(connection.min_rtt()),
        congestion_window_segments: u32::try_from(stats.path.cwnd / mtu).ok(),
        // The bytes that were settled last had left a round trip before.
        since_data_sent: balance.idle.map(|idle| {
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
        busy: Some(balance.busy),
        receive_window_limited: Some(balance.window_limited),
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

/// Runs a future on this thread, which sleeps while it waits; also returns how often it did.
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
