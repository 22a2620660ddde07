//! System calls that change the mode, owner, times or extended attributes of an entry.
//!
//! **Invariant:** the rest of this crate and the receiver never make these system calls directly. Each function takes a
//! [`Permit`], so no attribute changes after the connection to the sender is lost. An entry with a hidden name needs no
//! real permit (see [`Permit::for_hidden`]). Calls that together change one entry share one permit.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Result;
use zmove_types::Name;

use crate::metadata::entry::xattrs::{Descriptor, descriptor_path};
use crate::publishing::lease::Permit;

impl Descriptor<'_> {
    pub(crate) fn set_mode(self, _permit: &Permit<'_>, mode: Mode) -> Result<()> {
        match self {
            Self::Open(file) => rustix::fs::fchmod(file, mode),
            Self::PathOnly(file) => rustix::fs::chmod(descriptor_path(file), mode),
        }
    }

    pub(crate) fn set_owner(
        self,
        _permit: &Permit<'_>,
        user: Option<Uid>,
        group: Option<Gid>,
    ) -> Result<()> {
        match self {
            Self::Open(file) => rustix::fs::fchown(file, user, group),
            Self::PathOnly(file) => {
                rustix::fs::chownat(file, c"", user, group, AtFlags::EMPTY_PATH)
            }
        }
    }

    pub(crate) fn set_times(self, _permit: &Permit<'_>, times: &Timestamps) -> Result<()> {
        match self {
            Self::Open(file) => rustix::fs::futimens(file, times),
            Self::PathOnly(file) => rustix::fs::utimensat(
                rustix::fs::CWD,
                descriptor_path(file),
                times,
                AtFlags::empty(),
            ),
        }
    }

    pub(crate) fn write_xattr(self, _permit: &Permit<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let flags = XattrFlags::empty();
        match self {
            Self::Open(file) => rustix::fs::fsetxattr(file, name, value, flags),
            Self::PathOnly(file) => rustix::fs::setxattr(descriptor_path(file), name, value, flags),
        }
    }

    pub(crate) fn erase_xattr(self, _permit: &Permit<'_>, name: &[u8]) -> Result<()> {
        match self {
            Self::Open(file) => rustix::fs::fremovexattr(file, name),
            Self::PathOnly(file) => rustix::fs::removexattr(descriptor_path(file), name),
        }
    }
}

/// Sets the times of the entry `name`. Does not follow a symbolic link.
pub(crate) fn set_times_at(
    _permit: Permit<'_>,
    directory: impl AsFd,
    name: &Name,
    times: &Timestamps,
) -> Result<()> {
    rustix::fs::utimensat(
        directory,
        name.as_os_str(),
        times,
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

/// Sets the group of the entry `name`. Does not follow a symbolic link.
pub(crate) fn set_group_at(
    _permit: Permit<'_>,
    directory: impl AsFd,
    name: &Name,
    group: Gid,
) -> Result<()> {
    rustix::fs::chownat(
        directory,
        name.as_os_str(),
        None,
        Some(group),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

/// Sets the times of an open directory to their current values. A later flush of the directory then writes the inode,
/// although nothing visible has changed.
///
/// # Errors
/// Returns the system's error.
pub fn renew_times(permit: Permit<'_>, directory: &OwnedFd) -> Result<()> {
    let stat = rustix::fs::fstat(directory)?;
    let time = |tv_sec, nanoseconds: u64| Timespec {
        tv_sec,
        tv_nsec: nanoseconds.try_into().unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    Descriptor::Open(directory.as_fd()).set_times(&permit, &times)
}
