//! The roots of a scan, and the limits on the resources that it may use.
//!
//! Values are not checked. A zero counts as one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use zmove_disk::{cores, is_part, is_shared_job_name, is_temporary, open_beneath};
use zmove_types::{MetadataKinds, RelPath};

use crate::directory::{Extent, FileSystems, SourceRoot};
use crate::error::{Operation, ScanError};
use crate::listing::Listing;
use crate::selection::Selection;
use crate::sources::walk_record::WalkRecord;

/// A directory tree or a single entry to walk.
#[derive(Clone, Debug)]
pub struct ScanRoot {
    /// The path as the user typed it. A symbolic link is followed if the path ends in `/`, and is sent as a link
    /// otherwise.
    pub source: PathBuf,
    /// The path of this entry below the target. [`RelPath::root`] puts the contents of a directory directly into the
    /// target directory (`src/`), and is only valid for directories.
    pub prefix: RelPath,
    /// An open directory and the path of this entry below it. The path is opened without following links, and
    /// [`source`](Self::source) is only used in messages. If `None`, the entry is opened by [`source`](Self::source).
    pub(crate) beneath: Option<(Arc<OwnedFd>, RelPath)>,
}

/// The resources that a scan may use, and the filters for its entries.
#[derive(Clone, Debug)]
pub struct ScanConfig {
    /// Number of threads that list directories and look up entries. Default: four times the number of cores, but
    /// between 8 and 32, because metadata operations wait for disks and servers. More threads help on uncached or
    /// remote file systems. Fewer threads leave more cores to other work. Each thread has a read buffer of
    /// [`LIST_BUFFER_BYTES`](Self::LIST_BUFFER_BYTES).
    pub threads: usize,
    /// Maximum number of entries in one batch. Default: 1024. Larger batches cost less per entry. Smaller batches
    /// deliver the first entries of a large directory sooner. See `queue_batches_max` for the memory that batches use.
    pub batch_entries_max: usize,
    /// Number of batches that may wait for the consumer before the walk pauses. Default: 64. A larger queue bridges
    /// longer pauses of the consumer, but each waiting batch keeps one directory open. Maximum memory of the queue:
    /// `queue_batches_max` × `batch_entries_max` × (about 100 bytes + the length of a name).
    pub queue_batches_max: usize,
    /// The selection of entries to emit. Default: all entries, at no cost.
    pub selection: Option<Arc<Selection>>,
    /// Whether the walk enters other file systems. Default: yes. A restriction costs a system call per directory.
    pub file_systems: FileSystems,
    /// The kinds of extended attributes to look for. Default: none. If any kinds are set, each entry costs one more
    /// system call, and each attribute costs two more.
    pub xattrs: Option<MetadataKinds>,
    /// A function that decides which names are skipped, both in trees and in lists of paths. Default: none. An example
    /// is [`unfinished`], which skips entries of unfinished transfers.
    pub skip_filter: Option<SkipFilter>,
    /// The mount points below the roots, as found by the head (the node that leads a job across several nodes).
    /// Default: none, so mounts are not compared. Only portions of a walk compare mounts.
    pub mounts: Option<Arc<BTreeSet<PathBuf>>>,
    /// The record that lets a later walk of the same roots check that the roots are unchanged, and find changes since
    /// this walk. Default: none. A record costs a system call per directory and a few open descriptors.
    pub walk_record: Option<Arc<WalkRecord>>,
    /// The record of the previous walk. Default: none. If set, the walk emits only the entries of directories that have
    /// changed since the previous walk began, and emits no roots. In other directories, the walk reads only the names
    /// of subdirectories.
    pub reread: Option<Arc<WalkRecord>>,
}

/// A function that returns why a name of a directory is skipped, or `None` if it is not skipped.
pub type SkipFilter = fn(BorrowedFd<'_>, &[u8]) -> Option<Unfinished>;

/// An entry of an unfinished transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// An entry that its creator, a running process, will rename or remove.
    Temporary,
    /// A part of a large file, or an entry that has the name of a shared job's directory. Such entries outlive their
    /// processes. The walk counts them.
    Part,
}

/// Returns whether `name` in `directory` is an entry of an unfinished transfer.
#[must_use]
pub fn unfinished(directory: BorrowedFd<'_>, name: &[u8]) -> Option<Unfinished> {
    if is_part(name) || is_shared_job_name(name) {
        return Some(Unfinished::Part);
    }
    is_temporary(directory, name).then_some(Unfinished::Temporary)
}

impl ScanConfig {
    /// Size of the buffer into which one thread lists directories.
    pub const LIST_BUFFER_BYTES: usize = Listing::BUFFER_BYTES;
}

impl Default for ScanConfig {
    fn default() -> Self {
        Self {
            threads: (4 * cores()).clamp(8, 32),
            batch_entries_max: 1024,
            queue_batches_max: 64,
            selection: None,
            file_systems: FileSystems::default(),
            xattrs: None,
            skip_filter: None,
            mounts: None,
            walk_record: None,
            reread: None,
        }
    }
}

impl ScanRoot {
    /// Creates a root at a path of this host. The path may contain symbolic links.
    pub fn new(source: impl Into<PathBuf>, prefix: RelPath) -> Self {
        Self {
            source: source.into(),
            prefix,
            beneath: None,
        }
    }

    /// Returns the same root, opened at `path` below the directory `root` without following any link.
    #[must_use]
    pub fn beneath(self, root: Arc<OwnedFd>, path: RelPath) -> Self {
        Self {
            beneath: Some((root, path)),
            ..self
        }
    }

    /// Returns the flags for opening the root if it is a directory, or `None` if it is not.
    pub(crate) fn directory_flags(&self) -> Result<Option<OFlags>, Errno> {
        if self.names_directory() {
            return Ok(Some(OFlags::empty()));
        }
        let stat = match &self.beneath {
            None => statx(
                CWD,
                &self.source,
                AtFlags::SYMLINK_NOFOLLOW,
                StatxFlags::TYPE,
            )?,
            Some((root, path)) => {
                let entry = open_beneath(root.as_fd(), path, OFlags::PATH)?;
                statx(entry, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?
            }
        };
        let is_directory = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        Ok(is_directory.then_some(OFlags::NOFOLLOW))
    }

    /// Returns a function that converts an error number of a failed operation on this root into a [`ScanError`].
    pub(crate) fn failed(&self, operation: Operation) -> impl Fn(Errno) -> ScanError {
        move |errno| ScanError::io(self.source.clone(), operation, errno)
    }

    /// Opens the directory at the path of the root with these flags. Without flags, opens the directory that contains
    /// the root, which is then a single entry.
    pub(crate) fn open(&self, flags: Option<OFlags>) -> Result<SourceRoot, Errno> {
        let extent = if flags.is_some() {
            Extent::Tree
        } else {
            Extent::SingleEntry
        };
        let path = match (extent, self.parent_and_name()) {
            (Extent::SingleEntry, Some((parent, _))) => parent,
            _ => self.source.clone(),
        };
        let Some((above, below)) = &self.beneath else {
            return SourceRoot::open(
                &path,
                &self.prefix,
                extent,
                flags.unwrap_or(OFlags::empty()),
            );
        };
        let below = match extent {
            Extent::Tree => below.clone(),
            Extent::SingleEntry => below.directory(),
        };
        let opened = if below.is_root() {
            // Entries of the same directory share its descriptor.
            Arc::clone(above)
        } else {
            Arc::new(open_beneath(
                above.as_fd(),
                &below,
                OFlags::PATH | OFlags::DIRECTORY,
            )?)
        };
        SourceRoot::at(opened, &path, &self.prefix, extent)
    }

    /// Returns whether the path means a directory and not a symbolic link to that directory. This depends on the form
    /// of the path (`a/`, `a/.`, `..`) and on the prefix of the root.
    fn names_directory(&self) -> bool {
        self.prefix.is_root() || means_contents(self.source.as_os_str().as_bytes())
    }

    /// Returns the parent directory of the path and the last name in the path, or `None` if the path does not end in a
    /// name.
    pub(crate) fn parent_and_name(&self) -> Option<(PathBuf, &OsStr)> {
        let parent = self.source.parent()?;
        let parent = if parent.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            parent.to_owned()
        };
        Some((parent, self.source.file_name()?))
    }
}

/// Returns whether the form of a path (`a/`, `a/.`, `..`) means the contents of a directory instead of the directory
/// itself.
#[must_use]
pub fn means_contents(path: &[u8]) -> bool {
    matches!(
        path.rsplit(|&byte| byte == b'/').next().unwrap_or_default(),
        b"" | b"." | b".."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_slash_or_dot_names_the_directory() {
        let prefix = RelPath::from_bytes(b"x").unwrap();
        let names = |source: &str| ScanRoot::new(source, prefix.clone()).names_directory();
        assert!(["a/", "a/.", ".", "..", "/", "a/.."].into_iter().all(names));
        assert!(!["a", "/a", "./a", "a..", ".a"].into_iter().any(names));
    }

    #[test]
    fn a_bare_name_lies_in_the_working_directory() {
        let root = ScanRoot::new("a", RelPath::root());
        assert_eq!(
            root.parent_and_name(),
            Some((PathBuf::from("."), OsStr::new("a")))
        );
    }
}
