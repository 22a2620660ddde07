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
//! Outstanding items bound what is in flight; together with unpublished ones they bound what the sender has to
//! remember. **Invariant:** [`announcement`](SenderTransfer::announcement) is `Some` only while no begun work is
//! unended, so a receiver that has settled that many items and reported that many mismatches has everything.

use std::collections::HashMap;

use zmove_types::ItemId;

use crate::error::WireError;
use crate::limits::{
    ITEMS_OUTSTANDING_MAX, RESENDS_MAX, UNPUBLISHED_ENTRIES_MAX, UNPUBLISHED_ITEMS_MAX,
    UNPUBLISHED_NAME_BYTES_MAX,
};
use crate::message::ToReceiver;

/// The items in flight to the receiver. `W` describes work well enough to do it again, with whatever else must be known
/// of an item in flight.
#[derive(Debug)]
pub struct SenderTransfer<W> {
    plan_ended: bool,
    /// Whether the receiver must not finish yet, although everything may be in flight.
    withheld: bool,
    unfinished: u64,
    issued: u64,
    mismatches: u64,
    outstanding: HashMap<ItemId, OutstandingItem<W>>,
    unpublished: HashMap<ItemId, (W, Load)>,
    /// The load of all items that are outstanding or unpublished.
    load: Load,
    announced: Option<(u64, u64)>,
}

#[derive(Debug)]
struct OutstandingItem<W> {
    work: W,
    tries: u8,
    last_word: LastWord,
}

/// The receiver's report with which an item is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWord {
    /// The report that it is stored: a group of a large file.
    Stored,
    /// The report that it is published: a batch. Until then the sender remembers this load.
    Published(Load),
}

/// The memory that a batch takes at the sender until it is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of the batch's entries.
    pub entries: u64,
    /// The bytes of the entries' names, with what is kept beside each.
    pub name_bytes: u64,
}

/// The state of an item after its receipt.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Receipt<'a, W> {
    /// The item is done.
    Settled(W),
    /// The item is stored, but its files have no names yet.
    Unpublished(&'a mut W),
}

/// The next step for an item that did not arrive as it was sent.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Resend<W> {
    /// The work must be read and sent again; it counts as begun, so its reader only calls [`end`](SenderTransfer::end).
    Again {
        /// The work.
        work: W,
        /// The tries to give to [`issue`](SenderTransfer::issue): how often the work arrived damaged.
        tries: u8,
    },
    /// The work was damaged every time: its files have failed.
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
            load: Load::default(),
            announced: None,
        }
    }
}

impl<W> SenderTransfer<W> {
    /// Adds pieces of work that enter the plan, before anyone can take them.
    pub fn begin(&mut self, pieces: u64) {
        self.unfinished += pieces;
    }

    /// Ends one piece of begun work, which has produced all its items, or none.
    pub fn end(&mut self) {
        self.unfinished = self
            .unfinished
            .checked_sub(1)
            .expect("every end has its begin");
    }

    /// Books an item that a reader has made of its work; `tries` is 0 unless it came from [`Resend::Again`].
    pub fn issue(&mut self, work: W, tries: u8, last_word: LastWord) -> ItemId {
        let item = ItemId(self.issued);
        self.issued += 1;
        if let LastWord::Published(load) = last_word {
            self.load.entries += load.entries;
            self.load.name_bytes += load.name_bytes;
        }
        self.outstanding.insert(
            item,
            OutstandingItem {
                work,
                tries,
                last_word,
            },
        );
        item
    }

    /// Whether nothing more may be issued until something is settled.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let items = (self.outstanding.len() + self.unpublished.len()) as u64;
        self.outstanding.len() >= ITEMS_OUTSTANDING_MAX
            || items >= UNPUBLISHED_ITEMS_MAX
            || self.load.entries >= UNPUBLISHED_ENTRIES_MAX
            || self.load.name_bytes >= UNPUBLISHED_NAME_BYTES_MAX
    }

    /// Ends the plan: the scan and the requests are through, and no more work will come but resends.
    pub fn plan_ended(&mut self) {
        self.plan_ended = true;
    }

    /// Withholds the announcement until [`release`](Self::release): work remains for when everything is settled.
    pub fn withhold(&mut self) {
        self.withheld = true;
    }

    /// Lifts [`withhold`](Self::withhold): that work is done.
    pub fn release(&mut self) {
        self.withheld = false;
    }

    /// Books the receipt for an item that the receiver has stored, well or badly for its files; returns its work.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn stored(&mut self, item: ItemId) -> Result<Receipt<'_, W>, WireError> {
        let OutstandingItem {
            work, last_word, ..
        } = self.receipt(item)?;
        let LastWord::Published(load) = last_word else {
            return Ok(Receipt::Settled(work));
        };
        let (work, _load) = self
            .unpublished
            .entry(item)
            .insert_entry((work, load))
            .into_mut();
        Ok(Receipt::Unpublished(work))
    }

    /// Books a batch that the receiver has given its names, as far as it could; returns its work.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when the item is not one that is stored and unpublished.
    pub fn published(&mut self, item: ItemId) -> Result<W, WireError> {
        let published = self.unpublished.remove(&item);
        let (work, load) = published.ok_or(WireError::OutOfOrder { what: "a name" })?;
        self.forget(load);
        Ok(work)
    }

    /// Books an item that the receiver found damaged.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
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

    /// Books an item that was lost with its lane, as the receiver reports: it goes again, as often as it takes.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn lost(&mut self, item: ItemId) -> Result<Resend<W>, WireError> {
        let OutstandingItem { work, tries, .. } = self.settle(item)?;
        self.unfinished += 1;
        Ok(Resend::Again { work, tries })
    }

    /// Takes an item out that has failed to arrive.
    fn settle(&mut self, item: ItemId) -> Result<OutstandingItem<W>, WireError> {
        let outstanding = self.receipt(item)?;
        self.mismatches += 1;
        if let LastWord::Published(load) = outstanding.last_word {
            self.forget(load);
        }
        Ok(outstanding)
    }

    fn receipt(&mut self, item: ItemId) -> Result<OutstandingItem<W>, WireError> {
        self.outstanding
            .remove(&item)
            .ok_or(WireError::OutOfOrder { what: "a receipt" })
    }

    fn forget(&mut self, load: Load) {
        self.load.entries -= load.entries;
        self.load.name_bytes -= load.name_bytes;
    }

    /// The message to send when everything is in flight, once for each change.
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

    /// Whether the receiver has not acknowledged an item yet.
    #[must_use]
    pub fn is_outstanding(&self, item: ItemId) -> bool {
        self.outstanding.contains_key(&item)
    }

    /// The record of an item that the receiver has not acknowledged yet.
    pub fn outstanding_mut(&mut self, item: ItemId) -> Option<&mut W> {
        self.outstanding
            .get_mut(&item)
            .map(|outstanding| &mut outstanding.work)
    }

    /// The records of all items that the receiver has not acknowledged yet.
    pub fn outstanding_items(&self) -> impl Iterator<Item = (ItemId, &W)> {
        self.outstanding
            .iter()
            .map(|(item, outstanding)| (*item, &outstanding.work))
    }

    /// The records of all items that the receiver has not acknowledged yet, to be changed.
    pub fn outstanding_items_mut(&mut self) -> impl Iterator<Item = (ItemId, &mut W)> {
        self.outstanding
            .iter_mut()
            .map(|(item, outstanding)| (*item, &mut outstanding.work))
    }

    /// The number of items in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The work in flight or without a name yet.
    pub fn unsettled(&self) -> impl Iterator<Item = &W> {
        let unpublished = self.unpublished.values().map(|(work, _)| work);
        self.outstanding
            .values()
            .map(|outstanding| &outstanding.work)
            .chain(unpublished)
    }

    /// Whether all work has become items, some of which may be in flight.
    #[must_use]
    pub fn is_all_issued(&self) -> bool {
        self.plan_ended && self.unfinished == 0
    }

    /// Whether everything sent has been settled and nothing is planned.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.plan_ended && self.is_idle()
    }

    /// Whether all that has been planned until now is settled.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unfinished == 0 && self.outstanding.is_empty() && self.unpublished.is_empty()
    }
}
