//! Why work cannot be had, or does not go on.

use std::time::Duration;

use zmove_engine::ConnectError;
use zmove_sender::{SessionError, SessionOver};
use zmove_wire::{FaultCode, Operation, Refusal, RefusalCode, SharedJobResult};

/// Why work cannot be had, or told of.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The job has ended.
    #[error("the push has ended")]
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
    /// The queue has lost items in each pass.
    #[error(
        "the broker may have lost work in each of {passes} passes over the sources (is it restarted again and again?): what \
         the last one has lost is not known, so not all of {unconfirmed} may be at the target"
    )]
    Loses {
        /// How many passes.
        passes: u32,
        /// The sources, as they are shown.
        unconfirmed: String,
    },
    /// Somebody is there, and no broker for this node.
    #[error(transparent)]
    Hindered(#[from] Hindrance),
}

/// Why whoever listens at the broker's address is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hindrance {
    /// The broker does not let this node in.
    #[error("the broker {broker} does not let this node in: {why}")]
    Refused {
        /// The broker's address.
        broker: String,
        /// What it says.
        why: String,
    },
    /// Another server listens there, or another program.
    #[error("{0}")]
    Another(String),
}

/// Why a mover stops.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The session is over.
    #[error(transparent)]
    Session(#[from] SessionOver),
    /// The job has been closed, or removed as dead.
    #[error("{}", WorkError::Over)]
    Ended,
    /// The receiver could not do what it was told to: nothing that it has not recorded counts.
    #[error("the receiver failed to {operation}: {code}")]
    Receiver {
        /// What it was doing.
        operation: Operation,
        /// Why it could not.
        code: FaultCode,
    },
    /// The receiver is there, and has not done for so long what it was told to.
    #[error("its storage hangs: an order to it has not been answered for {} s", _0.as_secs())]
    Hangs(Duration),
    /// The receiver is there, and work that was to end within so long has not: a mover leaves it to others.
    #[error("its storage hangs: work there has not ended within {} s", _0.as_secs())]
    StandsStill(Duration),
    /// The queue fails, and whoever asked it has had patience.
    #[error("{0}")]
    Queue(#[from] WorkError),
    /// No mover goes on.
    #[error("no mover goes on: {0}")]
    Movers(Box<SessionEnd>),
    /// A receiver does not see the job that another has begun.
    #[error(
        "{unseen_at} does not see the push that is under way at {seen_at}: all receivers must have one directory '{target}' \
         (is its storage mounted at each?)"
    )]
    NotShared {
        /// The receiver that does not.
        unseen_at: String,
        /// One that does.
        seen_at: String,
        /// The target, as all are asked for it.
        target: String,
    },
    /// This node sees other sources than another, and does not lead.
    #[error("this node does not see the same sources: failed to {0}")]
    Differs(String),
    /// The protocol has been broken, by the receiver or by what the queue holds.
    #[error("{0}")]
    PeerMisbehaved(&'static str),
    /// A task of this process has panicked.
    #[error("{0}")]
    Panicked(&'static str),
}

/// What a work item has come to that has panicked.
pub(crate) const PANICKED: Stop = Stop::Panicked("a work item panicked");
pub(crate) const MOVER_PANICKED: Stop = Stop::Panicked("a mover panicked");

/// Why a session has ended before its work has.
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    /// The receiver cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session has broken off, or was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The receiver cannot record what has been done: its storage is full, or a quota of it is used up.
    #[error("receiver: {operation} '{target}': {code} (at {receiver})")]
    NoRoom {
        /// The receiver.
        receiver: String,
        /// The target there.
        target: String,
        /// What it was doing.
        operation: Operation,
        /// Why it could not.
        code: FaultCode,
    },
    /// Nothing was done in so many sessions in a row.
    #[error(
        "{last}; {sessions} sessions in a row began and were lost, and nothing was done in them"
    )]
    InVain {
        /// How many sessions.
        sessions: u32,
        /// Why the last one has ended.
        last: Box<Self>,
    },
    /// What was done in it could not go on.
    #[error(transparent)]
    Stop(#[from] Stop),
}

impl SessionEnd {
    /// The queue's failure, if there is nothing else.
    pub(crate) fn into_queue_failure(self) -> Result<WorkError, Self> {
        match self {
            Self::Stop(Stop::Queue(error)) => Ok(error),
            Self::Stop(Stop::Movers(end)) => end
                .into_queue_failure()
                .map_err(|end| Self::Stop(Stop::Movers(Box::new(end)))),
            other => Err(other),
        }
    }

    /// Whether no session with any receiver is of use after this: all of them have one storage.
    pub(crate) fn ends_all(&self) -> bool {
        match self {
            Self::Stop(stop) => {
                matches!(
                    stop,
                    Stop::Ended
                        | Stop::Movers(_)
                        | Stop::Queue(_)
                        | Stop::NotShared { .. }
                        | Stop::Differs(_)
                )
            }
            other => other.is_no_room(),
        }
    }

    /// What the receiver was doing when it found no room, and how it has told that.
    pub(crate) fn found_no_room(&self) -> Option<(Operation, FaultCode)> {
        match self {
            Self::Stop(Stop::Receiver { operation, code }) if code.is_no_room() => {
                Some((*operation, *code))
            }
            Self::Session(SessionError::Refused(refusal)) => {
                Some((Operation::Write, no_room_of(refusal)?))
            }
            _ => None,
        }
    }

    /// Whether there is no room at the target.
    pub(crate) fn is_no_room(&self) -> bool {
        match self {
            Self::NoRoom { .. } => true,
            Self::Stop(Stop::Movers(end)) => end.is_no_room(),
            Self::Connect(_) | Self::Session(_) | Self::InVain { .. } | Self::Stop(_) => false,
        }
    }

    /// Whether a session that was never up leaves nothing: no connection has come about, or the receiver has refused
    /// the session before it did anything.
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

    /// Whether a receiver has said that it does not have the job.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Session(SessionError::Refused(refusal)) if refusal.code == RefusalCode::NotUnderWay)
    }

    /// Whether all that this says is that the receiver is away.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_lost(),
            Self::Session(error) => error.is_lost(),
            Self::Stop(stop) => matches!(stop, Stop::Session(_)),
            Self::NoRoom { .. } | Self::InVain { .. } => false,
        }
    }

    /// Whether nothing is gained by another session with the same receiver.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Connect(error) => !error.is_lost(),
            Self::Session(error) => !error.is_lost(),
            Self::NoRoom { .. } => true,
            Self::InVain { .. } => false,
            Self::Stop(stop) => matches!(
                stop,
                Stop::Ended | Stop::PeerMisbehaved(_) | Stop::Panicked(_)
            ),
        }
    }
}

/// Why a session is refused that finds no room for its journal: a refusal has words and no number for that.
fn no_room_of(refusal: &Refusal) -> Option<FaultCode> {
    let says = |code: &FaultCode| refusal.text.contains(&code.to_string());
    FaultCode::NO_ROOM
        .into_iter()
        .find(says)
        .filter(|_| refusal.code == RefusalCode::Target)
}

/// An order that was not done, for which the session ends: what it has not recorded is done again.
pub(crate) fn refused(result: SharedJobResult) -> Stop {
    match result {
        SharedJobResult::Failed(_, FaultCode::JobEnded) => Stop::Ended,
        SharedJobResult::Failed(operation, code) => Stop::Receiver { operation, code },
        _ => Stop::PeerMisbehaved("the receiver has answered to another order"),
    }
}
