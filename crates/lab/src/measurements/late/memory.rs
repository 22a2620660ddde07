//! How the C library allocates the buffers of the FUSE threads.
#![expect(unsafe_code, reason = "mallopt has no safe wrapper")]

/// Makes each large buffer a mapping of its own, so that it takes memory only when it is used.
///
/// Each thread of `fuser` allocates 16 MiB of zeros. After the first such buffer is freed, the C library by default
/// takes the next ones from its heap and clears them, which costs 300 threads a second of CPU time and 5 GB of memory.
pub(super) fn map_large_buffers() {
    // SAFETY: mallopt takes its arguments by value and locks the heap itself.
    let _is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
}

const LARGE_BYTES: libc::c_int = 1 << 20;
