//! The opening of our own entries although their mode forbids that.
//!
//! **Invariant:** the mode is only changed of an entry that has been looked at: it is held by a descriptor that can do
//! nothing else, and changed and opened by way of `/proc`, so that another entry may have its name by then.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_types::Name;

use super::xattrs::{Descriptor, by_descriptor};
use crate::opening::by_name::{READ, open_at};
use crate::publishing::lease::{Lease, Permit};

/// A handle of an entry: a descriptor that can do nothing else (`O_PATH`), with mode and owner.
#[derive(Debug)]
pub(crate) struct EntryHandle {
    fd: OwnedFd,
    mode: Mode,
    owner: u32,
}

/// Opens a file of our own to be read, also one that its owner may not read. One whose mode allows that need not be a
/// regular file.
///
/// # Errors
/// The system's error, `ELOOP` for a symbolic link, and what [`Lease::permit`] returns.
pub fn open_own(lease: &Lease, directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    match open_at(directory, name, READ) {
        Err(Errno::ACCESS) => open_forbidden(lease, directory, name),
        opened => Ok(opened?.into()),
    }
}

/// Opens a regular file to be read although its mode forbids that, and restores the mode.
fn open_forbidden(lease: &Lease, directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let held = EntryHandle::hold(directory, name, FileType::RegularFile)?;
    // One permit for both changes, so that the mode is restored even if the sender goes meanwhile.
    let permit = lease.permit()?;
    let opened = held.open(&permit, held.mode | Mode::RUSR, OFlags::RDONLY);
    held.set_mode(&permit, held.mode)?;
    Ok(opened?.into())
}

/// Holds an entry of this kind that has just been made and has no other name: whatever gets its name from now on, what
/// is done is done to it.
///
/// # Errors
/// What the system says, `EACCES` for something of another kind, `EBUSY` for what has other names.
pub fn hold_new(directory: BorrowedFd<'_>, name: &Name, kind: FileType) -> io::Result<OwnedFd> {
    let EntryHandle { fd, .. } = EntryHandle::hold(directory, name, kind)?;
    if rustix::fs::fstat(&fd)?.st_nlink == 1 {
        Ok(fd)
    } else {
        Err(Errno::BUSY.into())
    }
}

impl EntryHandle {
    /// Holds the entry with that name, without following a link.
    ///
    /// # Errors
    /// The system's error, `EACCES` for an entry of another kind.
    pub(crate) fn hold(
        directory: BorrowedFd<'_>,
        name: &Name,
        kind: FileType,
    ) -> rustix::io::Result<Self> {
        Self::of(open_at(directory, name, OFlags::PATH)?, kind)
    }

    /// Takes an entry that a descriptor holds already; see [`hold`](Self::hold).
    pub(crate) fn of(fd: OwnedFd, kind: FileType) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let is_kind = FileType::from_raw_mode(stat.st_mode) == kind;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if is_kind {
            Ok(Self {
                fd,
                mode,
                owner: stat.st_uid,
            })
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Opens the entry with all rights of its owner, who must be the user of this process, added to its mode.
    pub(crate) fn open_up(
        &self,
        permit: &Permit<'_>,
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let is_own = rustix::process::geteuid().as_raw() == self.owner;
        if is_own {
            self.open(permit, self.mode | Mode::RWXU, flags)
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Sets `mode`, and then opens the file with `flags`, which that mode must allow.
    pub(crate) fn open(
        &self,
        permit: &Permit<'_>,
        mode: Mode,
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        self.set_mode(permit, mode)?;
        rustix::fs::open(
            by_descriptor(self.fd.as_fd()),
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }

    fn set_mode(&self, permit: &Permit<'_>, mode: Mode) -> rustix::io::Result<()> {
        Descriptor::PathOnly(self.fd.as_fd()).set_mode(permit, mode)
    }
}

impl AsFd for EntryHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::entry::FileIdentity;
    use crate::publishing::lease::boot_clock;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    /// Root may open the file anyway.
    #[test]
    fn a_file_that_its_owner_may_not_read_is_read_and_keeps_its_mode() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4030)).unwrap();
        for open in [open_own, open_forbidden] {
            let mut read = String::new();
            open(&Lease::constant(), directory.as_fd(), &name("f"))
                .unwrap()
                .read_to_string(&mut read)
                .unwrap();
            assert_eq!(
                (
                    read.as_str(),
                    path.metadata().unwrap().permissions().mode() & 0o7777
                ),
                ("data", 0o4030)
            );
        }
    }

    #[test]
    fn a_file_keeps_its_mode_once_the_sender_has_gone() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o030)).unwrap();
        let changed = || FileIdentity::at(&directory, &name("f")).unwrap().ctime;
        let before = changed();
        let lease = Lease::timed(boot_clock(), |_ping| {}, None);
        lease.end();
        let error = open_forbidden(&lease, directory.as_fd(), &name("f")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNABORTED));
        assert_eq!(changed(), before);
    }

    #[test]
    fn what_has_another_name_is_not_new() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        symlink("anywhere", home.path().join("link")).unwrap();
        let hold = || hold_new(directory.as_fd(), &name("link"), FileType::Symlink);
        hold().unwrap();
        std::fs::hard_link(
            home.path().join("link"),
            home.path().join("of somebody else"),
        )
        .unwrap();
        assert_eq!(
            Errno::from_io_error(&hold().unwrap_err()),
            Some(Errno::BUSY)
        );
    }

    #[test]
    fn what_is_of_another_kind_keeps_its_mode_and_is_not_opened() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        std::fs::write(home.path().join("precious"), "x").unwrap();
        std::fs::set_permissions(
            home.path().join("precious"),
            PermissionsExt::from_mode(0o000),
        )
        .unwrap();
        symlink("precious", home.path().join("link")).unwrap();
        rustix::fs::mknodat(&directory, "fifo", FileType::Fifo, Mode::WUSR, 0).unwrap();
        for other in ["link", "fifo"] {
            assert_eq!(
                open_forbidden(&Lease::constant(), directory.as_fd(), &name(other))
                    .unwrap_err()
                    .raw_os_error(),
                Some(13)
            );
        }
        assert!(open_own(&Lease::constant(), directory.as_fd(), &name("link")).is_err());
        let mode = |name: &str| {
            home.path()
                .join(name)
                .metadata()
                .unwrap()
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!([mode("precious"), mode("fifo")], [0, 0o200]);
        let held = EntryHandle::hold(directory.as_fd(), &name("precious"), FileType::Directory);
        assert_eq!(held.unwrap_err(), Errno::ACCESS);
    }
}
