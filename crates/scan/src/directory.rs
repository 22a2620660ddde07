//! Opened directories: the roots of a scan and the directories its entries lie in.
//!
//! **Invariant:** a [`Directory`]'s descriptor and paths name the same place, beneath its root; entries
//! are to be opened relative to the descriptor, and paths are for messages and for the target.

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
use crate::generated::{Generated, GeneratedFileSystems};
use crate::listing::Listing;

/// The opened directory that one [`ScanRoot`](crate::ScanRoot) has named, or that holds the entry it has named.
#[derive(Debug)]
pub struct SourceRoot {
    path: PathBuf,
    prefix: RelPath,
    /// How much below this directory was asked for.
    pub(crate) extent: Extent,
    /// The identity of the directory.
    pub(crate) number: FileNumber,
    place: RootPlace,
    generated: GeneratedFileSystems,
}

/// How a root is reached.
#[derive(Debug)]
enum RootPlace {
    /// The root, opened with `O_PATH`.
    Open(Arc<OwnedFd>),
    /// An open directory that holds the root, and the path of the root there. The root is opened for each use.
    Within(Arc<OwnedFd>, RelPath),
}

/// How much below a root was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The directory and all below it; the prefix is the directory's own target path.
    Tree,
    /// One entry of the directory; the prefix is the entry's target path.
    SingleEntry,
}

/// The file systems below a root that are walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystems {
    /// All file systems that are mounted there.
    #[default]
    All,
    /// The root's file system: a directory with another device number is emitted, but not listed.
    OfRoot,
}

/// A directory that stays open as long as any batch of its entries lives.
#[derive(Debug)]
pub struct Directory {
    root: Arc<SourceRoot>,
    source_path: RelPath,
    target_path: RelPath,
    fd: OwnedFd,
    entries_found: AtomicU64,
}

/// The identity and the last changes of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryStatus {
    pub(crate) number: FileNumber,
    /// Whether a file system, or a part of one, is mounted on the directory; `None` from kernels before 5.8.
    pub(crate) is_mount: Option<bool>,
    /// The modification time: that of the last change of its names, unless somebody has set it.
    pub(crate) mtime: Timestamp,
    /// The change time: that of the last change of anything about it.
    pub(crate) ctime: Timestamp,
}

/// The inode number of what Btrfs shows in place of a subvolume.
const PLACEHOLDER_INODE: u64 = 2;
/// The `f_type` of Btrfs.
const BTRFS: FsWord = 0x9123_683E;

/// Whether something is mounted where this was found; `None` from kernels before 5.8.
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

/// Whether something is mounted at a path, as [`Entry::is_mount`](crate::Entry::is_mount) says it of an entry there.
///
/// # Errors
/// The kernel's error: nothing can be seen at the path.
pub fn is_mount_at(path: &Path) -> std::io::Result<Option<bool>> {
    Ok(is_mount(&statx(
        CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::TYPE,
    )?))
}

impl DirectoryStatus {
    /// The root of the mount on this directory below `root`, if it is one. Where the kernel does not report mounts: the
    /// file system that the directory is in, if that is not the root's.
    pub(crate) fn mount(&self, root: &SourceRoot) -> Option<FileNumber> {
        match self.is_mount {
            Some(is_mount) => is_mount.then_some(self.number),
            None if self.number.device == root.number.device => None,
            None => Some(FileNumber {
                inode: 0,
                ..self.number
            }),
        }
    }
}

impl SourceRoot {
    /// Opens the directory at `path`; `flags` decide whether links in `path` itself are followed.
    pub(crate) fn open(
        path: &Path,
        prefix: &RelPath,
        extent: Extent,
        flags: OFlags,
    ) -> Result<Self> {
        let flags = flags | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::at(
            Arc::new(open(path, flags, Mode::empty())?),
            path,
            prefix,
            extent,
        )
    }

    /// The root of a directory that has been opened, perhaps for several roots.
    pub(crate) fn at(
        opened: Arc<OwnedFd>,
        path: &Path,
        prefix: &RelPath,
        extent: Extent,
    ) -> Result<Self> {
        let stat = fstat(&opened)?;
        Ok(Self {
            path: path.to_owned(),
            prefix: prefix.clone(),
            extent,
            number: FileNumber {
                device: stat.st_dev,
                inode: stat.st_ino,
            },
            place: RootPlace::Open(opened),
            generated: GeneratedFileSystems::default(),
        })
    }

    /// The same directory, whose target path is `prefix`.
    pub(crate) fn again(&self, prefix: &RelPath) -> Result<Self> {
        Self::at(self.fd()?, &self.path, prefix, self.extent)
    }

    /// The same root, opened for each use by its path in another directory.
    pub(crate) fn within(self, above: Arc<OwnedFd>, below: RelPath) -> Self {
        Self {
            place: RootPlace::Within(above, below),
            ..self
        }
    }

    /// The target path of the root.
    pub(crate) fn prefix(&self) -> &RelPath {
        &self.prefix
    }

    /// The directory's path as the user typed it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, opened with `O_PATH`. `ESTALE` where another one has its path by now.
    fn fd(&self) -> Result<Arc<OwnedFd>> {
        let (above, below) = match &self.place {
            RootPlace::Open(fd) => return Ok(Arc::clone(fd)),
            RootPlace::Within(above, below) => (above, below),
        };
        let opened = open_beneath(above.as_fd(), below, OFlags::PATH | OFlags::DIRECTORY)?;
        let stat = fstat(&opened)?;
        if (stat.st_dev, stat.st_ino) != (self.number.device, self.number.inode) {
            return Err(Errno::STALE);
        }
        Ok(Arc::new(opened))
    }

    /// Opens the regular file at `path` below this root for reading, through no symbolic link. For callers that put off
    /// a file and do not want to hold its [`Directory`] open meanwhile. The file may have been replaced since the scan:
    /// the caller must compare device and inode.
    ///
    /// # Errors
    /// The kernel's error; `ELOOP` or `ENOTDIR` where a link lies on the way.
    pub fn open_file(&self, path: &RelPath) -> std::io::Result<OwnedFd> {
        // Non-blocking, lest a FIFO that took the file's place hold the caller up; no effect on regular files.
        Ok(open_beneath(
            self.fd()?.as_fd(),
            path,
            OFlags::RDONLY | OFlags::NONBLOCK,
        )?)
    }

    /// Whether a directory that cannot be opened is a mount, and a walk of these file systems does not want it: a mount
    /// in user space may refuse even to be looked at by anybody but its user.
    pub(crate) fn is_beyond(self: &Arc<Self>, path: &RelPath, file_systems: FileSystems) -> bool {
        let Some((parent, name)) = path.split() else {
            return false;
        };
        file_systems == FileSystems::OfRoot
            && Directory::open(self, &parent)
                .is_ok_and(|parent| is_mount_point(parent.fd(), name.as_os_str()))
    }

    /// Makes the error of opening the directory at a path below this root.
    pub(crate) fn not_opened(&self, path: &RelPath) -> impl Fn(Errno) -> ScanError {
        move |errno| ScanError::listed(self.path.join(path.as_path()), Operation::Open, errno)
    }

    /// The files of the file system of a device whose contents are made when they are read, as on proc. `None` if the
    /// device is not known yet.
    #[must_use]
    pub fn knows_generated(&self, device: u64) -> Option<Generated> {
        self.generated.known(device)
    }

    /// The same, of the device of an open file below this root.
    #[must_use]
    pub fn generated(&self, device: u64, file: impl AsFd) -> Generated {
        self.generated.ask(device, file)
    }

    /// The target path of the directory at `path` below this root.
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

impl Directory {
    /// Opens the directory at `source_path` below `root`: to be listed, or, when the root is a single entry, only for
    /// look-ups, so that it need not be readable.
    ///
    /// # Errors
    /// The kernel's error, as for [`SourceRoot::open_file`].
    ///
    /// # Panics
    /// When the path is none of a directory that the scan emitted.
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

    /// Reads the directory's entries until `take` returns `false`, each name once.
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

    /// Whether a walk of these file systems lists this directory.
    pub(crate) fn is_within(&self, file_systems: FileSystems) -> Result<bool> {
        Ok(file_systems == FileSystems::All || fstat(&self.fd)?.st_dev == self.root.number.device)
    }

    /// The directory's identity and times at this moment.
    pub(crate) fn status(&self) -> Result<DirectoryStatus> {
        self.ask_status(AtFlags::empty())
    }

    /// The same as the server of a network file system says it now, whatever is cached here. What is listed after that
    /// is of that moment, too.
    pub(crate) fn status_at_server(&self) -> Result<DirectoryStatus> {
        self.ask_status(AtFlags::STATX_FORCE_SYNC)
    }

    fn ask_status(&self, flags: AtFlags) -> Result<DirectoryStatus> {
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

    /// Whether this is what a snapshot on Btrfs has in place of a subvolume that is not part of it: a directory that
    /// stays empty, and whose times are always the present.
    fn is_placeholder(&self, status: &DirectoryStatus) -> bool {
        status.number.inode == PLACEHOLDER_INODE
            && fstatfs(&self.fd).is_ok_and(|stat| stat.f_type == BTRFS)
    }

    /// The root that this directory lies below.
    #[must_use]
    pub fn root(&self) -> &Arc<SourceRoot> {
        &self.root
    }

    /// The directory's path below its root.
    #[must_use]
    pub fn source_path(&self) -> &RelPath {
        &self.source_path
    }

    /// The directory's path below the target.
    #[must_use]
    pub fn target_path(&self) -> &RelPath {
        &self.target_path
    }

    /// The open directory, for `openat` and its kin.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The target path of the entry `name`. Only for a root that is a single entry may it end in another name than at
    /// the source.
    ///
    /// # Errors
    /// [`PathError::PathTooLong`]; never for an entry that the scan emitted.
    pub fn target_of(&self, name: &Name) -> std::result::Result<RelPath, PathError> {
        match self.root.extent {
            Extent::Tree => self.target_path.join(name),
            Extent::SingleEntry => Ok(self.root.prefix.clone()),
        }
    }

    /// Writes the target path of a name, as [`target_of`](Self::target_of) gives it, over the contents of `path`.
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

    /// The full path of the entry `name`, for messages.
    #[must_use]
    pub fn display_path(&self, name: &Name) -> PathBuf {
        self.full_path().join(name.as_os_str())
    }

    /// The full path of the directory itself, for messages.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        if self.source_path.is_root() {
            return self.root.path.clone();
        }
        self.root.path.join(self.source_path.as_path())
    }

    /// How many entries have been found in this directory so far.
    #[must_use]
    pub fn entries_found(&self) -> u64 {
        self.entries_found.load(Ordering::Relaxed)
    }

    /// Counts entries that are about to be sent.
    pub(crate) fn count_found(&self, entries: usize) {
        self.entries_found
            .fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Refuses a name with which the path at the target would be too long to carry.
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
