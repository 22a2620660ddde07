//! Errors that end a whole push.

use std::io;
use std::time::Duration;

use thiserror::Error;
use zmove_transport::{ControlError, LaneError};
use zmove_wire::{Refusal, WireError};

/// The error that ended a push before every entry was settled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The receiver refuses the transfer.
    #[error("receiver: {}", .0.text)]
    Refused(Refusal),
    /// The receiver had no room for the transfer during the whole time that the sender was configured to wait.
    #[error("receiver: {reason}; still waiting in line after {} s", waited.as_secs_f64())]
    StillInLine {
        /// The reason for the wait, as reported by the receiver.
        reason: String,
        /// How long the sender waited.
        waited: Duration,
    },
    /// The peer violated the protocol.
    #[error("the receiver broke the protocol: {0}")]
    PeerMisbehaved(#[from] WireError),
    /// The control connection ended.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// A lane failed during the transfer.
    #[error("{0}")]
    Lane(#[from] LaneError),
    /// The user stopped the push.
    #[error("interrupted")]
    Interrupted,
    /// No lane could be set up.
    #[error("no data lane could be set up")]
    NoLane,
    /// The receiver did not answer the opening in time, or stopped answering later.
    #[error("the receiver does not answer")]
    Silent,
    /// The receiver did not answer, or the connection was lost, before the sender had sent its first request.
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
    /// Returns whether the receiver had no room for the transfer but may have room later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_busy())
    }

    /// Returns whether another session may succeed without a change of settings, because connections were lost or could
    /// not be established, or because the receiver's refusal may be temporary. A malformed or unauthenticated message
    /// does not count as a lost connection.
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
