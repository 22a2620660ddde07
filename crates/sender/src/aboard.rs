//! Which lane has which item, so that what a lane had can go by others when its connection is lost.
//!
//! **Invariant:** an item is lost when every lane that has had it is gone, and then once.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zmove_types::ItemId;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Aboard(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The lanes that have taken each item without a receipt: one, or two where the first was slow.
    lanes: HashMap<ItemId, Vec<usize>>,
    lost: HashSet<ItemId>,
}

impl Aboard {
    /// A lane has taken an item.
    pub(crate) fn taken(&self, item: ItemId, lane: usize) {
        self.lock().lanes.entry(item).or_default().push(lane);
    }

    /// The receiver has said what became of an item; returns whether it had been lost.
    pub(crate) fn settled(&self, item: ItemId) -> bool {
        let mut state = self.lock();
        state.lanes.remove(&item);
        state.lost.remove(&item)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_lanes_have_is_lost_with_the_second() {
        let aboard = Aboard::default();
        for (item, lane) in [(1, 0), (2, 0), (2, 1), (3, 1), (4, 0)] {
            aboard.taken(ItemId(item), lane);
        }
        assert!(!aboard.settled(ItemId(4)));
        assert_eq!(aboard.lose(0), [ItemId(1)]);
        let mut lost = aboard.lose(1);
        lost.sort_unstable();
        assert_eq!(lost, [ItemId(2), ItemId(3)]);
        assert_eq!(aboard.lose(1), []);
        assert!(aboard.settled(ItemId(2)) && !aboard.settled(ItemId(2)));
    }
}
