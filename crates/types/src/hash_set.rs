//! A set that stores only the hashes of its values, for large numbers of long values.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

/// A set that stores only hashes, in about 16 bytes per value. Values with equal hashes count as the same value. Each
/// set has its own random hash key, so that nobody can craft colliding values.
#[derive(Debug, Default)]
pub struct HashOnlySet {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl HashOnlySet {
    /// Adds a value. Returns whether it is new.
    pub fn insert(&mut self, thing: &(impl Hash + ?Sized)) -> bool {
        self.hashes.insert(self.key.hash_one(thing))
    }

    /// Returns whether the set contains a value.
    pub fn contains(&self, thing: &(impl Hash + ?Sized)) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.key.hash_one(thing))
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns whether the set is empty.
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
