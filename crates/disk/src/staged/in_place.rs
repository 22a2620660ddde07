//! Whether anybody else changes a file while it is changed in its place.
//!
//! Between writes of ours a file must stay as the last of them has left it: its length, and the times that the kernel sets at
//! each change. What another program writes in the very moment in which we write as well cannot be told from that, nor what
//! it writes through a memory mapping after the page was written for the first time.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zmove_types::Timestamp;

use crate::engine::data_file::is_remote;
use crate::entry::FileIdentity;

/// Watches one file from the first change of ours to the last.
#[derive(Debug)]
pub(crate) struct Undisturbed {
    /// None where times are a server's, which may set them later.
    state: Option<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// How many writes of ours are under way.
    writing: usize,
    /// What the last of them has left.
    left: Option<Look>,
    disturbed: bool,
}

/// What changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    bytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl Undisturbed {
    /// Watches from now on.
    pub(crate) fn watch(file: &File) -> Self {
        let state = State { writing: 0, left: Look::at(file), disturbed: false };
        Self { state: (!is_remote(file)).then(|| Mutex::new(state)) }
    }

    /// Does something of ours to the file.
    pub(crate) fn change<R>(&self, file: &File, change: impl FnOnce() -> R) -> R {
        if let Some(mut state) = self.lock() {
            state.look(file);
            state.writing += 1;
        }
        let changed = change();
        if let Some(mut state) = self.lock() {
            state.writing -= 1;
            state.left = Look::at(file);
        }
        changed
    }

    /// Whether it is as our last change has left it, and was at each time before.
    pub(crate) fn is_so(&self, file: &File) -> bool {
        self.lock().is_none_or(|mut state| {
            state.look(file);
            !state.disturbed
        })
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.as_ref().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn look(&mut self, file: &File) {
        self.disturbed |= self.writing == 0 && Look::at(file) != self.left;
    }
}

impl Look {
    fn at(file: &File) -> Option<Self> {
        let FileIdentity { bytes, mtime, ctime, .. } = FileIdentity::of(file).ok()?;
        Some(Self { bytes, mtime, ctime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn file() -> (tempfile::NamedTempFile, Undisturbed) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let watch = Undisturbed::watch(file.as_file());
        watch.change(file.as_file(), || file.as_file().write_all_at(b"ours", 0).unwrap());
        (file, watch)
    }

    /// The clock of the file system has gone on: what is written now has another time.
    fn wait_for_a_tick(file: &File) {
        let before = FileIdentity::of(file).unwrap().ctime;
        let other = tempfile::NamedTempFile::new().unwrap();
        while FileIdentity::of(other.as_file()).unwrap().ctime <= before {
            other.as_file().write_all_at(b"x", 0).unwrap();
        }
    }

    #[test]
    fn writes_of_our_own_disturb_nothing_also_several_at_once() {
        let (file, watch) = file();
        watch.change(file.as_file(), || {
            file.as_file().write_all_at(b"one", 0).unwrap();
            watch.change(file.as_file(), || file.as_file().write_all_at(b"other", 4).unwrap());
            file.as_file().write_all_at(b"two", 0).unwrap();
        });
        assert!(watch.is_so(file.as_file()));
    }

    #[test]
    fn what_another_writes_between_is_noticed_for_good() {
        let (file, watch) = file();
        wait_for_a_tick(file.as_file());
        file.reopen().unwrap().write_all_at(b"xxxx", 0).unwrap();
        watch.change(file.as_file(), || file.as_file().write_all_at(b"ours", 0).unwrap());
        assert!(!watch.is_so(file.as_file()));
    }

    #[test]
    fn what_another_cuts_off_is_noticed() {
        let (file, watch) = file();
        assert!(watch.is_so(file.as_file()));
        file.reopen().unwrap().set_len(3).unwrap();
        assert!(!watch.is_so(file.as_file()));
    }
}
