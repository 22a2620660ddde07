//! Opens entries of this process's user whose mode forbids opening them.
//!
//! **Invariant:** only the mode of the checked entry is changed. An `O_PATH` descriptor refers to that entry. Both the
//! change of the mode and the open go through this descriptor in `/proc/self/fd`, so another entry that takes over the
//! name is not affected.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_types::Name;

use super::xattrs::{Descriptor, descriptor_path};
use crate::opening::by_name::{READ, open_at};
use crate::publishing::lease::{Lease, Permit};

/// An `O_PATH` descriptor of an entry, with the entry's mode and owner.
#[derive(Debug)]
pub(crate) struct EntryHandle {
    fd: OwnedFd,
    mode: Mode,
    owner: u32,
}

/// Opens an entry for reading. If the mode allows reading, the entry may be of any type. Otherwise, the entry must be a
/// regular file, and its mode is changed temporarily.
///
/// # Errors
/// Returns the system's error, `ELOOP` for a symbolic link, and the errors of [`Lease::permit`].
pub fn open_despite_mode(
    lease: &Lease,
    directory: BorrowedFd<'_>,
    name: &Name,
) -> io::Result<File> {
    match open_at(directory, name, READ) {
        Err(Errno::ACCESS) => open_made_readable(lease, directory, name),
        opened => Ok(opened?.into()),
    }
}

/// Temporarily adds read permission for the owner to a regular file and opens the file for reading.
fn open_made_readable(lease: &Lease, directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let held = EntryHandle::hold(directory, name, FileType::RegularFile)?;
    // One permit covers both changes, so that the mode is restored even if the sender disconnects in between.
    let permit = lease.permit()?;
    let opened = held.open(&permit, held.mode | Mode::RUSR, OFlags::RDONLY);
    held.set_mode(&permit, held.mode)?;
    Ok(opened?.into())
}

/// Returns an `O_PATH` descriptor of an entry that was just created. Later operations on the descriptor affect this
/// entry even if its name is reused.
///
/// # Errors
/// Returns the system's error, `EACCES` if the entry is of another kind, and `EBUSY` if it has other hard links.
pub fn hold_new(directory: BorrowedFd<'_>, name: &Name, kind: FileType) -> io::Result<OwnedFd> {
    let EntryHandle { fd, .. } = EntryHandle::hold(directory, name, kind)?;
    if rustix::fs::fstat(&fd)?.st_nlink == 1 {
        Ok(fd)
    } else {
        Err(Errno::BUSY.into())
    }
}

impl EntryHandle {
    /// Returns a handle to the entry `name`. Does not follow a symbolic link.
    ///
    /// # Errors
    /// Returns the system's error, or `EACCES` if the entry is of another kind.
    pub(crate) fn hold(
        directory: BorrowedFd<'_>,
        name: &Name,
        kind: FileType,
    ) -> rustix::io::Result<Self> {
        Self::of(open_at(directory, name, OFlags::PATH)?, kind)
    }

    /// Returns a handle for an existing `O_PATH` descriptor. See [`hold`](Self::hold).
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

    /// Opens the entry after adding all owner permissions to its mode. Fails unless the owner is the user of this
    /// process.
    pub(crate) fn open_with_access(
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

    /// Sets the mode of the entry and then opens the entry with `flags`, which the mode must permit.
    pub(crate) fn open(
        &self,
        permit: &Permit<'_>,
        mode: Mode,
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        self.set_mode(permit, mode)?;
        rustix::fs::open(
            descriptor_path(self.fd.as_fd()),
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
    use crate::metadata::entry::tests::as_an_ordinary_user;
    use crate::publishing::lease::boot_clock;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_file_that_its_owner_may_not_read_is_read_and_keeps_its_mode() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4030)).unwrap();
        for open in [open_despite_mode, open_made_readable] {
            let mut read = String::new();
            let open = || open(&Lease::constant(), directory.as_fd(), &name("f"));
            as_an_ordinary_user(open)
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
        let error = open_made_readable(&lease, directory.as_fd(), &name("f")).unwrap_err();
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
                open_made_readable(&Lease::constant(), directory.as_fd(), &name(other))
                    .unwrap_err()
                    .raw_os_error(),
                Some(13)
            );
        }
        assert!(open_despite_mode(&Lease::constant(), directory.as_fd(), &name("link")).is_err());
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
