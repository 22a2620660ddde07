//! Frames and the two ends of a lane, whatever carries it.
//!
//! A [`LaneSink`] and a [`LaneSource`] are blocking and each belongs to one thread. **Invariant:** a frame's data moves
//! as an owned [`Buffer`]; no end keeps a part of it after the call.

use std::fmt;
use std::io;
use std::sync::Arc;

use thiserror::Error;
use zmove_types::{Buffer, BufferPool, Doing, Stopwatch};
use zmove_wire::{FrameHeader, WireError};

use crate::control::{is_close, is_loss};
use crate::lane::rate_limiter::SharedRate;
use crate::path::PathProbe;
use crate::record::RecordError;

pub(crate) mod clear;
pub(crate) mod memory;
pub(crate) mod rate_limiter;
pub(crate) mod tls;

/// One frame: header, head, data.
#[derive(Debug)]
pub struct Frame {
    /// The header; its lengths are those of the fields below.
    pub header: FrameHeader,
    /// The description of the data.
    pub head: Vec<u8>,
    /// The data.
    pub data: Buffer,
}

impl Frame {
    /// Receives the next frame, or `None` at the peer's orderly end: `fill` fills a slice with the lane's next bytes
    /// and returns how much of it there was before that end.
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

    /// Receives the frame after its `header`: `fill` fills a slice completely with the lane's next bytes.
    pub(crate) fn receive(
        header: FrameHeader,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
        mut fill: impl FnMut(&mut [u8], &mut Stopwatch<'_>) -> Result<(), LaneError>,
    ) -> Result<Self, LaneError> {
        let mut head = vec![0; header.head_bytes as usize];
        fill(&mut head, watch)?;
        watch.lap(Doing::Busy);
        let data_bytes = header.data_bytes as usize;
        if data_bytes == 0 {
            return Ok(Self {
                header,
                head,
                data: Buffer::empty(),
            });
        }
        let mut data = pool.take().ok_or(LaneError::Stopped)?;
        watch.lap(Doing::Blocked);
        let mut filled = 0;
        for piece in data.room()[..data_bytes].chunks_mut(PIECE_BYTES) {
            fill(piece, watch)?;
            filled += piece.len() as u64;
            watch.has_at_hand(filled);
        }
        data.set_len(data_bytes);
        watch.lap(Doing::Busy);
        Ok(Self { header, head, data })
    }
}

/// How much of a frame comes before it is noted: whole records of TLS, which are opened straight into the buffer.
const PIECE_BYTES: usize = 256 << 10;

/// The sending end of a lane.
pub trait LaneSink: Send {
    /// Waits until the lane can send more, so that frames it would take meanwhile stay for other lanes. By default a
    /// lane always can.
    ///
    /// # Errors
    /// [`LaneError`] when the lane is gone.
    fn await_room(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    /// Sends one frame; books encryption, if there is any, as busy and the wait for the path as blocked.
    ///
    /// # Errors
    /// [`LaneError`] when the lane is gone; the frame may or may not have arrived.
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError>;

    /// Sends no faster than `rate` from now on, together with all others that keep it, and books the wait for that as
    /// paced. By default a lane keeps none.
    fn hold_to(&mut self, _rate: SharedRate) {}

    /// Says that no frame follows.
    ///
    /// # Errors
    /// [`LaneError`] when the lane is gone.
    fn finish(&mut self) -> Result<(), LaneError>;

    /// A breaker of the lane, for other threads.
    fn breaker(&self) -> LaneBreaker;

    /// A probe of the lane's connection, for any thread; by default it reports nothing.
    fn path(&self) -> PathProbe {
        PathProbe::default()
    }
}

/// How many bytes of a lane may wait in this process until they are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneWindow {
    /// Enough to keep a long path busy with one lane.
    Wide,
    /// Enough where there are many lanes.
    Narrow,
    /// The least that a lane needs to make progress.
    Least,
}

impl LaneWindow {
    /// The most bytes that wait.
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
    /// Whether arrived bytes wait in this process, by a [window](LaneWindow) that is to be opened; by default they wait
    /// in the kernel.
    fn has_window(&self) -> bool {
        false
    }

    /// Lets the peer send so much before it is received.
    fn open_window(&mut self, _window: LaneWindow) {}

    /// Waits for a frame, its data in a buffer of `pool`; `None` after the peer's last. Books the wait for the path as
    /// starved, that for a buffer as blocked, that for the lane's rate as paced, and decryption as busy. What has come
    /// of its data is noted as at hand, until the caller notes that it is not.
    ///
    /// # Errors
    /// [`LaneError`] when the lane is gone, the pool is closed or the bytes are no frame.
    fn receive(
        &mut self,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError>;

    /// A breaker of the lane, for other threads.
    fn breaker(&self) -> LaneBreaker;

    /// A probe of the lane's connection, for any thread; by default it reports nothing.
    fn path(&self) -> PathProbe {
        PathProbe::default()
    }
}

/// Breaks a lane: a thread that waits on it gets an error.
#[derive(Clone)]
pub struct LaneBreaker(Arc<dyn Fn() + Send + Sync>);

impl LaneBreaker {
    /// A breaker that runs `action`, which must not block.
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(action))
    }

    /// Breaks the lane; idempotent.
    pub fn trip(&self) {
        (self.0)();
    }
}

impl fmt::Debug for LaneBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneBreaker")
    }
}

/// Why a lane ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The other end is gone without an orderly end.
    #[error("data lane: the peer closed the connection")]
    Closed,
    /// The transfer is being stopped on this side.
    #[error("data lane: stopped")]
    Stopped,
    /// The operating system has returned an error.
    #[error("data lane: {source}")]
    Io {
        /// The error.
        source: io::Error,
    },
    /// TLS could not hand the connection over.
    #[error("data lane: {0}")]
    Tls(#[from] rustls::Error),
    /// A record is not one of the peer's.
    #[error("data lane: {0}")]
    Record(#[from] RecordError),
    /// A frame on a lane in clear is not the peer's next one: it was changed, repeated, moved, or is of another lane.
    #[error("data lane: a frame does not authenticate")]
    Forged,
    /// The bytes are no frame.
    #[error("data lane: {0}")]
    Wire(#[from] WireError),
}

impl LaneError {
    /// Whether the connection was lost, in contrast to bytes on it that cannot be right.
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
