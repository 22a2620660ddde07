//! What stands at the target under the name of a file that is coming: looked at, and never followed or waited for.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_chunk::read_root;
use zmove_disk::open_beneath;
use zmove_types::{Name, RelPath};

/// Opens what stands there, which need not be a regular file.
///
/// # Errors
/// What the system says, `ELOOP` for a symbolic link.
pub(crate) fn open_old(directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let path = RelPath::root().join(name).map_err(|error| io::Error::other(error.to_string()))?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(open_beneath(directory, &path, flags)?.into())
}

/// Opens a file of our own, also one that its owner may not read.
///
/// # Errors
/// What the system says.
pub(crate) fn open_own(directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    match open_old(directory, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        opened => return opened,
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&held)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::ACCESS.into());
    }
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::chmod(path.as_str(), mode | Mode::RUSR)?;
    let opened = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    rustix::fs::chmod(path.as_str(), mode)?;
    Ok(opened?.into())
}

/// The root of a file that is there; `None` when it cannot be read, or reading it was stopped.
pub(crate) fn contents_root(
    directory: BorrowedFd<'_>,
    name: &Name,
    stop: impl Fn() -> bool,
) -> Option<[u8; 32]> {
    let root = read_root(&open_old(directory, name).ok()?, stop).ok()??;
    Some(root.0)
}
