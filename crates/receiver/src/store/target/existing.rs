//! What stands at the target under the name of a file that is coming: looked at, and never followed or waited for.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;
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

/// The root of a file that is there; `None` when it cannot be read, or reading it was stopped.
pub(crate) fn contents_root(
    directory: BorrowedFd<'_>,
    name: &Name,
    stop: impl Fn() -> bool,
) -> Option<[u8; 32]> {
    let root = read_root(&open_old(directory, name).ok()?, stop).ok()??;
    Some(root.0)
}
