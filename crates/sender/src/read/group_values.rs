//! The chaining values of a file's groups, as far as they are known. Most groups of a file with holes have no value,
//! and the receiver may report only a few values of a file: a file of 16 PiB may have 2^32 groups and no data.
//!
//! **Invariant:** memory use depends on the number of known values, not on the file's length.

use std::collections::BTreeMap;
use std::ops::Range;

use zmove_types::Cv;

use crate::control::relay::Reservation;

/// The known chaining values of a file's groups.
#[derive(Debug, Default)]
pub(crate) struct GroupValues {
    blocks: BTreeMap<u32, Box<Block>>,
    known: u32,
    /// Reservations for the memory of the values, released together with the values.
    held: Vec<Reservation>,
}

type Block = [Option<Cv>; BLOCK_GROUPS as usize];

/// Number of consecutive groups in a block of values.
const BLOCK_GROUPS: u32 = 16;

impl GroupValues {
    /// Returns the value of a group, if it is known.
    pub(crate) fn get(&self, index: u32) -> Option<Cv> {
        self.blocks
            .get(&(index / BLOCK_GROUPS))
            .and_then(|block| block[slot_of(index)])
    }

    /// Sets the value of a group.
    pub(crate) fn insert(&mut self, index: u32, cv: Cv) {
        let block = self.blocks.entry(index / BLOCK_GROUPS).or_default();
        let before = block[slot_of(index)].replace(cv);
        self.known += u32::from(before.is_none());
    }

    /// Removes the value of a group.
    pub(crate) fn remove(&mut self, index: u32) {
        let block = self.blocks.get_mut(&(index / BLOCK_GROUPS));
        let before = block.and_then(|block| block[slot_of(index)].take());
        self.known -= u32::from(before.is_some());
    }

    /// Holds the memory reservation for some of the values.
    pub(crate) fn hold(&mut self, held: Reservation) {
        self.held.push(held);
    }

    /// Returns the number of known values.
    pub(crate) const fn count(&self) -> u32 {
        self.known
    }

    /// Returns the groups whose values are known, in ascending order.
    pub(crate) fn known(&self) -> impl Iterator<Item = u32> {
        self.entries().map(|(index, _)| index)
    }

    /// Returns the ranges of groups before `end` whose values are unknown.
    pub(crate) fn unknown(&self, end: u32) -> impl Iterator<Item = Range<u32>> {
        let mut next = 0;
        let ends = self
            .known()
            .take_while(move |index| *index < end)
            .chain([end]);
        ends.filter_map(move |known| {
            let before = next..known;
            next = known.saturating_add(1);
            (!before.is_empty()).then_some(before)
        })
    }

    /// Returns the values of all groups, or `None` if any is unknown.
    pub(crate) fn all(&self, groups: u32) -> Option<Vec<Cv>> {
        (groups > 0 && self.known == groups).then(|| self.entries().map(|(_, cv)| cv).collect())
    }

    fn entries(&self) -> impl Iterator<Item = (u32, Cv)> {
        self.blocks.iter().flat_map(|(number, block)| {
            let known = (0..BLOCK_GROUPS).zip(block.iter());
            known.filter_map(move |(slot, cv)| cv.map(|cv| (number * BLOCK_GROUPS + slot, cv)))
        })
    }
}

const fn slot_of(index: u32) -> usize {
    (index % BLOCK_GROUPS) as usize
}

impl PartialEq for GroupValues {
    fn eq(&self, other: &Self) -> bool {
        self.entries().eq(other.entries())
    }
}

impl Eq for GroupValues {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_by_the_values_that_are_known() {
        let mut values = GroupValues::default();
        for index in [0, 1, u32::MAX - 1, u32::MAX] {
            values.insert(index, Cv([7; 32]));
        }
        assert_eq!((values.count(), values.blocks.len()), (4, 2));
        assert_eq!(
            values.known().collect::<Vec<_>>(),
            [0, 1, u32::MAX - 1, u32::MAX]
        );
        assert_eq!(
            (values.get(1), values.get(2), values.get(99)),
            (Some(Cv([7; 32])), None, None)
        );
    }

    #[test]
    fn what_is_not_known_are_the_ranges_between() {
        let mut values = GroupValues::default();
        assert!(values.unknown(3).eq(std::iter::once(0..3)));
        for index in [1, 2, 17, 40] {
            values.insert(index, Cv([7; 32]));
        }
        assert_eq!(
            values.unknown(41).collect::<Vec<_>>(),
            [0..1, 3..17, 18..40]
        );
        assert_eq!(values.unknown(18).collect::<Vec<_>>(), [0..1, 3..17]);
        assert_eq!(
            values.unknown(20).collect::<Vec<_>>(),
            [0..1, 3..17, 18..20]
        );
        values.remove(2);
        values.remove(3);
        assert_eq!((values.count(), values.all(4)), (3, None));
        let mut whole = GroupValues::default();
        (0..20).for_each(|index| whole.insert(index, Cv([7; 32])));
        assert_eq!(whole.all(20).unwrap().len(), 20);
        assert_eq!(whole.unknown(20).count(), 0);
    }
}
