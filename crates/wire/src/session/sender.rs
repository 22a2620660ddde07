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
//! What is outstanding bounds what is on its way; with what is unpublished it bounds what the sender has to remember.
//! **Invariant:** [`announcement`](SenderTransfer::announcement) is `Some` only while no begun work is unended,
//! so a receiver that has settled that many items and reported that many mismatches has everything.

use std::collections::HashMap;

use zmove_types::ItemId;

use crate::error::WireError;
use crate::limits::{
    ITEMS_OUTSTANDING_MAX, RESENDS_MAX, UNPUBLISHED_ENTRIES_MAX, UNPUBLISHED_ITEMS_MAX,
    UNPUBLISHED_NAME_BYTES_MAX,
};
use crate::message::ToReceiver;

/// What is on its way to the receiver. `W` describes work well enough to do it again, with whatever else is to be known
/// of an item while it is on its way.
#[derive(Debug)]
pub struct SenderTransfer<W> {
    plan_ended: bool,
    /// The receiver is not to finish yet, although all may be on its way.
    withheld: bool,
    unfinished: u64,
    issued: u64,
    mismatches: u64,
    outstanding: HashMap<ItemId, Outstanding<W>>,
    unpublished: HashMap<ItemId, (W, Load)>,
    /// Of all that is outstanding or unpublished.
    load: Load,
    announced: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Outstanding<W> {
    work: W,
    tries: u8,
    last_word: LastWord,
}

/// With which word of the receiver an item is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWord {
    /// That it is stored: a group of a large file, and everything where the receiver is older than
    /// [`Version::V4`](crate::Version).
    Stored,
    /// That it is published: a batch. Until then the sender remembers so much.
    Published(Load),
}

/// What a sender has to remember of a batch until it is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Its entries.
    pub entries: u64,
    /// The bytes of their names, with what is kept beside each.
    pub name_bytes: u64,
}

/// What an item is that has been stored.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Receipt<'a, W> {
    /// It is done.
    Settled(W),
    /// Its files have no names yet.
    Unpublished(&'a mut W),
}

/// What to do about damaged data.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Resend<W> {
    /// Read and send it again; it counts as begun, so its reader only calls [`end`](SenderTransfer::end).
    Again {
        /// The work.
        work: W,
        /// How often it has been sent, to be given back with [`issue`](SenderTransfer::issue).
        tries: u8,
    },
    /// It was damaged every time: its files have failed.
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
    /// So many pieces of work enter the plan (before anyone can take them).
    pub fn begin(&mut self, pieces: u64) {
        self.unfinished += pieces;
    }

    /// One piece of begun work has produced all its items, or none.
    pub fn end(&mut self) {
        self.unfinished = self.unfinished.checked_sub(1).expect("every end has its begin");
    }

    /// A reader has made one item of its work; `tries` is 0 unless it came from [`Resend::Again`].
    pub fn issue(&mut self, work: W, tries: u8, last_word: LastWord) -> ItemId {
        let item = ItemId(self.issued);
        self.issued += 1;
        if let LastWord::Published(load) = last_word {
            self.load.entries += load.entries;
            self.load.name_bytes += load.name_bytes;
        }
        self.outstanding.insert(item, Outstanding { work, tries, last_word });
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

    /// The scan and the offers are through: no more work will come but resends.
    pub fn plan_ended(&mut self) {
        self.plan_ended = true;
    }

    /// There is something to do when all is settled: nothing is announced before [`release`](Self::release).
    pub fn withhold(&mut self) {
        self.withheld = true;
    }

    /// That has been done.
    pub fn release(&mut self) {
        self.withheld = false;
    }

    /// The receiver has stored an item, well or badly for its files; returns what it was.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn stored(&mut self, item: ItemId) -> Result<Receipt<'_, W>, WireError> {
        let Outstanding { work, last_word, .. } = self.receipt(item)?;
        let LastWord::Published(load) = last_word else { return Ok(Receipt::Settled(work)) };
        let (work, _load) = self.unpublished.entry(item).insert_entry((work, load)).into_mut();
        Ok(Receipt::Unpublished(work))
    }

    /// The receiver has given a batch its names, as far as they could be given; returns what it was.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item has been stored, or it has been published before, or nothing of it
    /// is.
    pub fn published(&mut self, item: ItemId) -> Result<W, WireError> {
        let published = self.unpublished.remove(&item);
        let (work, load) = published.ok_or(WireError::OutOfOrder { what: "a name" })?;
        self.forget(load);
        Ok(work)
    }

    /// The receiver found an item damaged.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn mismatch(&mut self, item: ItemId) -> Result<Resend<W>, WireError> {
        let Outstanding { work, tries, .. } = self.settle(item)?;
        if tries >= RESENDS_MAX {
            return Ok(Resend::GiveUp(work));
        }
        self.unfinished += 1;
        Ok(Resend::Again { work, tries: tries + 1 })
    }

    /// The receiver says that an item, whose lane was lost, has not come: it goes again, as often as it takes.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn lost(&mut self, item: ItemId) -> Result<Resend<W>, WireError> {
        let Outstanding { work, tries, .. } = self.settle(item)?;
        self.unfinished += 1;
        Ok(Resend::Again { work, tries })
    }

    /// Ends an item that has not come to its place.
    fn settle(&mut self, item: ItemId) -> Result<Outstanding<W>, WireError> {
        let outstanding = self.receipt(item)?;
        self.mismatches += 1;
        if let LastWord::Published(load) = outstanding.last_word {
            self.forget(load);
        }
        Ok(outstanding)
    }

    fn receipt(&mut self, item: ItemId) -> Result<Outstanding<W>, WireError> {
        self.outstanding.remove(&item).ok_or(WireError::OutOfOrder { what: "a receipt" })
    }

    fn forget(&mut self, load: Load) {
        self.load.entries -= load.entries;
        self.load.name_bytes -= load.name_bytes;
    }

    /// The message to send now that everything is on its way, once for each change.
    #[must_use]
    pub fn announcement(&mut self) -> Option<ToReceiver> {
        let now = (self.issued, self.mismatches);
        if self.withheld || !self.is_all_issued() || self.announced == Some(now) {
            return None;
        }
        self.announced = Some(now);
        Some(ToReceiver::Announce { items: now.0, mismatches: now.1 })
    }

    /// Whether the receiver has said nothing of an item yet.
    #[must_use]
    pub fn is_outstanding(&self, item: ItemId) -> bool {
        self.outstanding.contains_key(&item)
    }

    /// The record of an item of which the receiver has said nothing yet.
    pub fn outstanding_mut(&mut self, item: ItemId) -> Option<&mut W> {
        self.outstanding.get_mut(&item).map(|outstanding| &mut outstanding.work)
    }

    /// The record of each item of which the receiver has said nothing yet.
    pub fn outstanding_items(&self) -> impl Iterator<Item = (ItemId, &W)> {
        self.outstanding.iter().map(|(item, outstanding)| (*item, &outstanding.work))
    }

    /// The record of each item of which the receiver has said nothing yet, to be changed.
    pub fn outstanding_items_mut(&mut self) -> impl Iterator<Item = (ItemId, &mut W)> {
        self.outstanding.iter_mut().map(|(item, outstanding)| (*item, &mut outstanding.work))
    }

    /// How many items are on their way.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// What is on its way, or has no name yet.
    pub fn unsettled(&self) -> impl Iterator<Item = &W> {
        let unpublished = self.unpublished.values().map(|(work, _)| work);
        self.outstanding.values().map(|outstanding| &outstanding.work).chain(unpublished)
    }

    /// Whether all work has become items, of which some may be on their way.
    #[must_use]
    pub fn is_all_issued(&self) -> bool {
        self.plan_ended && self.unfinished == 0
    }

    /// Whether everything sent has been settled and nothing is planned.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_all_issued() && self.outstanding.is_empty() && self.unpublished.is_empty()
    }
}
