//! Reports from the threads of a transfer to its session. Each report is charged for its memory until the peer has
//! received it.

use tokio::sync::mpsc::Sender;
use zmove_types::ItemId;
use zmove_wire::{
    Answer, EntryFault, Fault, FileDone, Held, Reply, StoredItem, ToSender, WireError,
};

use crate::error::SessionError;
use crate::rights::quota::{Charge, Quota};
use crate::session::requests::PendingRequest;

/// The channel by which the threads of a transfer report to its session.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) outcomes: Sender<ChargedReport>,
    /// The quota that is charged for reports.
    pub(crate) quota: Quota,
}

/// A report to the session.
#[derive(Debug)]
pub(crate) enum ThreadReport {
    /// Data was received, intact or damaged. For a group of a large file, this is the final report.
    Item(StoredItem),
    /// A batch was verified and written, except for entries with these faults.
    Stored(ItemId, Vec<EntryFault>),
    /// The files of a batch were flushed as requested and renamed into place, except for entries with these faults.
    Published(ItemId, Vec<EntryFault>),
    File(FileDone),
    Fault(Fault),
    /// A message to the peer that does not change the state of the session.
    Message(ToSender),
    /// The lane with this number has ended. `has_delivered` is true if the lane has delivered any data.
    LaneEnded {
        number: u32,
        has_delivered: bool,
        ended: Result<(), SessionError>,
    },
    /// The transfer would use more memory than its key allows.
    OverLimit(WireError),
    Panicked,
}

/// A report, with the memory that is charged for it until the peer has received it.
#[derive(Debug)]
pub(crate) struct ChargedReport {
    pub(crate) outcome: ThreadReport,
    pub(crate) held: Charge,
    /// The request that this report answers.
    pub(crate) _answers: Option<PendingRequest>,
}

impl Reports {
    /// Sends a report to the session. Blocks while the queue is full, so it must not be called from async tasks.
    pub(crate) fn report(&self, outcome: ThreadReport) {
        self.report_charged(outcome, self.quota.empty_charge(), None);
    }

    /// Sends a message to the peer. `answers` is the request that the message answers, if any.
    pub(crate) fn send(&self, message: ToSender, answers: Option<PendingRequest>) {
        self.report_charged(
            ThreadReport::Message(message),
            self.quota.empty_charge(),
            answers,
        );
    }

    /// Sends a report like [`report`](Self::report). `held` is the memory that was already charged for the report, and
    /// `answers` is the request that the report answers.
    pub(crate) fn report_charged(
        &self,
        outcome: ThreadReport,
        mut held: Charge,
        answers: Option<PendingRequest>,
    ) {
        let outcome = match held.grow(outcome.bytes()) {
            Ok(()) => outcome,
            Err(error) => ThreadReport::OverLimit(error),
        };
        // This fails only after the session has ended.
        let _session_over = self.outcomes.blocking_send(ChargedReport {
            outcome,
            held,
            _answers: answers,
        });
    }

    /// Reports an item as done if it needs no further work.
    pub(crate) fn settle(&self, item: ItemId) {
        self.report(ThreadReport::Item(StoredItem {
            item: item.0,
            mismatch: false,
            faults: Vec::new(),
        }));
    }
}

impl ThreadReport {
    pub(crate) fn reply(number: u64, answer: Answer) -> Self {
        Self::Message(ToSender::Reply(Reply { number, answer }))
    }

    /// Returns the size of the report on the heap, in bytes, without memory that the reporting thread has already
    /// charged.
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
