//! Calls on the entry of a directory by its name; none of them follows a link of that name.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Result;

/// To read what may be no file: a FIFO is not waited for.
pub const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// Looks at an entry.
///
/// # Errors
/// The system's error.
pub fn stat_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<Stat> {
    rustix::fs::statat(directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens what is there.
///
/// # Errors
/// The system's error.
pub fn open_at(directory: impl AsFd, name: impl AsRef<OsStr>, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_ref(), flags, Mode::empty())
}

/// Makes a file where nothing has the name.
///
/// # Errors
/// The system's error.
pub fn create_at(directory: impl AsFd, name: impl AsRef<OsStr>, mode: Mode) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_ref(), flags, mode).map(File::from)
}

/// Removes what is no directory.
///
/// # Errors
/// The system's error.
pub fn unlink_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<()> {
    rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::empty())
}

/// Removes an empty directory.
///
/// # Errors
/// The system's error.
pub fn remove_directory_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<()> {
    rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::REMOVEDIR)
}
