//! The receiver's ledger of one transfer. It tracks the received items and decides when to finish.
//!
//! **Invariant:** [`ReceiverAction::Finish`] is returned at most once, and only after the sender has announced that it
//! has sent everything. At that time, every announced item is settled, and the sender has handled every mismatch.

use std::collections::VecDeque;

use super::arrivals::ReceivedItems;
use crate::error::WireError;
use crate::limits::STORED_ITEMS_MAX;
use crate::message::{EntryFault, FileDone, PublishedItem, Stored, StoredItem, ToSender};

/// The items that have been received, and the messages to send.
#[derive(Debug, Default)]
pub struct ReceiverTransfer {
    settled: ReceivedItems,
    mismatches: u64,
    announced: Option<(u64, u64)>,
    unsent: Stored,
    published: VecDeque<PublishedItem>,
    other: VecDeque<ToSender>,
    finished: bool,
}

/// An action that the receiver must take.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum ReceiverAction {
    /// Send this message.
    Send(ToSender),
    /// Everything has arrived: publish the remaining items, set the metadata of directories, flush, and send
    /// [`Finished`](crate::Finished).
    Finish,
}

impl ReceiverTransfer {
    /// Records an item that a writer has finished. Returns whether the item is new. If the same item is received again
    /// on another lane, only the first result counts.
    ///
    /// # Errors
    /// [`WireError::OverLimit`] if there are more gaps between the received items than a sender may have items in
    /// flight.
    pub fn settled(&mut self, item: StoredItem) -> Result<bool, WireError> {
        if !self.settled.insert(item.item)? {
            return Ok(false);
        }
        self.mismatches += u64::from(item.mismatch);
        self.unsent.items.push(item);
        Ok(true)
    }

    /// Records a batch whose files have been renamed into place and flushed as requested, except for those in `faults`.
    ///
    /// Must be called once for each batch, after [`settled`](Self::settled) was called without a mismatch. The caller
    /// must not wait for the announcement first, because the sender may wait for these reports before it announces.
    pub fn published(&mut self, item: u64, faults: Vec<EntryFault>) {
        self.published.push_back(PublishedItem { item, faults });
    }

    /// Records a large file that is complete under its final name, or has failed.
    pub fn file_done(&mut self, file: FileDone) {
        self.unsent.files.push(file);
    }

    /// Queues a message that is not a receipt.
    pub fn queue_message(&mut self, message: ToSender) {
        self.other.push_back(message);
    }

    /// Records the sender's announcement that everything has been sent.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if a number is lower than in an earlier announcement, or if the sender counts more
    /// mismatches than were reported.
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

    /// Returns the next action. After one or more events, call this function until it returns `None`.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if more items were received than the sender announced.
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
