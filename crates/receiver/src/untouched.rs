//! Directories that this transfer has made and nobody has opened since.
//!
//! **Invariant:** a directory is replaced only while it is in here, and whoever opens one takes it out, so no descriptor is
//! ever left with a directory that has been replaced. Making and entering one is a single step, and so is taking it out
//! and opening it: between the two of either another writer could do both of the other.
//!
//! Directories are made under the lock, so there are many, and a path has one of them.

use std::array;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zmove_types::RelPath;

/// The directories, shared by all writers.
#[derive(Debug)]
pub(crate) struct Untouched {
    shards: [Mutex<HashSet<RelPath>>; SHARDS],
    hasher: RandomState,
}

const SHARDS: usize = 64;
/// What is not remembered is only placed file by file. Memory at worst: so many paths for each lock.
const SHARD_PATHS_MAX: usize = 256;

impl Default for Untouched {
    fn default() -> Self {
        Self { shards: array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }
}

impl Untouched {
    /// Runs `make`, and remembers the directory if it says that it has made it.
    pub(crate) fn make(&self, path: &RelPath, make: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        let mut paths = self.lock(self.shard(path.as_bytes()));
        let made = make()?;
        if made && paths.len() < SHARD_PATHS_MAX {
            paths.insert(path.clone());
        }
        Ok(made)
    }

    pub(crate) fn holds(&self, path: &RelPath) -> bool {
        self.lock(self.shard(path.as_bytes())).contains(path)
    }

    /// Runs `open`, which opens a directory and perhaps those above it: none of them will be replaced.
    pub(crate) fn open<T>(&self, path: &RelPath, open: impl FnOnce() -> T) -> T {
        let lineage = || path.lineage().map(|path| (self.shard(path), path));
        // in one order for all who take several, so that none waits for another that waits for it
        let concerned: BTreeSet<_> = lineage().map(|(shard, _)| shard).collect();
        let mut locked: BTreeMap<_, _> =
            concerned.into_iter().map(|shard| (shard, self.lock(shard))).collect();
        if locked.values().any(|paths| !paths.is_empty()) {
            for (shard, path) in lineage() {
                locked.get_mut(&shard).map(|paths| paths.remove(path));
            }
        }
        open()
    }

    /// Runs `replace` if nobody has opened the directory, and takes it out; nobody can open it meanwhile. `None` when it
    /// was not done.
    pub(crate) fn replace<T>(&self, path: &RelPath, replace: impl FnOnce() -> io::Result<T>) -> Option<T> {
        let mut paths = self.lock(self.shard(path.as_bytes()));
        if paths.remove(path) { replace().ok() } else { None }
    }

    fn shard(&self, path: &[u8]) -> usize {
        usize::try_from(self.hasher.hash_one(path) % SHARDS as u64).expect("below the number of shards")
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, HashSet<RelPath>> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    #[test]
    fn an_opened_directory_is_not_replaced_nor_those_above_it() {
        let untouched = Untouched::default();
        for text in ["a", "a/b", "c"] {
            assert!(untouched.make(&path(text), || Ok(true)).unwrap());
        }
        untouched.open(&path("a/b/x"), || ());
        assert_eq!(["a", "a/b", "c"].map(|text| untouched.holds(&path(text))), [false, false, true]);
        assert_eq!(untouched.replace(&path("a"), || Ok(())), None);
    }

    #[test]
    fn what_was_there_is_not_replaced() {
        let untouched = Untouched::default();
        assert!(!untouched.make(&path("a"), || Ok(false)).unwrap());
        assert_eq!(untouched.replace(&path("a"), || Ok(())), None);
    }

    #[test]
    fn nobody_comes_in_between() {
        let untouched = Untouched::default();
        let is_locked = |text: &str| untouched.shards[untouched.shard(text.as_bytes())].try_lock().is_err();
        untouched.make(&path("a/b"), || Ok(is_locked("a/b"))).unwrap();
        assert_eq!(untouched.replace(&path("a/b"), || Ok(is_locked("a/b"))), Some(true));
        let locked = untouched.open(&path("a/b/c"), || ["", "a", "a/b", "a/b/c"].map(is_locked));
        assert_eq!(locked, [true; 4]);
    }

    /// Lineages take several locks, in whatever order the hashes of their paths come to.
    #[test]
    fn none_waits_for_another_that_waits_for_it() {
        let untouched = &Untouched::default();
        let write = |writer| {
            for turn in 0..10_000 {
                let path = path(&format!("{}/{writer}/{}", turn % 8, turn % 5));
                drop(untouched.make(&path, || Ok(true)));
                untouched.replace(&path, || Ok(()));
                untouched.open(&path, || ());
            }
        };
        thread::scope(|scope| (0..4).for_each(|writer| drop(scope.spawn(move || write(writer)))));
    }

    /// Whatever a sender names, no copies are made of all that it is below.
    #[test]
    fn the_deepest_path_is_opened() {
        let untouched = Untouched::default();
        let deepest = path(&["a"; RelPath::BYTES_MAX.div_ceil(2)].join("/"));
        untouched.make(&path("a/a"), || Ok(true)).unwrap();
        untouched.open(&deepest, || ());
        assert!(!untouched.holds(&path("a/a")));
    }

    #[test]
    fn one_of_two_replaces() {
        let untouched = Untouched::default();
        untouched.make(&path("a"), || Ok(true)).unwrap();
        assert_eq!(untouched.replace(&path("a"), || Ok(1)), Some(1));
        assert_eq!(untouched.replace(&path("a"), || Ok(2)), None);
    }
}
