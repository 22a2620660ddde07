//! Where an entry is made before it gets its final name: in the directory where it will stay, or, in a job that several
//! hosts write, in the directory of the job's [epoch](crate::Epoch).
//!
//! What is made in another directory than the one where it will stay gets what that one would have given it: the group
//! of a directory with the setgid bit, and the access control list of one that has a default.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Gid, Mode, XattrFlags};
use rustix::io::Errno;
use zmove_types::Name;

use crate::entry::xattrs::{ACCESS_NAME, default_acl};
use crate::job_directory::Epoch;
use crate::new_files::NewFiles;
use crate::publish::{Replace, publish_file};
use crate::staged::Staged;

/// Where entries are made; see the module.
#[derive(Clone, Debug, Default)]
pub enum Nursery {
    /// In the directory where they will stay.
    #[default]
    Beside,
    /// In the directory of an epoch.
    Epoch(Arc<Epoch>),
}

impl Nursery {
    /// The directory in which entries for this one are made.
    #[must_use]
    pub fn of<'a>(&'a self, directory: &'a Arc<OwnedFd>) -> &'a Arc<OwnedFd> {
        match self {
            Self::Beside => directory,
            Self::Epoch(epoch) => epoch.own(),
        }
    }

    /// The epoch, in a job.
    #[must_use]
    pub fn epoch(&self) -> Option<&Arc<Epoch>> {
        match self {
            Self::Beside => None,
            Self::Epoch(epoch) => Some(epoch),
        }
    }

    /// A new empty file for a directory, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// The system's error, `EPERM` where the file could not get another name, and [`OVERTAKEN`](crate::OVERTAKEN).
    pub fn create(&self, directory: &Arc<OwnedFd>, new_files: &NewFiles, mode: u32) -> io::Result<Staged> {
        match self {
            Self::Beside => Staged::create_in(directory, new_files, mode),
            Self::Epoch(epoch) => epoch.create(|| Staged::create_in(epoch.own(), new_files, mode)),
        }
    }

    /// Gives a file that has a hidden name its final one in a directory.
    ///
    /// # Errors
    /// As [`publish_file`], and [`OVERTAKEN`](crate::OVERTAKEN).
    pub fn publish(
        &self,
        hidden: &Name,
        (directory, name): (&OwnedFd, &Name),
        replace: Replace,
    ) -> io::Result<()> {
        match self {
            Self::Beside => publish_file(directory, hidden, name, replace),
            Self::Epoch(epoch) => epoch.publish(hidden, (directory, name), replace),
        }
    }
}

/// What a directory gives to entries that are made in it.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    group: Option<Gid>,
    acl: Option<Vec<u8>>,
}

impl Inheritance {
    /// Looks at a directory.
    pub(crate) fn of(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(directory)?;
        let is_setgid = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        let group = is_setgid.then(|| Gid::from_raw(stat.st_gid));
        Ok(Self { group, acl: default_acl(directory)? })
    }

    /// Gives it to a file that was made elsewhere; its mode is still to be set. Returns whether there was anything to
    /// give.
    pub(crate) fn give_to(&self, file: &File) -> io::Result<bool> {
        let mut given = false;
        if let Some(group) = self.group
            && rustix::fs::fstat(file)?.st_gid != group.as_raw()
        {
            rustix::fs::fchown(file, None, Some(group))?;
            given = true;
        }
        if let Some(acl) = &self.acl {
            rustix::fs::fsetxattr(file.as_fd(), ACCESS_NAME, acl, XattrFlags::empty())?;
            given = true;
        }
        Ok(given)
    }

    /// Gives an entry that is no file, by its name in a directory, the group.
    pub(crate) fn give_group(&self, directory: &OwnedFd, name: &Name) -> io::Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(directory, name.as_os_str(), None, Some(group), flags)?)
    }
}

/// Has a directory give nothing to what is made in it.
pub(crate) fn give_nothing(directory: BorrowedFd<'_>) -> io::Result<()> {
    if Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode) != Mode::RWXU {
        rustix::fs::fchmod(directory, Mode::RWXU)?;
    }
    match rustix::fs::fremovexattr(directory, crate::entry::xattrs::DEFAULT_NAME) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
