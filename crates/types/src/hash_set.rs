//! Sets that keep hashes of things and not the things, which may be many and long.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

/// A set of things by their hashes, in about 16 bytes each: of two with the same hash one is not told from the other.
/// The key of the hashes is random for each set, so that nobody can choose things of equal hashes.
#[derive(Debug, Default)]
pub struct HashOnlySet {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl HashOnlySet {
    /// Adds a thing; returns whether it is new.
    pub fn insert(&mut self, thing: &(impl Hash + ?Sized)) -> bool {
        self.hashes.insert(self.key.hash_one(thing))
    }

    /// Whether the set has this thing.
    pub fn contains(&self, thing: &(impl Hash + ?Sized)) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.key.hash_one(thing))
    }

    /// How many things the set has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether the set has nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_in_the_set_that_were_added() {
        let mut set = HashOnlySet::default();
        assert!(set.is_empty() && !set.contains("a"));
        assert!(set.insert("a") && set.insert("b") && !set.insert("a"));
        assert!(set.contains("a") && set.contains("b") && !set.contains("c"));
        assert_eq!(set.len(), 2);
    }
}
