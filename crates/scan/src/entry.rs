//! The items that a scan emits: entries of one directory in batches, and soft errors beside them.
//!
//! **Invariant:** a directory is emitted, as a root or as an entry of its parent, before anything in it.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, readlinkat, statx};
use rustix::io::Errno;
use zmove_types::{Metadata, Name, Timestamp};

use crate::directory::Directory;
use crate::error::{Operation, ScanError};

/// One item that the walk emits.
#[derive(Debug)]
pub enum ScanItem {
    /// A root that is a directory: its entries follow.
    Root {
        /// The directory; its target path is the root's prefix.
        directory: Arc<Directory>,
        /// The directory's own mode and time.
        metadata: Metadata,
    },
    /// Some entries of one directory, in no order.
    Batch(EntryBatch),
    /// Something that could not be read; the walk goes on.
    Error(ScanError),
}

/// Entries of one directory, at least one and at most `batch_entries_max`; a large directory gives several.
#[derive(Debug)]
pub struct EntryBatch {
    /// The directory that holds these entries. It stays open while this lives: a caller that puts entries off keeps its
    /// root and its path instead.
    pub directory: Arc<Directory>,
    /// The entries.
    pub entries: Vec<Entry>,
}

/// One directory entry as it was when the walk passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The entry's name at the source; [`Directory::target_of`] gives the path at the target.
    pub name: Name,
    /// The kind of entry.
    pub kind: EntryKind,
    /// The file's length in bytes; of use for files only.
    pub size: u64,
    /// Permission bits and modification time.
    pub metadata: Metadata,
    /// The inode number, which shows that a file was replaced.
    pub inode: u64,
    /// The change time, which nobody can set.
    pub ctime: Timestamp,
    /// Whether it takes less storage than its length, as a file with holes does, and one that is compressed.
    pub is_sparse: bool,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory, whose entries follow later.
    Directory,
    /// A symbolic link with the bytes that it points to.
    Symlink(Box<[u8]>),
    /// A FIFO, socket or device.
    Special,
}

impl Entry {
    /// Looks up one name of an open directory. The type in the listing is not used: the attributes are needed anyway
    /// and are newer.
    pub(crate) fn look_up(directory: &Directory, raw_name: &CStr) -> Result<Self, ScanError> {
        let refused = |source| ScanError::Path { path: raw_path(directory, raw_name), source };
        let failed = |operation| {
            move |errno: Errno| ScanError::listed(raw_path(directory, raw_name), operation, errno)
        };
        let name = Name::from_bytes(raw_name.to_bytes()).map_err(refused)?;
        directory.check_length(&name).map_err(refused)?;
        let stat = statx(directory.fd(), raw_name, AtFlags::SYMLINK_NOFOLLOW, WANTED)
            .map_err(failed(Operation::Stat))?;
        let kind = EntryKind::of(directory, raw_name, &stat).map_err(failed(Operation::ReadLink))?;
        Ok(Self {
            name,
            kind,
            size: stat.stx_size,
            metadata: metadata_of(&stat),
            inode: stat.stx_ino,
            ctime: Timestamp { seconds: stat.stx_ctime.tv_sec, nanos: stat.stx_ctime.tv_nsec },
            is_sparse: is_sparse(&stat),
        })
    }
}

impl EntryKind {
    fn of(directory: &Directory, name: &CStr, stat: &Statx) -> Result<Self, Errno> {
        Ok(match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => {
                Self::Symlink(readlinkat(directory.fd(), name, Vec::new())?.into_bytes().into())
            }
            _ => Self::Special,
        })
    }
}

pub(crate) fn metadata_of(stat: &Statx) -> Metadata {
    let mtime = Timestamp { seconds: stat.stx_mtime.tv_sec, nanos: stat.stx_mtime.tv_nsec };
    Metadata { mode: u32::from(stat.stx_mode) & 0o7777, mtime }
}

/// A file system that does not tell the blocks is not asked for holes.
fn is_sparse(stat: &Statx) -> bool {
    let told = stat.stx_mask & StatxFlags::BLOCKS.bits() != 0;
    told && stat.stx_blocks.saturating_mul(BLOCK_BYTES) < stat.stx_size
}

/// In which blocks are counted, whatever those of the file system are.
const BLOCK_BYTES: u64 = 512;

fn raw_path(directory: &Directory, name: &CStr) -> PathBuf {
    directory.full_path().join(OsStr::from_bytes(name.to_bytes()))
}

/// The attributes that are asked for. Sizes are synchronised as `stat` does it (no `AT_STATX_DONT_SYNC`): a size from a
/// stale cache would fail the file's transfer later.
pub(crate) const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::MODE)
    .union(StatxFlags::INO)
    .union(StatxFlags::SIZE)
    .union(StatxFlags::MTIME)
    .union(StatxFlags::CTIME)
    .union(StatxFlags::BLOCKS);

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;
    use zmove_types::{PathError, RelPath};

    use super::*;
    use crate::directory::{Extent, SourceRoot};

    fn look_up(name: &CStr) -> Result<Entry, ScanError> {
        let path = std::path::Path::new("/proc/self");
        let root = SourceRoot::open(path, &RelPath::root(), Extent::Tree, OFlags::empty()).unwrap();
        Entry::look_up(&Directory::open(&Arc::new(root), &RelPath::root()).unwrap(), name)
    }

    #[test]
    fn the_type_comes_from_the_attributes() {
        assert_eq!(look_up(c"status").unwrap().kind, EntryKind::File);
        assert_eq!(look_up(c"fd").unwrap().kind, EntryKind::Directory);
        assert_eq!(look_up(c"root").unwrap().kind, EntryKind::Symlink((*b"/").into()));
    }

    #[test]
    fn a_listed_name_that_is_gone_has_vanished() {
        let error = look_up(c"never there").unwrap_err();
        assert!(matches!(&error, ScanError::Vanished { path } if path.ends_with("never there")), "{error}");
    }

    #[test]
    fn a_name_that_cannot_be_carried_is_an_error() {
        let name = std::ffi::CString::new([b'n'; 256]).unwrap();
        let error = look_up(&name).unwrap_err();
        assert!(matches!(error, ScanError::Path { source: PathError::NameTooLong, .. }), "{error}");
    }
}
