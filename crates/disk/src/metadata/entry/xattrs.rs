//! Extended attributes, including access control lists: reads all of an entry's attributes, and sets or removes single
//! ones.
//!
//! Values are opaque except for POSIX access control lists (acl(5)). If an entry has such a list, the group bits of its
//! mode show the list's mask instead of the permissions of the group.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use zmove_types::{MetadataKinds, Name, NeverCopied, Xattr};
use zmove_uring::list_xattrs_at;

use crate::opening::by_name::is_listable;
use crate::publishing::lease::Permit;

/// A descriptor of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Descriptor<'a> {
    /// A descriptor that was opened for reading or writing.
    Open(BorrowedFd<'a>),
    /// A descriptor opened with `O_PATH`.
    PathOnly(BorrowedFd<'a>),
}

impl<'a> Descriptor<'a> {
    /// Returns the descriptor of a directory of the target. A drop box is opened with `O_PATH`.
    #[must_use]
    pub fn of_directory(directory: BorrowedFd<'a>) -> Self {
        if is_listable(directory) {
            Self::Open(directory)
        } else {
            Self::PathOnly(directory)
        }
    }
}

/// An entry given by its name in a directory. A symbolic link is not followed.
#[derive(Clone, Copy, Debug)]
pub struct NameAt<'a> {
    /// The directory.
    pub directory: &'a OwnedFd,
    /// The name in that directory.
    pub name: &'a Name,
}

impl<'a> NameAt<'a> {
    /// Returns a reference to the entry `name` of `directory`.
    #[must_use]
    pub fn new(directory: &'a OwnedFd, name: &'a Name) -> Self {
        Self { directory, name }
    }
}

/// The extended attributes of an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EntryXattrs {
    /// The attributes in ascending order of their names.
    pub list: Vec<Xattr>,
    /// The kinds of attributes that were omitted because they exceed the [size limit](Xattr::ENTRY_BYTES_MAX).
    pub oversized: MetadataKinds,
    /// The kinds of attributes that could not be read, for example because this user may not read them.
    pub unread: MetadataKinds,
    /// The attributes of the entry that are never copied.
    pub never_copied: NeverCopied,
}

/// The access control list of a file.
const ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the access control list of a file as a C string, for system calls. The name of the default list follows.
pub(crate) const ACCESS_NAME: &CStr = c"system.posix_acl_access";
pub(crate) const DEFAULT_NAME: &CStr = c"system.posix_acl_default";

/// An entry whose extended attributes can be read.
pub trait HasXattrs: Copy {
    /// Writes the names of all attributes into `buffer`, each terminated by a NUL. Returns the length.
    ///
    /// # Errors
    /// Returns the system's error, `ERANGE` if the buffer is too short.
    fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize>;

    /// Writes the value of an attribute into `buffer`. Returns the length.
    ///
    /// # Errors
    /// Returns the system's error, `ERANGE` if the buffer is too short.
    fn get_into(self, name: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize>;

    /// Returns the type of the entry's file system (`f_type`), or `None` if it cannot be determined.
    fn file_system(self) -> Option<i64>;

    /// Reads the attributes of these kinds. Returns no attributes if the file system does not support them.
    ///
    /// # Errors
    /// Returns the system's error.
    fn xattrs(self, kinds: MetadataKinds) -> io::Result<EntryXattrs> {
        let (names, never_copied) = names(self, kinds)?;
        let mut found = EntryXattrs {
            never_copied,
            ..EntryXattrs::default()
        };
        let mut bytes = 0;
        for (name, kind) in names {
            let value = match get(self, &name) {
                Ok(value) => value,
                Err(Errno::NODATA) => continue,
                Err(_may_not) => {
                    found.unread = found.unread.and(kind);
                    continue;
                }
            };
            let xattr = Xattr {
                name: name.into_bytes().into(),
                value: value.into(),
            };
            if bytes + xattr.bytes() > Xattr::ENTRY_BYTES_MAX {
                found.oversized = found.oversized.and(kind);
                continue;
            }
            bytes += xattr.bytes();
            found.list.push(xattr);
        }
        Ok(found)
    }

    /// Returns whether the file system supports the given kinds. Only user attributes and access control lists are
    /// checked.
    fn may_support(self, kinds: MetadataKinds) -> bool {
        let names = [
            (MetadataKinds::XATTRS, c"user.zmove"),
            (MetadataKinds::ACLS, ACCESS_NAME),
        ];
        let mut asked = names.iter().filter(|(kind, _)| kinds.has_any(*kind));
        asked.all(|(_, name)| {
            let got = self.get_into(name, &mut []);
            !matches!(got, Err(Errno::OPNOTSUPP | Errno::NOSYS))
        })
    }
}

/// Returns the names of the attributes of these kinds in ascending order, and the attributes that are never copied.
fn names(
    of: impl HasXattrs,
    kinds: MetadataKinds,
) -> io::Result<(Vec<(CString, MetadataKinds)>, NeverCopied)> {
    let list = list(of)?;
    let mut named = Vec::new();
    let mut never_copied = NeverCopied::default();
    for name in list.split(|byte| *byte == 0) {
        never_copied = never_copied.and(NeverCopied::of(name).unwrap_or_default());
        let kind = MetadataKinds::of_xattr(name).filter(|kind| kinds.has_any(*kind));
        let Some(kind) = kind.filter(|_| !is_xfs_acl(of, name)) else {
            continue;
        };
        named.push((CString::new(name).expect("it was split at its end"), kind));
    }
    named.sort_unstable();
    Ok((named, never_copied))
}

/// Returns whether an attribute is XFS's own form of an access control list. XFS lists each access control list a
/// second time under such a name. zmove copies only the POSIX form of the list. Other file systems store an attribute
/// of this name like any other attribute.
fn is_xfs_acl(of: impl HasXattrs, name: &[u8]) -> bool {
    name.starts_with(XFS_ACL) && of.file_system() == Some(XFS_MAGIC)
}

const XFS_ACL: &[u8] = b"trusted.SGI_ACL_";
const XFS_MAGIC: i64 = 0x5846_5342;

fn list(of: impl HasXattrs) -> io::Result<Vec<u8>> {
    match read_whole(NAMES_BYTES_MAX, |room| of.list_into(room)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Vec::new()),
        listed => Ok(listed?),
    }
}

fn get(of: impl HasXattrs, name: &CStr) -> rustix::io::Result<Vec<u8>> {
    read_whole(Xattr::VALUE_BYTES_MAX, |room| of.get_into(name, room))
}

/// Returns all bytes that `read` writes into a buffer. If a short buffer does not suffice, retries with a buffer of
/// `longest` bytes.
fn read_whole(
    longest: usize,
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut short = [0; SHORT_BYTES];
    match read(&mut short) {
        Ok(length) => Ok(short[..length].to_vec()),
        Err(Errno::RANGE) => {
            let mut long = vec![0; longest];
            let length = read(&mut long)?;
            long.truncate(length);
            Ok(long)
        }
        Err(error) => Err(error),
    }
}

impl HasXattrs for NameAt<'_> {
    fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let Self { directory, name } = self;
        match list_xattrs_at(directory, name.as_os_str(), buffer) {
            // This path through /proc is three times as slow: it adds 3 µs per entry to a scan.
            Err(Errno::NOSYS | Errno::PERM) => rustix::fs::llistxattr(self.path(), buffer),
            listed => listed,
        }
    }

    fn get_into(self, name: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        rustix::fs::lgetxattr(self.path(), name, buffer)
    }

    fn file_system(self) -> Option<i64> {
        rustix::fs::fstatfs(self.directory)
            .ok()
            .map(|stat| stat.f_type)
    }
}

impl NameAt<'_> {
    fn path(self) -> Vec<u8> {
        let mut path = descriptor_path(self.directory.as_fd()).into_bytes();
        path.push(b'/');
        path.extend_from_slice(self.name.as_os_str().as_bytes());
        path
    }
}

impl HasXattrs for Descriptor<'_> {
    fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(file) => rustix::fs::flistxattr(file, buffer),
            Self::PathOnly(file) => rustix::fs::listxattr(descriptor_path(file), buffer),
        }
    }

    fn get_into(self, name: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(file) => rustix::fs::fgetxattr(file, name, buffer),
            Self::PathOnly(file) => rustix::fs::getxattr(descriptor_path(file), name, buffer),
        }
    }

    fn file_system(self) -> Option<i64> {
        let (Self::Open(file) | Self::PathOnly(file)) = self;
        rustix::fs::fstatfs(file).ok().map(|stat| stat.f_type)
    }
}

impl Descriptor<'_> {
    /// Returns the value of an attribute, or `None` if the entry does not have it.
    pub(super) fn value(self, name: &[u8]) -> rustix::io::Result<Option<Vec<u8>>> {
        let name = CString::new(name).map_err(|_has_a_nul| Errno::INVAL)?;
        match get(self, &name) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn set_xattr(
        self,
        permit: &Permit<'_>,
        name: &[u8],
        value: &[u8],
    ) -> rustix::io::Result<()> {
        // On XFS, setting this attribute would replace the access control list of the entry.
        if is_xfs_acl(self, name) {
            return Err(Errno::OPNOTSUPP);
        }
        self.write_xattr(permit, name, value)
    }

    pub(super) fn remove_xattr(self, permit: &Permit<'_>, name: &[u8]) -> rustix::io::Result<()> {
        let removed = self.erase_xattr(permit, name);
        // Another process removed the attribute first.
        if removed == Err(Errno::NODATA) {
            Ok(())
        } else {
            removed
        }
    }
}

/// Returns whether new entries inherit an access control list from this directory.
pub(crate) fn has_default_acl(directory: BorrowedFd<'_>) -> bool {
    default_acl(directory).is_ok_and(|acl| acl.is_some())
}

/// Returns the access control list that new entries inherit from this directory, if any.
pub(crate) fn default_acl(directory: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let has_none = |error| matches!(error, Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS);
    match get(Descriptor::of_directory(directory), DEFAULT_NAME) {
        Ok(acl) => Ok(Some(acl).filter(|acl| !acl.is_empty())),
        Err(error) if has_none(error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the mode to set if the access control list of an entry with `mode` and `xattrs` cannot be stored. If an
/// entry has a list, the group bits of its mode are the mask of the list. The result limits these bits to the
/// permissions of the owning group. The result grants no user more access than the list.
#[must_use]
pub fn mode_without_acl(mode: u32, xattrs: &[Xattr]) -> u32 {
    let Some(acl) = xattrs.iter().find(|xattr| *xattr.name == *ACCESS) else {
        return mode;
    };
    // A malformed list grants the group nothing.
    let group = group_of(&acl.value).unwrap_or(0);
    mode & !GROUP_BITS | mode & group << 3
}

const GROUP_BITS: u32 = 0o070;

/// Returns the permissions of the owning group in an access control list. The list has a header of 4 bytes. Each entry
/// has 8 bytes: a tag, the permissions and an ID.
fn group_of(acl: &[u8]) -> Option<u32> {
    const GROUP_OBJ: u16 = 4;
    let entries = acl.get(4..)?.chunks_exact(8);
    let field = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let of_group = entries
        .into_iter()
        .find(|entry| field(entry, 0) == GROUP_OBJ)?;
    Some(u32::from(field(of_group, 2)) & 0o7)
}

pub(crate) fn descriptor_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Size of the first buffer in bytes. It is large enough for most values, and for the names of most entries'
/// attributes.
const SHORT_BYTES: usize = 512;
/// The largest list of names that Linux returns.
const NAMES_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn acl(entries: &[(u16, u16)]) -> Xattr {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, may) in entries {
            value.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
            let user = if *tag == 2 { 65_534 } else { u32::MAX };
            value.extend(user.to_le_bytes());
        }
        Xattr {
            name: ACCESS.into(),
            value: value.into(),
        }
    }

    /// Returns an access control list that gives one user more permissions than the group.
    pub(crate) fn acl_of_a_user() -> Vec<u8> {
        acl(&[(1, 7), (2, 6), (4, 5), (0x10, 7), (0x20, 0)])
            .value
            .into()
    }

    #[test]
    fn a_mask_is_not_taken_for_what_the_group_may() {
        let masked = acl(&[(1, 7), (2, 6), (4, 4), (0x10, 6), (0x20, 0)]);
        assert_eq!(mode_without_acl(0o760, &[masked]), 0o740);
        assert_eq!(
            mode_without_acl(0o710, &[acl(&[(4, 5)])]),
            0o710,
            "nor more than the mask"
        );
        assert_eq!(mode_without_acl(0o664, &[]), 0o664);
        for broken in [vec![], vec![2, 0, 0, 0], vec![0; 11]] {
            let xattr = Xattr {
                name: ACCESS.into(),
                value: broken.into(),
            };
            assert_eq!(mode_without_acl(0o2664, &[xattr]), 0o2604);
        }
    }

    /// Covers reading by descriptor, by name, and by an `O_PATH` descriptor.
    #[test]
    fn attributes_are_read_whole_in_the_order_of_their_names() {
        let home = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(File::open(home.path()).unwrap());
        let path = home.path().join("f");
        std::fs::write(&path, "").unwrap();
        let file = File::open(&path).unwrap();
        let subject = Descriptor::Open(file.as_fd());
        let long = vec![7; 3000];
        let name = format!("user.{}", "n".repeat(250));
        if subject
            .set_xattr(&Permit::for_hidden(), name.as_bytes(), b"")
            .is_err()
        {
            return eprintln!(
                "skipped: no extended attributes at {}",
                home.path().display()
            );
        }
        subject
            .set_xattr(&Permit::for_hidden(), b"user.long", &long)
            .unwrap();
        subject
            .set_xattr(&Permit::for_hidden(), b"user.a", b"x")
            .unwrap();
        let entry = Name::from_bytes(b"f").unwrap();
        let held = rustix::fs::openat(
            &directory,
            "f",
            rustix::fs::OFlags::PATH,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        let named = NameAt::new(&directory, &entry)
            .xattrs(MetadataKinds::XATTRS)
            .unwrap();
        for found in [
            subject.xattrs(MetadataKinds::XATTRS).unwrap(),
            Descriptor::PathOnly(held.as_fd())
                .xattrs(MetadataKinds::XATTRS)
                .unwrap(),
            named,
        ] {
            let read: Vec<_> = found
                .list
                .iter()
                .map(|xattr| (&*xattr.name, &*xattr.value))
                .collect();
            assert_eq!(
                read,
                [
                    (&b"user.a"[..], &b"x"[..]),
                    (b"user.long", &long),
                    (name.as_bytes(), b"")
                ]
            );
            assert!(found.oversized.is_empty() && found.unread.is_empty());
        }
        assert!(subject.xattrs(MetadataKinds::ACLS).unwrap().list.is_empty());
        subject
            .remove_xattr(&Permit::for_hidden(), b"user.a")
            .unwrap();
        subject
            .remove_xattr(&Permit::for_hidden(), b"user.a")
            .unwrap();
        assert_eq!(subject.xattrs(MetadataKinds::ALL).unwrap().list.len(), 2);
        let nothing = Name::from_bytes(b"nothing").unwrap();
        assert!(
            NameAt::new(&directory, &nothing)
                .xattrs(MetadataKinds::ALL)
                .is_err()
        );
    }
}
