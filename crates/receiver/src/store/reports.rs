//! The reports of threads to their session, and the memory booked for each until the peer has it.

use tokio::sync::mpsc::Sender;
use zmove_transport::LaneError;
use zmove_types::ItemId;
use zmove_wire::{
    Answer, EntryFault, Fault, FileDone, Held, Missed, Reply, SharedJobAnswer, StoredItem,
    WireError,
};

use crate::quota::{Booking, Quota};

/// The way by which the threads of a transfer tell its session.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) outcomes: Sender<Told>,
    /// The quota in which reports are booked.
    pub(crate) quota: Quota,
}

/// A report to the session.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Data has come, whole or damaged; a group of a large file is settled with that.
    Item(StoredItem),
    /// A batch is verified and written, except for entries with these faults.
    Stored(ItemId, Vec<EntryFault>),
    /// The files of a batch have been flushed as asked and have their final names, except for entries with these
    /// faults.
    Published(ItemId, Vec<EntryFault>),
    File(FileDone),
    Fault(Fault),
    /// An entry lacks something.
    Missed(Missed),
    /// What is held of a request's files, its reply, and whether that ends it.
    Reply(Vec<Held>, Reply, bool),
    /// More groups that are held, and whether that ends their request.
    Held(Held, bool),
    /// So many entries have been removed, for the order with that number.
    Removed {
        remove: u64,
        entries: u64,
    },
    /// The answer to an order about a job.
    SharedJob(SharedJobAnswer),
    /// The end of the lane with that number, and whether it has brought anything.
    LaneEnded {
        number: u32,
        has_brought: bool,
        ended: Result<(), LaneError>,
    },
    /// The transfer would take more memory than its key may have.
    OverLimit(WireError),
    Panicked,
}

/// A report with the memory that is booked for it until the peer has it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) outcome: Outcome,
    pub(crate) held: Booking,
}

impl Reports {
    /// Reports to the session; waits while many reports are queued. For threads only.
    pub(crate) fn tell(&self, outcome: Outcome) {
        match self.quota.book_memory(outcome.bytes()) {
            Ok(held) => self.tell_booked(outcome, held),
            Err(error) => self.tell_booked(Outcome::OverLimit(error), self.quota.book_nothing()),
        }
    }

    /// Reports something to the session whose memory is booked already.
    pub(crate) fn tell_booked(&self, outcome: Outcome, held: Booking) {
        // Nobody receives it any more only when the session is over.
        let _session_over = self.outcomes.blocking_send(Told { outcome, held });
    }

    /// Settles an item about which nothing more is to be done.
    pub(crate) fn settle(&self, item: ItemId) {
        self.tell(Outcome::Item(StoredItem {
            item: item.0,
            mismatch: false,
            faults: Vec::new(),
        }));
    }
}

impl Outcome {
    /// The memory of a report beside itself, except for what its reporter has booked.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Item(StoredItem { faults, .. })
            | Self::Stored(_, faults)
            | Self::Published(_, faults) => size_of_val(&faults[..]),
            Self::Fault(fault) => fault.path.as_bytes().len(),
            Self::Missed(missed) => missed.path.as_bytes().len() + size_of_val(&missed.lacks[..]),
            Self::Reply(held, reply, _) => {
                let cvs: usize = held
                    .iter()
                    .map(|held| size_of_val(held) + size_of_val(&held.cvs[..]))
                    .sum();
                cvs + match &reply.answer {
                    Answer::Verdicts(verdicts) => size_of_val(&verdicts[..]),
                    Answer::Hashes(hashes) => size_of_val(&hashes.values[..]),
                    Answer::Extraneous(_) => 0,
                }
            }
            Self::Held(held, _) => size_of_val(&held.cvs[..]),
            _ => 0,
        }
    }
}
