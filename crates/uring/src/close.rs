//! Closes a descriptor and reports the result of `close(2)`, which the standard library discards.
#![expect(unsafe_code, reason = "a raw system call")]

use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};

/// Closes a descriptor. Some file systems, such as NFS, report a failure to store data only at this point.
///
/// # Errors
/// Returns the error of the system call; the descriptor is closed regardless. Returns `EIO` if the call was
/// interrupted, because it is then unknown whether the data was stored.
pub fn close(file: impl Into<OwnedFd>) -> io::Result<()> {
    let descriptor = file.into().into_raw_fd();
    // SAFETY: this function owned the descriptor, and nothing else closes it.
    if unsafe { libc::close(descriptor) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.kind() {
        io::ErrorKind::Interrupted => io::Error::from_raw_os_error(libc::EIO),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_closed_descriptor_is_gone() {
        let file = tempfile::tempfile().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let before = std::fs::read_link(&path).unwrap();
        // The link contains the number of the inode, which must not be used again for another test's file.
        let _open = file.try_clone().unwrap();
        close(file).unwrap();
        // Another test may have opened a file that got the same descriptor number.
        assert_ne!(std::fs::read_link(path).ok(), Some(before));
    }
}
