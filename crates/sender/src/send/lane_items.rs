//! Which lane has which item, so that what a lane had can go by others when its connection is lost, or seems to be.
//!
//! **Invariant:** an item is lost when every lane that has had it is gone, and then once.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_types::ItemId;

/// The items of each lane.
#[derive(Debug, Default)]
pub(crate) struct LaneItems(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The lanes that have taken each item without a receipt: one, or two where the first was slow.
    lanes: HashMap<ItemId, Vec<usize>>,
    lost: HashSet<ItemId>,
    /// When something was last taken where no lane had any item, settled, or doubted.
    last: Option<Instant>,
}

impl LaneItems {
    /// A lane has taken an item.
    pub(crate) fn taken(&self, item: ItemId, lane: usize, now: Instant) {
        let mut state = self.lock();
        if state.lanes.is_empty() {
            state.last = Some(now);
        }
        state.lanes.entry(item).or_default().push(lane);
    }

    /// The receiver has said what became of an item; returns whether it had been lost.
    pub(crate) fn settled(&self, item: ItemId, now: Instant) -> bool {
        let mut state = self.lock();
        state.lanes.remove(&item);
        state.last = Some(now);
        state.lost.remove(&item)
    }

    /// The lane that has had its item longest, if nothing has been settled for so long that what it sent may not have come as a
    /// whole: the receiver may wait for bytes of which nobody knows. Giving a lane up that is only slow costs a connection.
    pub(crate) fn doubtful(&self, now: Instant) -> Option<usize> {
        let mut state = self.lock();
        let waited = now.saturating_duration_since(state.last?);
        if waited < DOUBT_AFTER {
            return None;
        }
        let lane = state
            .lanes
            .iter()
            .min_by_key(|(item, _)| **item)
            .and_then(|(_, lanes)| lanes.first().copied())?;
        state.last = Some(now);
        Some(lane)
    }

    /// A lane is gone; returns what nobody else has.
    pub(crate) fn lose(&self, lane: usize) -> Vec<ItemId> {
        let mut state = self.lock();
        let mut lost = Vec::new();
        state.lanes.retain(|item, lanes| {
            let had = lanes.contains(&lane);
            lanes.retain(|other| *other != lane);
            if had && lanes.is_empty() {
                lost.push(*item);
            }
            !lanes.is_empty()
        });
        state.lost.extend(&lost);
        lost
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Storage that takes so long for anything is rare.
const DOUBT_AFTER: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_doubted_when_nothing_is_settled_for_long() {
        let items = LaneItems::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(items.doubtful(at(99)), None, "no lane has anything");
        items.taken(ItemId(5), 1, at(100));
        items.taken(ItemId(6), 2, at(110));
        items.settled(ItemId(7), at(111));
        assert_eq!(items.doubtful(at(140)), None);
        assert_eq!(items.doubtful(at(141)), Some(1));
        assert_eq!(items.doubtful(at(142)), None, "one after the other");
        items.lose(1);
        assert_eq!(items.doubtful(at(171)), Some(2));
    }

    #[test]
    fn what_two_lanes_have_is_lost_with_the_second() {
        let items = LaneItems::default();
        let now = Instant::now();
        for (item, lane) in [(1, 0), (2, 0), (2, 1), (3, 1), (4, 0)] {
            items.taken(ItemId(item), lane, now);
        }
        assert!(!items.settled(ItemId(4), now));
        assert_eq!(items.lose(0), [ItemId(1)]);
        let mut lost = items.lose(1);
        lost.sort_unstable();
        assert_eq!(lost, [ItemId(2), ItemId(3)]);
        assert_eq!(items.lose(1), []);
        assert!(items.settled(ItemId(2), now) && !items.settled(ItemId(2), now));
    }
}
