//! A new directory that is filled before it becomes visible under its final name.
//!
//! Files are created in the directory under their final names and become visible when the directory is renamed. This
//! takes one directory operation per file, whereas a [staged](crate::Staged) file takes two. All entries that are
//! received before the rename are created in the staging directory, including subdirectories, so no entry waits for a
//! flush. Until the rename, the directory has a hidden name in its parent. No staging directory is created in a parent
//! in which other users may rename entries ([`guarded`](crate::staging::guarded)).
//!
//! If a non-empty directory has the final name at the time of the rename, the two are merged. Each entry of the staging
//! directory is moved into the existing directory, and then the empty staging directory is removed. If another process
//! adds an entry to the staging directory during the merge, there are two cases. Either the merge moves that entry too,
//! or the process gets an error because the directory was removed. If an entry cannot be moved, the entry and
//! everything below it count as failed, even files that were already published in the staging directory.
//!
//! **Invariant:** a staging directory that is dropped without being published is removed recursively. If the process
//! has died, [`remove_abandoned`](crate::remove_abandoned) removes it.

mod merging;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Errno;
use zmove_types::{Lock, Name, RelPath};

use crate::metadata::entry::metadata::set_mode_if_allowed;
use crate::metadata::entry::{is_same_file, number_at, number_of};
use crate::opening::by_name::{create_at, open_at, remove_directory_at, stat_at, unlink_at};
use crate::opening::tree::{DIRECTORY, DirectoryModes};
use crate::publishing::final_names::{remove, rename, rename_with};
use crate::publishing::lease::{Lease, Permit};
use crate::publishing::publish::Replace;
use crate::publishing::remove::remove_open_directory;
use crate::staging::hidden::{make_hidden, make_hidden_directory};
use crate::staging::new_files::NewFiles;

use merging::Merge;
pub use merging::MergeCallbacks;

/// A staging directory under its hidden name.
#[derive(Debug)]
pub struct StagingDirectory {
    /// The directory that currently contains the staging directory.
    parent: Lock<Arc<OwnedFd>>,
    name: Name,
    hidden: Name,
    directory: Arc<OwnedFd>,
    /// Whether the entry with the hidden name is no longer this directory, so that drop must not remove it.
    is_released: AtomicBool,
    new_files: NewFiles,
}

impl StagingDirectory {
    /// Creates a staging directory for the directory `name` of `parent`.
    ///
    /// # Errors
    /// Returns the system's error, `EPERM` if `parent` does not permit renaming the directory later or if other users
    /// may rename entries of `parent`.
    pub fn begin(parent: &Arc<OwnedFd>, name: &Name, modes: DirectoryModes) -> io::Result<Self> {
        Self::make(parent, Some(name), modes)
    }

    /// Creates a staging directory that is never published. Its files are published [one by one](crate::publish_from)
    /// in `parent`.
    ///
    /// # Errors
    /// Returns the errors of [`begin`](Self::begin).
    pub fn begin_unpublished(parent: &Arc<OwnedFd>) -> io::Result<Self> {
        Self::make(parent, None, DirectoryModes::default())
    }

    fn make(parent: &Arc<OwnedFd>, name: Option<&Name>, modes: DirectoryModes) -> io::Result<Self> {
        let make =
            |name: &Name| rustix::fs::mkdirat(parent, name.as_os_str(), modes.mode_for_new());
        let hidden = make_hidden_directory(parent.as_fd(), make)?;
        let directory = open_at(parent, &hidden, DIRECTORY);
        let directory = directory.inspect_err(|_error| {
            let _best_effort = remove_directory_at(parent, &hidden);
        });
        Ok(Self {
            parent: Lock::new(Arc::clone(parent)),
            name: name.unwrap_or(&hidden).clone(),
            hidden,
            directory: Arc::new(directory?),
            is_released: AtomicBool::new(false),
            new_files: NewFiles::default(),
        })
    }

    /// Returns the directory. The descriptor remains valid when the directory is renamed.
    #[must_use]
    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Records that the staging directory was moved into `parent`, for example because its old parent was merged with
    /// another directory.
    pub fn move_to(&self, parent: Arc<OwnedFd>) {
        *self.parent.lock() = parent;
    }

    /// Returns whether the staging directory still has its hidden name. If not, it was moved or removed.
    #[must_use]
    pub fn has_hidden_name(&self) -> bool {
        let there = number_at(self.parent(), &self.hidden);
        matches!((there, number_of(&self.directory)), (Ok(there), Ok(here)) if there == here)
    }

    /// Returns whether an open directory is this staging directory.
    #[must_use]
    pub fn is(&self, directory: &OwnedFd) -> bool {
        is_same_file(directory, &self.directory)
    }

    fn parent(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.parent.lock())
    }

    /// Creates a file in the staging directory, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn create(&self, name: &Name, mode: u32) -> io::Result<File> {
        Ok(create_at(
            &self.directory,
            name,
            Mode::from_raw_mode(mode & 0o777),
        )?)
    }

    /// Returns the shared properties of the files that are created in this directory.
    #[must_use]
    pub fn new_files(&self) -> &NewFiles {
        &self.new_files
    }

    /// Removes an incomplete file.
    ///
    /// # Errors
    /// Returns the system's error. The directory must not be published then.
    pub fn discard(&self, name: &Name) -> io::Result<()> {
        Ok(unlink_at(&self.directory, name)?)
    }

    /// Removes a file or link whose name is needed for a directory that is created without staging.
    pub fn remove_existing(lease: &Lease, parent: &OwnedFd, name: &Name) -> io::Result<()> {
        Ok(remove(lease.permit()?, parent, name, AtFlags::empty())?)
    }

    /// Renames the directory to its final name. The name must not exist or must be an empty directory. If `replace`
    /// allows it, the name may also be a file or link.
    ///
    /// # Errors
    /// Returns the system's error, `EEXIST` or `ENOTEMPTY` if an entry is in the way, and `EISDIR` if a directory has
    /// just replaced a file. After an error, nothing has changed, with one exception: if the exchange of names could
    /// not be undone, the other directory has the hidden name.
    pub fn publish(&self, lease: &Lease, replace: Replace) -> io::Result<()> {
        match self.rename_to_final(lease) {
            Err(Errno::NOTDIR) if replace == Replace::Existing => self.publish_over_file(lease)?,
            renamed => renamed?,
        }
        self.is_released.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn rename_to_final(&self, lease: &Lease) -> rustix::io::Result<()> {
        let parent = self.parent();
        rename(lease.permit()?, &parent, &self.hidden, &parent, &self.name)
    }

    fn exchange_names(&self, permit: Permit<'_>) -> rustix::io::Result<()> {
        let parent = self.parent();
        let flags = RenameFlags::EXCHANGE;
        rename_with(permit, &parent, &self.hidden, &parent, &self.name, flags)
    }

    /// Exchanges the hidden and the final name atomically, so that the final name always refers to a complete entry. If
    /// the old entry turns out to be a directory and cannot be removed, undoes the exchange.
    fn publish_over_file(&self, lease: &Lease) -> io::Result<()> {
        match self.exchange_names(lease.permit()?) {
            Ok(()) => {
                let removed = unlink_at(self.parent(), &self.hidden);
                Ok(removed.inspect_err(|_error| self.exchange_back())?)
            }
            // Without `RENAME_EXCHANGE`, the old entry is removed first, so the name does not exist for a short time.
            Err(Errno::INVAL | Errno::NOSYS) => {
                Self::remove_existing(lease, &self.parent(), &self.name)?;
                Ok(self.rename_to_final(lease)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Undoes the exchange of names. This needs no permit, because the exchange had one.
    fn exchange_back(&self) {
        let exchanged = self.exchange_names(Permit::for_hidden());
        // If this call fails, the entry with the hidden name belongs to another process and must not be removed.
        self.is_released
            .store(exchanged.is_err(), Ordering::Relaxed);
    }

    /// Moves the entries of this directory into another directory. Files replace existing files and links. Directories
    /// are merged with existing directories of the same name. If an existing entry of `target` [is
    /// kept](MergeCallbacks::keeps_existing) or the move fails, the entry of this directory is removed instead.
    pub fn merge_into(
        &self,
        lease: &Lease,
        target: &Arc<OwnedFd>,
        callbacks: &mut MergeCallbacks<'_>,
    ) {
        let hidden = self.hidden.clone();
        let from = &self.directory;
        let merge = Merge::begin(lease, self.parent(), hidden, from, target, callbacks);
        let merged = merge.and_then(Merge::run);
        match merged {
            Ok(true) => self.is_released.store(true, Ordering::Relaxed),
            Ok(false) => {}
            Err(error) => (callbacks.failed)(RelPath::root(), error),
        }
    }
}

/// Sets the mode of a directory to that of a new subdirectory, which depends on the umask or on inherited access
/// control lists.
///
/// # Errors
/// Returns the system's error.
pub fn set_default_mode(lease: &Lease, directory: BorrowedFd<'_>) -> io::Result<()> {
    let all = Mode::from_raw_mode(0o777);
    let make = |name: &Name| rustix::fs::mkdirat(directory, name.as_os_str(), all);
    let (made, ()) = make_hidden(directory, make)?;
    let stat = stat_at(directory, &made);
    remove_directory_at(directory, &made)?;
    set_mode_if_allowed(
        lease.permit()?,
        directory,
        Mode::from_raw_mode(stat?.st_mode),
    )
}

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        if !*self.is_released.get_mut() {
            let parent = self.parent();
            // The directory is empty if its files were published one by one.
            if remove_directory_at(&parent, &self.hidden).is_ok() {
                return;
            }
            // The next transfer to this directory removes any remaining entries. After a merge, the parent of the
            // staging directory may be one in which other users can rename entries.
            remove_open_directory(
                parent.as_fd(),
                &self.hidden,
                self.directory.as_fd(),
                |_error| {},
            );
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::metadata::entry::proven::ProvenKinds;
    use crate::opening::tree::Tree;
    use crate::staging::abandoned::remove_abandoned;
    use crate::staging::staged::Staged;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use zmove_types::{Metadata, Timestamp};

    pub(crate) fn place() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        (home, Arc::new(fd))
    }

    pub(crate) fn begin(parent: &Arc<OwnedFd>, text: &str) -> StagingDirectory {
        StagingDirectory::begin(parent, &name(text), DirectoryModes::default()).unwrap()
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn set_mode(home: &tempfile::TempDir, mode: u32) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(home.path(), mode).unwrap();
    }

    fn names(home: &tempfile::TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(home.path()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn files_appear_all_at_once_over_an_empty_directory() {
        let (home, fd) = place();
        std::fs::create_dir(home.path().join("d")).unwrap();
        let staging = begin(&fd, "d");
        for file in ["a", "b"] {
            staging
                .create(&name(file), 0o644)
                .unwrap()
                .write_all(b"x")
                .unwrap();
        }
        assert_eq!(std::fs::read_dir(home.path().join("d")).unwrap().count(), 0);
        staging.discard(&name("b")).unwrap();
        staging
            .publish(&Lease::constant(), Replace::Existing)
            .unwrap();
        drop(staging);
        assert_eq!(names(&home), ["d"]);
        assert_eq!(std::fs::read(home.path().join("d/a")).unwrap(), b"x");
        assert!(!home.path().join("d/b").exists());
    }

    #[test]
    fn each_file_has_the_mode_it_was_asked_for() {
        let (home, fd) = place();
        let staging = begin(&fd, "d");
        // The umask clears some bits of these modes.
        let modes = [0o600, 0o666, 0o600, 0o777, 0o777, 0o644, 0o1644, 0o400];
        for (number, mode) in modes.into_iter().enumerate() {
            let file = staging.create(&name(&number.to_string()), mode).unwrap();
            let mtime = Timestamp {
                seconds: 7,
                nanos: 8,
            };
            staging
                .new_files()
                .set_metadata(
                    Permit::for_hidden(),
                    &file,
                    &Metadata::new(mode, mtime),
                    &ProvenKinds::default(),
                )
                .unwrap();
        }
        staging
            .publish(&Lease::constant(), Replace::Existing)
            .unwrap();
        for (number, mode) in modes.into_iter().enumerate() {
            let found = std::fs::metadata(home.path().join("d").join(number.to_string())).unwrap();
            assert_eq!(
                (found.mode() & 0o7777, found.mtime(), found.mtime_nsec()),
                (mode, 7, 8),
                "{number}"
            );
        }
    }

    #[test]
    fn there_is_none_where_others_may_rename_entries() {
        let (home, fd) = place();
        for (mode, is_begun) in [
            (0o755, true),
            (0o1777, true),
            (0o775, false),
            (0o777, false),
        ] {
            set_mode(&home, mode);
            let begun = StagingDirectory::begin(&fd, &name("d"), DirectoryModes::default());
            assert_eq!(begun.is_ok(), is_begun, "{mode:o}");
            let errno = begun.err().and_then(|error| Errno::from_io_error(&error));
            assert_eq!(errno, (!is_begun).then_some(Errno::PERM), "{mode:o}");
            assert_eq!(names(&home), [""; 0], "{mode:o}");
        }
    }

    /// A merge has moved the staging directory into a parent in which other users may rename entries.
    #[test]
    fn one_that_is_dropped_removes_its_own_entries_alone() {
        let (home, fd) = place();
        let staging = begin(&fd, "d");
        staging.create(&name("a"), 0o644).unwrap();
        let hidden = home.path().join(staging.hidden.as_os_str());
        std::fs::rename(&hidden, home.path().join("moved")).unwrap();
        std::fs::create_dir(&hidden).unwrap();
        std::fs::write(hidden.join("theirs"), "x").unwrap();
        drop(staging);
        assert!(hidden.join("theirs").exists());
        assert!(!home.path().join("moved/a").exists());
    }

    #[test]
    fn one_that_is_dropped_leaves_nothing() {
        let (home, fd) = place();
        let staging = begin(&fd, "d");
        staging.create(&name("a"), 0o644).unwrap();
        rustix::fs::mkdirat(staging.directory(), "below", Mode::RWXU).unwrap();
        std::fs::write(
            home.path().join(staging.hidden.as_os_str()).join("below/b"),
            "x",
        )
        .unwrap();
        drop(staging);
        assert_eq!(names(&home), [""; 0]);
    }

    #[test]
    fn a_file_of_that_name_goes_only_where_it_may_be_replaced() {
        let (home, fd) = place();
        std::fs::write(home.path().join("d"), "old").unwrap();
        let staging = begin(&fd, "d");
        staging.create(&name("a"), 0o644).unwrap();
        assert!(
            staging
                .publish(&Lease::constant(), Replace::Nothing)
                .is_err()
        );
        assert_eq!(std::fs::read(home.path().join("d")).unwrap(), b"old");
        staging
            .publish(&Lease::constant(), Replace::Existing)
            .unwrap();
        drop(staging);
        assert!(home.path().join("d/a").exists());
        assert_eq!(names(&home), ["d"]);
    }

    #[test]
    fn a_directory_that_takes_the_place_of_the_file_meanwhile_gets_its_name_back() {
        let (home, fd) = place();
        std::fs::create_dir(home.path().join("d")).unwrap();
        std::fs::write(home.path().join("d/theirs"), "x").unwrap();
        let staging = begin(&fd, "d");
        staging.create(&name("ours"), 0o644).unwrap();
        assert!(staging.publish_over_file(&Lease::constant()).is_err());
        assert!(home.path().join("d/theirs").exists());
        assert!(
            home.path()
                .join(staging.hidden.as_os_str())
                .join("ours")
                .exists()
        );
        drop(staging);
        assert_eq!(names(&home), ["d"]);
        assert!(home.path().join("d/theirs").exists());
    }

    #[test]
    fn what_cannot_get_its_name_back_is_not_removed() {
        let (home, fd) = place();
        let staging = begin(&fd, "d");
        let hidden = home.path().join(staging.hidden.as_os_str());
        // After an exchange, another process has replaced the hidden directory.
        std::fs::remove_dir(&hidden).unwrap();
        std::fs::create_dir(&hidden).unwrap();
        std::fs::write(hidden.join("theirs"), "x").unwrap();
        staging.exchange_back();
        drop(staging);
        assert!(hidden.join("theirs").exists());
    }

    /// A process of a later transfer created the file in the staging directory and then died.
    #[test]
    fn what_is_hidden_in_one_that_was_merged_is_swept() {
        let (home, fd) = place();
        std::fs::create_dir_all(home.path().join("d/theirs")).unwrap();
        let staging = begin(&fd, "d");
        let staged = Staged::create(staging.directory(), 0o600).unwrap();
        let hidden = staged.into_hidden_name().unwrap();
        let target = Arc::new(open_at(&fd, "d", DIRECTORY).unwrap());
        let failed = &mut |path, error| panic!("{path}: {error}");
        staging.merge_into(
            &Lease::constant(),
            &target,
            &mut MergeCallbacks {
                keeps_existing: &mut |_, _, _| false,
                failed,
                pause: &|| {},
            },
        );
        // The same name, as if another process with the same process ID had generated it.
        let mut parts: Vec<_> = hidden.as_os_str().to_str().unwrap().split('-').collect();
        parts[5] = "1";
        rustix::fs::renameat(&target, hidden.as_os_str(), &target, parts.join("-")).unwrap();
        let tree = Tree::at(fd);
        remove_abandoned(&tree, &RelPath::from_bytes(b"d").unwrap(), target.as_fd()).unwrap();
        let left: Vec<_> = std::fs::read_dir(home.path().join("d"))
            .unwrap()
            .map(|it| it.unwrap().file_name())
            .collect();
        assert_eq!(left, ["theirs"]);
    }

    #[test]
    fn where_something_is_in_the_way_the_trees_become_one() {
        let (home, fd) = place();
        std::fs::create_dir_all(home.path().join("d/both/only")).unwrap();
        for (file, contents) in [("old", "keep"), ("both/stays", "old"), ("both/goes", "old")] {
            std::fs::write(home.path().join("d").join(file), contents).unwrap();
        }
        std::fs::create_dir(home.path().join("d/dir")).unwrap();
        let staging = begin(&fd, "d");
        let hidden = home.path().join(staging.hidden.as_os_str());
        std::fs::create_dir_all(hidden.join("both/new")).unwrap();
        for file in ["new", "both/stays", "both/goes", "both/new/x", "dir"] {
            std::fs::write(hidden.join(file), "new").unwrap();
        }
        assert!(
            staging
                .publish(&Lease::constant(), Replace::Existing)
                .is_err()
        );
        let filled = Arc::new(open_at(&fd, "d", DIRECTORY).unwrap());
        let mut failed = Vec::new();
        let mut keeps_existing =
            |_: &OwnedFd, _: &OwnedFd, path: &RelPath| path.as_bytes() == b"both/stays";
        let mut tell = |path, _error| failed.push(path);
        staging.merge_into(
            &Lease::constant(),
            &filled,
            &mut MergeCallbacks {
                keeps_existing: &mut keeps_existing,
                failed: &mut tell,
                pause: &|| {},
            },
        );
        drop(staging);
        let read = |file: &str| std::fs::read_to_string(home.path().join("d").join(file)).unwrap();
        assert_eq!(["new", "both/goes", "both/new/x"].map(read), ["new"; 3]);
        assert_eq!([read("old"), read("both/stays")], ["keep", "old"]);
        assert_eq!(
            failed,
            [RelPath::from_bytes(b"dir").unwrap()],
            "no file replaces a directory"
        );
        assert_eq!(names(&home), ["d"]);
    }
}
