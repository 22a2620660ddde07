//! The system and library calls for socket options, the session keyring and lookups.
#![expect(unsafe_code, reason = "these calls have no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The size of a C `int` in bytes.
const INT_BYTES: libc::socklen_t = 4;

/// Sets an option whose value is a C `int`.
pub(crate) fn set_integer(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed and therefore open for the whole call. The pointer and the length describe
    // `value`, which the kernel only reads.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            INT_BYTES,
        )
    };
    checked(outcome).map(drop)
}

/// Reads an option whose value is a structure. Returns the number of bytes of `room` that the kernel filled.
pub(crate) fn bytes(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    room: &mut [u8],
) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(room.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the descriptor is borrowed and therefore open for the whole call. The kernel writes at most `length`
    // bytes to `room`, which is at least that long and outlives the call. Any byte value is valid in `room`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            room.as_mut_ptr().cast(),
            std::ptr::from_mut(&mut length),
        )
    };
    checked(outcome)?;
    Ok(room.len().min(length as usize))
}

/// Joins a new, empty session keyring. Returns its ID.
pub(crate) fn join_session_keyring() -> io::Result<i64> {
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: the null pointer requests a keyring without a name, so the kernel reads no memory.
    checked(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            anonymous,
        )
    })
}

/// Returns the ID of the session keyring.
#[cfg(test)]
pub(crate) fn session_keyring() -> io::Result<i64> {
    // SAFETY: all arguments are integers.
    checked(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_GET_KEYRING_ID,
            libc::KEY_SPEC_SESSION_KEYRING,
            0,
        )
    })
}

/// Returns the result of a system call, or the system's error if the result is -1.
fn checked<T: Into<i64>>(outcome: T) -> io::Result<i64> {
    match outcome.into() {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Sets the services that look up names in a database.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub(crate) fn configure_lookup(database: &std::ffi::CStr, services: &std::ffi::CStr) {
    unsafe extern "C" {
        fn __nss_configure_lookup(
            database: *const libc::c_char,
            services: *const libc::c_char,
        ) -> libc::c_int;
    }
    // SAFETY: both pointers are to strings that end with NUL and outlive the call, which only reads them. It fails only
    // if a name is not known, and then changes nothing.
    let _unknown = unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
}
