//! The set of items that have been received or given up.
//!
//! **Invariant:** an item is accepted at most once. If the sender gives up an item, there are two cases: either the
//! receiver has already accepted the item and its receipt is in transit, or the receiver will never accept it. So the
//! sender can send the work again as a new item, and nothing is stored twice.

use std::collections::BTreeMap;

use crate::error::WireError;
use crate::limits::{ITEMS_OUTSTANDING_MAX, within};

/// A set of items, stored as ranges because items are numbered consecutively.
#[derive(Debug, Default)]
pub struct ReceivedItems {
    pub(super) count: u64,
    /// The end of each range, keyed by the start of the range. No two ranges touch.
    ranges: BTreeMap<u64, u64>,
}

impl ReceivedItems {
    /// Adds an item that was received completely or given up. Returns whether it is new.
    ///
    /// # Errors
    /// [`WireError::OverLimit`] if there are more gaps between the received items than a sender may have items in
    /// flight.
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

/// Maximum number of ranges. Between two ranges, at least one item is in flight.
const RANGES_MAX: usize = ITEMS_OUTSTANDING_MAX + 1;
