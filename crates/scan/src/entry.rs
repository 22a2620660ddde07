//! The items that a scan emits: batches of entries of one directory, and errors about single entries.
//!
//! **Invariant:** a directory is emitted, as a root or as an entry of its parent, before any entry in it.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, makedev, readlinkat, statx};
use rustix::io::Errno;
use zmove_chunk::xattr_digest;
use zmove_disk::{EntryXattrs, HasXattrs, NameAt, mode_without_acl};
use zmove_types::{
    FileNumber, Ids, Metadata, MetadataKinds, Name, NeverCopied, Special, Timestamp,
};

use crate::directory::{Directory, is_mount, number_of, time_of};
use crate::error::{Operation, ScanError};

/// One item that the walk emits.
#[derive(Debug)]
pub enum ScanItem {
    /// A root that is a directory. Its entries follow.
    Root {
        /// The directory. Its target path is the prefix of the root.
        directory: Arc<Directory>,
        /// The directory's own mode and time.
        metadata: Metadata,
        /// The properties other than kind, size, mode and time.
        properties: EntryProperties,
    },
    /// Some entries of one directory, in no particular order.
    Batch(EntryBatch),
    /// An entry that could not be read. The walk continues.
    Error(ScanError),
}

/// Entries of one directory, at least one and at most `batch_entries_max`. A large directory is emitted in several
/// batches.
#[derive(Debug)]
pub struct EntryBatch {
    /// The directory that contains the entries. The directory stays open while the batch exists. A caller that
    /// processes entries later should keep the root and path of the directory instead of the batch.
    pub directory: Arc<Directory>,
    /// The entries.
    pub entries: Vec<Entry>,
}

/// A directory entry at the time when the walk visited it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the entry at the source. [`Directory::target_of`] returns its path at the target.
    pub name: Name,
    /// The kind of entry.
    pub kind: EntryKind,
    /// Length in bytes. Only meaningful for files.
    pub size: u64,
    /// Permission bits and modification time.
    pub metadata: Metadata,
    /// The inode number, which shows whether a file was replaced.
    pub inode: u64,
    /// The device number of the file system.
    pub device: u64,
    /// The change time, which no program can set.
    pub ctime: Timestamp,
    /// Whether the file may have holes. This is true in two cases:
    ///
    /// - The file occupies less storage than its length, as compressed files also do.
    /// - The file has attributes. Their storage counts as storage of the file, so it could hide holes.
    pub may_have_holes: bool,
    /// Whether the entry is a mount point. `None` before Linux 5.8.
    pub is_mount: Option<bool>,
    /// The identity of the file, if the file has several names.
    pub shared: Option<HardLinkedFile>,
    /// The properties other than kind, size, mode and time.
    pub properties: EntryProperties,
    /// The extended attributes that are never copied.
    pub never_copied: NeverCopied,
}

/// An entry with several hard links, some of which may be outside the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardLinkedFile {
    /// The identity of the file.
    pub id: HardLinkedFileId,
    /// Number of hard links.
    pub names: u32,
}

/// The identity of a file with several names.
///
/// Device and inode number are not sufficient: a file system that combines others (mergerfs, 9p, some file servers) can
/// use one inode number for several files. Such files have different change times, whereas all hard links of one file
/// have the same change time. A hard link that is created during the walk may count as another file. The next run
/// corrects this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HardLinkedFileId {
    /// The inode and device number.
    pub number: FileNumber,
    /// The change time.
    pub ctime: Timestamp,
}

/// Properties of an entry other than kind, size, mode and time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryProperties {
    /// Owner and group.
    pub ids: Ids,
    /// Time of the last read access.
    pub atime: Timestamp,
    /// A summary of the extended attributes, if the entry has any of the requested kinds or an access control list.
    pub xattrs: Option<Box<XattrMark>>,
}

/// A summary of an entry's extended attributes. The attributes themselves are read when the entry is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrMark {
    /// A digest of the attributes that are copied, used to compare them. `None` if no attributes are copied.
    pub digest: Option<[u8; 32]>,
    /// Size in bytes of the attributes that are sent.
    pub bytes: usize,
    /// The kinds of the attributes.
    pub kinds: MetadataKinds,
    /// The kinds of attributes that could not be read. The entry may have attributes of these kinds.
    pub unread: MetadataKinds,
    /// The mode to set if the access control list of the entry is not copied.
    pub mode_without_acl: u32,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory. Its entries follow later.
    Directory,
    /// A symbolic link, with its target.
    Symlink(Box<[u8]>),
    /// A FIFO, socket or device.
    Special(Special),
}

impl Entry {
    /// Looks up one name of an open directory, including extended attributes of these `kinds`. Ignores the entry type
    /// from the listing, because the result of `statx` is needed anyway and is more recent.
    pub(crate) fn look_up(
        directory: &Directory,
        raw_name: &CStr,
        kinds: Option<MetadataKinds>,
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
        let stat = statx(
            directory.fd(),
            raw_name,
            AtFlags::SYMLINK_NOFOLLOW,
            STATX_FIELDS,
        )
        .map_err(failed(Operation::Stat))?;
        let kind =
            EntryKind::of(directory, raw_name, &stat).map_err(failed(Operation::ReadLink))?;
        let mut metadata = metadata_of(&stat);
        let shared =
            (kind != EntryKind::Directory && stat.stx_nlink > 1).then(|| HardLinkedFile::of(&stat));
        // A symbolic link has neither user attributes nor an access control list.
        let kinds = match kind {
            EntryKind::Symlink(_) => kinds
                .map(|kinds| kinds.common(MetadataKinds::PRIVILEGED))
                .filter(|kinds| !kinds.is_empty()),
            _ => kinds,
        };
        let (properties, never_copied) = EntryProperties::read(
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
            may_have_holes: properties.xattrs.is_some() || is_sparse(&stat),
            is_mount: is_mount(&stat),
            shared,
            properties,
            never_copied,
        })
    }
}

impl HardLinkedFile {
    fn of(stat: &Statx) -> Self {
        Self {
            id: HardLinkedFileId {
                number: number_of(stat),
                ctime: time_of(stat.stx_ctime),
            },
            names: stat.stx_nlink,
        }
    }
}

impl EntryProperties {
    /// Reads the properties of an entry. If any extended attributes are requested, also looks for an access control
    /// list. If `kinds` does not include access control lists, sets the mode in `metadata` to the mode that the entry
    /// would have without its list. Records the kinds of attributes that cannot be read. They are read again when the
    /// entry is sent.
    pub(crate) fn read(
        entry: impl HasXattrs,
        stat: &Statx,
        kinds: Option<MetadataKinds>,
        metadata: &mut Metadata,
    ) -> (Self, NeverCopied) {
        let mut properties = Self {
            ids: Ids {
                user: stat.stx_uid,
                group: stat.stx_gid,
            },
            atime: time_of(stat.stx_atime),
            xattrs: None,
        };
        let Some(kinds) = kinds else {
            return (properties, NeverCopied::default());
        };
        let none_read = EntryXattrs {
            unread: kinds,
            ..EntryXattrs::default()
        };
        let found = entry
            .xattrs(kinds.and(MetadataKinds::ACLS))
            .unwrap_or(none_read);
        let EntryXattrs {
            list: mut xattrs,
            unread,
            never_copied,
            ..
        } = found;
        // An entry without an [`XattrMark`] counts as having no attributes, so existing attributes at the target are
        // removed.
        if xattrs.is_empty() && unread.is_empty() {
            return (properties, never_copied);
        }
        let unread = unread.common(kinds);
        let mode_without_acl = mode_without_acl(metadata.mode, &xattrs);
        if !kinds.has_any(MetadataKinds::ACLS) {
            metadata.mode = mode_without_acl;
            xattrs
                .retain(|xattr| MetadataKinds::of_xattr(&xattr.name) != Some(MetadataKinds::ACLS));
        }
        let kinds = xattrs
            .iter()
            .filter_map(|xattr| MetadataKinds::of_xattr(&xattr.name));
        let mark = XattrMark {
            kinds: kinds.fold(MetadataKinds::NONE, MetadataKinds::and),
            unread,
            digest: (!xattrs.is_empty()).then(|| xattr_digest(&xattrs)),
            bytes: xattrs
                .iter()
                .map(|xattr| xattr.bytes() + XATTR_OVERHEAD_BYTES)
                .sum(),
            mode_without_acl,
        };
        properties.xattrs = Some(Box::new(mark));
        (properties, never_copied)
    }
}

/// Size in bytes of an attribute on the wire in addition to its name and value, rounded up.
const XATTR_OVERHEAD_BYTES: usize = 8;

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

/// Returns whether a file occupies less storage than its length. Returns `false` if the file system does not report
/// blocks.
fn is_sparse(stat: &Statx) -> bool {
    let told = stat.stx_mask & StatxFlags::BLOCKS.bits() != 0;
    told && stat.stx_blocks.saturating_mul(BLOCK_BYTES) < stat.stx_size
}

/// The unit of block counts, which does not depend on the file system's block size.
const BLOCK_BYTES: u64 = 512;

fn raw_path(directory: &Directory, name: &CStr) -> PathBuf {
    directory
        .full_path()
        .join(OsStr::from_bytes(name.to_bytes()))
}

/// The `statx` fields to request. `AT_STATX_DONT_SYNC` is not set, because an outdated size would make the transfer of
/// the file fail later.
pub(crate) const STATX_FIELDS: StatxFlags = StatxFlags::TYPE
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

    /// An entry whose attributes cannot be read, and perhaps not even listed.
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
        let stat = statx(rustix::fs::CWD, ".", AtFlags::empty(), STATX_FIELDS).unwrap();
        let kinds = MetadataKinds::XATTRS.and(MetadataKinds::ACLS);
        let unread = |names| {
            let (seen, _) = EntryProperties::read(
                Unreadable(names),
                &stat,
                Some(kinds),
                &mut metadata_of(&stat),
            );
            seen.xattrs.map(|mark| (mark.unread, mark.digest))
        };
        assert_eq!(unread(Err(Errno::IO)), Some((kinds, None)));
        assert_eq!(unread(Ok(b"user.a\0")), Some((MetadataKinds::XATTRS, None)));
        assert_eq!(
            unread(Ok(b"system.posix_acl_access\0")),
            Some((MetadataKinds::ACLS, None))
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
