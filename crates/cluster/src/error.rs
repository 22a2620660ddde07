//! Why work cannot be had, or does not go on.

use std::time::Duration;

use zmove_engine::ConnectError;
use zmove_sender::{SessionError, SessionOver};
use zmove_wire::{FaultCode, Operation, SharedJobResult};

/// Why work cannot be had, or told of.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// What the queue holds is no work item of this job.
    #[error("read a work item: {0}")]
    Item(#[from] postcard::Error),
    /// A work item that makes no sense.
    #[error("read a work item: {0}")]
    Nonsense(&'static str),
    /// The job has ended, or another epoch of it has begun.
    #[error("the job has ended, or has been begun anew by another head")]
    Over,
    /// The broker of the queue has been away for longer than anybody waits.
    #[error("{operation}: the broker {broker} has been away for {} s: {source}", away.as_secs())]
    Away {
        /// What was asked of the queue.
        operation: &'static str,
        /// The broker's address.
        broker: String,
        /// How long.
        away: Duration,
        /// What the last request has come to.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The queue cannot be reached, or has refused.
    #[error("{operation}: {source}")]
    Queue {
        /// What was asked of the queue.
        operation: &'static str,
        /// Why it was not done.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a mover stops.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The session is over.
    #[error(transparent)]
    Session(#[from] SessionOver),
    /// A newer epoch of the job has begun, or the job has been closed.
    #[error("another epoch of the job has begun, or the job has ended")]
    Fenced,
    /// The receiver could not do what it was told to: nothing that it has not recorded counts.
    #[error("the receiver failed to {operation}: {code}")]
    Receiver {
        /// What it was doing.
        operation: Operation,
        /// Why it could not.
        code: FaultCode,
    },
    /// The queue fails, and whoever asked it has had patience.
    #[error("{0}")]
    Queue(#[from] WorkError),
    /// No mover goes on.
    #[error("no mover goes on: {0}")]
    Movers(Box<SessionEnd>),
    /// Work has not ended that no walk of the sources finds any more.
    #[error(
        "{0} work items have not ended, and no walk of the sources finds them: they have changed meanwhile"
    )]
    Missing(u64),
    /// This node sees other sources than another, and does not lead.
    #[error("this node does not see the same sources: failed to {0}")]
    Differs(String),
    /// The protocol has been broken, by the receiver or by what the queue holds.
    #[error("{0}")]
    Nonsense(&'static str),
}

/// Why a session has ended before its work has.
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    /// The receiver cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session has broken off, or was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// What was done in it could not go on.
    #[error(transparent)]
    Stop(#[from] Stop),
}

impl SessionEnd {
    /// The queue's failure, if there is nothing else.
    pub(crate) fn into_queue_failure(self) -> Result<WorkError, Self> {
        match self {
            Self::Stop(Stop::Queue(error)) => Ok(error),
            Self::Stop(Stop::Movers(end)) => {
                end.into_queue_failure().map_err(|end| Self::Stop(Stop::Movers(Box::new(end))))
            }
            other => Err(other),
        }
    }

    /// Whether no session with any receiver is of use after this.
    pub(crate) fn ends_all(&self) -> bool {
        let Self::Stop(stop) = self else { return false };
        matches!(stop, Stop::Fenced | Stop::Movers(_) | Stop::Missing(_) | Stop::Queue(_) | Stop::Differs(_))
    }

    /// Whether nothing is gained by another session with the same receiver.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Connect(error) => !error.is_lost(),
            Self::Session(error) => !error.is_lost(),
            Self::Stop(stop) => matches!(stop, Stop::Fenced | Stop::Nonsense(_)),
        }
    }
}

/// An order that was not done, for which the session ends: what it has not recorded is done again.
pub(crate) fn refused(result: SharedJobResult) -> Stop {
    match result {
        SharedJobResult::Failed(_, FaultCode::Fenced) => Stop::Fenced,
        SharedJobResult::Failed(operation, code) => Stop::Receiver { operation, code },
        _ => Stop::Nonsense("the receiver has answered to another order"),
    }
}
