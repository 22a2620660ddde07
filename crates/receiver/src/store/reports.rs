//! The reports of threads to their session, and the memory booked for each until the peer has it.

use tokio::sync::mpsc::Sender;
use zmove_types::ItemId;
use zmove_wire::{
    Answer, EntryFault, Fault, FileDone, Held, Reply, StoredItem, ToSender, WireError,
};

use crate::error::SessionError;
use crate::rights::quota::{Booking, Quota};
use crate::session::requests::Unanswered;

/// The way by which the threads of a transfer tell its session.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) outcomes: Sender<BookedOutcome>,
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
    /// A message to the peer that changes nothing in the session.
    Message(ToSender),
    /// The end of the lane with that number, and whether it has brought anything.
    LaneEnded {
        number: u32,
        has_brought: bool,
        ended: Result<(), SessionError>,
    },
    /// The transfer would take more memory than its key may have.
    OverLimit(WireError),
    Panicked,
}

/// A report with the memory that is booked for it until the peer has it.
#[derive(Debug)]
pub(crate) struct BookedOutcome {
    pub(crate) outcome: Outcome,
    pub(crate) held: Booking,
    /// The request that is answered with this outcome.
    pub(crate) _answers: Option<Unanswered>,
}

impl Reports {
    /// Reports to the session; waits while many reports are queued. For threads only.
    pub(crate) fn tell(&self, outcome: Outcome) {
        self.answer(outcome, self.quota.book_nothing(), None);
    }

    /// Sends the peer a message, which may answer a request.
    pub(crate) fn send(&self, message: ToSender, answers: Option<Unanswered>) {
        self.answer(
            Outcome::Message(message),
            self.quota.book_nothing(),
            answers,
        );
    }

    /// Like [`tell`](Self::tell), with what has been booked for the outcome by now, and the request that it answers.
    pub(crate) fn answer(&self, outcome: Outcome, mut held: Booking, answers: Option<Unanswered>) {
        let outcome = match held.grow(outcome.bytes()) {
            Ok(()) => outcome,
            Err(error) => Outcome::OverLimit(error),
        };
        // Nobody receives it any more only when the session is over.
        let _session_over = self.outcomes.blocking_send(BookedOutcome {
            outcome,
            held,
            _answers: answers,
        });
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
    pub(crate) fn reply(number: u64, answer: Answer) -> Self {
        Self::Message(ToSender::Reply(Reply { number, answer }))
    }

    /// The memory of a report beside itself, except for what its reporter has booked.
    fn bytes(&self) -> usize {
        match self {
            Self::Item(StoredItem { faults, .. })
            | Self::Stored(_, faults)
            | Self::Published(_, faults) => size_of_val(&faults[..]),
            Self::Fault(fault) => fault.path.as_bytes().len(),
            Self::Message(message) => bytes_of(message),
            _ => 0,
        }
    }
}

fn bytes_of(message: &ToSender) -> usize {
    match message {
        ToSender::Missed { entries } => entries
            .iter()
            .map(|missed| missed.path.as_bytes().len() + size_of_val(&missed.lacks[..]))
            .sum(),
        ToSender::Held(Held { cvs, .. }) => size_of_val(&cvs[..]),
        ToSender::Reply(reply) => match &reply.answer {
            Answer::Verdicts(verdicts) => size_of_val(&verdicts[..]),
            Answer::Hashes(hashes) => size_of_val(&hashes.values[..]),
            Answer::Extraneous(_) => 0,
        },
        _ => 0,
    }
}
