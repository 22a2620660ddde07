//! Lists the extended attributes of a directory entry with `listxattrat(2)`, which has no safe wrapper.
#![expect(unsafe_code, reason = "a raw system call")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::path::Arg;

/// Writes the names of all extended attributes of an entry to `buffer`, each terminated by NUL, and returns their total
/// length. Symbolic links are not followed.
///
/// # Errors
/// Returns the error of the system call: `ERANGE` if the buffer is too short. The call was added in Linux 6.13. A
/// system call filter that does not know it may refuse it with `ENOSYS` or `EPERM`.
pub fn list_xattrs_at(
    directory: impl AsFd,
    name: impl Arg,
    buffer: &mut [u8],
) -> rustix::io::Result<usize> {
    let directory = directory.as_fd().as_raw_fd();
    name.into_with_c_str(|name| {
        let flags: libc::c_int = libc::AT_SYMLINK_NOFOLLOW;
        let room = buffer.as_mut_ptr();
        let bytes = buffer.len();
        // SAFETY: the kernel reads the name up to its NUL and writes at most `bytes` bytes to `room`. Both outlive the
        // call, and the descriptor is borrowed.
        let length = unsafe {
            libc::syscall(
                SYS_LISTXATTRAT,
                directory,
                name.as_ptr(),
                flags,
                room,
                bytes,
            )
        };
        usize::try_from(length).map_err(|_negative| last_error())
    })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The number of the `listxattrat` system call, which `libc` does not define. It is the same on every architecture
/// except Alpha.
const SYS_LISTXATTRAT: libc::c_long = 465;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn names_are_those_that_the_open_file_has() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        let file = File::create(home.path().join("f")).unwrap();
        std::os::unix::fs::symlink("f", home.path().join("link")).unwrap();
        let list = |name: &str, room: &mut [u8]| list_xattrs_at(&directory, name, room);
        match list("f", &mut [0; 512]) {
            Err(error @ (Errno::NOSYS | Errno::PERM)) => {
                return eprintln!("skipped: listxattrat: {error}");
            }
            listed => assert_eq!(listed, rustix::fs::flistxattr(&file, &mut [0; 512])),
        }
        assert_eq!(list("nothing", &mut [0; 512]), Err(Errno::NOENT));
        if rustix::fs::fsetxattr(&file, "user.a", b"x", rustix::fs::XattrFlags::empty()).is_err() {
            return eprintln!(
                "skipped: no extended attributes at {}",
                home.path().display()
            );
        }
        let mut room = [0; 512];
        let mut expected = [0; 512];
        let length = list("f", &mut room).unwrap();
        assert_eq!(Ok(length), rustix::fs::flistxattr(&file, &mut expected));
        assert_eq!(room, expected);
        assert!(
            room[..length]
                .split(|byte| *byte == 0)
                .any(|name| name == b"user.a")
        );
        let of_link = list("link", &mut room).unwrap();
        assert!(
            room[..of_link]
                .split(|byte| *byte == 0)
                .all(|name| name != b"user.a"),
            "a link was followed"
        );
        assert_eq!(list("f", &mut [0; 3]), Err(Errno::RANGE));
    }
}
