//! Extended attributes, access control lists among them: read whole, and made what they are to be.
//!
//! What an attribute holds is opaque here, but for two things that a mode needs to know of a POSIX access
//! control list (acl(5)): who has one shows its mask in the mode where others show what their group may.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use zmove_types::{Kinds, Name, NeverCopied, Xattr};
use zmove_uring::list_xattrs_at;

use crate::publishing::lease::Permit;

/// An entry by a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Descriptor<'a> {
    /// An entry that is open.
    Open(BorrowedFd<'a>),
    /// What is held by a descriptor that can do nothing else (`O_PATH`).
    PathOnly(BorrowedFd<'a>),
}

/// An entry by its name in a directory; a link is not followed.
#[derive(Clone, Copy, Debug)]
pub struct NameAt<'a> {
    /// The directory.
    pub directory: &'a OwnedFd,
    /// The name in it.
    pub name: &'a Name,
}

impl<'a> NameAt<'a> {
    /// That name in that directory.
    #[must_use]
    pub fn new(directory: &'a OwnedFd, name: &'a Name) -> Self {
        Self { directory, name }
    }
}

/// The extended attributes of an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundXattrs {
    /// The attributes, in the ascending order of their names.
    pub list: Vec<Xattr>,
    /// The kinds of those that are left out: there is [more](Xattr::ENTRY_BYTES_MAX) than is carried.
    pub too_much: Kinds,
    /// The kinds of those that this user may not read.
    pub unread: Kinds,
    /// The attributes of the entry that are never copied.
    pub never_copied: NeverCopied,
}

/// The access control list of a file.
const ACCESS: &[u8] = b"system.posix_acl_access";
/// The access control list that a directory gives to new entries.
const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The two as the kernel takes them.
pub(crate) const ACCESS_NAME: &CStr = c"system.posix_acl_access";
pub(crate) const DEFAULT_NAME: &CStr = c"system.posix_acl_default";

/// A thing of which extended attributes can be read.
pub trait HasXattrs: Copy {
    /// Writes all names, each with a NUL behind it.
    ///
    /// # Errors
    /// What the system says, `ERANGE` where the buffer is too short.
    fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize>;

    /// Writes what an attribute holds.
    ///
    /// # Errors
    /// What the system says, `ERANGE` where the buffer is too short.
    fn get_into(self, name: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize>;

    /// The type of the entry's file system (`f_type`); `None` where it cannot be found.
    fn file_system(self) -> Option<i64>;

    /// Reads the attributes of these kinds; none where the file system has none.
    ///
    /// # Errors
    /// What the system says.
    fn xattrs(self, kinds: Kinds) -> io::Result<FoundXattrs> {
        let (names, never_copied) = names(self, kinds)?;
        let mut found = FoundXattrs {
            never_copied,
            ..FoundXattrs::default()
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
                found.too_much = found.too_much.and(kind);
                continue;
            }
            bytes += xattr.bytes();
            found.list.push(xattr);
        }
        Ok(found)
    }

    /// Whether the file system can have user attributes and access control lists, as far as they are among these kinds.
    fn may_have(self, kinds: Kinds) -> bool {
        let names = [(Kinds::XATTRS, c"user.zmove"), (Kinds::ACLS, ACCESS_NAME)];
        let mut asked = names.iter().filter(|(kind, _)| kinds.has_any(*kind));
        asked.all(|(_, name)| {
            let got = self.get_into(name, &mut []);
            !matches!(got, Err(Errno::OPNOTSUPP | Errno::NOSYS))
        })
    }
}

/// The names of those of these kinds, in ascending order, and the names that are never copied.
fn names(of: impl HasXattrs, kinds: Kinds) -> io::Result<(Vec<(CString, Kinds)>, NeverCopied)> {
    let list = list(of)?;
    let mut named = Vec::new();
    let mut never_copied = NeverCopied::default();
    for name in list.split(|byte| *byte == 0) {
        never_copied = never_copied.and(NeverCopied::of(name).unwrap_or_default());
        let kind = Kinds::of_xattr(name).filter(|kind| kinds.has_any(*kind));
        let Some(kind) = kind.filter(|_| !is_list_of_xfs(of, name)) else {
            continue;
        };
        named.push((CString::new(name).expect("it was split at its end"), kind));
    }
    named.sort_unstable();
    Ok((named, never_copied))
}

/// Whether an attribute is an access control list in the form of XFS. XFS shows each list a second time under such a
/// name. It is kept as the list that it is. Other file systems store the name like any other.
fn is_list_of_xfs(of: impl HasXattrs, name: &[u8]) -> bool {
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

/// What `read` writes into a buffer that is as long as it needs.
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
            // The path through /proc costs three times as much: 3 µs more for each entry of a scan.
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
        let mut path = by_descriptor(self.directory.as_fd()).into_bytes();
        path.push(b'/');
        path.extend_from_slice(self.name.as_os_str().as_bytes());
        path
    }
}

impl HasXattrs for Descriptor<'_> {
    fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(file) => rustix::fs::flistxattr(file, buffer),
            Self::PathOnly(file) => rustix::fs::listxattr(by_descriptor(file), buffer),
        }
    }

    fn get_into(self, name: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(file) => rustix::fs::fgetxattr(file, name, buffer),
            Self::PathOnly(file) => rustix::fs::getxattr(by_descriptor(file), name, buffer),
        }
    }

    fn file_system(self) -> Option<i64> {
        let (Self::Open(file) | Self::PathOnly(file)) = self;
        rustix::fs::fstatfs(file).ok().map(|stat| stat.f_type)
    }
}

impl Descriptor<'_> {
    /// The value of an attribute; `None` where the entry does not have it.
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
        // there it would replace the access control list of the entry
        if is_list_of_xfs(self, name) {
            return Err(Errno::OPNOTSUPP);
        }
        self.write_xattr(permit, name, value)
    }

    pub(super) fn remove_xattr(self, permit: &Permit<'_>, name: &[u8]) -> rustix::io::Result<()> {
        let removed = self.erase_xattr(permit, name);
        // it has gone meanwhile
        if removed == Err(Errno::NODATA) {
            Ok(())
        } else {
            removed
        }
    }
}

/// Whether what is made in a directory gets an access control list from it.
pub(crate) fn gives_acl(directory: BorrowedFd<'_>) -> bool {
    rustix::fs::fgetxattr_query(directory, DEFAULT).is_ok_and(|bytes| bytes > 0)
}

/// The access control list that what is made in a directory gets from it, if any.
pub(crate) fn default_acl(directory: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let has_none = |error| matches!(error, Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS);
    match get(Descriptor::Open(directory), DEFAULT_NAME) {
        Ok(acl) => Ok(Some(acl).filter(|acl| !acl.is_empty())),
        Err(error) if has_none(error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The mode with which an entry that has these attributes, and shows `mode`, gives nobody more than they do where
/// its access control list is not kept: what is said of its group stands in the place of the mask.
#[must_use]
pub fn mode_without_acl(mode: u32, xattrs: &[Xattr]) -> u32 {
    let Some(acl) = xattrs.iter().find(|xattr| *xattr.name == *ACCESS) else {
        return mode;
    };
    // what cannot be read gives the group nothing
    let group = group_of(&acl.value).unwrap_or(0);
    mode & !GROUP_BITS | mode & group << 3
}

const GROUP_BITS: u32 = 0o070;

/// What an access control list gives the owning group: its header has 4 bytes and each entry 8, a tag, what may
/// be done, and a number.
fn group_of(acl: &[u8]) -> Option<u32> {
    const GROUP_OBJ: u16 = 4;
    let entries = acl.get(4..)?.chunks_exact(8);
    let field = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let of_group = entries
        .into_iter()
        .find(|entry| field(entry, 0) == GROUP_OBJ)?;
    Some(u32::from(field(of_group, 2)) & 0o7)
}

pub(crate) fn by_descriptor(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Room for most values, and for the names that most entries have.
const SHORT_BYTES: usize = 512;
/// The most that Linux lists.
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

    /// A list that gives a user more than the group.
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

    /// By descriptor, by name, and as what is only held.
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
            .xattrs(Kinds::XATTRS)
            .unwrap();
        for found in [
            subject.xattrs(Kinds::XATTRS).unwrap(),
            Descriptor::PathOnly(held.as_fd())
                .xattrs(Kinds::XATTRS)
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
            assert!(found.too_much.is_empty() && found.unread.is_empty());
        }
        assert!(subject.xattrs(Kinds::ACLS).unwrap().list.is_empty());
        subject
            .remove_xattr(&Permit::for_hidden(), b"user.a")
            .unwrap();
        subject
            .remove_xattr(&Permit::for_hidden(), b"user.a")
            .unwrap();
        assert_eq!(subject.xattrs(Kinds::ALL).unwrap().list.len(), 2);
        let nothing = Name::from_bytes(b"nothing").unwrap();
        assert!(
            NameAt::new(&directory, &nothing)
                .xattrs(Kinds::ALL)
                .is_err()
        );
    }
}
