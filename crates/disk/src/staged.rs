//! A file that has no final name yet, or one that is there and is [changed in its place](Existing).
//!
//! **Invariant:** until [`commit`](Staged::commit) the file cannot be found under any name that a user would use, and
//! an abandoned one leaves nothing behind: it is an unnamed file (`O_TMPFILE`), or, where the file system has none, a
//! hidden one that is removed on drop. Only one that is meant to [last](Staged::create_lasting) stays under its hidden name,
//! for a later transfer to go on with.
//!
//! [Existing]: crate::Existing

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_types::Name;

use crate::data_file::{DataFile, Direct};
use crate::entry::FileIdentity;
use crate::existing::give_up;

/// A file being written, in the directory where it will stay.
#[derive(Debug)]
pub struct Staged {
    data: DataFile,
    directory: Arc<OwnedFd>,
    temporary: Option<Name>,
    /// Whether the hidden name stays when this goes.
    lasting: AtomicBool,
    /// Where it is a file that was there before and is changed in its place: how long it will be.
    in_place: Option<u64>,
}

/// Makes temporary names that no other transfer makes, and remembers what the target's file system can do.
#[derive(Debug)]
pub struct TempNames {
    tag: String,
    next: AtomicU64,
    unnamed_refused: AtomicBool,
    empty_path_refused: AtomicBool,
}

impl TempNames {
    /// Names that contain `tag`, a few letters that tell transfers apart.
    #[must_use]
    pub fn new(tag: &str) -> Self {
        Self {
            tag: tag.to_owned(),
            next: AtomicU64::new(0),
            unnamed_refused: AtomicBool::new(false),
            empty_path_refused: AtomicBool::new(false),
        }
    }

    /// A name that was not given before.
    ///
    /// # Panics
    /// When the tag holds a `/` or is longer than 200 bytes.
    pub fn fresh(&self) -> Name {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!(".zmove-{}-{number:x}", self.tag);
        Name::from_bytes(text.as_bytes()).expect("a short tag without a slash")
    }
}

impl Staged {
    /// A new empty file in `directory`, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(directory: &Arc<OwnedFd>, mode: u32, names: &TempNames) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(mode & 0o777);
        if !names.unnamed_refused.load(Ordering::Relaxed) {
            match create_unnamed(directory, mode) {
                Ok(file) => {
                    return Ok(Self::new(DataFile::new(file), Arc::clone(directory), None));
                }
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                    names.unnamed_refused.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Self::create_named(directory, mode, names)
    }

    /// A new empty file with a hidden name, which it keeps until it is committed or [discarded](Self::discard), also when
    /// this process dies.
    ///
    /// # Errors
    /// What the system says.
    pub fn create_lasting(directory: &Arc<OwnedFd>, mode: u32, names: &TempNames) -> io::Result<Self> {
        let named = Self::create_named(directory, Mode::from_raw_mode(mode & 0o777), names)?;
        named.lasting.store(true, Ordering::Relaxed);
        Ok(named)
    }

    /// Opens such a file again, to go on with it as it is, if `is_it` finds that it is the one: nothing is done to another
    /// that has its name by now.
    ///
    /// # Errors
    /// What the system says, `ELOOP` for a symbolic link, `ENOENT` for another file.
    pub fn reopen(
        directory: &Arc<OwnedFd>,
        name: &Name,
        direct: Direct,
        is_it: impl Fn(BorrowedFd<'_>) -> bool,
    ) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP.into());
        }
        if !is_it(found.as_fd()) {
            return Err(Errno::NOENT.into());
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty()) {
            Err(Errno::ACCESS) => open_finished(&found)?,
            opened => File::from(opened?),
        };
        if !is_it(file.as_fd()) {
            return Err(Errno::NOENT.into());
        }
        let data = DataFile::for_writing(file, direct)?;
        let reopened = Self::new(data, Arc::clone(directory), Some(name.clone()));
        reopened.lasting.store(true, Ordering::Relaxed);
        Ok(reopened)
    }

    /// A file that is there, which will have so many bytes.
    pub(crate) fn in_place(data: DataFile, directory: Arc<OwnedFd>, bytes: u64) -> Self {
        let mut staged = Self::new(data, directory, None);
        staged.in_place = Some(bytes);
        staged
    }

    fn new(data: DataFile, directory: Arc<OwnedFd>, temporary: Option<Name>) -> Self {
        Self { data, directory, temporary, lasting: AtomicBool::new(false), in_place: None }
    }

    /// Whether it is a file that was there before and is changed in its place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.in_place.is_some()
    }

    /// Gives a file that is changed in its place the length that it will have; before that it has another.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_final_length(&self) -> io::Result<()> {
        self.in_place.map_or(Ok(()), |bytes| self.file().set_len(bytes))
    }

    /// The hidden name, where it has one.
    #[must_use]
    pub fn hidden_name(&self) -> Option<&Name> {
        self.temporary.as_ref()
    }

    /// Has the file go with this value, unless it is committed.
    pub fn discard(&self) {
        self.lasting.store(false, Ordering::Relaxed);
    }

    fn create_named(directory: &Arc<OwnedFd>, mode: Mode, names: &TempNames) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let name = names.fresh();
            match rustix::fs::openat(directory, name.as_os_str(), flags, mode) {
                Ok(file) => {
                    return Ok(Self::new(DataFile::new(file.into()), Arc::clone(directory), Some(name)));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.data.file()
    }

    /// The open file, to be written by an engine.
    #[must_use]
    pub fn data(&self) -> &DataFile {
        &self.data
    }

    /// Gives the empty file its final size; see [`DataFile::reserve`].
    ///
    /// # Errors
    /// What the system says.
    pub fn reserve(&mut self, bytes: u64, direct: Direct) -> io::Result<()> {
        self.data.reserve(bytes, direct)
    }

    /// Makes the empty file a copy of another that shares its blocks, and gives it its final size; `false` where the file
    /// system cannot: it is empty then.
    ///
    /// # Errors
    /// What the system says when the size cannot be set.
    pub fn clone_contents(&mut self, from: &File, bytes: u64, direct: Direct) -> io::Result<bool> {
        if rustix::fs::ioctl_ficlone(self.file(), from).is_err() {
            return Ok(false);
        }
        self.file().set_len(bytes)?;
        self.take_length(direct)?;
        Ok(true)
    }

    /// The file has the length with which it will be written.
    pub(crate) fn take_length(&mut self, direct: Direct) -> io::Result<()> {
        self.data = DataFile::for_writing(self.file().try_clone()?, direct)?;
        Ok(())
    }

    /// The directory where a file without a name will get it: the one it was made in may have been replaced since.
    pub fn move_to(&mut self, directory: Arc<OwnedFd>) {
        if self.temporary.is_none() {
            self.directory = directory;
        }
    }

    /// Gives the file its name, replacing a file or link of that name. One that is changed in its place has it.
    ///
    /// # Errors
    /// What the system says; `EISDIR` when a directory has that name, `ESTALE` when a file that was changed in its place
    /// has lost it.
    pub fn commit(mut self, name: &Name, names: &TempNames) -> io::Result<()> {
        if self.in_place.take().is_some() {
            let of_that_name = FileIdentity::at(&self.directory, name).ok().map(|there| there.inode);
            let still = of_that_name == Some(FileIdentity::of(self.file())?.inode);
            return if still { Ok(()) } else { Err(Errno::STALE.into()) };
        }
        if self.temporary.is_none() {
            match self.link(name, names) {
                Err(Errno::EXIST) => self.temporary = Some(self.link_temporarily(names)?),
                outcome => return Ok(outcome?),
            }
        }
        let temporary = self.temporary.as_ref().expect("set just above");
        rustix::fs::renameat(&self.directory, temporary.as_os_str(), &self.directory, name.as_os_str())?;
        self.temporary = None;
        Ok(())
    }

    /// Gives an unnamed file a temporary name; one that is left of another transfer is stepped over.
    fn link_temporarily(&self, names: &TempNames) -> rustix::io::Result<Name> {
        loop {
            let temporary = names.fresh();
            match self.link(&temporary, names) {
                Ok(()) => return Ok(temporary),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Links an unnamed file: by its descriptor where the kernel lets us, else through `/proc`.
    fn link(&self, name: &Name, names: &TempNames) -> rustix::io::Result<()> {
        if !names.empty_path_refused.load(Ordering::Relaxed) {
            match rustix::fs::linkat(self.file(), c"", &self.directory, name.as_os_str(), AtFlags::EMPTY_PATH)
            {
                Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {
                    names.empty_path_refused.store(true, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
        let source = format!("/proc/self/fd/{}", self.file().as_raw_fd());
        let (source, target) = (Path::new(&source), name.as_os_str());
        rustix::fs::linkat(CWD, source, &self.directory, target, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.in_place.is_some() {
            give_up(self.data.file());
        }
        if let (Some(name), false) = (&self.temporary, *self.lasting.get_mut()) {
            // nothing more can be done about a temporary file that will not go
            let _best_effort = rustix::fs::unlinkat(&self.directory, name.as_os_str(), AtFlags::empty());
        }
    }
}

/// Opens one that had its final mode already, which may forbid that: it was about to get its final name.
fn open_finished(found: &OwnedFd) -> rustix::io::Result<File> {
    if FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode) != FileType::RegularFile {
        return Err(Errno::ACCESS);
    }
    let found = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmod(found.as_str(), Mode::RUSR | Mode::WUSR)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(found.as_str(), flags, Mode::empty()).map(File::from)
}

fn create_unnamed(directory: &OwnedFd, mode: Mode) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c".", flags, mode).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::set_new_file_metadata;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use zmove_types::{Metadata, Timestamp};

    fn home() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = rustix::fs::open(home.path(), flags, Mode::empty()).unwrap();
        (home, Arc::new(fd))
    }

    fn entries(home: &tempfile::TempDir) -> usize {
        std::fs::read_dir(home.path()).unwrap().count()
    }

    fn both_ways(check: impl Fn(&tempfile::TempDir, &Arc<OwnedFd>, &TempNames)) {
        for refused in [false, true] {
            let (home, fd) = home();
            let names = TempNames::new("t");
            names.unnamed_refused.store(refused, Ordering::Relaxed);
            check(&home, &fd, &names);
        }
    }

    #[test]
    fn a_commit_replaces_and_carries_metadata() {
        both_ways(|home, fd, names| {
            let target = home.path().join("x");
            std::fs::write(&target, "old").unwrap();
            let staged = Staged::create(fd, 0o600, names).unwrap();
            staged.file().write_all(b"new").unwrap();
            let mtime = Timestamp { seconds: -7, nanos: 123_456_789 };
            set_new_file_metadata(staged.file(), &Metadata { mode: 0o641, mtime }).unwrap();
            assert_eq!(std::fs::read(&target).unwrap(), b"old");
            staged.commit(&Name::from_bytes(b"x").unwrap(), names).unwrap();
            let stat = target.metadata().unwrap();
            assert_eq!((stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()), (0o641, -7, 123_456_789));
            assert_eq!(std::fs::read(&target).unwrap(), b"new");
            assert_eq!(entries(home), 1);
        });
    }

    #[test]
    fn an_abandoned_file_leaves_nothing() {
        both_ways(|home, fd, names| {
            drop(Staged::create(fd, 0o600, names).unwrap());
            assert_eq!(entries(home), 0);
        });
    }

    #[test]
    fn a_lasting_file_stays_until_it_is_committed_or_discarded() {
        let (home, fd) = home();
        let names = TempNames::new("t");
        let mut made = Staged::create_lasting(&fd, 0o600, &names).unwrap();
        made.reserve(5, Direct::Auto).unwrap();
        made.file().write_all(b"first").unwrap();
        let hidden = made.hidden_name().unwrap().clone();
        drop(made);
        let again = Staged::reopen(&fd, &hidden, Direct::Auto, |_| true).unwrap();
        assert_eq!(std::fs::read(home.path().join(hidden.as_os_str())).unwrap(), b"first");
        again.commit(&Name::from_bytes(b"x").unwrap(), &names).unwrap();
        assert_eq!((std::fs::read(home.path().join("x")).unwrap(), entries(&home)), (b"first".to_vec(), 1));
        Staged::create_lasting(&fd, 0o600, &names).unwrap().discard();
        assert_eq!(entries(&home), 1);
    }

    /// Whoever may write to the directory can put another file of ours under the name, by a hard link.
    #[test]
    fn another_file_under_the_name_of_a_lasting_one_is_neither_opened_nor_changed() {
        let (home, fd) = home();
        let (precious, hidden) = (home.path().join("precious"), Name::from_bytes(b".zmove-t-0").unwrap());
        std::fs::write(&precious, "x").unwrap();
        let mode = |mode| std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o444);
        std::fs::hard_link(&precious, home.path().join(hidden.as_os_str())).unwrap();
        let refused = Staged::reopen(&fd, &hidden, Direct::Auto, |_| false).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOENT));
        assert_eq!(precious.metadata().unwrap().mode() & 0o777, 0o444);
    }

    #[test]
    fn a_lasting_file_that_was_about_to_get_its_name_is_opened_again() {
        let (home, fd) = home();
        let made = Staged::create_lasting(&fd, 0o600, &TempNames::new("t")).unwrap();
        let hidden = made.hidden_name().unwrap().clone();
        set_new_file_metadata(made.file(), &Metadata { mode: 0, ..Metadata::default() }).unwrap();
        drop(made);
        // root may open it anyway
        let path = home.path().join(hidden.as_os_str());
        let hold = |name: &Name| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            rustix::fs::openat(&fd, name.as_os_str(), flags, Mode::empty()).unwrap()
        };
        open_finished(&hold(&hidden)).unwrap().write_all(b"more").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"more");
        std::os::unix::fs::symlink(&path, home.path().join("link")).unwrap();
        let link = Name::from_bytes(b"link").unwrap();
        assert!(open_finished(&hold(&link)).is_err());
        assert!(Staged::reopen(&fd, &link, Direct::Auto, |_| true).is_err());
        assert!(Staged::reopen(&fd, &hidden, Direct::Auto, |_| true).is_ok());
    }

    #[test]
    fn a_directory_of_that_name_stays() {
        both_ways(|home, fd, names| {
            std::fs::create_dir(home.path().join("x")).unwrap();
            let staged = Staged::create(fd, 0o600, names).unwrap();
            let error = staged.commit(&Name::from_bytes(b"x").unwrap(), names).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::ISDIR));
            assert_eq!(entries(home), 1);
        });
    }
}
