//! Reproducible random numbers. All random decisions of a round come from one generator.

use std::ops::RangeInclusive;

/// A random number generator (splitmix64). All seeds are equally good, including consecutive ones.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent generator, whose numbers do not depend on later draws from this one.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.roll())
    }

    /// Returns 64 random bits.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number of the range, with uniform distribution.
    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (first, last) = range.into_inner();
        first + self.roll() % (last - first).saturating_add(1)
    }

    /// Returns a number of the range. Each power of two is equally likely.
    pub(crate) fn scaled_within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (first, last) = range.into_inner();
        let bits = u64::from((last.max(1)).ilog2());
        let high = 1 << self.within(0..=bits);
        self.within(high..=high.saturating_mul(2))
            .clamp(first, last)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.within(1..=count) == 1
    }

    /// Returns a random element.
    ///
    /// # Panics
    /// `things` is empty.
    pub(crate) fn pick<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.index(things.len())]
    }

    /// Returns a random index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.roll() % count as u64).expect("below a length")
    }

    /// Returns a random index of `weights`, with these weights.
    pub(crate) fn weighted(&mut self, weights: impl Iterator<Item = u64> + Clone) -> usize {
        let mut left = self.within(1..=weights.clone().sum());
        for (place, weight) in weights.enumerate() {
            if left <= weight {
                return place;
            }
            left -= weight;
        }
        0
    }

    /// Fills `room` with incompressible bytes.
    pub(crate) fn fill(&mut self, room: &mut [u8]) {
        for eight in room.chunks_mut(size_of::<u64>()) {
            let bytes = self.roll().to_le_bytes();
            eight.copy_from_slice(&bytes[..eight.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_all() {
        let (mut one, mut other) = (Dice::new(7), Dice::new(7));
        let mut rolled = [0; 1000];
        one.fill(&mut rolled);
        let mut again = [1; 1000];
        other.fill(&mut again);
        assert_eq!(rolled, again);
        assert_ne!(one.fork().roll(), Dice::new(8).roll());
    }

    #[test]
    fn numbers_stay_within_their_range_and_reach_its_ends() {
        let mut dice = Dice::new(1);
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| dice.within(3..=6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert!((0..1000).all(|_| (10..=70_000).contains(&dice.scaled_within(10..=70_000))));
    }

    #[test]
    fn what_weighs_nothing_is_never_taken() {
        let mut dice = Dice::new(1);
        assert!((0..1000).all(|_| dice.weighted([0, 3, 0, 1].into_iter()) % 2 == 1));
    }
}
