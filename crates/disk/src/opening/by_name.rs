//! System calls on an entry given by its name in a directory. If the name is a symbolic link, the calls do not follow
//! it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::Result;

/// Flags to open an entry of any kind for reading. Opening a FIFO with them does not block.
pub const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// Returns the properties of an entry.
///
/// # Errors
/// Returns the system's error.
pub fn stat_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<Stat> {
    rustix::fs::statat(directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens an existing entry.
///
/// # Errors
/// Returns the system's error.
pub fn open_at(directory: impl AsFd, name: impl AsRef<OsStr>, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_ref(), flags, Mode::empty())
}

/// Returns whether the entries of an open directory can be listed. A directory that cannot be listed is open with
/// `O_PATH`. It cannot be flushed either, and its metadata must be accessed through [`PathOnly`].
///
/// [`PathOnly`]: crate::Descriptor::PathOnly
#[must_use]
pub fn is_listable(directory: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(directory).is_ok_and(|flags| !flags.contains(OFlags::PATH))
}

/// Returns the entries of an open directory, beginning with the first one.
///
/// # Errors
/// Returns the system's error, `EACCES` if this user may not list the directory.
pub fn list_directory(directory: impl AsFd) -> Result<Dir> {
    Dir::new(open_at(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY)?)
}

/// Creates a file. Fails if the name exists.
///
/// # Errors
/// Returns the system's error.
pub fn create_at(directory: impl AsFd, name: impl AsRef<OsStr>, mode: Mode) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_ref(), flags, mode).map(File::from)
}

/// Removes an entry that is not a directory.
///
/// # Errors
/// Returns the system's error.
pub fn unlink_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<()> {
    rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::empty())
}

/// Removes an empty directory.
///
/// # Errors
/// Returns the system's error.
pub fn remove_directory_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<()> {
    rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::REMOVEDIR)
}
