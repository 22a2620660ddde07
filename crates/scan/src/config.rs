//! The roots of a scan, and how much of the machine it may use.
//!
//! Values are taken as they are; a zero counts as one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use zmove_disk::{cores, is_part, is_passing, is_shared_job_name, open_beneath};
use zmove_types::{Kinds, RelPath};

use crate::directory::{Extent, FileSystems, SourceRoot};
use crate::error::{Operation, ScanError};
use crate::listing::Listing;
use crate::selection::Selection;
use crate::sources::first_walk::FirstWalk;

/// One tree or file to walk.
#[derive(Clone, Debug)]
pub struct ScanRoot {
    /// The path as the user typed it. A symbolic link is sent as a link, or followed when the path ends in `/`.
    pub source: PathBuf,
    /// The path of this entry itself below the target; [`RelPath::root`] puts the content of a directory into
    /// the target directory (`src/`) and is for directories only.
    pub prefix: RelPath,
    /// The directory beneath which the entry is opened, through no link, and its path there; [`source`](Self::source)
    /// is then for messages only. Default: it is opened as the path says.
    pub(crate) beneath: Option<(Arc<OwnedFd>, RelPath)>,
}

/// The resources that a scan may use, and the entries that are wanted.
#[derive(Clone, Debug)]
pub struct ScanConfig {
    /// Threads that list and stat. Default: four times the cores, from 8 to 32, because metadata waits for disks and
    /// servers. More help on cold or remote file systems, fewer spare the cores. Each has a read buffer of
    /// [`LIST_BUFFER_BYTES`](Self::LIST_BUFFER_BYTES).
    pub threads: usize,
    /// The most entries in one batch. Default: 1024. Larger costs less per entry, smaller shows the first
    /// entries of a large directory sooner. Worst memory: see `queue_batches_max`.
    pub batch_entries_max: usize,
    /// How many batches may wait for the consumer before the walk pauses. Default: 64. Larger rides out a
    /// consumer's pauses; each waiting batch holds one open directory. Worst memory of the queue:
    /// `queue_batches_max` × `batch_entries_max` × (about 100 bytes + the name).
    pub queue_batches_max: usize,
    /// The selection of wanted entries. Default: everything, which costs nothing.
    pub selection: Option<Arc<Selection>>,
    /// Whether the walk enters other file systems. Default: yes. Not to costs a system call for each directory.
    pub file_systems: FileSystems,
    /// Which kinds of extended attributes are kept. Default: none is looked for. To look costs a system call for each
    /// entry, and two more for each attribute.
    pub xattrs: Option<Kinds>,
    /// Which names of a directory are passed over in trees and lists. Default: none. [`unfinished`] has those of what
    /// the program itself has not finished.
    pub apart: Option<Apart>,
    /// The paths below the roots on which something is mounted at the node that leads a job of many. Default: none is
    /// known, and nothing is compared. Only portions of a walk compare.
    pub mounts: Option<Arc<BTreeSet<PathBuf>>>,
    /// The record by which a later walk of the same roots knows that they are the same, and what has changed meanwhile.
    /// Default: none. A record costs a system call for each directory, and an open descriptor for each root.
    pub first_walk: Option<Arc<FirstWalk>>,
    /// The record of the walk before. Default: none. With it, the walk visits again only the entries of directories
    /// that have changed since that walk began, and no root itself. Of other directories it reads the names of the
    /// directories in them.
    pub reread: Option<Arc<FirstWalk>>,
}

/// Tells which names of a directory are passed over, and why.
pub type Apart = fn(BorrowedFd<'_>, &[u8]) -> Option<Unfinished>;

/// An entry that a transfer has not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// An entry that will get its name, or go, with the process that has made it.
    Passing,
    /// A part of a large file, or what has the name of the directory of a shared job: these last, and are counted.
    Part,
}

/// What a transfer has left unfinished in `directory` under this name.
#[must_use]
pub fn unfinished(directory: BorrowedFd<'_>, name: &[u8]) -> Option<Unfinished> {
    if is_part(name) || is_shared_job_name(name) {
        return Some(Unfinished::Part);
    }
    is_passing(directory, name).then_some(Unfinished::Passing)
}

impl ScanConfig {
    /// The buffer that one thread lists directories into.
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
            apart: None,
            mounts: None,
            first_walk: None,
            reread: None,
        }
    }
}

impl ScanRoot {
    /// A root at a path of this host, which may lead through links.
    pub fn new(source: impl Into<PathBuf>, prefix: RelPath) -> Self {
        Self {
            source: source.into(),
            prefix,
            beneath: None,
        }
    }

    /// The same root, found at `path` below the directory `root` without following any link.
    #[must_use]
    pub fn beneath(self, root: Arc<OwnedFd>, path: RelPath) -> Self {
        Self {
            beneath: Some((root, path)),
            ..self
        }
    }

    /// The flags to open the root with if it is a directory; `None` for anything else.
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

    /// Makes the error of an operation on it.
    pub(crate) fn failed(&self, operation: Operation) -> impl Fn(Errno) -> ScanError {
        move |errno| ScanError::io(self.source.clone(), operation, errno)
    }

    /// Opens the directory that it names with these flags, or without any, for a single entry, the one that holds it.
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
            // entries of one directory share its descriptor, however many there are
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

    /// Whether the path names the directory behind it: by its form (`a/`, `a/.`, `..`) or by its prefix.
    fn names_directory(&self) -> bool {
        self.prefix.is_root() || means_contents(self.source.as_os_str().as_bytes())
    }

    /// The directory and the name in it, or `None` where the path has no last name.
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

/// Whether a path means what is in a directory, and not the directory: by its form (`a/`, `a/.`, `..`).
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
