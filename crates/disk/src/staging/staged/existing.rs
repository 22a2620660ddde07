//! Changes an existing file in place.
//!
//! The first change makes the file one byte longer than its final length. The end of the change removes that byte and
//! then sets the mode and time. The time alone cannot show that the file is unfinished. The kernel sets it from a
//! coarse clock (a few milliseconds, or a second on some file systems), and the source may have been written in the
//! same tick.
//!
//! Only one session at a time can change a file. The session holds a lock (`flock`). Other sessions do not wait for the
//! lock, because two sessions could deadlock, but report that the file is locked.
//!
//! **Invariant:** during the change and after an interruption, the file is one byte longer than its final state. After
//! an abandoned change, the file also has the oldest modification time that the file system supports, so that it does
//! not count as newer than any other file. The file gets its final length only if no change by other processes was
//! [detected](InPlaceChange).
//!
//! **Invariant:** from before the first byte is changed until the final mode is set, the file has no setuid and setgid
//! bits. Otherwise, anyone who ran the file during the change would run a client's data with the privileges of the
//! file's owner. During this time, only the owner may have more access than the final mode allows.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use zmove_types::{Name, Timestamp};

use crate::metadata::entry::metadata::{MetadataFailure, OWNER_ALL, SET_IDS};
use crate::metadata::entry::xattrs::Descriptor;
use crate::metadata::entry::{FileIdentity, is_foreign_owner};
use crate::metadata::storable_times::may_be_stored_as;
use crate::opening::by_name::open_at;
use crate::publishing::lease::{Lease, Permit};
use crate::storage::file_io::data_file::{DataFile, Direct};

use super::Staged;
use super::in_place::{InPlaceChange, set_oldest_mtime};

/// An open regular file that is about to be changed in place. Nothing has been changed yet.
#[derive(Debug)]
pub struct Existing {
    file: File,
    directory: Arc<OwnedFd>,
}

/// The final state of a file that is changed in place.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The final length in bytes.
    pub bytes: u64,
    /// The final permission bits.
    pub mode: u32,
    /// The final modification time.
    pub mtime: Timestamp,
    /// Whether the file must look unfinished even after a power failure during the change.
    pub survives_power_cut: bool,
}

impl Existing {
    /// Opens an existing file. Returns `None` if the name does not exist or is not a regular file.
    ///
    /// # Errors
    /// Returns the system's error, for example if the file is not writable.
    pub fn open(directory: &Arc<OwnedFd>, name: &Name) -> io::Result<Option<Self>> {
        // Checks the kind before opening, because opening a device or a FIFO can have side effects.
        if !FileIdentity::at(directory, name).is_ok_and(|there| there.regular) {
            return Ok(None);
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match open_at(directory, name, flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let regular = FileIdentity::of(&file)?.regular;
        Ok(regular.then(|| Self {
            file,
            directory: Arc::clone(directory),
        }))
    }

    /// Returns whether the file has other hard links.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn has_other_names(&self) -> io::Result<bool> {
        Ok(FileIdentity::of(&self.file)?.names > 1)
    }

    /// Returns whether the name is a regular file without other hard links.
    #[must_use]
    pub fn has_single_name(directory: impl AsFd, name: &Name) -> bool {
        FileIdentity::at(directory, name).is_ok_and(|there| there.regular && there.names == 1)
    }

    /// Locks the file against in-place changes by other sessions, and sets a length that differs from the final one.
    ///
    /// # Errors
    /// Returns the system's error, `EWOULDBLOCK` if another session has locked the file.
    pub fn begin(self, lease: &Lease, change: Change, direct: Direct) -> io::Result<Staged> {
        lock(&self.file)?;
        let there = FileIdentity::of(&self.file)?;
        // Keeps the owner's permissions, because the owner may need access to finish the file later.
        let meanwhile = there.mode & !SET_IDS & (change.mode | OWNER_ALL);
        let narrows = meanwhile != there.mode;
        if narrows {
            restrict_mode(lease.permit()?, &self.file, &there, meanwhile)?;
        }
        let data = DataFile::new(self.file);
        // After a failed write-back, ext4 treats allocated but unwritten blocks as written while their pages are
        // cached. Data written to these blocks reaches the disk, but after the next mount they read as zeros.
        data.drop_cached()?;
        let permit = lease.permit()?;
        data.file().set_len(unfinished_length(change.bytes))?;
        set_oldest_mtime(permit, data.file());
        let in_place = InPlaceChange::watch(data.file(), change.bytes);
        let mut staged = Staged::in_place(lease, data, self.directory, in_place);
        // The data may reach the disk before the new length and mode do.
        let looks_final =
            there.bytes == change.bytes && may_be_stored_as(there.mtime, change.mtime);
        if change.survives_power_cut && (looks_final || narrows) {
            staged.file().sync_all()?;
        }
        staged.prepare_writing(direct)?;
        Ok(staged)
    }
}

/// Sets the mode of the file for the duration of the change. If the file system refuses the change, the old mode is
/// accepted, provided that this user owns the file and that the mode has no setuid or setgid bits.
fn restrict_mode(
    permit: Permit<'_>,
    file: &File,
    there: &FileIdentity,
    mode: u32,
) -> io::Result<()> {
    match Descriptor::Open(file.as_fd()).set_mode(&permit, Mode::from_raw_mode(mode)) {
        Err(error)
            if there.mode & SET_IDS != 0
                || is_foreign_owner(there.ids)
                || !MetadataFailure::is_refusal(error) =>
        {
            Err(error.into())
        }
        _set_or_refused => Ok(()),
    }
}

/// Returns the length of a file whose change is not finished.
fn unfinished_length(bytes: u64) -> u64 {
    bytes.saturating_add(1)
}

fn lock(file: &File) -> io::Result<()> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        // Some network file systems do not support `flock`. The change continues without a lock.
        Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FileType;

    use super::*;
    use crate::Replace;
    use crate::metadata::entry::set_file_mtime;
    use crate::metadata::entry::tests::{as_an_ordinary_user, set_new_file_metadata};
    use crate::opening::tree::DIRECTORY;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use zmove_types::Metadata;

    const CHANGE: Change = Change {
        bytes: 3,
        mode: 0o777,
        mtime: Timestamp {
            seconds: 5,
            nanos: 6,
        },
        survives_power_cut: true,
    };

    fn home() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let directory = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        (home, Arc::new(directory))
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn try_begin(directory: &Arc<OwnedFd>, text: &str, change: Change) -> io::Result<Staged> {
        Existing::open(directory, &name(text))?
            .expect("a file")
            .begin(&Lease::constant(), change, Direct::Auto)
    }

    /// Begins to change a file in place. If another test starts a process at the same time, the child inherits copies
    /// of all locks until it executes its program. So this function retries until the lock is free.
    fn begin(directory: &Arc<OwnedFd>, text: &str, change: Change) -> Staged {
        loop {
            match try_begin(directory, text, change) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                begun => return begun.unwrap(),
            }
        }
    }

    #[test]
    fn a_file_is_changed_under_all_its_names() {
        let (home, directory) = home();
        let (path, other) = (home.path().join("f"), home.path().join("other"));
        for old in ["", "x", "old", "longer than before"] {
            std::fs::write(&path, old).unwrap();
            if !other.exists() {
                std::fs::hard_link(&path, &other).unwrap();
            }
            let inode = path.metadata().unwrap().ino();
            let staged = begin(&directory, "f", CHANGE);
            assert_eq!(path.metadata().unwrap().len(), 4, "not what it will be");
            staged
                .write(|| staged.file().write_all_at(b"new", 0))
                .unwrap()
                .unwrap();
            staged.set_final_length().unwrap();
            set_new_file_metadata(staged.file(), &Metadata::new(0o640, CHANGE.mtime)).unwrap();
            staged
                .commit(&Lease::constant(), &name("f"), Replace::Existing)
                .unwrap();
            let stat = path.metadata().unwrap();
            assert_eq!((stat.ino(), stat.mode() & 0o7777), (inode, 0o640));
            assert_eq!((stat.mtime(), stat.mtime_nsec()), (5, 6));
            assert_eq!(std::fs::read(&other).unwrap(), b"new");
            assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2);
        }
    }

    /// A file that already has the final size and time must look unfinished before the first byte is written and
    /// afterwards.
    #[test]
    fn a_change_that_is_given_up_does_not_look_finished_nor_new() {
        let (home, directory) = home();
        let path = home.path().join("f");
        std::fs::write(&path, "old").unwrap();
        set_file_mtime(
            Permit::for_hidden(),
            File::open(&path).unwrap().as_fd(),
            CHANGE.mtime,
        )
        .unwrap();
        let staged = begin(&directory, "f", CHANGE);
        assert_eq!(path.metadata().unwrap().len(), 4);
        staged.file().write_all_at(b"n", 0).unwrap();
        drop(staged);
        let stat = path.metadata().unwrap();
        assert!(stat.len() == 4 && stat.mtime() < 0, "{stat:?}");
    }

    /// If another program writes to the file or truncates it, the file must not get its final length.
    #[test]
    fn a_file_that_another_changes_as_well_does_not_look_finished() {
        let (home, directory) = home();
        let path = home.path().join("f");
        let others: [fn(&File); 3] = [
            |file| file.set_len(3).unwrap(),
            |file| file.set_len(0).unwrap(),
            |file| file.set_len(9).unwrap(),
        ];
        for other in others {
            std::fs::write(&path, "old").unwrap();
            let staged = begin(&directory, "f", CHANGE);
            staged
                .write(|| staged.file().write_all_at(b"new", 0))
                .unwrap()
                .unwrap();
            other(&File::options().write(true).open(&path).unwrap());
            let error = staged.set_final_length().unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY));
            drop(staged);
            assert!(path.metadata().unwrap().mtime() < 0);
        }
    }

    #[test]
    fn a_file_that_has_lost_its_name_is_told_so() {
        let (home, directory) = home();
        std::fs::write(home.path().join("f"), "old").unwrap();
        let staged = begin(&directory, "f", CHANGE);
        std::fs::remove_file(home.path().join("f")).unwrap();
        let error = staged.set_final_length().unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE));
    }

    #[test]
    fn a_program_loses_the_rights_of_its_owner_before_its_contents_change() {
        let (home, directory) = home();
        let path = home.path().join("f");
        for mode in [0o4755, 0o2755, 0o6711, 0o2644] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let staged = begin(&directory, "f", CHANGE);
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, mode & 0o777);
            staged.file().write_all_at(b"n", 0).unwrap();
            drop(staged);
            assert_eq!(
                path.metadata().unwrap().mode() & 0o7777,
                mode & 0o777,
                "it is not given back either"
            );
        }
    }

    #[test]
    fn nobody_gets_to_see_what_a_file_will_not_show_in_the_end() {
        let (home, directory) = home();
        let path = home.path().join("f");
        for (there, wanted, meanwhile) in [
            (0o644, 0o600, 0o600),
            (0o604, 0o640, 0o600),
            (0o755, 0o444, 0o744),
            (0o600, 0o644, 0o600),
        ] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(there)).unwrap();
            let staged = begin(
                &directory,
                "f",
                Change {
                    mode: wanted,
                    ..CHANGE
                },
            );
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, meanwhile);
            drop(staged);
        }
    }

    #[test]
    fn one_at_a_time_changes_a_file() {
        let (home, directory) = home();
        std::fs::write(home.path().join("f"), "old").unwrap();
        let first = begin(&directory, "f", CHANGE);
        let error = try_begin(&directory, "f", Change { bytes: 9, ..CHANGE }).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::WOULDBLOCK));
        assert_eq!(
            home.path().join("f").metadata().unwrap().len(),
            4,
            "the second has done nothing"
        );
        drop(first);
        begin(&directory, "f", CHANGE);
    }

    #[test]
    fn a_name_that_leads_elsewhere_at_the_end_is_told() {
        let (home, directory) = home();
        std::fs::write(home.path().join("f"), "old").unwrap();
        let gone = |staged: Staged| {
            let error = staged
                .commit(&Lease::constant(), &name("f"), Replace::Existing)
                .unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE));
        };
        let staged = begin(&directory, "f", CHANGE);
        std::fs::write(home.path().join("g"), "another").unwrap();
        std::fs::rename(home.path().join("g"), home.path().join("f")).unwrap();
        gone(staged);
        let staged = begin(&directory, "f", CHANGE);
        std::fs::remove_file(home.path().join("f")).unwrap();
        gone(staged);
    }

    #[test]
    fn only_regular_files_are_changed() {
        let (home, directory) = home();
        std::fs::create_dir(home.path().join("directory")).unwrap();
        symlink("directory", home.path().join("link")).unwrap();
        rustix::fs::mknodat(&directory, "fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
        for text in ["directory", "link", "fifo", "nothing"] {
            assert!(
                Existing::open(&directory, &name(text)).unwrap().is_none(),
                "{text}"
            );
        }
    }

    /// After a failed write-back, cached pages would wrongly count as stored.
    #[test]
    fn clean_pages_of_what_is_there_are_dropped() {
        const BYTES: u64 = 1 << 20;
        let (home, directory) = home();
        let flushed = |text: &str| {
            let file = File::create_new(home.path().join(text)).unwrap();
            file.write_all_at(&[7; 1 << 20], 0).unwrap();
            file.sync_all().unwrap();
            file
        };
        let cached = |file: &File| crate::cached_bytes(file, 0..BYTES).ok();
        let (there, other) = (flushed("f"), DataFile::new(flushed("other")));
        other.drop_cached().unwrap();
        if (cached(&there), cached(other.file())) != (Some(BYTES), Some(0)) {
            return eprintln!("skipped: this file system keeps pages, or does not tell");
        }
        let _staged = begin(
            &directory,
            "f",
            Change {
                bytes: BYTES,
                ..CHANGE
            },
        );
        assert_eq!(cached(&there), Some(0));
    }

    #[test]
    fn a_file_that_may_not_be_written_is_an_error() {
        let (home, directory) = home();
        let path = home.path().join("f");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
        let opened = as_an_ordinary_user(|| Existing::open(&directory, &name("f")));
        let error = opened.err().unwrap();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ACCESS));
    }

    #[test]
    fn other_names_are_noticed() {
        let (home, directory) = home();
        std::fs::write(home.path().join("f"), "old").unwrap();
        let alone = |text| Existing::has_single_name(&directory, &name(text));
        let open = |text| Existing::open(&directory, &name(text)).unwrap().unwrap();
        assert!(alone("f") && !open("f").has_other_names().unwrap());
        std::fs::hard_link(home.path().join("f"), home.path().join("g")).unwrap();
        assert!(!alone("f") && !alone("g") && open("g").has_other_names().unwrap());
        assert!(!alone("nothing"));
    }
}
