//! Queries the page cache for the cached part of a file with `cachestat(2)`, which has no safe wrapper.
#![expect(unsafe_code, reason = "a raw system call")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// The kernel's `struct cachestat_range`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

/// The kernel's `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the number of bytes of the file in `range` that are in the page cache, counted in whole pages.
///
/// # Errors
/// Returns the error of the system call. The call was added in Linux 6.5, is not supported by every file system, and
/// may be refused for a file that the caller is not allowed to write.
pub fn cached_bytes(file: impl AsFd, range: Range<u64>) -> io::Result<u64> {
    if range.is_empty() {
        // The kernel takes a length of zero to mean the rest of the file.
        return Ok(0);
    }
    let asked = CachestatRange {
        offset: range.start,
        len: range.end - range.start,
    };
    let mut answer = Cachestat::default();
    let asked: *const _ = &raw const asked;
    let counted: *mut _ = &raw mut answer;
    let no_flags: libc::c_uint = 0;
    // SAFETY: the kernel reads one `cachestat_range` and writes one `cachestat`. Both live on this stack frame until
    // the call returns, and the descriptor is borrowed.
    let outcome = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            asked,
            counted,
            no_flags,
        )
    };
    if outcome == 0 {
        Ok(answer.cached * rustix::param::page_size() as u64)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The number of the `cachestat` system call, which `libc` does not define. It is the same on every architecture except
/// Alpha.
const SYS_CACHESTAT: libc::c_long = 451;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_cached() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        match cached_bytes(&file, 0..100_000) {
            Ok(bytes) => assert!((100_000..=200_000).contains(&bytes), "{bytes}"),
            Err(error) => eprintln!("skipped: cachestat: {error}"),
        }
        assert_eq!(cached_bytes(&file, 5..5).unwrap(), 0);
    }
}
