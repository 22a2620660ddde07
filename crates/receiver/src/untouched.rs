//! Directories that this transfer has made and nobody has opened since.
//!
//! **Invariant:** a directory is replaced only while it is in here, and whoever opens one takes it out, so no descriptor is
//! ever left with a directory that has been replaced. Making and entering one is a single step, and so is taking it out
//! and opening it: between the two of either another writer could do both of the other.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zmove_types::RelPath;

/// The directories, shared by all writers.
#[derive(Debug, Default)]
pub(crate) struct Untouched(Mutex<HashSet<RelPath>>);

/// What is not remembered is only placed file by file. Memory at worst: this many paths.
const PATHS_MAX: usize = 16_384;

impl Untouched {
    /// Runs `make`, and remembers the directory if it says that it has made it.
    pub(crate) fn make(&self, path: &RelPath, make: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        let mut paths = self.lock();
        let made = make()?;
        if made && paths.len() < PATHS_MAX {
            paths.insert(path.clone());
        }
        Ok(made)
    }

    pub(crate) fn holds(&self, path: &RelPath) -> bool {
        self.lock().contains(path)
    }

    /// Runs `open`, which opens a directory and perhaps those above it: none of them will be replaced.
    pub(crate) fn open<T>(&self, path: &RelPath, open: impl FnOnce() -> T) -> T {
        let mut paths = self.lock();
        let mut next = Some(path.clone());
        while let Some(path) = next.filter(|_| !paths.is_empty()) {
            paths.remove(&path);
            next = path.parent();
        }
        open()
    }

    /// Runs `replace` if nobody has opened the directory, and takes it out; nobody can open it meanwhile. `None` when it
    /// was not done.
    pub(crate) fn replace<T>(&self, path: &RelPath, replace: impl FnOnce() -> io::Result<T>) -> Option<T> {
        let mut paths = self.lock();
        if paths.remove(path) { replace().ok() } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<RelPath>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
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
    fn one_of_two_replaces() {
        let untouched = Untouched::default();
        untouched.make(&path("a"), || Ok(true)).unwrap();
        assert_eq!(untouched.replace(&path("a"), || Ok(1)), Some(1));
        assert_eq!(untouched.replace(&path("a"), || Ok(2)), None);
    }
}
