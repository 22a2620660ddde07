//! A file that has no final name yet, or an existing file that is [changed in place][Existing].
//!
//! The file is created under a hidden name in its final directory, because renaming between directories takes a lock
//! for the whole file system. An unnamed file (`O_TMPFILE`) would need no cleanup. But it has three disadvantages: it
//! occupies a descriptor until it is flushed, network file systems do not support it, and replacing another file takes
//! three more operations.
//!
//! **Invariant:** until [`commit`](Staged::commit), the file has a hidden name in its final directory. An abandoned
//! file is removed on drop, or by [`remove_abandoned`](crate::remove_abandoned) if the process has died. Only a
//! [lasting](Staged::make_lasting) file keeps its hidden name, so that a later transfer can resume it.
//!
//! [Existing]: crate::Existing

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use zmove_types::{DataRanges, Name};

use crate::metadata::entry::FileIdentity;
use crate::metadata::entry::open_despite_mode::EntryHandle;
use crate::opening::by_name::{create_at, open_at, unlink_at};
use crate::publishing::lease::Lease;
use crate::publishing::publish::{Replace, publish_file};
use crate::staging::hidden::make_hidden_beneath;
use crate::staging::new_files::NewFiles;
use crate::storage::file_io::data_file::{DataFile, Direct};
use crate::storage::holes::make_holes;

pub(crate) mod existing;
mod in_place;

use in_place::{InPlaceChange, set_oldest_mtime};

/// A file that is being written, in its final directory.
#[derive(Debug)]
pub struct Staged {
    data: DataFile,
    directory: Arc<OwnedFd>,
    temporary: Option<Name>,
    /// The lease under which the file is written. It matters if other processes use the file or a later transfer may
    /// resume it.
    lease: Lease,
    /// Whether the file keeps its hidden name when this value is dropped.
    lasting: AtomicBool,
    /// Detects changes by other processes while an existing file is changed in place.
    in_place: Option<InPlaceChange>,
    /// A value that is dropped together with the file.
    _attached: Option<Box<dyn Any + Send + Sync>>,
}

impl Staged {
    /// Creates an empty file in `directory`, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// Returns the system's error, `EPERM` if the directory does not permit renaming the file later.
    pub fn create(directory: &Arc<OwnedFd>, mode: u32) -> io::Result<Self> {
        Self::create_in(directory, &NewFiles::default(), mode)
    }

    /// Creates a file like [`create`](Self::create), using the shared properties of the directory's new files.
    ///
    /// # Errors
    /// Returns the errors of [`create`](Self::create).
    pub fn create_in(
        directory: &Arc<OwnedFd>,
        new_files: &NewFiles,
        mode: u32,
    ) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(mode & 0o777);
        let make = |name: &Name| create_at(directory, name, mode);
        let (name, file) = make_hidden_beneath(new_files.parent(directory.as_fd()), make)?;
        Ok(Self::new(
            DataFile::new(file),
            Arc::clone(directory),
            Some(name),
        ))
    }

    /// Reopens a lasting file without changing it. `is_it` must accept the file, so that another file that now has the
    /// name is not used.
    ///
    /// # Errors
    /// Returns the system's error, `ELOOP` for a symbolic link, and `ENOENT` if `is_it` does not accept the file.
    pub fn reopen(
        lease: &Lease,
        directory: &Arc<OwnedFd>,
        name: &Name,
        direct: Direct,
        is_it: impl Fn(BorrowedFd<'_>) -> bool,
    ) -> io::Result<Self> {
        let found = open_at(directory, name, OFlags::PATH)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP.into());
        }
        if !is_it(found.as_fd()) {
            return Err(Errno::NOENT.into());
        }
        let file = match open_at(directory, name, OFlags::RDWR | OFlags::NONBLOCK) {
            Err(Errno::ACCESS) => open_with_final_mode(lease, found)?,
            opened => opened?,
        };
        if !is_it(file.as_fd()) {
            return Err(Errno::NOENT.into());
        }
        let data = DataFile::for_writing(file.into(), direct)?;
        // Drops cached pages, for the same reason as for a file that is changed in place.
        data.drop_cached()?;
        let mut reopened = Self::new(data, Arc::clone(directory), Some(name.clone()));
        reopened.lease = lease.clone();
        reopened.lasting.store(true, Ordering::Relaxed);
        Ok(reopened)
    }

    /// Opens a file with this name and length, which processes on several hosts write concurrently. Creates the file if
    /// it does not exist. The file is kept when this value is dropped.
    ///
    /// # Errors
    /// Returns the system's error, `EINVAL` if the name is not a regular file.
    pub(crate) fn shared(
        lease: &Lease,
        directory: &Arc<OwnedFd>,
        name: &Name,
        bytes: u64,
        direct: Direct,
    ) -> io::Result<Self> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let permit = lease.permit()?;
        let file = rustix::fs::openat(directory, name.as_os_str(), flags, Mode::RUSR | Mode::WUSR)?;
        drop(permit);
        let file = File::from(file);
        let there = FileIdentity::of(&file)?;
        if !there.regular {
            return Err(Errno::INVAL.into());
        }
        // All writers set the same length. The file must never be truncated, because another writer may already have
        // written data.
        if there.bytes < bytes {
            let _permit = lease.permit()?;
            file.set_len(bytes)?;
        }
        let mut shared = Self::new(
            DataFile::for_writing(file, direct)?,
            Arc::clone(directory),
            Some(name.clone()),
        );
        shared.lease = lease.clone();
        shared.lasting.store(true, Ordering::Relaxed);
        Ok(shared)
    }

    /// Creates the state for an existing file that is changed in place.
    fn in_place(
        lease: &Lease,
        data: DataFile,
        directory: Arc<OwnedFd>,
        in_place: InPlaceChange,
    ) -> Self {
        let mut staged = Self::new(data, directory, None);
        staged.lease = lease.clone();
        staged.in_place = Some(in_place);
        staged
    }

    fn new(data: DataFile, directory: Arc<OwnedFd>, temporary: Option<Name>) -> Self {
        Self {
            data,
            directory,
            temporary,
            lease: Lease::constant(),
            lasting: AtomicBool::new(false),
            in_place: None,
            _attached: None,
        }
    }

    /// Keeps a value until the file is closed, for example a reservation of the file's descriptors.
    pub fn attach(&mut self, what: impl Any + Send + Sync) {
        self._attached = Some(Box::new(what));
    }

    /// Returns whether this is an existing file that is changed in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.in_place.is_some()
    }

    /// Runs `write`, which writes to the file, under a permit. If the file is changed in place, also detects writes by
    /// other processes. Every write must use this function if other processes use the file or a later transfer may
    /// resume it.
    ///
    /// # Errors
    /// Returns the errors of [`Lease::permit`]. Nothing is written in that case.
    pub fn write<R>(&self, write: impl FnOnce() -> R) -> io::Result<R> {
        let permit = self.lease.permit()?;
        Ok(match &self.in_place {
            Some(in_place) => in_place.change(permit, self.file(), write),
            None => write(),
        })
    }

    /// Sets the final length of a file that is changed in place. The file has another length until this call.
    ///
    /// # Errors
    /// Returns the system's error, `EBUSY` if another process has changed the file in the meantime, and the errors of
    /// [`Lease::permit`].
    pub fn set_final_length(&self) -> io::Result<()> {
        let permit = self.lease.permit()?;
        match &self.in_place {
            Some(in_place) => in_place.set_final_length(permit, self.file()),
            None => Ok(()),
        }
    }

    /// Returns the hidden name, or `None` if the file is changed in place.
    #[must_use]
    pub fn hidden_name(&self) -> Option<&Name> {
        self.temporary.as_ref()
    }

    /// Lets drop remove the file, unless it is committed first.
    pub fn discard(&self) {
        self.lasting.store(false, Ordering::Relaxed);
    }

    /// Removes the file immediately. It cannot be committed after this call.
    ///
    /// # Errors
    /// Returns the system's error. The file is then kept under its hidden name, like a lasting file.
    pub fn remove(&self) -> io::Result<()> {
        let Some(name) = &self.temporary else {
            return Ok(());
        };
        // Drop must not remove the name again.
        self.lasting.store(true, Ordering::Relaxed);
        match unlink_at(&self.directory, name) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Renames the file to another hidden name and makes it lasting: it is kept until it is committed or discarded,
    /// even if this process dies. The caller must record the name elsewhere before the call.
    ///
    /// # Errors
    /// Returns the system's error, `EEXIST` if the name exists. The file is unchanged then.
    pub fn make_lasting(&mut self, lease: &Lease, name: Name) -> io::Result<()> {
        let Some(hidden) = &self.temporary else {
            return Err(Errno::NOENT.into());
        };
        let directory = &self.directory;
        let from = hidden.as_os_str();
        let to = name.as_os_str();
        match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
            // A hard link must not replace the rename: mergerfs and other FUSE file systems find an open file by the
            // name under which it was opened, and would lose it.
            Err(error) if is_refusal(error) => {
                if FileIdentity::at(directory, &name).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                rustix::fs::renameat(directory, from, directory, to)?;
            }
            renamed => renamed?,
        }
        self.temporary = Some(name);
        self.lease = lease.clone();
        self.lasting.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the open file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.data.file()
    }

    /// Returns the open file for use by a storage engine.
    #[must_use]
    pub fn data(&self) -> &DataFile {
        &self.data
    }

    /// Sets the final size of the empty file. See [`DataFile::reserve`].
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn reserve(
        &mut self,
        bytes: u64,
        data: Option<&DataRanges>,
        direct: Direct,
    ) -> io::Result<()> {
        self.data.reserve(bytes, data, direct)
    }

    /// Returns the error that closing the file would return. The caller must call this function after the last write
    /// and before it marks the file as complete. The file itself is closed later, when an error could only be ignored.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn check_close(&self) -> io::Result<()> {
        self.data.check_close()
    }

    /// Punches holes into the file outside the ranges of `data`, where it may contain old data.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn make_holes(&self, data: &DataRanges) -> io::Result<()> {
        self.write(|| make_holes(self.file(), data))?
    }

    /// Makes the empty file a clone of `from` that shares its blocks (`FICLONE`), and sets its final size. Returns
    /// `false` if the file system does not support that. The file is still empty then.
    ///
    /// # Errors
    /// Returns the system's error if the size cannot be set.
    pub fn clone_contents(&mut self, from: &File, bytes: u64, direct: Direct) -> io::Result<bool> {
        if rustix::fs::ioctl_ficlone(self.file(), from).is_err() {
            return Ok(false);
        }
        self.file().set_len(bytes)?;
        self.prepare_writing(direct)?;
        Ok(true)
    }

    /// Prepares the file for writing, after its length has been set.
    fn prepare_writing(&mut self, direct: Direct) -> io::Result<()> {
        self.data = DataFile::for_writing(self.file().try_clone()?, direct)?;
        Ok(())
    }

    /// Sets the directory in which [`commit`](Self::commit) renames the file. Call it after the hidden file was moved
    /// to another directory.
    pub fn move_to(&mut self, directory: Arc<OwnedFd>) {
        self.directory = directory;
    }

    /// Closes the file, keeps it under its hidden name, and returns that name. Returns `None` for a file that is
    /// changed in place. Call [`check_close`](Self::check_close) first if anything was written.
    #[must_use]
    pub fn into_hidden_name(mut self) -> Option<Name> {
        self.temporary.take()
    }

    /// Renames the file to its final name. A file that is changed in place has that name already.
    ///
    /// # Errors
    /// Returns the system's error, `EISDIR` if the name is a directory, and `EEXIST` if the name exists and must not be
    /// replaced. For a file that was changed in place, returns `ESTALE` if it has lost its name, and `EBUSY` if another
    /// process has changed its length.
    pub fn commit(mut self, lease: &Lease, name: &Name, replace: Replace) -> io::Result<()> {
        self.publish(lease, name, replace)
    }

    /// Renames the file like [`commit`](Self::commit), without consuming this value. The caller can then check after a
    /// failure whether the file was removed.
    ///
    /// # Errors
    /// Returns the errors of [`commit`](Self::commit).
    pub fn publish(&mut self, lease: &Lease, name: &Name, replace: Replace) -> io::Result<()> {
        if let Some(in_place) = &self.in_place {
            let there = FileIdentity::of(self.file())?;
            let of_that_name = FileIdentity::at(&self.directory, name)
                .ok()
                .map(|there| there.inode);
            let still = of_that_name == Some(there.inode);
            if still && !in_place.has_final_length(&there) {
                return Err(Errno::BUSY.into());
            }
            self.in_place = None;
            return if still {
                Ok(())
            } else {
                Err(Errno::STALE.into())
            };
        }
        let Some(hidden) = &self.temporary else {
            return Err(Errno::NOENT.into());
        };
        publish_file(lease, &self.directory, hidden, name, replace)?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Another program may have changed the file as well.
        if self.in_place.is_some()
            && let Ok(permit) = self.lease.permit()
        {
            set_oldest_mtime(permit, self.data.file());
        }
        if let Some(name) = &self.temporary
            && !*self.lasting.get_mut()
        {
            // If the temporary file cannot be removed here, a later cleanup removes it.
            let _best_effort = unlink_at(&self.directory, name);
        }
    }
}

/// Returns whether the error may mean that the file system does not support the operation.
fn is_refusal(error: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP].contains(&error)
}

/// Opens a file that was interrupted before its rename to the final name. It may already have its final mode, which may
/// deny access.
fn open_with_final_mode(lease: &Lease, found: OwnedFd) -> rustix::io::Result<OwnedFd> {
    let held = EntryHandle::of(found, FileType::RegularFile)?;
    held.open(
        &lease.permit()?,
        Mode::RUSR | Mode::WUSR,
        OFlags::RDWR | OFlags::NONBLOCK,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LastingNames;
    use crate::metadata::entry::tests::set_new_file_metadata;
    use crate::metadata::entry::xattrs::NameAt;
    use crate::publishing::publish::publish_from;
    use rustix::fs::IFlags;
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

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn create(directory: &Arc<OwnedFd>) -> Staged {
        Staged::create(directory, 0o600).unwrap()
    }

    fn create_lasting(directory: &Arc<OwnedFd>, names: &LastingNames) -> Staged {
        let mut staged = create(directory);
        staged
            .make_lasting(&Lease::constant(), names.name())
            .unwrap();
        staged
    }

    #[test]
    fn a_commit_replaces_and_carries_metadata() {
        let (home, fd) = home();
        let target = home.path().join("x");
        std::fs::write(&target, "old").unwrap();
        let staged = create(&fd);
        staged.file().write_all(b"new").unwrap();
        let mtime = Timestamp {
            seconds: -7,
            nanos: 123_456_789,
        };
        set_new_file_metadata(staged.file(), &Metadata::new(0o641, mtime)).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        staged
            .commit(&Lease::constant(), &name("x"), Replace::Existing)
            .unwrap();
        let stat = target.metadata().unwrap();
        assert_eq!(
            (stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()),
            (0o641, -7, 123_456_789)
        );
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(entries(&home), 1);
    }

    #[test]
    fn a_file_that_has_its_name_is_published_even_where_its_hidden_name_stays() {
        let (home, fd) = home();
        std::fs::write(home.path().join("hidden"), "whole").unwrap();
        let name = |text: &str| Name::from_bytes(text.as_bytes()).unwrap();
        if rustix::fs::ioctl_setflags(&fd, IFlags::APPEND).is_err() {
            return eprintln!(
                "skipped: the directory for temporary files cannot be made append-only here"
            );
        }
        let publish = || {
            let published = publish_from(
                &Lease::constant(),
                NameAt::new(&fd, &name("hidden")),
                &fd,
                &name("x"),
            );
            published.map_err(|error| Errno::from_io_error(&error).unwrap())
        };
        let (published, of_that_name) = (publish(), publish());
        rustix::fs::ioctl_setflags(&fd, IFlags::empty()).unwrap();
        assert_eq!((published, of_that_name), (Ok(()), Err(Errno::EXIST)));
        assert_eq!(std::fs::read(home.path().join("x")).unwrap(), b"whole");
    }

    #[test]
    fn what_is_not_to_be_replaced_stays() {
        let (home, fd) = home();
        create(&fd)
            .commit(&Lease::constant(), &name("x"), Replace::Nothing)
            .unwrap();
        std::fs::write(home.path().join("x"), "old").unwrap();
        let error = create(&fd)
            .commit(&Lease::constant(), &name("x"), Replace::Nothing)
            .unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::EXIST));
        assert_eq!(
            (
                std::fs::read(home.path().join("x")).unwrap(),
                entries(&home)
            ),
            (b"old".to_vec(), 1)
        );
    }

    #[test]
    fn an_abandoned_file_leaves_nothing() {
        let (home, fd) = home();
        drop(create(&fd));
        assert_eq!(entries(&home), 0);
    }

    #[test]
    fn a_file_that_waits_for_its_name_needs_no_descriptor() {
        let (home, fd) = home();
        let hidden = create(&fd).into_hidden_name().unwrap();
        assert!(home.path().join(hidden.as_os_str()).exists());
        publish_file(
            &Lease::constant(),
            &fd,
            &hidden,
            &name("x"),
            Replace::Existing,
        )
        .unwrap();
        assert_eq!((home.path().join("x").exists(), entries(&home)), (true, 1));
    }

    #[test]
    fn a_lasting_file_stays_until_it_is_committed_or_discarded() {
        let (home, fd) = home();
        let names = LastingNames::new("t");
        let mut made = create_lasting(&fd, &names);
        made.reserve(5, None, Direct::Auto).unwrap();
        made.file().write_all(b"first").unwrap();
        let hidden = made.hidden_name().unwrap().clone();
        drop(made);
        let again =
            Staged::reopen(&Lease::constant(), &fd, &hidden, Direct::Auto, |_| true).unwrap();
        assert_eq!(
            std::fs::read(home.path().join(hidden.as_os_str())).unwrap(),
            b"first"
        );
        again
            .commit(&Lease::constant(), &name("x"), Replace::Existing)
            .unwrap();
        assert_eq!(
            (
                std::fs::read(home.path().join("x")).unwrap(),
                entries(&home)
            ),
            (b"first".to_vec(), 1)
        );
        create_lasting(&fd, &names).discard();
        assert_eq!(entries(&home), 1);
    }

    /// A user with write access to the directory can replace the file with a hard link to another of our files.
    #[test]
    fn another_file_under_the_name_of_a_lasting_one_is_neither_opened_nor_changed() {
        let (home, fd) = home();
        let (precious, hidden) = (
            home.path().join("precious"),
            Name::from_bytes(b".zmove-t-0").unwrap(),
        );
        std::fs::write(&precious, "x").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(mode)).unwrap()
        };
        mode(0o444);
        std::fs::hard_link(&precious, home.path().join(hidden.as_os_str())).unwrap();
        let refused =
            Staged::reopen(&Lease::constant(), &fd, &hidden, Direct::Auto, |_| false).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOENT));
        assert_eq!(precious.metadata().unwrap().mode() & 0o777, 0o444);
    }

    #[test]
    fn a_lasting_file_that_was_about_to_get_its_name_is_opened_again() {
        let (home, fd) = home();
        let made = create_lasting(&fd, &LastingNames::new("t"));
        let hidden = made.hidden_name().unwrap().clone();
        set_new_file_metadata(
            made.file(),
            &Metadata {
                mode: 0,
                ..Metadata::default()
            },
        )
        .unwrap();
        drop(made);
        // Root can open the file regardless of its mode.
        let path = home.path().join(hidden.as_os_str());
        let hold = |name: &Name| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            open_at(&fd, name, flags).unwrap()
        };
        File::from(open_with_final_mode(&Lease::constant(), hold(&hidden)).unwrap())
            .write_all(b"more")
            .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"more");
        std::os::unix::fs::symlink(&path, home.path().join("link")).unwrap();
        let link = Name::from_bytes(b"link").unwrap();
        assert!(open_with_final_mode(&Lease::constant(), hold(&link)).is_err());
        assert!(Staged::reopen(&Lease::constant(), &fd, &link, Direct::Auto, |_| true).is_err());
        assert!(Staged::reopen(&Lease::constant(), &fd, &hidden, Direct::Auto, |_| true).is_ok());
    }

    #[test]
    fn a_directory_of_that_name_stays() {
        let (home, fd) = home();
        std::fs::create_dir(home.path().join("x")).unwrap();
        let error = create(&fd)
            .commit(&Lease::constant(), &name("x"), Replace::Existing)
            .unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ISDIR));
        assert_eq!(entries(&home), 1);
    }
}
