//! Buffers for listing directories, reused from one listing to the next.
//!
//! **Invariant:** a listing contains each name once. Some file systems (Gluster, union file systems, some NFS servers)
//! return a name twice. If that name is a directory, the walk would otherwise visit the directory twice.

use std::collections::HashSet;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};

/// The buffer for directory entries from the kernel, and the names in the current listing.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) entries: Vec<u8>,
    pub(crate) names: SeenNames,
}

/// The names in the current listing, stored as 128-bit hashes. Each hash takes about 35 bytes, so that directories of
/// millions of names need little memory. The hash keys are random, so nobody can choose names with equal hashes.
#[derive(Debug, Default)]
pub(crate) struct SeenNames {
    hashes: HashSet<[u64; 2]>,
    keys: [RandomState; 2],
}

impl Listing {
    /// Size of the buffer for directory entries in bytes.
    pub(crate) const BUFFER_BYTES: usize = 128 * 1024;
}

impl SeenNames {
    /// The number of names for which memory is kept between listings.
    const KEPT_MAX: usize = 1 << 14;

    /// Adds a name. Returns whether it is new.
    pub(crate) fn insert(&mut self, name: &CStr) -> bool {
        let hash = self.keys.each_ref().map(|key| key.hash_one(name));
        self.hashes.insert(hash)
    }

    pub(crate) fn clear(&mut self) {
        self.hashes.clear();
        self.hashes.shrink_to(Self::KEPT_MAX);
    }
}

impl Default for Listing {
    fn default() -> Self {
        Self {
            entries: Vec::with_capacity(Self::BUFFER_BYTES),
            names: SeenNames::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_new_once_in_each_listing() {
        let mut names = SeenNames::default();
        for _listing in 0..2 {
            assert!(names.insert(c"a") && names.insert(c"b"));
            assert!(!names.insert(c"a") && !names.insert(c"b") && names.insert(c"c"));
            names.clear();
        }
    }

    #[test]
    fn a_large_listing_leaves_little_memory_behind() {
        let mut names = SeenNames::default();
        for number in 0..SeenNames::KEPT_MAX * 4 {
            let name = std::ffi::CString::new(number.to_string()).unwrap();
            assert!(names.insert(&name));
        }
        names.clear();
        assert!(names.hashes.capacity() < SeenNames::KEPT_MAX * 4);
    }
}
