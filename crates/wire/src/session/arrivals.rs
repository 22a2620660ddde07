//! Which items have come, or will not come any more.
//!
//! **Invariant:** an item is let in once. One that its sender has given up is either let in before, and its
//! receipt is on the way, or never: it can be sent again under another number without being stored twice.

use std::collections::BTreeMap;

use crate::error::WireError;
use crate::limits::{ITEMS_OUTSTANDING_MAX, within};

/// A set of items: as ranges, since they are numbered in a row.
#[derive(Debug, Default)]
pub struct Arrivals {
    pub(super) count: u64,
    /// The end of each range by its start; no two touch.
    ranges: BTreeMap<u64, u64>,
}

impl Arrivals {
    /// An item has come in full, or has been given up; returns whether that is news.
    ///
    /// # Errors
    /// [`WireError::OverLimit`] when the items that came leave more gaps than a sender may have items on their way.
    pub fn insert(&mut self, item: u64) -> Result<bool, WireError> {
        let before = self.ranges.range(..=item).next_back().map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, end)| item < end) {
            return Ok(false);
        }
        let end = item.checked_add(1).ok_or(WireError::OutOfOrder { what: "an item" })?;
        let start = before.filter(|(_, end)| *end == item).map_or(item, |(start, _)| start);
        let end = self.ranges.remove(&end).unwrap_or(end);
        self.ranges.insert(start, end);
        self.count += 1;
        within("gaps between items", self.ranges.len(), RANGES_MAX)?;
        Ok(true)
    }
}

/// Between two ranges there is an item that is on its way.
const RANGES_MAX: usize = ITEMS_OUTSTANDING_MAX + 1;
