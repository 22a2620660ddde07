//! The errors that end a whole push.

use std::io;
use std::time::Duration;

use thiserror::Error;
use zmove_transport::{ControlError, LaneError};
use zmove_wire::{Refusal, WireError};

/// Why a push ended before everything was settled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The receiver refuses the transfer.
    #[error("receiver: {}", .0.text)]
    Refused(Refusal),
    /// The receiver has had no room for the transfer for as long as the sender was to wait.
    #[error("receiver: {reason}; its turn has not come within {} s", waited.as_secs_f64())]
    StillInLine {
        /// The reason for the wait, in the receiver's words.
        reason: String,
        /// The time waited.
        waited: Duration,
    },
    /// The peer broke the protocol.
    #[error("the receiver broke the protocol: {0}")]
    PeerMisbehaved(#[from] WireError),
    /// The control connection ended.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// A lane ended in mid-transfer.
    #[error("{0}")]
    Lane(#[from] LaneError),
    /// The user stopped the push.
    #[error("interrupted")]
    Interrupted,
    /// No lane could be set up.
    #[error("no data lane could be set up")]
    NoLane,
    /// The receiver has not answered the opening in time, or later says nothing more.
    #[error("the receiver does not answer")]
    Silent,
    /// The receiver did not answer, or the connection was lost, before anything had been asked of it.
    #[error("{0}")]
    NothingAsked(Box<Self>),
    /// The manifest could not be written.
    #[error("write the manifest: {0}")]
    Manifest(#[source] io::Error),
    /// This side could not start a thread.
    #[error("start a thread (raise the limit on processes, 'ulimit -u' or TasksMax=): {0}")]
    Thread(#[source] io::Error),
}

impl SessionError {
    /// Whether the receiver has had no room for the transfer, and may have some later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_busy())
    }

    /// Whether connections were lost, or never came about, so that another session may succeed without a change of
    /// settings. A message that makes no sense, or does not authenticate, is no such thing.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.may_pass(),
            Self::Control(error) => error.is_lost(),
            Self::Lane(error) => error.is_lost(),
            Self::NoLane | Self::Silent => true,
            Self::NothingAsked(error) => error.is_lost(),
            Self::PeerMisbehaved(_)
            | Self::StillInLine { .. }
            | Self::Interrupted
            | Self::Manifest(_)
            | Self::Thread(_) => false,
        }
    }
}
