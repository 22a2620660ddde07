//! Closing a descriptor and hearing how that went: `close(2)`, whose result the standard library drops.
#![expect(unsafe_code, reason = "a raw system call")]

use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};

/// Closes a descriptor. Some file systems, NFS among them, report only here that data could not be stored.
///
/// # Errors
/// The system call's error; the descriptor is closed nevertheless. `EIO` if the call was interrupted, since nobody
/// knows then whether the data was stored.
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
        close(file).unwrap();
        // Another test may have opened a file of that number by now.
        assert_ne!(std::fs::read_link(path).ok(), Some(before));
    }
}
