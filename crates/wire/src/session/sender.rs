//! The sender's ledger of one transfer.
//!
//! ```text
//!           issued                  stored
//!  begun ─────────────► outstanding ────────► settled
//!    ▲ │ failed              │ mismatch, or lost with its lane
//!    │ ▼                     ▼
//!    │ ended               Resend ──give up──► settled badly
//!    └───────again───────────┘
//! ```
//!
//! **Invariant:** [`announcement`](SenderTransfer::announcement) is `Some` only while no begun work is unended,
//! so a receiver that has settled that many items and reported that many mismatches has everything.

use std::collections::HashMap;

use zmove_types::ItemId;

use crate::error::WireError;
use crate::limits::RESENDS_MAX;
use crate::message::ToReceiver;

/// What is on its way to the receiver. `W` describes work well enough to do it again.
#[derive(Debug)]
pub struct SenderTransfer<W> {
    plan_ended: bool,
    /// The receiver is not to finish yet, although all may be on its way.
    withheld: bool,
    unfinished: u64,
    issued: u64,
    mismatches: u64,
    outstanding: HashMap<ItemId, Outstanding<W>>,
    announced: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Outstanding<W> {
    work: W,
    tries: u8,
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
    pub fn issue(&mut self, work: W, tries: u8) -> ItemId {
        let item = ItemId(self.issued);
        self.issued += 1;
        self.outstanding.insert(item, Outstanding { work, tries });
        item
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

    /// The receiver settled an item, well or badly for its files; returns what it was.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn stored(&mut self, item: ItemId) -> Result<W, WireError> {
        self.settle(item).map(|outstanding| outstanding.work)
    }

    /// The receiver found an item damaged.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when no such item is outstanding.
    pub fn mismatch(&mut self, item: ItemId) -> Result<Resend<W>, WireError> {
        let Outstanding { work, tries } = self.settle(item)?;
        self.mismatches += 1;
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
        let Outstanding { work, tries } = self.settle(item)?;
        self.mismatches += 1;
        self.unfinished += 1;
        Ok(Resend::Again { work, tries })
    }

    fn settle(&mut self, item: ItemId) -> Result<Outstanding<W>, WireError> {
        self.outstanding.remove(&item).ok_or(WireError::OutOfOrder { what: "a receipt" })
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

    /// Whether the receiver has not settled an item yet.
    #[must_use]
    pub fn is_outstanding(&self, item: ItemId) -> bool {
        self.outstanding.contains_key(&item)
    }

    /// How many items are on their way.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// What is on its way.
    pub fn unsettled(&self) -> impl Iterator<Item = &W> {
        self.outstanding.values().map(|outstanding| &outstanding.work)
    }

    /// Whether all work has become items, of which some may be on their way.
    #[must_use]
    pub fn is_all_issued(&self) -> bool {
        self.plan_ended && self.unfinished == 0
    }

    /// Whether everything sent has been settled and nothing is planned.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_all_issued() && self.outstanding.is_empty()
    }
}
