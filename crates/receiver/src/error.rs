//! Errors that end a whole session. The failure of a single file is a [`Fault`](zmove_wire::Fault) and does not end the
//! session.

use std::io;

use thiserror::Error;
use zmove_transport::{ControlError, LaneError};
use zmove_wire::limits::{PROBE_BYTES_MAX, PROBE_SECONDS_MAX};
use zmove_wire::{Refusal, WireError};

/// The reason why a session ended before its transfer was complete.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The receiver is shutting down.
    #[error("the receiver is shutting down")]
    Stopping,
    /// The operator of this host has ended the transfer. The peer is informed of the reason.
    #[error("{}", .0.text)]
    CutOff(Refusal),
    /// The sender has started a new session for the same run.
    #[error("the sender restarted the session over new connections")]
    Superseded,
    /// The peer has violated the protocol.
    #[error("the sender broke the protocol: {0}")]
    PeerMisbehaved(#[from] WireError),
    /// The control connection ended.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// A lane failed during the transfer.
    #[error("{0}")]
    Lane(#[from] LaneError),
    /// The transfer was refused. The peer was informed of the reason.
    #[error("refused: {}", .0.text)]
    Refused(Refusal),
    /// The target could not be flushed.
    #[error("flush the target: {0}")]
    Flush(#[source] io::Error),
    /// The peer has opened a connection but has not sent its opening in time.
    #[error("the sender did not send its request in time")]
    Silent,
    /// A probe exceeded its time limit.
    #[error("the probe takes longer than the limit of {PROBE_SECONDS_MAX} s")]
    ProbeTooLong,
    /// A probe sent more data than allowed.
    #[error(
        "the probe sends more than the limit of {}",
        zmove_types::ByteCount(PROBE_BYTES_MAX)
    )]
    ProbeTooLarge,
    /// This side could not start a thread.
    #[error("start a thread (raise the limit on processes, 'ulimit -u' or TasksMax=): {0}")]
    Thread(#[source] io::Error),
    /// A thread panicked because of a bug on this side.
    #[error("a thread of the receiver panicked; see the receiver's log")]
    Panicked,
}

impl SessionError {
    /// Returns the error for a message that the peer may not send in the current state.
    pub(crate) const fn out_of_order(what: &'static str) -> Self {
        Self::PeerMisbehaved(WireError::OutOfOrder { what })
    }

    /// Returns whether a connection was lost, so that another session may succeed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Control(error) => error.is_lost(),
            Self::Lane(error) => error.is_lost(),
            Self::Silent => true,
            _ => false,
        }
    }

    /// Returns a one-word name of the error's kind, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::CutOff(_) => "cut_off",
            Self::Superseded => "superseded",
            Self::PeerMisbehaved(_) => "protocol",
            Self::Control(_) => "control",
            Self::Lane(_) => "lane",
            Self::Refused(_) => "refused",
            Self::Flush(_) => "flush",
            Self::Silent => "silent",
            Self::ProbeTooLong | Self::ProbeTooLarge => "probe",
            Self::Thread(_) => "thread",
            Self::Panicked => "panic",
        }
    }
}
