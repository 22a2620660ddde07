//! Errors of work queues, movers and sessions.

use std::time::Duration;

use zmove_engine::ConnectError;
use zmove_sender::{SessionEnded, SessionError};
use zmove_wire::{FaultCode, Operation, Refusal, RefusalCode, SharedJobResult};

/// The reason why a request to the queue failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The job has ended.
    #[error("the push has ended")]
    Over,
    /// The queue cannot be reached or refused the request.
    #[error("{operation}: {source}")]
    Queue {
        /// The request to the queue.
        operation: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The queue lost items in each pass over the sources.
    #[error(
        "the broker may have lost work in each of {passes} passes over the sources, so {unconfirmed} may be \
         incomplete at the target (check whether the broker restarts repeatedly, and run the same command again)"
    )]
    RepeatedLosses {
        /// Number of passes.
        passes: u32,
        /// The sources, formatted for display.
        unconfirmed: String,
    },
    /// The queue accepted no item of the job.
    #[error(
        "begin a pass over the sources: the queue has accepted no work for {} s (check the free space of the broker)",
        .0.as_secs()
    )]
    Full(Duration),
    /// A server was reached, but this node cannot use it as a broker.
    #[error(transparent)]
    UnusableServer(#[from] BrokerMismatch),
}

/// The reason why the server at the broker's address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerMismatch {
    /// The broker refuses this node.
    #[error("{0}")]
    Refused(String),
    /// Another server or another program listens at the address.
    #[error("{0}")]
    Another(String),
}

/// The result of a work item that panicked.
pub(crate) const PANICKED: SessionEnd = SessionEnd::Panicked("a work item panicked");
pub(crate) const MOVER_PANICKED: SessionEnd = SessionEnd::Panicked("a mover panicked");

/// The reason why a session ended before its work was complete.
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    /// The receiver cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session failed or was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The receiver cannot record completed work, because its storage is full or a quota is exhausted.
    #[error("receiver: {operation} '{target}': {code} (at {receiver})")]
    NoRoom {
        /// The receiver.
        receiver: String,
        /// The target at the receiver.
        target: String,
        /// The operation that failed.
        operation: Operation,
        /// The cause.
        code: FaultCode,
    },
    /// Several consecutive sessions made no progress.
    #[error("{last}; {sessions} consecutive sessions were lost without any progress")]
    InVain {
        /// Number of consecutive sessions without progress.
        sessions: u32,
        /// Error of the last session.
        last: Box<Self>,
    },
    /// The work in the session failed because the session is over.
    #[error(transparent)]
    SessionOver(#[from] SessionEnded),
    /// The job was closed, or was removed because it was considered dead.
    #[error("{}", WorkError::Over)]
    JobClosed,
    /// The receiver could not carry out an order. Work that the receiver has not recorded does not count as done.
    #[error("the receiver failed to {operation}: {code}")]
    Receiver {
        /// The operation that failed.
        operation: Operation,
        /// The cause.
        code: FaultCode,
    },
    /// The receiver is connected but did not answer an order within this time.
    #[error("its storage hangs: an order has been unanswered for {} s", _0.as_secs())]
    OrderTimeout(Duration),
    /// The receiver is connected, but a work item made no progress there within this time. The mover leaves the item to
    /// other movers.
    #[error("its storage hangs: work there did not finish within {} s", _0.as_secs())]
    Stalled(Duration),
    /// The queue failed for longer than the caller's patience.
    #[error("{0}")]
    Queue(#[from] WorkError),
    /// All movers have stopped.
    #[error("all movers stopped: {0}")]
    AllMoversStopped(Box<Self>),
    /// A receiver does not see the job that was started at another receiver.
    #[error(
        "{unseen_at} does not see the push that is running on {seen_at}: all receivers must share one directory \
         '{target}' (check that its storage is mounted on each)"
    )]
    NotShared {
        /// The receiver that does not see the job.
        unseen_at: String,
        /// A receiver that sees the job.
        seen_at: String,
        /// The target path that was requested from all receivers.
        target: String,
    },
    /// This node sees different sources than another node, and this node is not the head.
    #[error("this node does not see the same sources as the sending node: failed to {0}")]
    SourcesDiffer(String),
    /// The receiver violated the protocol, or the queue contains an invalid item.
    #[error("{0}")]
    PeerMisbehaved(&'static str),
    /// A task of this process panicked.
    #[error("{0}")]
    Panicked(&'static str),
}

impl SessionEnd {
    /// Returns the error for a job whose last mover has stopped with this error. A failure of the queue or a lack of
    /// space concerns all movers.
    pub(crate) fn of_all_movers(self) -> Self {
        match self {
            Self::Queue(_) | Self::NoRoom { .. } => self,
            other => Self::AllMoversStopped(Box::new(other)),
        }
    }

    /// Returns whether no session with any receiver can succeed after this error, because all receivers share the same
    /// storage.
    pub(crate) fn ends_all(&self) -> bool {
        matches!(
            self,
            Self::NoRoom { .. }
                | Self::JobClosed
                | Self::AllMoversStopped(_)
                | Self::Queue(_)
                | Self::NotShared { .. }
                | Self::SourcesDiffer(_)
        )
    }

    /// Returns the operation for which the receiver found no space, and the error code.
    pub(crate) fn found_no_room(&self) -> Option<(Operation, FaultCode)> {
        match self {
            Self::Receiver { operation, code } if code.is_no_room() => Some((*operation, *code)),
            Self::Session(SessionError::Refused(refusal)) => {
                Some((Operation::Write, no_room_of(refusal)?))
            }
            _ => None,
        }
    }

    /// Returns whether the session ended before the receiver did any work: the session could not connect, or the
    /// receiver refused it. Such a session leaves nothing behind at the receiver.
    pub(crate) fn is_refusal(&self) -> bool {
        use RefusalCode::{Broken, Failed};
        match self {
            Self::Connect(_)
            | Self::NoRoom { .. }
            | Self::Session(SessionError::NothingAsked(_)) => true,
            Self::Session(SessionError::Refused(refusal)) => {
                !matches!(refusal.code, Broken | Failed)
            }
            _ => false,
        }
    }

    /// Returns whether a receiver reported that the job is not running there.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Session(SessionError::Refused(refusal)) if refusal.code == RefusalCode::NotUnderWay)
    }

    /// Returns whether the only problem is that the receiver cannot be reached.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_lost(),
            Self::Session(error) => error.is_lost(),
            other => matches!(other, Self::SessionOver(_)),
        }
    }

    /// Returns whether another session with the same receiver is useless.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Session(_) => !self.is_away(),
            other => matches!(
                other,
                Self::NoRoom { .. } | Self::JobClosed | Self::PeerMisbehaved(_) | Self::Panicked(_)
            ),
        }
    }
}

/// Returns the error code for a session that was refused because there was no space for its journal. A refusal contains
/// this code only in its text.
fn no_room_of(refusal: &Refusal) -> Option<FaultCode> {
    let says = |code: &FaultCode| refusal.text.contains(&code.to_string());
    FaultCode::NO_ROOM
        .into_iter()
        .find(says)
        .filter(|_| refusal.code == RefusalCode::Target)
}

/// Returns the reason to stop for an order that was not carried out. The session ends, and work that the receiver has
/// not recorded is done again.
pub(crate) fn refused(result: SharedJobResult) -> SessionEnd {
    match result {
        SharedJobResult::Failed(_, FaultCode::JobEnded) => SessionEnd::JobClosed,
        SharedJobResult::Failed(operation, code) => SessionEnd::Receiver { operation, code },
        _ => SessionEnd::PeerMisbehaved("the receiver answered a different order"),
    }
}
