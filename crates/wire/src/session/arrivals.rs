//! The set of items that have come, or will not come any more.
//!
//! **Invariant:** an item is let in once. An item that its sender has given up was either let in before, and its
//! receipt is on the way, or never will be: so it can be sent again under another number without being stored twice.

use std::collections::BTreeMap;

use crate::error::WireError;
use crate::limits::{ITEMS_OUTSTANDING_MAX, within};

/// A set of items, kept as ranges since items are numbered consecutively.
#[derive(Debug, Default)]
pub struct Arrivals {
    pub(super) count: u64,
    /// The end of each range by its start; no two ranges touch.
    ranges: BTreeMap<u64, u64>,
}

impl Arrivals {
    /// Adds an item that has come in full or was given up; returns whether it is new.
    ///
    /// # Errors
    /// [`WireError::OverLimit`] when the items that came leave more gaps than a sender may have items in flight.
    pub fn insert(&mut self, item: u64) -> Result<bool, WireError> {
        let before = self
            .ranges
            .range(..=item)
            .next_back()
            .map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, end)| item < end) {
            return Ok(false);
        }
        let end = item
            .checked_add(1)
            .ok_or(WireError::OutOfOrder { what: "an item" })?;
        let start = before
            .filter(|(_, end)| *end == item)
            .map_or(item, |(start, _)| start);
        let end = self.ranges.remove(&end).unwrap_or(end);
        self.ranges.insert(start, end);
        self.count += 1;
        within("gaps between items", self.ranges.len(), RANGES_MAX)?;
        Ok(true)
    }
}

/// The most ranges: between two of them there is an item in flight.
const RANGES_MAX: usize = ITEMS_OUTSTANDING_MAX + 1;
