//! The session keyring of this process.

use std::io;

use crate::sys;

/// Replaces the session keyring of this thread with an empty one. The session keyring is inherited, and a process that
/// has changed its user can still read the keys in it. Must be called before the process starts another thread.
///
/// Does nothing if the kernel has no keyrings or this process may not use them.
///
/// # Errors
/// Returns the system's error.
pub fn leave_session_keyring() -> io::Result<()> {
    match sys::join_session_keyring() {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_keyring_is_replaced() {
        let Ok(inherited) = sys::session_keyring() else {
            eprintln!("skipped: this process may not use keyrings");
            return;
        };
        leave_session_keyring().unwrap();
        assert_ne!(sys::session_keyring().unwrap(), inherited);
    }
}
