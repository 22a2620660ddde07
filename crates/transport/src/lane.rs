//! Frames and the two ends of a lane, independent of the transport.
//!
//! A [`LaneSink`] and a [`LaneSource`] are blocking, and each belongs to one thread. **Invariant:** the data of a frame
//! is moved as an owned [`Buffer`]. Neither end keeps any part of it after the call.

use std::fmt;
use std::io;
use std::sync::Arc;

use thiserror::Error;
use zmove_types::{Buffer, BufferPool, Stopwatch, ThreadState};
use zmove_wire::{FrameHeader, WireError};

use crate::control::{is_close, is_loss};
use crate::lane::rate_limiter::SharedRate;
use crate::path::PathProbe;
use crate::record::RecordError;

pub(crate) mod clear;
pub(crate) mod memory;
pub(crate) mod rate_limiter;
pub(crate) mod tls;

/// One frame, which consists of a header, a head and data.
#[derive(Debug)]
pub struct Frame {
    /// The header. Its lengths match the fields below.
    pub header: FrameHeader,
    /// The head, which describes the data.
    pub head: Vec<u8>,
    /// The data.
    pub data: Buffer,
}

impl Frame {
    /// Receives the next frame, or returns `None` if the peer has ended the lane. `fill` writes the lane's next bytes
    /// to a slice. It returns the number of bytes written, which is less than the length of the slice only at the end
    /// of the lane.
    pub(crate) fn receive_next(
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
        mut fill: impl FnMut(&mut [u8], &mut Stopwatch<'_>) -> Result<usize, LaneError>,
    ) -> Result<Option<Self>, LaneError> {
        let mut header = [0; FrameHeader::BYTES];
        match fill(&mut header, watch)? {
            0 => return Ok(None),
            FrameHeader::BYTES => {}
            _ => return Err(LaneError::Closed),
        }
        let header = FrameHeader::decode(&header)?;
        let fill_all = |out: &mut [u8], watch: &mut Stopwatch<'_>| {
            if fill(out, watch)? == out.len() {
                Ok(())
            } else {
                Err(LaneError::Closed)
            }
        };
        Self::receive(header, pool, watch, fill_all).map(Some)
    }

    /// Receives the rest of a frame after its `header`. `fill` must fill the whole slice with the lane's next bytes.
    pub(crate) fn receive(
        header: FrameHeader,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
        mut fill: impl FnMut(&mut [u8], &mut Stopwatch<'_>) -> Result<(), LaneError>,
    ) -> Result<Self, LaneError> {
        let mut head = vec![0; header.head_bytes as usize];
        fill(&mut head, watch)?;
        watch.lap(ThreadState::Busy);
        let data_bytes = header.data_bytes as usize;
        if data_bytes == 0 {
            return Ok(Self {
                header,
                head,
                data: Buffer::empty(),
            });
        }
        let mut data = pool.take().ok_or(LaneError::Stopped)?;
        watch.lap(ThreadState::Blocked);
        let mut filled = 0;
        for piece in data.room()[..data_bytes].chunks_mut(PIECE_BYTES) {
            fill(piece, watch)?;
            filled += piece.len() as u64;
            watch.set_bytes_in_progress(filled);
        }
        data.set_len(data_bytes);
        watch.lap(ThreadState::Busy);
        Ok(Self { header, head, data })
    }
}

/// Number of received bytes after which progress is recorded. It is a multiple of the TLS record size, because records
/// are decrypted directly into the buffer.
const PIECE_BYTES: usize = 256 << 10;

/// The sending end of a lane.
pub trait LaneSink: Send {
    /// Waits until the lane can send more data. Meanwhile, other lanes can take the next frames. The default
    /// implementation does not wait.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection is lost.
    fn await_room(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    /// Sends one frame. The time for encryption is recorded as busy, and the time spent waiting for the network is
    /// recorded as blocked.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection is lost. The peer may or may not have received the frame.
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError>;

    /// Limits the lane to `rate`. All lanes with clones of the same rate share it. Time spent waiting for the rate is
    /// recorded as paced. The default implementation ignores the rate.
    fn set_rate(&mut self, _rate: SharedRate) {}

    /// Ends the lane. No frame may follow.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection is lost.
    fn finish(&mut self) -> Result<(), LaneError>;

    /// Returns a handle with which other threads can break the lane.
    fn breaker(&self) -> LaneBreaker;

    /// Returns a probe of the lane's connection, which any thread may use. The default probe reports nothing.
    fn path(&self) -> PathProbe {
        PathProbe::default()
    }
}

/// The maximum number of received bytes of a lane that this process buffers until a thread takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneWindow {
    /// A window that lets a single lane use a long path fully.
    Wide,
    /// A window that suffices if there are many lanes.
    Narrow,
    /// The smallest window with which a lane can make progress.
    Least,
}

impl LaneWindow {
    /// Returns the size of the window in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Wide => 20 << 20,
            Self::Narrow => 4 << 20,
            Self::Least => 1 << 20,
        }
    }
}

/// The receiving end of a lane.
pub trait LaneSource: Send {
    /// Returns whether received bytes are buffered in this process instead of in the kernel. If so, the caller must
    /// open a [window](LaneWindow). The default implementation returns false.
    fn has_window(&self) -> bool {
        false
    }

    /// Sets the number of bytes that the peer may send before this side takes them.
    fn open_window(&mut self, _window: LaneWindow) {}

    /// Waits for a frame and returns it with its data in a buffer of `pool`, or returns `None` after the peer's last
    /// frame. The time is recorded by cause: waiting for the network as starved, waiting for a buffer as blocked,
    /// waiting for the rate limit as paced, and decryption as busy. The received bytes of the frame are recorded as in
    /// progress until the caller resets that count.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection is lost, if the pool is closed, or if the bytes are not a frame.
    fn receive(
        &mut self,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError>;

    /// Returns a handle with which other threads can break the lane.
    fn breaker(&self) -> LaneBreaker;

    /// Returns a probe of the lane's connection, which any thread may use. The default probe reports nothing.
    fn path(&self) -> PathProbe {
        PathProbe::default()
    }
}

/// Breaks a lane, so that a thread that waits on it gets an error.
#[derive(Clone)]
pub struct LaneBreaker(Arc<dyn Fn() + Send + Sync>);

impl LaneBreaker {
    /// Creates a breaker that runs `action`, which must not block.
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(action))
    }

    /// Breaks the lane. Idempotent.
    pub fn trip(&self) {
        (self.0)();
    }
}

impl fmt::Debug for LaneBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneBreaker")
    }
}

/// The reason why a lane ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The peer closed the connection without ending the lane first.
    #[error("data lane: the peer closed the connection")]
    Closed,
    /// This side is stopping the transfer.
    #[error("data lane: stopped")]
    Stopped,
    /// The operating system has returned an error.
    #[error("data lane: {source}")]
    Io {
        /// The underlying error.
        source: io::Error,
    },
    /// TLS could not pass the connection to the lane.
    #[error("data lane: {0}")]
    Tls(#[from] rustls::Error),
    /// A TLS record is not valid.
    #[error("data lane: {0}")]
    Record(#[from] RecordError),
    /// A frame on an unencrypted lane is not the next frame of the peer: it was modified, replayed or reordered, or
    /// belongs to another lane.
    #[error("data lane: a frame failed authentication")]
    Forged,
    /// The bytes are not a frame.
    #[error("data lane: {0}")]
    Wire(#[from] WireError),
}

impl LaneError {
    /// Returns whether the connection was lost. Returns false if the bytes on the connection were invalid.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Io { source } => is_loss(source),
            Self::Stopped | Self::Tls(_) | Self::Record(_) | Self::Forged | Self::Wire(_) => false,
        }
    }
}

impl From<io::Error> for LaneError {
    fn from(source: io::Error) -> Self {
        if is_close(&source) {
            Self::Closed
        } else {
            Self::Io { source }
        }
    }
}
