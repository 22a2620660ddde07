//! Detects changes by other processes while a file is changed in place.
//!
//! Between two writes of this process, the length and the kernel-set times (mtime, ctime) of the file must stay the
//! same. A change by another process is not detected if it happens during a write of this process. Of the writes
//! through a memory mapping, only the first write to each page is detected.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::MutexGuard;

use rustix::io::Errno;
use zmove_types::{Lock, Timestamp};

use crate::metadata::entry::{FileIdentity, set_file_mtime};
use crate::publishing::lease::Permit;
use crate::storage::file_io::data_file::is_remote;

/// The state for detecting changes, from the first write of this process to its last.
#[derive(Debug)]
pub(super) struct InPlaceChange {
    /// The final length of the file, in bytes.
    bytes: u64,
    /// The observed state. `None` on a remote file system, whose server may update the times later.
    state: Option<Lock<WatchState>>,
}

#[derive(Debug)]
struct WatchState {
    /// The number of our own writes in progress.
    writing: usize,
    /// The state of the file after our last write.
    expected: Option<FileIdentity>,
    disturbed: bool,
}

impl InPlaceChange {
    /// Starts to detect changes of a file whose final length is `bytes`.
    pub(super) fn watch(file: &File, bytes: u64) -> Self {
        let state = WatchState {
            writing: 0,
            expected: FileIdentity::of(file).ok(),
            disturbed: false,
        };
        Self {
            bytes,
            state: (!is_remote(file)).then(|| Lock::new(state)),
        }
    }

    /// Runs a change of the file by this process, so that it does not count as a change by another process.
    pub(super) fn change<R>(
        &self,
        permit: Permit<'_>,
        file: &File,
        change: impl FnOnce() -> R,
    ) -> R {
        if let Some(mut state) = self.lock() {
            state.check(file);
            state.writing += 1;
        }
        let changed = change();
        set_oldest_mtime(permit, file);
        if let Some(mut state) = self.lock() {
            state.writing -= 1;
            state.expected = FileIdentity::of(file).ok();
        }
        changed
    }

    /// Sets the final length of the file. The file has another length until this call.
    ///
    /// # Errors
    /// Returns the system's error, `EBUSY` if another process has changed the file, and `ESTALE` if the file has no
    /// name any more.
    pub(super) fn set_final_length(&self, permit: Permit<'_>, file: &File) -> io::Result<()> {
        if !self.is_undisturbed(file) {
            // Removing a file's name also changes its ctime.
            let is_nameless = rustix::fs::fstat(file)?.st_nlink == 0;
            return Err(if is_nameless {
                Errno::STALE
            } else {
                Errno::BUSY
            }
            .into());
        }
        self.change(permit, file, || file.set_len(self.bytes))
    }

    /// Returns whether the file has its final length.
    pub(super) fn has_final_length(&self, there: &FileIdentity) -> bool {
        there.bytes == self.bytes
    }

    /// Returns whether only this process has changed the file since the start. Includes the results of earlier checks.
    fn is_undisturbed(&self, file: &File) -> bool {
        self.lock().is_none_or(|mut state| {
            state.check(file);
            !state.disturbed
        })
    }

    fn lock(&self) -> Option<MutexGuard<'_, WatchState>> {
        self.state.as_ref().map(Lock::lock)
    }
}

impl WatchState {
    fn check(&mut self, file: &File) {
        self.disturbed |= self.writing == 0 && FileIdentity::of(file).ok() != self.expected;
    }
}

/// Sets the modification time of a file to the oldest possible time, so that the file counts as older than any other.
/// It is called after each write, because a stopped session may be unable to set the time, and when the change is
/// abandoned.
pub(super) fn set_oldest_mtime(permit: Permit<'_>, file: &File) {
    let oldest = Timestamp {
        seconds: i64::from(i32::MIN),
        nanos: 0,
    };
    // A user may have write access to a file without owning it.
    let _best_effort = set_file_mtime(permit, file.as_fd(), oldest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn file() -> (tempfile::NamedTempFile, InPlaceChange) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let watch = InPlaceChange::watch(file.as_file(), 0);
        watch.change(Permit::for_hidden(), file.as_file(), || {
            file.as_file().write_all_at(b"ours", 0).unwrap()
        });
        (file, watch)
    }

    /// Waits until the clock of the file system has advanced, so that the next write changes the file's times.
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
        watch.change(Permit::for_hidden(), file.as_file(), || {
            file.as_file().write_all_at(b"one", 0).unwrap();
            watch.change(Permit::for_hidden(), file.as_file(), || {
                file.as_file().write_all_at(b"other", 4).unwrap()
            });
            file.as_file().write_all_at(b"two", 0).unwrap();
        });
        assert!(watch.is_undisturbed(file.as_file()));
    }

    #[test]
    fn what_another_writes_between_is_noticed_for_good() {
        let (file, watch) = file();
        wait_for_a_tick(file.as_file());
        file.reopen().unwrap().write_all_at(b"xxxx", 0).unwrap();
        watch.change(Permit::for_hidden(), file.as_file(), || {
            file.as_file().write_all_at(b"ours", 0).unwrap()
        });
        assert!(!watch.is_undisturbed(file.as_file()));
    }

    #[test]
    fn what_another_cuts_off_is_noticed() {
        let (file, watch) = file();
        assert!(watch.is_undisturbed(file.as_file()));
        file.reopen().unwrap().set_len(3).unwrap();
        assert!(!watch.is_undisturbed(file.as_file()));
    }
}
