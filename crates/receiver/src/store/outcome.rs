//! What threads tell the session, and what that takes until the peer has been told.

use zmove_transport::LaneError;
use zmove_types::ItemId;
use zmove_wire::{Answer, EntryFault, Fault, FileDone, Held, StoredItem, ToSender, WireError};

use crate::account::{Account, Held as Booked};

/// What threads tell the session.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Data has come, whole or damaged; a group of a large file is settled with that.
    Item(StoredItem),
    /// A batch is verified and written, but for these.
    Stored(ItemId, Vec<EntryFault>),
    /// The files of a batch have been flushed as asked and have their final names, but for these.
    Published(ItemId, Vec<EntryFault>),
    File(FileDone),
    Fault(Fault),
    /// What is held of an offer's files, its answer, and whether that ends it.
    Answer(Vec<Held>, Answer, bool),
    /// More of what is held, and whether that ends its offer.
    Held(Held, bool),
    /// What else is where names stay, or what has gone.
    Mirror(ToSender),
    /// The lane of that number, and how.
    LaneEnded(u32, Result<(), LaneError>),
    /// The transfer would keep more than its key may.
    OverLimit(WireError),
    Panicked,
}

/// What the session is told, with what it takes until the peer has been told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) outcome: Outcome,
    pub(crate) held: Booked,
}

impl Told {
    pub(crate) fn new(outcome: Outcome, account: &Account) -> Self {
        match account.hold_memory(outcome.bytes()) {
            Ok(held) => Self { outcome, held },
            Err(error) => Self { outcome: Outcome::OverLimit(error), held: account.nothing() },
        }
    }
}

impl Outcome {
    /// What it keeps in memory beside itself, but for what is booked by whoever tells it.
    fn bytes(&self) -> usize {
        match self {
            Self::Item(StoredItem { faults, .. }) | Self::Stored(_, faults) | Self::Published(_, faults) => {
                size_of_val(&faults[..])
            }
            Self::Fault(fault) => fault.path.as_bytes().len(),
            Self::Answer(held, answer, _) => {
                let cvs: usize = held.iter().map(|held| size_of_val(held) + size_of_val(&held.cvs[..])).sum();
                cvs + size_of_val(&answer.verdicts[..])
            }
            Self::Held(held, _) => size_of_val(&held.cvs[..]),
            _ => 0,
        }
    }
}
