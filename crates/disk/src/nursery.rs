//! A new directory that is filled before it can be seen under its name.
//!
//! Files are created in place in it, one directory operation each instead of the two of a file that is staged, and all
//! get their final names in one rename. **Invariant:** while a nursery lives its hidden directory is locked
//! (`flock`); one that is not locked was left by a process that died, and whoever comes upon it removes it. Its name
//! tells the very directory that it was made in, so that a directory which a source calls so, be it a copy of what a
//! dead process left, is data like any other.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, StatxFlags};
use zmove_types::{Metadata, Name};

use crate::entry::{set_file_mtime, set_new_file_metadata};
use crate::tree::{DIRECTORY, Tree};

/// The hidden directory and where it will go.
#[derive(Debug)]
pub struct Nursery {
    parent: Arc<OwnedFd>,
    name: Name,
    hidden: Name,
    directory: Arc<OwnedFd>,
    published: bool,
    /// A mode that files get exactly as it is asked for when they are created here, if one is known.
    exact_mode: AtomicU32,
}

/// A hidden directory's name is this, what tells its parent from all others, and the final name, so that a later transfer
/// finds what a killed one left.
const PREFIX: &[u8] = b".zmove-new-";

/// No mode of a file.
const NO_MODE: u32 = u32::MAX;

impl Nursery {
    /// A nursery for the directory `name` of `parent`. `None` when there cannot be one: the name is too long, somebody
    /// else has a nursery for it, or the file system has no locks.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(parent: &Arc<OwnedFd>, name: &Name) -> io::Result<Option<Self>> {
        let Some(hidden) = hidden_name(parent.as_fd(), name) else { return Ok(None) };
        if !Tree::make_new(parent.as_fd(), &hidden)? {
            return Ok(None);
        }
        let opened = rustix::fs::openat(parent, hidden.as_os_str(), DIRECTORY, Mode::empty());
        let locked =
            opened.map(|directory| (lock(directory.as_fd()) && !is_gone(&directory)).then_some(directory));
        let Ok(Some(directory)) = locked else {
            let _best_effort = rustix::fs::unlinkat(parent, hidden.as_os_str(), AtFlags::REMOVEDIR);
            return Ok(locked.map(|_unlocked| None)?);
        };
        let (parent, directory) = (Arc::clone(parent), Arc::new(directory));
        Ok(Some(Self {
            parent,
            name: name.clone(),
            hidden,
            directory,
            published: false,
            exact_mode: AtomicU32::new(NO_MODE),
        }))
    }

    /// A new file in it, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(&self, name: &Name, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        Ok(rustix::fs::openat(&self.directory, name.as_os_str(), flags, mode)?.into())
    }

    /// Gives a file just created in it its mode and time. What the umask and the directory leave of a mode is the same
    /// for each file, so it is looked up once.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_metadata(&self, file: &File, metadata: &Metadata) -> io::Result<()> {
        if self.exact_mode.load(Ordering::Relaxed) == metadata.mode {
            return set_file_mtime(file.as_fd(), metadata.mtime);
        }
        if set_new_file_metadata(file, metadata)? {
            self.exact_mode.store(metadata.mode, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes a file that did not become whole.
    ///
    /// # Errors
    /// What the system says: the nursery must then not be published.
    pub fn discard(&self, name: &Name) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, name.as_os_str(), AtFlags::empty())?)
    }

    /// Gives the directory its name, which none or an empty directory may have; returns it.
    ///
    /// # Errors
    /// What the system says, `EEXIST` or `ENOTEMPTY` when something is in the way; it is as it was then.
    pub fn publish(&mut self) -> io::Result<Arc<OwnedFd>> {
        rustix::fs::renameat(&self.parent, self.hidden.as_os_str(), &self.parent, self.name.as_os_str())?;
        self.published = true;
        // it is an ordinary directory now; the lock goes with the descriptor otherwise
        let _best_effort = rustix::fs::flock(&self.directory, FlockOperation::NonBlockingUnlock);
        Ok(Arc::clone(&self.directory))
    }

    /// Gives a whole file its name in another directory, replacing a file or link of that name.
    ///
    /// # Errors
    /// What the system says, `EISDIR` when a directory has that name.
    pub fn move_out(&self, name: &Name, directory: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.directory, name.as_os_str(), directory, name.as_os_str())?)
    }

    /// Removes the nursery for `name` that a process which died may have left in `parent`.
    pub fn sweep(parent: BorrowedFd<'_>, name: &Name) {
        let Some(hidden) = hidden_name(parent, name) else { return };
        let Ok(left) = rustix::fs::openat(parent, hidden.as_os_str(), DIRECTORY, Mode::empty()) else {
            return;
        };
        if lock(left.as_fd()) {
            remove(parent, &hidden, left.as_fd());
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        if !self.published {
            remove(self.parent.as_fd(), &self.hidden, self.directory.as_fd());
        }
    }
}

/// `None` where there is no room for it, or nothing that tells the parent.
fn hidden_name(parent: BorrowedFd<'_>, name: &Name) -> Option<Name> {
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(parent, c"", AtFlags::EMPTY_PATH, asked).ok()?;
    // a file system that does not keep the time of birth says 0
    let (device, birth) = ((stat.stx_dev_major, stat.stx_dev_minor), stat.stx_btime);
    let parent =
        format!("{:x}.{:x}-{:x}-{:x}.{:x}-", device.0, device.1, stat.stx_ino, birth.tv_sec, birth.tv_nsec);
    Name::from_bytes(&[PREFIX, parent.as_bytes(), name.as_bytes()].concat()).ok()
}

fn lock(directory: BorrowedFd<'_>) -> bool {
    rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Whether somebody has removed a directory before it was locked.
fn is_gone(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Removes a nursery, which holds files alone: anything else in it stays, and so does the directory then.
fn remove(parent: BorrowedFd<'_>, hidden: &Name, directory: BorrowedFd<'_>) {
    if let Ok(entries) = Dir::read_from(directory) {
        for entry in entries.flatten().filter(|entry| !is_dot(entry.file_name())) {
            let _best_effort = rustix::fs::unlinkat(directory, entry.file_name(), AtFlags::empty());
        }
    }
    let _best_effort = rustix::fs::unlinkat(parent, hidden.as_os_str(), AtFlags::REMOVEDIR);
}

fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use zmove_types::Timestamp;

    fn place() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        (home, Arc::new(fd))
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn hidden(parent: &OwnedFd, text: &str) -> String {
        hidden_name(parent.as_fd(), &name(text)).unwrap().as_os_str().to_owned().into_string().unwrap()
    }

    fn names(home: &tempfile::TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(home.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn files_appear_all_at_once_over_an_empty_directory() {
        let (home, fd) = place();
        std::fs::create_dir(home.path().join("d")).unwrap();
        let mut nursery = Nursery::begin(&fd, &name("d")).unwrap().unwrap();
        for file in ["a", "b"] {
            nursery.create(&name(file), 0o644).unwrap().write_all(b"x").unwrap();
        }
        assert_eq!(std::fs::read_dir(home.path().join("d")).unwrap().count(), 0);
        nursery.discard(&name("b")).unwrap();
        nursery.publish().unwrap();
        assert_eq!(names(&home), ["d"]);
        assert_eq!(std::fs::read(home.path().join("d/a")).unwrap(), b"x");
        assert!(!home.path().join("d/b").exists());
    }

    #[test]
    fn each_file_has_the_mode_it_was_asked_for() {
        let (home, fd) = place();
        let mut nursery = Nursery::begin(&fd, &name("d")).unwrap().unwrap();
        // the umask takes bits of some of them
        let modes = [0o600, 0o666, 0o600, 0o777, 0o777, 0o644, 0o1644, 0o400];
        for (number, mode) in modes.into_iter().enumerate() {
            let file = nursery.create(&name(&number.to_string()), mode).unwrap();
            let mtime = Timestamp { seconds: 7, nanos: 8 };
            nursery.set_metadata(&file, &Metadata { mode, mtime }).unwrap();
        }
        nursery.publish().unwrap();
        for (number, mode) in modes.into_iter().enumerate() {
            let found = std::fs::metadata(home.path().join("d").join(number.to_string())).unwrap();
            assert_eq!((found.mode() & 0o7777, found.mtime(), found.mtime_nsec()), (mode, 7, 8), "{number}");
        }
    }

    #[test]
    fn what_is_in_the_way_stays_and_nothing_is_left() {
        let (home, fd) = place();
        std::fs::create_dir(home.path().join("d")).unwrap();
        std::fs::write(home.path().join("d/old"), "keep").unwrap();
        let mut nursery = Nursery::begin(&fd, &name("d")).unwrap().unwrap();
        for file in ["new", "other"] {
            nursery.create(&name(file), 0o644).unwrap();
        }
        assert!(nursery.publish().is_err());
        let filled = rustix::fs::openat(&fd, "d", DIRECTORY, Mode::empty()).unwrap();
        nursery.move_out(&name("new"), &filled).unwrap();
        drop(nursery);
        assert_eq!(names(&home), ["d"]);
        assert!(home.path().join("d/new").exists() && !home.path().join("d/other").exists());
        assert_eq!(std::fs::read(home.path().join("d/old")).unwrap(), b"keep");
    }

    #[test]
    fn one_at_a_time() {
        let (home, fd) = place();
        let first = Nursery::begin(&fd, &name("d")).unwrap().unwrap();
        assert!(Nursery::begin(&fd, &name("d")).unwrap().is_none());
        Nursery::sweep(fd.as_fd(), &name("d"));
        assert_eq!(names(&home), [hidden(&fd, "d")], "a live one is not swept");
        drop(first);
        assert!(names(&home).is_empty());
    }

    #[test]
    fn what_a_dead_process_left_is_swept() {
        let (home, fd) = place();
        let left = home.path().join(hidden(&fd, "d"));
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("half"), "ha").unwrap();
        Nursery::sweep(fd.as_fd(), &name("d"));
        assert!(names(&home).is_empty());
    }

    #[test]
    fn what_was_copied_from_elsewhere_is_not_swept() {
        let ((_elsewhere, other), (home, fd)) = (place(), place());
        let copies = [hidden(&other, "d"), ".zmove-new-d".to_owned()];
        for copy in &copies {
            std::fs::create_dir(home.path().join(copy)).unwrap();
            std::fs::write(home.path().join(copy).join("half"), "ha").unwrap();
        }
        Nursery::sweep(fd.as_fd(), &name("d"));
        assert!(copies.iter().all(|copy| home.path().join(copy).join("half").exists()));
    }

    #[test]
    fn a_name_without_room_for_the_prefix_has_none() {
        let (_home, fd) = place();
        assert!(Nursery::begin(&fd, &name(&"n".repeat(250))).unwrap().is_none());
    }
}
