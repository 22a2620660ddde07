//! The items that a scan emits: entries of one directory in batches, and soft errors beside them.
//!
//! **Invariant:** a directory is emitted, as a root or as an entry of its parent, before anything in it.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, makedev, readlinkat, statx};
use rustix::io::Errno;
use zmove_chunk::xattr_digest;
use zmove_disk::{FoundXattrs, HasXattrs, NameAt, mode_without_acl};
use zmove_types::{FileNumber, Ids, Kinds, Metadata, Name, NeverCopied, Special, Timestamp};

use crate::directory::{Directory, is_mount, number_of, time_of};
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
        /// The properties beside kind, size, mode and time.
        beside: Beside,
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
    /// The device number of the file system.
    pub device: u64,
    /// The change time, which nobody can set.
    pub ctime: Timestamp,
    /// Whether the file may have holes: it takes less storage than its length, as one that is compressed does too, or
    /// it has attributes, whose storage may make up for that of the holes.
    pub may_have_holes: bool,
    /// Whether something is mounted on the entry; `None` where the kernel does not say (before 5.8).
    pub is_mount: Option<bool>,
    /// The file that it is a name of, where a file has more than one.
    pub shared: Option<SharedFile>,
    /// The properties beside kind, size, mode and time.
    pub beside: Beside,
    /// The extended attributes that are never copied.
    pub never_copied: NeverCopied,
}

/// A regular file with several names, of which others may be entries too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedFile {
    /// Which file it is.
    pub id: SharedFileId,
    /// How many names it has.
    pub names: u32,
}

/// What tells a file with several names from all others.
///
/// The number is not enough: a file system that is made of others (mergerfs, 9p, some file servers) can show several
/// files under one. Names of different files have different change times, and those of one file have the same. A name
/// that was added during the walk may count as another file, which the next run corrects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFileId {
    /// The inode number and the device.
    pub number: FileNumber,
    /// The change time.
    pub ctime: Timestamp,
}

/// What is seen of an entry beside kind, size, mode and time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Owner and group.
    pub ids: Ids,
    /// When the entry was last read.
    pub atime: Timestamp,
    /// The entry's extended attributes, if it has any that were looked for, or an access control list.
    pub xattrs: Option<Box<XattrMark>>,
}

/// What is remembered of an entry's extended attributes, which are read when the entry travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrMark {
    /// The digest by which attributes that are kept are compared, if there are any.
    pub digest: Option<[u8; 32]>,
    /// The bytes of the attributes that travel.
    pub bytes: usize,
    /// The kinds of the attributes.
    pub kinds: Kinds,
    /// The kinds of those that could not be read: the entry may have any of them.
    pub unread: Kinds,
    /// The mode that the entry is to have where its access control list is not kept.
    pub mode_without_acl: u32,
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
    Special(Special),
}

impl Entry {
    /// Looks up one name of an open directory. What the listing said of its type is not used: the attributes
    /// are needed anyway and are the later word.
    /// Extended attributes of these `kinds` are looked for.
    pub(crate) fn look_up(
        directory: &Directory,
        raw_name: &CStr,
        kinds: Option<Kinds>,
    ) -> Result<Self, ScanError> {
        let refused = |source| ScanError::Path {
            path: raw_path(directory, raw_name),
            source,
        };
        let failed = |operation| {
            move |errno: Errno| ScanError::listed(raw_path(directory, raw_name), operation, errno)
        };
        let name = Name::from_bytes(raw_name.to_bytes()).map_err(refused)?;
        directory.check_length(&name).map_err(refused)?;
        let stat = statx(directory.fd(), raw_name, AtFlags::SYMLINK_NOFOLLOW, WANTED)
            .map_err(failed(Operation::Stat))?;
        let kind =
            EntryKind::of(directory, raw_name, &stat).map_err(failed(Operation::ReadLink))?;
        let mut metadata = metadata_of(&stat);
        let shared =
            (kind != EntryKind::Directory && stat.stx_nlink > 1).then(|| SharedFile::of(&stat));
        // a link has none that users may set, and a list of its own neither
        let kinds = match kind {
            EntryKind::Symlink(_) => kinds
                .map(|kinds| kinds.common(Kinds::PRIVILEGED))
                .filter(|kinds| !kinds.is_empty()),
            _ => kinds,
        };
        let (beside, never_copied) = Beside::look(
            NameAt::new(directory.fd(), &name),
            &stat,
            kinds,
            &mut metadata,
        );
        let number = number_of(&stat);
        Ok(Self {
            name,
            kind,
            size: stat.stx_size,
            metadata,
            inode: number.inode,
            device: number.device,
            ctime: time_of(stat.stx_ctime),
            may_have_holes: beside.xattrs.is_some() || is_sparse(&stat),
            is_mount: is_mount(&stat),
            shared,
            beside,
            never_copied,
        })
    }
}

impl SharedFile {
    fn of(stat: &Statx) -> Self {
        Self {
            id: SharedFileId {
                number: number_of(stat),
                ctime: time_of(stat.stx_ctime),
            },
            names: stat.stx_nlink,
        }
    }
}

impl Beside {
    /// Looks at an entry. An access control list is looked for where any attributes are, and where it is not among
    /// the `kinds`, the mode becomes what it is without. What cannot be looked at is noted, and read again when the
    /// entry travels.
    pub(crate) fn look(
        entry: impl HasXattrs,
        stat: &Statx,
        kinds: Option<Kinds>,
        metadata: &mut Metadata,
    ) -> (Self, NeverCopied) {
        let mut beside = Self {
            ids: Ids {
                user: stat.stx_uid,
                group: stat.stx_gid,
            },
            atime: time_of(stat.stx_atime),
            xattrs: None,
        };
        let Some(kinds) = kinds else {
            return (beside, NeverCopied::default());
        };
        let none_read = FoundXattrs {
            unread: kinds,
            ..FoundXattrs::default()
        };
        let found = entry.xattrs(kinds.and(Kinds::ACLS)).unwrap_or(none_read);
        let FoundXattrs {
            list: mut xattrs,
            unread,
            never_copied,
            ..
        } = found;
        // An entry without a mark is taken to have no attributes, and those at the target go.
        if xattrs.is_empty() && unread.is_empty() {
            return (beside, never_copied);
        }
        let unread = unread.common(kinds);
        let mode_without_acl = mode_without_acl(metadata.mode, &xattrs);
        if !kinds.has_any(Kinds::ACLS) {
            metadata.mode = mode_without_acl;
            xattrs.retain(|xattr| Kinds::of_xattr(&xattr.name) != Some(Kinds::ACLS));
        }
        let kinds = xattrs
            .iter()
            .filter_map(|xattr| Kinds::of_xattr(&xattr.name));
        let mark = XattrMark {
            kinds: kinds.fold(Kinds::NONE, Kinds::and),
            unread,
            digest: (!xattrs.is_empty()).then(|| xattr_digest(&xattrs)),
            bytes: xattrs
                .iter()
                .map(|xattr| xattr.bytes() + XATTR_BESIDE_BYTES)
                .sum(),
            mode_without_acl,
        };
        beside.xattrs = Some(Box::new(mark));
        (beside, never_copied)
    }
}

/// The bytes that an attribute takes beside its name and value when it travels, rounded up.
const XATTR_BESIDE_BYTES: usize = 8;

impl EntryKind {
    fn of(directory: &Directory, name: &CStr, stat: &Statx) -> Result<Self, Errno> {
        Ok(match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink(
                readlinkat(directory.fd(), name, Vec::new())?
                    .into_bytes()
                    .into(),
            ),
            FileType::Fifo => Self::Special(Special::Fifo),
            FileType::CharacterDevice => Self::Special(Special::Character(device_of(stat))),
            FileType::BlockDevice => Self::Special(Special::Block(device_of(stat))),
            _ => Self::Special(Special::Socket),
        })
    }
}

pub(crate) fn metadata_of(stat: &Statx) -> Metadata {
    Metadata::new(u32::from(stat.stx_mode) & 0o7777, time_of(stat.stx_mtime))
}

fn device_of(stat: &Statx) -> u64 {
    makedev(stat.stx_rdev_major, stat.stx_rdev_minor)
}

/// A file system that does not tell the blocks is not asked for holes.
fn is_sparse(stat: &Statx) -> bool {
    let told = stat.stx_mask & StatxFlags::BLOCKS.bits() != 0;
    told && stat.stx_blocks.saturating_mul(BLOCK_BYTES) < stat.stx_size
}

/// In which blocks are counted, whatever those of the file system are.
const BLOCK_BYTES: u64 = 512;

fn raw_path(directory: &Directory, name: &CStr) -> PathBuf {
    directory
        .full_path()
        .join(OsStr::from_bytes(name.to_bytes()))
}

/// The attributes that are asked for. Sizes are synchronised as `stat` does it (no `AT_STATX_DONT_SYNC`): a size from a
/// stale cache would fail the file's transfer later.
pub(crate) const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::MODE)
    .union(StatxFlags::INO)
    .union(StatxFlags::SIZE)
    .union(StatxFlags::MTIME)
    .union(StatxFlags::ATIME)
    .union(StatxFlags::CTIME)
    .union(StatxFlags::BLOCKS)
    .union(StatxFlags::NLINK)
    .union(StatxFlags::UID)
    .union(StatxFlags::GID);

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;
    use zmove_types::{PathError, RelPath};

    use super::*;
    use crate::directory::{Extent, SourceRoot};

    fn look_up(name: &CStr) -> Result<Entry, ScanError> {
        let path = std::path::Path::new("/proc/self");
        let root = SourceRoot::open(path, &RelPath::root(), Extent::Tree, OFlags::empty()).unwrap();
        Entry::look_up(
            &Directory::open(&Arc::new(root), &RelPath::root()).unwrap(),
            name,
            None,
        )
    }

    #[test]
    fn the_type_comes_from_the_attributes() {
        assert_eq!(look_up(c"status").unwrap().kind, EntryKind::File);
        assert_eq!(look_up(c"fd").unwrap().kind, EntryKind::Directory);
        assert_eq!(
            look_up(c"root").unwrap().kind,
            EntryKind::Symlink((*b"/").into())
        );
    }

    /// An entry whose attributes have names, if these can be read, and hold nothing that can be.
    #[derive(Clone, Copy)]
    struct Unreadable(rustix::io::Result<&'static [u8]>);

    impl HasXattrs for Unreadable {
        fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
            let names = self.0?;
            buffer[..names.len()].copy_from_slice(names);
            Ok(names.len())
        }

        fn get_into(self, _name: &CStr, _buffer: &mut [u8]) -> rustix::io::Result<usize> {
            Err(Errno::IO)
        }

        fn file_system(self) -> Option<i64> {
            None
        }
    }

    #[test]
    fn attributes_that_cannot_be_read_are_not_taken_for_none() {
        let stat = statx(rustix::fs::CWD, ".", AtFlags::empty(), WANTED).unwrap();
        let kinds = Kinds::XATTRS.and(Kinds::ACLS);
        let unread = |names| {
            let (seen, _) = Beside::look(
                Unreadable(names),
                &stat,
                Some(kinds),
                &mut metadata_of(&stat),
            );
            seen.xattrs.map(|mark| (mark.unread, mark.digest))
        };
        assert_eq!(unread(Err(Errno::IO)), Some((kinds, None)));
        assert_eq!(unread(Ok(b"user.a\0")), Some((Kinds::XATTRS, None)));
        assert_eq!(
            unread(Ok(b"system.posix_acl_access\0")),
            Some((Kinds::ACLS, None))
        );
        assert_eq!(unread(Ok(b"")), None);
    }

    #[test]
    fn a_listed_name_that_is_gone_has_vanished() {
        let error = look_up(c"never there").unwrap_err();
        assert!(
            matches!(&error, ScanError::Vanished { path } if path.ends_with("never there")),
            "{error}"
        );
    }

    #[test]
    fn a_name_that_cannot_be_carried_is_an_error() {
        let name = std::ffi::CString::new([b'n'; 256]).unwrap();
        let error = look_up(&name).unwrap_err();
        assert!(
            matches!(
                error,
                ScanError::Path {
                    source: PathError::NameTooLong,
                    ..
                }
            ),
            "{error}"
        );
    }
}
