//! What threads tell the session, and what that takes until the peer has been told.

use tokio::sync::mpsc::Sender;
use zmove_transport::LaneError;
use zmove_types::ItemId;
use zmove_wire::{Answer, EntryFault, Fault, FileDone, Held, Missed, StoredItem, ToSender, WireError};

use crate::quota::{Held as Booked, Quota};

/// The way by which the threads of a transfer tell its session.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) outcomes: Sender<Told>,
    /// The quota in which reports are booked.
    pub(crate) quota: Quota,
}

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
    /// An entry lacks something.
    Missed(Missed),
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

impl Reports {
    /// Tells the session; waits while it has much to tell the peer. For threads only.
    pub(crate) fn tell(&self, outcome: Outcome) {
        match self.quota.hold_memory(outcome.bytes()) {
            Ok(held) => self.tell_booked(outcome, held),
            Err(error) => self.tell_booked(Outcome::OverLimit(error), self.quota.nothing()),
        }
    }

    /// Tells the session something that is booked already.
    pub(crate) fn tell_booked(&self, outcome: Outcome, held: Booked) {
        // nobody listens any more only when the session is over
        let _session_over = self.outcomes.blocking_send(Told { outcome, held });
    }

    /// Nothing more is to be done about an item.
    pub(crate) fn settle(&self, item: ItemId) {
        self.tell(Outcome::Item(StoredItem { item: item.0, mismatch: false, faults: Vec::new() }));
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
            Self::Missed(missed) => missed.path.as_bytes().len() + size_of_val(&missed.lacks[..]),
            Self::Answer(held, answer, _) => {
                let cvs: usize = held.iter().map(|held| size_of_val(held) + size_of_val(&held.cvs[..])).sum();
                cvs + size_of_val(&answer.verdicts[..])
            }
            Self::Held(held, _) => size_of_val(&held.cvs[..]),
            _ => 0,
        }
    }
}
