//! The receiver's ledger of one transfer: the items that have come, and when to finish.
//!
//! **Invariant:** [`ReceiverAction::Finish`] is given at most once, and only when the sender has announced that nothing
//! else is coming: every announced item is settled and every mismatch has been answered.

use std::collections::VecDeque;

use super::arrivals::Arrivals;
use crate::error::WireError;
use crate::limits::STORED_ITEMS_MAX;
use crate::message::{EntryFault, FileDone, PublishedItem, Stored, StoredItem, ToSender};

/// The items that have been received, and the messages to send.
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

/// An action that the receiver has to take.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum ReceiverAction {
    /// Send this message.
    Send(ToSender),
    /// Everything has come: publish what is not published yet, set directories' metadata, flush, send
    /// [`Finished`](crate::Finished).
    Finish,
}

impl ReceiverTransfer {
    /// Books an item that a writer is done with; returns whether it is new. An item that comes again on another lane
    /// counts as it did the first time.
    ///
    /// # Errors
    /// [`WireError::OverLimit`] when the items that came leave more gaps than a sender may have items in flight.
    pub fn settled(&mut self, item: StoredItem) -> Result<bool, WireError> {
        if !self.settled.insert(item.item)? {
            return Ok(false);
        }
        self.mismatches += u64::from(item.mismatch);
        self.unsent.items.push(item);
        Ok(true)
    }

    /// Books a batch whose files have their names, but for those in `faults`, and are flushed as asked. To be called
    /// once for each batch that was [`settled`](Self::settled) without a mismatch, after that. It must not wait for an
    /// announcement, since a sender may wait for these reports first.
    pub fn published(&mut self, item: u64, faults: Vec<EntryFault>) {
        self.published.push_back(PublishedItem { item, faults });
    }

    /// Books a large file that is whole under its final name, or has failed.
    pub fn file_done(&mut self, file: FileDone) {
        self.unsent.files.push(file);
    }

    /// Sends another message.
    pub fn tell(&mut self, message: ToSender) {
        self.other.push_back(message);
    }

    /// Takes the sender's announcement that everything is in flight.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when it takes back an earlier announcement, or counts more mismatches than were
    /// reported.
    pub fn announced(&mut self, items: u64, mismatches: u64) -> Result<(), WireError> {
        let (items_before, mismatches_before) = self.announced.unwrap_or((0, 0));
        if items < items_before || mismatches < mismatches_before || mismatches > self.mismatches {
            return Err(WireError::OutOfOrder {
                what: "an announcement",
            });
        }
        self.announced = Some((items, mismatches));
        Ok(())
    }

    /// The next action; drain to `None` after each event or run of events.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when more items came than the sender announced.
    pub fn poll(&mut self) -> Result<Option<ReceiverAction>, WireError> {
        if !self.unsent.items.is_empty() || !self.unsent.files.is_empty() {
            let count = self.unsent.items.len().min(STORED_ITEMS_MAX);
            let items = self.unsent.items.drain(..count).collect();
            let count = self.unsent.files.len().min(STORED_ITEMS_MAX);
            let files = self.unsent.files.drain(..count).collect();
            return Ok(Some(ReceiverAction::Send(ToSender::Stored(Stored {
                items,
                files,
            }))));
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
        let Some((items, mismatches)) = self.announced else {
            return Ok(false);
        };
        if mismatches == self.mismatches && self.settled.count > items {
            return Err(WireError::OutOfOrder {
                what: "an item after the last",
            });
        }
        Ok(self.settled.count == items && mismatches == self.mismatches)
    }
}
