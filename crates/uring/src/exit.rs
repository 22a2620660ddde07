//! Ends the process without the destructors that the standard library's `exit` runs.
#![expect(unsafe_code, reason = "a raw system call")]

/// Ends the process with this exit code. Neither functions registered with `atexit(3)` nor the destructors of libraries
/// run, so threads may still use these libraries. The caller must have flushed all output.
pub fn exit_without_destructors(code: u8) -> ! {
    // SAFETY: the call has no preconditions. It touches no memory of the process and does not return.
    unsafe { libc::_exit(code.into()) }
}
