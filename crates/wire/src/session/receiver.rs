//! The receiver's ledger of one transfer: what has come, and when to finish.
//!
//! **Invariant:** [`ReceiverAction::Finish`] is given at most once, and only when the sender's announcement says that
//! nothing else is coming: every announced item is settled and every mismatch has been answered.

use std::collections::VecDeque;

use super::arrivals::Arrivals;
use crate::error::WireError;
use crate::limits::STORED_ITEMS_MAX;
use crate::message::{
    Answer, EntryFault, Fault, FileDone, Held, PublishedItem, Stored, StoredItem, ToSender,
};

/// What has been received, and what to tell the sender.
#[derive(Debug, Default)]
pub struct ReceiverTransfer {
    settled: Arrivals,
    mismatches: u64,
    announced: Option<(u64, u64)>,
    unsent: Stored,
    published: VecDeque<PublishedItem>,
    other: VecDeque<ToSender>,
    finished: bool,
}

/// What the receiver has to do.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum ReceiverAction {
    /// Send this.
    Send(ToSender),
    /// Everything has come: publish what is not published yet, set directories' metadata, flush, say
    /// [`Finished`](crate::Finished).
    Finish,
}

impl ReceiverTransfer {
    /// A writer is done with an item; returns whether that is news. An item that comes again on another lane
    /// counts as it did the first time.
    ///
    /// # Errors
    /// [`WireError::OverLimit`] when the items that came leave more gaps than a sender may have items on their way.
    pub fn settled(&mut self, item: StoredItem) -> Result<bool, WireError> {
        if !self.settled.insert(item.item)? {
            return Ok(false);
        }
        self.mismatches += u64::from(item.mismatch);
        self.unsent.items.push(item);
        Ok(true)
    }

    /// The files of a batch have their names, but for those in `faults`, and are flushed as asked. To be
    /// called once for each batch that was [`settled`](Self::settled) without a mismatch, after that, and
    /// only where the sender speaks [`Version::V4`](crate::Version); also without an announcement, since a
    /// sender may wait for it.
    pub fn published(&mut self, item: u64, faults: Vec<EntryFault>) {
        self.published.push_back(PublishedItem { item, faults });
    }

    /// A large file is whole under its final name, or has failed.
    pub fn file_done(&mut self, file: FileDone) {
        self.unsent.files.push(file);
    }

    /// Something failed that belongs to no item.
    pub fn fault(&mut self, fault: Fault) {
        self.other.push_back(ToSender::Fault(fault));
    }

    /// An offer has been judged; what is held of its files goes before the answer.
    pub fn answer(&mut self, held: Vec<Held>, answer: Answer) {
        self.other.extend(held.into_iter().map(ToSender::Held));
        self.other.push_back(ToSender::Answer(answer));
    }

    /// Something else is to be told.
    pub fn tell(&mut self, message: ToSender) {
        self.other.push_back(message);
    }

    /// The sender announced that everything is on its way.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when it takes back what it announced before, or speaks of more mismatches than
    /// were reported.
    pub fn announced(&mut self, items: u64, mismatches: u64) -> Result<(), WireError> {
        let (items_before, mismatches_before) = self.announced.unwrap_or((0, 0));
        if items < items_before || mismatches < mismatches_before || mismatches > self.mismatches {
            return Err(WireError::OutOfOrder { what: "an announcement" });
        }
        self.announced = Some((items, mismatches));
        Ok(())
    }

    /// The next thing to do; drain to `None` after each event or run of events.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when more items came than the sender announced.
    pub fn poll(&mut self) -> Result<Option<ReceiverAction>, WireError> {
        if !self.unsent.items.is_empty() || !self.unsent.files.is_empty() {
            let count = self.unsent.items.len().min(STORED_ITEMS_MAX);
            let items = self.unsent.items.drain(..count).collect();
            let count = self.unsent.files.len().min(STORED_ITEMS_MAX);
            let files = self.unsent.files.drain(..count).collect();
            return Ok(Some(ReceiverAction::Send(ToSender::Stored(Stored { items, files }))));
        }
        if !self.published.is_empty() {
            let count = self.published.len().min(STORED_ITEMS_MAX);
            let items = self.published.drain(..count).collect();
            return Ok(Some(ReceiverAction::Send(ToSender::Published { items })));
        }
        if let Some(message) = self.other.pop_front() {
            return Ok(Some(ReceiverAction::Send(message)));
        }
        if self.finished || !self.is_complete()? {
            return Ok(None);
        }
        self.finished = true;
        Ok(Some(ReceiverAction::Finish))
    }

    fn is_complete(&self) -> Result<bool, WireError> {
        let Some((items, mismatches)) = self.announced else { return Ok(false) };
        if mismatches == self.mismatches && self.settled.count > items {
            return Err(WireError::OutOfOrder { what: "an item after the last" });
        }
        Ok(self.settled.count == items && mismatches == self.mismatches)
    }
}
