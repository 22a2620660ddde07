//! The sender's ledger of one transfer.
//!
//! ```text
//!           issued                  stored                published
//!  begun ─────────────► outstanding ──────► unpublished ──────────► settled
//!    ▲ │ failed              │  │ stored, and nothing is to follow     ▲
//!    │ ▼                     │  └──────────────────────────────────────┘
//!    │ ended                 │ mismatch, or lost with its lane
//!    │                       ▼
//!    └───────again──────── Resend ──give up──► settled badly
//! ```
//!
//! The number of outstanding items limits the data in flight. Outstanding and unpublished items together limit the
//! memory of the sender. **Invariant:** [`announcement`](SenderTransfer::announcement) returns `Some` only if all work
//! that has begun has also ended. So a receiver has everything when it has settled the announced items and reported
//! the announced mismatches.

use std::collections::HashMap;

use zmove_types::ItemId;

use crate::error::WireError;
use crate::limits::{
    ITEMS_OUTSTANDING_MAX, RESENDS_MAX, UNPUBLISHED_ENTRIES_MAX, UNPUBLISHED_ITEMS_MAX,
    UNPUBLISHED_NAME_BYTES_MAX,
};
use crate::message::ToReceiver;

/// The items in flight to the receiver. `W` describes the work of an item, so that the work can be repeated. It may
/// also hold other data about the item.
#[derive(Debug)]
pub struct SenderTransfer<W> {
    plan_ended: bool,
    /// Whether the announcement is withheld, so that the receiver does not finish yet.
    withheld: bool,
    unfinished: u64,
    issued: u64,
    mismatches: u64,
    outstanding: HashMap<ItemId, OutstandingItem<W>>,
    unpublished: HashMap<ItemId, (W, UnpublishedLoad)>,
    /// The load of all items that are outstanding or unpublished.
    load: UnpublishedLoad,
    announced: Option<(u64, u64)>,
}

#[derive(Debug)]
struct OutstandingItem<W> {
    work: W,
    tries: u8,
    final_report: FinalReport,
}

/// The receiver's report that completes an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalReport {
    /// The item is complete when the receiver reports it as stored. Used for a group of a large file.
    Stored,
    /// The item is complete when the receiver reports it as published. Used for a batch. The sender keeps the given
    /// amount of data in memory until that report.
    Published(UnpublishedLoad),
}

/// The memory that the sender uses for a batch until the batch is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnpublishedLoad {
    /// Number of entries in the batch.
    pub entries: u64,
    /// Bytes of the entries' names, and of other data that the sender keeps for each entry.
    pub name_bytes: u64,
}

/// The state of an item after its receipt.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum ItemReceipt<'a, W> {
    /// The item is done.
    Settled(W),
    /// The item is stored, but its files have not been renamed into place.
    Unpublished(&'a mut W),
}

/// The next step for an item that was damaged or lost in transit.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Resend<W> {
    /// The work must be read and sent again. The work already counts as begun, so its reader calls only
    /// [`end`](SenderTransfer::end) and not [`begin`](SenderTransfer::begin).
    Again {
        /// The work.
        work: W,
        /// The number of times that the item arrived damaged. Pass it to [`issue`](SenderTransfer::issue).
        tries: u8,
    },
    /// The item arrived damaged every time, so its files have failed.
    GiveUp(W),
}

impl<W> Default for SenderTransfer<W> {
    fn default() -> Self {
        Self {
            plan_ended: false,
            withheld: false,
            unfinished: 0,
            issued: 0,
            mismatches: 0,
            outstanding: HashMap::new(),
            unpublished: HashMap::new(),
            load: UnpublishedLoad::default(),
            announced: None,
        }
    }
}

impl<W> SenderTransfer<W> {
    /// Adds pieces of work to the plan. Must be called before a reader can take them.
    pub fn begin(&mut self, pieces: u64) {
        self.unfinished += pieces;
    }

    /// Ends one piece of work. The piece must have produced all of its items or none.
    pub fn end(&mut self) {
        self.unfinished = self
            .unfinished
            .checked_sub(1)
            .expect("every end has its begin");
    }

    /// Records an item that a reader has produced from its work. `tries` is 0 unless the work is from
    /// [`Resend::Again`].
    pub fn issue(&mut self, work: W, tries: u8, final_report: FinalReport) -> ItemId {
        let item = ItemId(self.issued);
        self.issued += 1;
        if let FinalReport::Published(load) = final_report {
            self.load.entries += load.entries;
            self.load.name_bytes += load.name_bytes;
        }
        self.outstanding.insert(
            item,
            OutstandingItem {
                work,
                tries,
                final_report,
            },
        );
        item
    }

    /// Returns whether the sender must wait for items to be settled before it may issue another item.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let items = (self.outstanding.len() + self.unpublished.len()) as u64;
        self.outstanding.len() >= ITEMS_OUTSTANDING_MAX
            || items >= UNPUBLISHED_ITEMS_MAX
            || self.load.entries >= UNPUBLISHED_ENTRIES_MAX
            || self.load.name_bytes >= UNPUBLISHED_NAME_BYTES_MAX
    }

    /// Records that the plan is complete: the scan has ended and all requests are answered. Only resends can follow.
    pub fn plan_ended(&mut self) {
        self.plan_ended = true;
    }

    /// Withholds the announcement until [`release`](Self::release) is called. Used if the sender has more work to do
    /// after all items are settled.
    pub fn withhold(&mut self) {
        self.withheld = true;
    }

    /// Allows the announcement again after [`withhold`](Self::withhold).
    pub fn release(&mut self) {
        self.withheld = false;
    }

    /// Records the receipt for an item that the receiver has stored, even if some files of the item have failed.
    /// Returns the work of the item.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if no such item is outstanding.
    pub fn stored(&mut self, item: ItemId) -> Result<ItemReceipt<'_, W>, WireError> {
        let OutstandingItem {
            work, final_report, ..
        } = self.receipt(item)?;
        let FinalReport::Published(load) = final_report else {
            return Ok(ItemReceipt::Settled(work));
        };
        let (work, _load) = self
            .unpublished
            .entry(item)
            .insert_entry((work, load))
            .into_mut();
        Ok(ItemReceipt::Unpublished(work))
    }

    /// Records that the receiver has published a batch, except for entries that failed. Returns the work of the batch.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if the item is not stored and unpublished.
    pub fn published(&mut self, item: ItemId) -> Result<W, WireError> {
        let published = self.unpublished.remove(&item);
        let (work, load) = published.ok_or(WireError::OutOfOrder { what: "a name" })?;
        self.forget(load);
        Ok(work)
    }

    /// Records an item that arrived damaged.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if no such item is outstanding.
    pub fn mismatch(&mut self, item: ItemId) -> Result<Resend<W>, WireError> {
        let OutstandingItem { work, tries, .. } = self.settle(item)?;
        if tries >= RESENDS_MAX {
            return Ok(Resend::GiveUp(work));
        }
        self.unfinished += 1;
        Ok(Resend::Again {
            work,
            tries: tries + 1,
        })
    }

    /// Records an item that the receiver reports as lost with its lane. Such an item is resent without a limit on
    /// tries.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if no such item is outstanding.
    pub fn lost(&mut self, item: ItemId) -> Result<Resend<W>, WireError> {
        let OutstandingItem { work, tries, .. } = self.settle(item)?;
        self.unfinished += 1;
        Ok(Resend::Again { work, tries })
    }

    /// Removes an item that was damaged or lost in transit.
    fn settle(&mut self, item: ItemId) -> Result<OutstandingItem<W>, WireError> {
        let outstanding = self.receipt(item)?;
        self.mismatches += 1;
        if let FinalReport::Published(load) = outstanding.final_report {
            self.forget(load);
        }
        Ok(outstanding)
    }

    fn receipt(&mut self, item: ItemId) -> Result<OutstandingItem<W>, WireError> {
        self.outstanding
            .remove(&item)
            .ok_or(WireError::OutOfOrder { what: "a receipt" })
    }

    fn forget(&mut self, load: UnpublishedLoad) {
        self.load.entries -= load.entries;
        self.load.name_bytes -= load.name_bytes;
    }

    /// Returns the announcement that everything has been sent, if it is due and differs from the previous one.
    #[must_use]
    pub fn announcement(&mut self) -> Option<ToReceiver> {
        let now = (self.issued, self.mismatches);
        if self.withheld || !self.is_all_issued() || self.announced == Some(now) {
            return None;
        }
        self.announced = Some(now);
        Some(ToReceiver::Announce {
            items: now.0,
            mismatches: now.1,
        })
    }

    /// Returns whether an item is outstanding, which means that the receiver has not acknowledged it.
    #[must_use]
    pub fn is_outstanding(&self, item: ItemId) -> bool {
        self.outstanding.contains_key(&item)
    }

    /// Returns the work of an outstanding item.
    pub fn outstanding_mut(&mut self, item: ItemId) -> Option<&mut W> {
        self.outstanding
            .get_mut(&item)
            .map(|outstanding| &mut outstanding.work)
    }

    /// Iterates over the work of all outstanding items.
    pub fn outstanding_items(&self) -> impl Iterator<Item = (ItemId, &W)> {
        self.outstanding
            .iter()
            .map(|(item, outstanding)| (*item, &outstanding.work))
    }

    /// Iterates mutably over the work of all outstanding items.
    pub fn outstanding_items_mut(&mut self) -> impl Iterator<Item = (ItemId, &mut W)> {
        self.outstanding
            .iter_mut()
            .map(|(item, outstanding)| (*item, &mut outstanding.work))
    }

    /// Returns the number of items in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Iterates over the work of items that are in flight or not published.
    pub fn unsettled(&self) -> impl Iterator<Item = &W> {
        let unpublished = self.unpublished.values().map(|(work, _)| work);
        self.outstanding
            .values()
            .map(|outstanding| &outstanding.work)
            .chain(unpublished)
    }

    /// Returns whether all planned work has been issued as items. Some of these items may still be in flight.
    #[must_use]
    pub fn is_all_issued(&self) -> bool {
        self.plan_ended && self.unfinished == 0
    }

    /// Returns whether everything that was sent is settled and no more work is planned.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.plan_ended && self.is_idle()
    }

    /// Returns whether all work planned so far is settled.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unfinished == 0 && self.outstanding.is_empty() && self.unpublished.is_empty()
    }
}
