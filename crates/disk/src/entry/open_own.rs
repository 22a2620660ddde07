//! The opening of our own entries although their mode forbids that.
//!
//! **Invariant:** the mode is only changed of an entry that has been looked at: it is held by a descriptor that can do
//! nothing else, and changed and opened by way of `/proc`, so that another entry may have its name by then.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_types::Name;

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
/// The system's error, `ELOOP` for a symbolic link.
pub fn open_own(directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty()) {
        Err(Errno::ACCESS) => open_forbidden(directory, name),
        opened => Ok(opened?.into()),
    }
}

/// Opens a regular file to be read although its mode forbids that, and restores the mode.
fn open_forbidden(directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let held = EntryHandle::hold(directory, name, FileType::RegularFile)?;
    let opened = held.open(held.mode | Mode::RUSR, OFlags::RDONLY);
    held.set_mode(held.mode)?;
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
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::of(
            rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty())?,
            kind,
        )
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
    pub(crate) fn open_up(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let is_own = rustix::process::geteuid().as_raw() == self.owner;
        if is_own {
            self.open(self.mode | Mode::RWXU, flags)
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Sets `mode`, and then opens the file with `flags`, which that mode must allow.
    pub(crate) fn open(&self, mode: Mode, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        self.set_mode(mode)?;
        rustix::fs::open(self.path(), flags | OFlags::CLOEXEC, Mode::empty())
    }

    fn set_mode(&self, mode: Mode) -> rustix::io::Result<()> {
        rustix::fs::chmod(self.path(), mode)
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
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
            open(directory.as_fd(), &name("f"))
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
                open_forbidden(directory.as_fd(), &name(other))
                    .unwrap_err()
                    .raw_os_error(),
                Some(13)
            );
        }
        assert!(open_own(directory.as_fd(), &name("link")).is_err());
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
