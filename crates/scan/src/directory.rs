//! Open directories: the roots of a scan and the directories that contain its entries.
//!
//! **Invariant:** the descriptor and the paths of a [`Directory`] refer to the same directory below its root. Entries
//! must be opened relative to the descriptor. The paths are for messages and for the target.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, FsWord, Mode, OFlags, RawDir, RawDirEntry, Statx, StatxAttributes, StatxFlags,
    StatxTimestamp, fstat, fstatfs, makedev, open, statx,
};
use rustix::io::{Errno, Result};
use zmove_disk::{is_mount_point, open_beneath};
use zmove_types::{FileNumber, Name, PathError, RelPath, Timestamp};

use crate::error::{Operation, ScanError};
use crate::generated::{GeneratedFileSystems, GeneratedFiles};
use crate::listing::Listing;

/// The open directory at the path of a [`ScanRoot`](crate::ScanRoot), or the open directory that contains a root that
/// is a single entry.
#[derive(Debug)]
pub struct SourceRoot {
    path: PathBuf,
    prefix: RelPath,
    /// Whether the root is the whole directory or a single entry in it.
    pub(crate) extent: Extent,
    pub(crate) identity: RootIdentity,
    place: RootPlace,
    generated: GeneratedFileSystems,
}

/// The identity of the directory of a root. A new directory can have the device and inode number of a removed one, but
/// it has another time of birth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RootIdentity {
    pub(crate) number: FileNumber,
    /// The time of birth, or 0 if the file system does not report it.
    born: Timestamp,
}

/// How to open the directory of a root.
#[derive(Debug)]
enum RootPlace {
    /// A descriptor of the root, opened with `O_PATH`.
    Open(Arc<OwnedFd>),
    /// The descriptor of a directory that contains the root, and the path of the root below it. The root is reopened
    /// for each use.
    Within(Arc<OwnedFd>, RelPath),
    /// The flags with which the path of the root is opened. The root is reopened for each use.
    ByPath(OFlags),
}

/// The entries that were requested below a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The directory and everything below it. The prefix is the target path of the directory.
    Tree,
    /// One entry of the directory. The prefix is the target path of that entry.
    SingleEntry,
}

/// The file systems that a walk enters below a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystems {
    /// All mounted file systems.
    #[default]
    All,
    /// The file system of the root. A directory on another device is emitted, but not listed.
    OfRoot,
}

/// A directory that stays open while any batch of its entries exists.
#[derive(Debug)]
pub struct Directory {
    root: Arc<SourceRoot>,
    source_path: RelPath,
    target_path: RelPath,
    fd: OwnedFd,
    entries_found: AtomicU64,
}

/// Identity and times of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryStatus {
    pub(crate) number: FileNumber,
    /// Whether the directory is a mount point, including bind mounts. `None` before Linux 5.8.
    pub(crate) is_mount: Option<bool>,
    /// The modification time, which is the time of the last change of its names unless a program has set it.
    pub(crate) mtime: Timestamp,
    /// The change time, which is the time of the last change of the directory or its metadata.
    pub(crate) ctime: Timestamp,
}

/// The inode number that Btrfs shows for the placeholder of a subvolume.
const PLACEHOLDER_INODE: u64 = 2;
/// The `f_type` of Btrfs.
const BTRFS: FsWord = 0x9123_683E;

/// Returns whether a `statx` result shows a mount point, or `None` before Linux 5.8.
pub(crate) fn is_mount(stat: &Statx) -> Option<bool> {
    let is_told = stat
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT);
    is_told.then(|| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

pub(crate) fn number_of(stat: &Statx) -> FileNumber {
    FileNumber {
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
    }
}

pub(crate) fn time_of(time: StatxTimestamp) -> Timestamp {
    Timestamp {
        seconds: time.tv_sec,
        nanos: time.tv_nsec,
    }
}

/// Returns whether a path is a mount point, in the same way as [`Entry::is_mount`](crate::Entry::is_mount).
///
/// # Errors
/// Returns the system's error if the path cannot be looked up.
pub fn is_mount_at(path: &Path) -> std::io::Result<Option<bool>> {
    Ok(is_mount(&statx(
        CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::TYPE,
    )?))
}

impl DirectoryStatus {
    /// Returns the identity of the file system that is mounted on this directory below `root`, if any. If the kernel
    /// does not report mount points, returns the device of the directory if it differs from that of `root`.
    pub(crate) fn mount(&self, root: &SourceRoot) -> Option<FileNumber> {
        match self.is_mount {
            Some(is_mount) => is_mount.then_some(self.number),
            None if self.number.device == root.identity.number.device => None,
            None => Some(FileNumber {
                inode: 0,
                ..self.number
            }),
        }
    }
}

impl SourceRoot {
    /// Opens the directory at `path`. `flags` decide whether symbolic links in `path` are followed.
    pub(crate) fn open(
        path: &Path,
        prefix: &RelPath,
        extent: Extent,
        flags: OFlags,
    ) -> Result<Self> {
        Self::at(Arc::new(open_path(path, flags)?), path, prefix, extent)
    }

    /// Creates a root for an open directory, which several roots may share.
    pub(crate) fn at(
        opened: Arc<OwnedFd>,
        path: &Path,
        prefix: &RelPath,
        extent: Extent,
    ) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            prefix: prefix.clone(),
            extent,
            identity: RootIdentity::of(&opened)?,
            place: RootPlace::Open(opened),
            generated: GeneratedFileSystems::default(),
        })
    }

    /// Returns a root at the same directory with the target path `prefix`.
    pub(crate) fn with_prefix(&self, prefix: &RelPath) -> Result<Self> {
        Self::at(self.fd()?, &self.path, prefix, self.extent)
    }

    /// Returns the same root, which is now reopened for each use by the path `below` in the directory `above`.
    pub(crate) fn within(self, above: Arc<OwnedFd>, below: RelPath) -> Self {
        Self {
            place: RootPlace::Within(above, below),
            ..self
        }
    }

    /// Returns the same root, which is now reopened for each use by its path and with these flags.
    pub(crate) fn by_path(self, flags: OFlags) -> Self {
        Self {
            place: RootPlace::ByPath(flags),
            ..self
        }
    }

    /// Returns the target path of the root.
    pub(crate) fn prefix(&self) -> &RelPath {
        &self.prefix
    }

    /// Returns the path of the directory as the user typed it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an `O_PATH` descriptor of the directory. Fails with `ESTALE` if another directory now has its path.
    fn fd(&self) -> Result<Arc<OwnedFd>> {
        let opened = match &self.place {
            RootPlace::Open(fd) => return Ok(Arc::clone(fd)),
            RootPlace::Within(above, below) => {
                open_beneath(above.as_fd(), below, OFlags::PATH | OFlags::DIRECTORY)?
            }
            RootPlace::ByPath(flags) => open_path(&self.path, *flags)?,
        };
        if !RootIdentity::of(&opened)?.is_same(self.identity) {
            return Err(Errno::STALE);
        }
        Ok(Arc::new(opened))
    }

    /// Opens the regular file at `path` below this root for reading, without following symbolic links. Callers use this
    /// function to open a file later without keeping its [`Directory`] open. The file may have been replaced since the
    /// scan, so the caller must compare device and inode.
    ///
    /// # Errors
    /// Returns the system's error, `ELOOP` or `ENOTDIR` if the path contains a link.
    pub fn open_file(&self, path: &RelPath) -> std::io::Result<OwnedFd> {
        // The call must not block if a FIFO has replaced the file. `O_NONBLOCK` has no effect on regular files.
        Ok(open_beneath(
            self.fd()?.as_fd(),
            path,
            OFlags::RDONLY | OFlags::NONBLOCK,
        )?)
    }

    /// Returns whether a directory that cannot be opened is a mount point that this walk would not enter anyway. A FUSE
    /// mount may deny other users all access, even to its attributes.
    pub(crate) fn is_excluded_mount(
        self: &Arc<Self>,
        path: &RelPath,
        file_systems: FileSystems,
    ) -> bool {
        let Some((parent, name)) = path.split() else {
            return false;
        };
        file_systems == FileSystems::OfRoot
            && Directory::open(self, &parent)
                .is_ok_and(|parent| is_mount_point(parent.fd(), name.as_os_str()))
    }

    /// Returns a function that converts an error number from opening the directory at `path` into a [`ScanError`].
    pub(crate) fn open_error(&self, path: &RelPath) -> impl Fn(Errno) -> ScanError {
        move |errno| ScanError::listed(self.path.join(path.as_path()), Operation::Open, errno)
    }

    /// Returns which files on this device have generated contents, like files on proc. Returns `None` if the device has
    /// not been queried yet.
    #[must_use]
    pub fn known_generated_files(&self, device: u64) -> Option<GeneratedFiles> {
        self.generated.known(device)
    }

    /// Returns which files on this device have generated contents. If the device has not been queried yet, queries it
    /// through `file`, an open file on the device.
    #[must_use]
    pub fn generated(&self, device: u64, file: impl AsFd) -> GeneratedFiles {
        self.generated.query(device, file)
    }

    /// Returns the target path of the directory at `path` below this root.
    fn target_of(&self, path: &RelPath) -> std::result::Result<RelPath, PathError> {
        match (self.extent, path.is_root()) {
            (Extent::SingleEntry, _) => Ok(self.prefix.directory()),
            (Extent::Tree, true) => Ok(self.prefix.clone()),
            (Extent::Tree, false) if self.prefix.is_root() => Ok(path.clone()),
            (Extent::Tree, false) => {
                RelPath::from_bytes(&[self.prefix.as_bytes(), path.as_bytes()].join(&b'/'))
            }
        }
    }
}

impl RootIdentity {
    fn of(directory: &OwnedFd) -> Result<Self> {
        let asked = StatxFlags::INO | StatxFlags::BTIME;
        let stat = statx(directory, c"", AtFlags::EMPTY_PATH, asked)?;
        Ok(Self {
            number: number_of(&stat),
            born: time_of(stat.stx_btime),
        })
    }

    /// Returns whether both identities belong to the same directory.
    pub(crate) fn is_same(self, other: Self) -> bool {
        let is_known =
            [self.born, other.born].map(|born| born != Timestamp::default()) == [true; 2];
        self.number == other.number && (self.born == other.born || !is_known)
    }
}

/// Opens the directory at a path. `flags` decide whether symbolic links in `path` are followed.
fn open_path(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

impl Directory {
    /// Opens the directory at `source_path` below `root`. If the root is a single entry, the directory is opened for
    /// look-ups only and need not be readable.
    ///
    /// # Errors
    /// Returns the errors of [`SourceRoot::open_file`].
    ///
    /// # Panics
    /// Panics if the path is not that of a directory that the scan emitted.
    pub fn open(root: &Arc<SourceRoot>, source_path: &RelPath) -> Result<Self> {
        let access = match root.extent {
            Extent::Tree => OFlags::RDONLY,
            Extent::SingleEntry => OFlags::PATH,
        };
        let fd = open_beneath(root.fd()?.as_fd(), source_path, OFlags::DIRECTORY | access)?;
        let target_path = root
            .target_of(source_path)
            .expect("the scan descends only into paths that fit");
        Ok(Self {
            root: Arc::clone(root),
            source_path: source_path.clone(),
            target_path,
            fd,
            entries_found: AtomicU64::new(0),
        })
    }

    /// Calls `take` with each entry of the directory until it returns `false`. Each name occurs once.
    pub(crate) fn list(
        &self,
        memory: &mut Listing,
        mut take: impl FnMut(&RawDirEntry<'_>) -> std::result::Result<bool, ScanError>,
    ) -> std::result::Result<(), ScanError> {
        let failed = |errno| ScanError::listed(self.full_path(), Operation::List, errno);
        memory.names.clear();
        let mut listing = RawDir::new(&self.fd, memory.entries.spare_capacity_mut());
        while let Some(next) = listing.next() {
            let entry = next.map_err(failed)?;
            let name = entry.file_name();
            let is_other = !matches!(name.to_bytes(), b"" | b"." | b"..");
            if is_other && memory.names.insert(name) && !take(&entry)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether a walk of these file systems lists this directory.
    pub(crate) fn is_within(&self, file_systems: FileSystems) -> Result<bool> {
        Ok(file_systems == FileSystems::All
            || fstat(&self.fd)?.st_dev == self.root.identity.number.device)
    }

    /// Returns the current identity and times of the directory.
    pub(crate) fn status(&self) -> Result<DirectoryStatus> {
        self.query_status(AtFlags::empty())
    }

    /// Returns the current identity and times of the directory. On a network file system, queries the server instead of
    /// local caches. A later listing is at least as recent.
    pub(crate) fn query_status_at_server(&self) -> Result<DirectoryStatus> {
        self.query_status(AtFlags::STATX_FORCE_SYNC)
    }

    fn query_status(&self, flags: AtFlags) -> Result<DirectoryStatus> {
        let asked = StatxFlags::INO | StatxFlags::MTIME | StatxFlags::CTIME;
        let stat = statx(&self.fd, c"", flags | AtFlags::EMPTY_PATH, asked)?;
        let status = DirectoryStatus {
            number: number_of(&stat),
            is_mount: is_mount(&stat),
            mtime: time_of(stat.stx_mtime),
            ctime: time_of(stat.stx_ctime),
        };
        Ok(if self.is_placeholder(&status) {
            DirectoryStatus {
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
                ..status
            }
        } else {
            status
        })
    }

    /// Returns whether this directory is a placeholder on Btrfs. A Btrfs snapshot does not contain the subvolumes of
    /// its original. In place of each, it has a placeholder: an empty directory whose times are always the current
    /// time.
    fn is_placeholder(&self, status: &DirectoryStatus) -> bool {
        status.number.inode == PLACEHOLDER_INODE
            && fstatfs(&self.fd).is_ok_and(|stat| stat.f_type == BTRFS)
    }

    /// Returns the root that contains this directory.
    #[must_use]
    pub fn root(&self) -> &Arc<SourceRoot> {
        &self.root
    }

    /// Returns the path of the directory below its root.
    #[must_use]
    pub fn source_path(&self) -> &RelPath {
        &self.source_path
    }

    /// Returns the path of the directory below the target.
    #[must_use]
    pub fn target_path(&self) -> &RelPath {
        &self.target_path
    }

    /// Returns the descriptor, for `openat` and similar calls.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns the target path of the entry `name`. The last component can differ from `name` only if the root is a
    /// single entry.
    ///
    /// # Errors
    /// Returns [`PathError::PathTooLong`]. This never happens for an entry that the scan emitted.
    pub fn target_of(&self, name: &Name) -> std::result::Result<RelPath, PathError> {
        match self.root.extent {
            Extent::Tree => self.target_path.join(name),
            Extent::SingleEntry => Ok(self.root.prefix.clone()),
        }
    }

    /// Replaces the contents of `path` with the target path of `name`. See [`target_of`](Self::target_of).
    pub(crate) fn write_target_of(&self, name: &[u8], path: &mut Vec<u8>) {
        path.clear();
        if self.root.extent == Extent::SingleEntry {
            return path.extend_from_slice(self.root.prefix.as_bytes());
        }
        path.extend_from_slice(self.target_path.as_bytes());
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }

    /// Returns the full path of the entry `name`, for messages.
    #[must_use]
    pub fn display_path(&self, name: &Name) -> PathBuf {
        self.full_path().join(name.as_os_str())
    }

    /// Returns the full path of the directory, for messages.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        if self.source_path.is_root() {
            return self.root.path.clone();
        }
        self.root.path.join(self.source_path.as_path())
    }

    /// Returns the number of entries found in this directory so far.
    #[must_use]
    pub fn entries_found(&self) -> u64 {
        self.entries_found.load(Ordering::Relaxed)
    }

    /// Counts entries that are about to be emitted.
    pub(crate) fn count_found(&self, entries: usize) {
        self.entries_found
            .fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Returns an error if the target path of a name would exceed the maximum length.
    pub(crate) fn check_length(&self, name: &Name) -> std::result::Result<(), PathError> {
        let bytes = self.target_path.as_bytes().len() + 1 + name.as_bytes().len();
        if bytes > RelPath::BYTES_MAX {
            Err(PathError::PathTooLong)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(extent: Extent, prefix: &[u8]) -> Directory {
        let prefix = RelPath::from_bytes(prefix).unwrap();
        let root =
            SourceRoot::open(Path::new("/proc/self"), &prefix, extent, OFlags::empty()).unwrap();
        Directory::open(&Arc::new(root), &RelPath::root()).unwrap()
    }

    #[test]
    fn a_tree_keeps_its_names_below_the_prefix() {
        let name = Name::from_bytes(b"status").unwrap();
        let directory = directory(Extent::Tree, b"x/y");
        assert_eq!(directory.target_path().as_bytes(), b"x/y");
        assert_eq!(
            directory.target_of(&name).unwrap().as_bytes(),
            b"x/y/status"
        );
        assert_eq!(
            directory.display_path(&name),
            Path::new("/proc/self/status")
        );
    }

    #[test]
    fn a_single_entry_takes_the_name_in_its_prefix() {
        let name = Name::from_bytes(b"status").unwrap();
        let directory = directory(Extent::SingleEntry, b"x/renamed");
        assert_eq!(directory.target_path().as_bytes(), b"x");
        assert_eq!(directory.target_of(&name).unwrap().as_bytes(), b"x/renamed");
    }

    #[test]
    fn a_listing_leaves_out_the_directory_itself_and_its_parent() {
        let made = tempfile::tempdir().unwrap();
        std::fs::write(made.path().join("..."), "").unwrap();
        let root = SourceRoot::open(made.path(), &RelPath::root(), Extent::Tree, OFlags::empty());
        let directory = Directory::open(&Arc::new(root.unwrap()), &RelPath::root()).unwrap();
        let mut names = Vec::new();
        let take = |entry: &RawDirEntry<'_>| {
            names.push(entry.file_name().to_owned());
            Ok(true)
        };
        directory.list(&mut Listing::default(), take).unwrap();
        assert_eq!(names, [c"...".to_owned()]);
    }

    /// Ext4 reuses the inode number of a removed directory for the next new directory.
    #[test]
    fn a_root_that_is_opened_again_is_the_same_directory() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("d");
        let flags = OFlags::NOFOLLOW;
        std::fs::create_dir(&path).unwrap();
        let root = SourceRoot::open(&path, &RelPath::root(), Extent::Tree, flags).unwrap();
        let root = root.by_path(flags);
        let born = |opened: Arc<OwnedFd>| RootIdentity::of(&opened).unwrap().born;
        let first = born(root.fd().unwrap());
        if first == Timestamp::default() {
            return eprintln!("skipped: this file system has no times of birth");
        }
        // File timestamps advance in ticks, so the directory is recreated until its time of birth differs.
        loop {
            std::fs::remove_dir(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            if born(Arc::new(open_path(&path, flags).unwrap())) != first {
                break;
            }
        }
        assert_eq!(root.fd().unwrap_err(), Errno::STALE);
    }

    #[test]
    fn a_put_off_file_opens_below_its_root() {
        let directory = directory(Extent::Tree, b"");
        assert!(
            directory
                .root()
                .open_file(&RelPath::from_bytes(b"status").unwrap())
                .is_ok()
        );
        let through_link = RelPath::from_bytes(b"cwd/Cargo.toml").unwrap();
        assert!(directory.root().open_file(&through_link).is_err());
    }
}
