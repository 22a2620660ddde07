//! Attributes that new entries inherit from their directory: the group of a setgid directory and its default access
//! control list. A file that was created elsewhere is given these attributes before it is linked into the directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Mode};
use rustix::io::Errno;
use zmove_types::Name;

use crate::metadata::attributes::set_group_at;
use crate::metadata::entry::metadata::set_mode_if_allowed;
use crate::metadata::entry::xattrs::{ACCESS_NAME, DEFAULT_NAME, Descriptor, default_acl};
use crate::publishing::lease::Permit;

/// The attributes that new entries of a directory inherit.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    group: Option<Gid>,
    acl: Option<Vec<u8>>,
}

impl Inheritance {
    /// Reads the inheritable attributes of a directory.
    pub(crate) fn of(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(directory)?;
        let is_setgid = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        let group = is_setgid.then(|| Gid::from_raw(stat.st_gid));
        Ok(Self {
            group,
            acl: default_acl(directory)?,
        })
    }

    /// Sets the inherited attributes on a file that was created elsewhere. The caller must set the mode afterwards.
    /// Returns whether anything changed.
    pub(crate) fn apply_to(&self, permit: &Permit<'_>, file: &File) -> io::Result<bool> {
        let entry = Descriptor::Open(file.as_fd());
        let mut given = false;
        if let Some(group) = self.group
            && rustix::fs::fstat(file)?.st_gid != group.as_raw()
        {
            entry.set_owner(permit, None, Some(group))?;
            given = true;
        }
        if let Some(acl) = &self.acl {
            entry.write_xattr(permit, ACCESS_NAME.to_bytes(), acl)?;
            given = true;
        }
        Ok(given)
    }

    /// Sets the inherited group of an entry other than a regular file. The entry is given by its hidden name in a
    /// directory.
    pub(crate) fn apply_group_to(&self, directory: &OwnedFd, name: &Name) -> io::Result<()> {
        let Some(group) = self.group else {
            return Ok(());
        };
        Ok(set_group_at(Permit::for_hidden(), directory, name, group)?)
    }
}

/// Sets the mode of a hidden directory to 0700 and removes its default access control list, so that new entries inherit
/// nothing.
pub(crate) fn disable_inheritance(directory: BorrowedFd<'_>) -> io::Result<()> {
    if Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode) != Mode::RWXU {
        set_mode_if_allowed(Permit::for_hidden(), directory, Mode::RWXU)?;
    }
    let erased =
        Descriptor::Open(directory).erase_xattr(&Permit::for_hidden(), DEFAULT_NAME.to_bytes());
    match erased {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
