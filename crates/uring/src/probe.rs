//! Checks whether io_uring works on this host. Many containers and some distributions disable it, and old kernels lack
//! some operations.
//!
//! Every failure is returned as a value with its reason, because the caller can fall back to another engine.
#![expect(unsafe_code, reason = "a request holds an address")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, Probe, opcode, types::Fd};
use rustix::fs::MemfdFlags;
use thiserror::Error;

/// The reason why io_uring cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The ring cannot be created: the kernel does not support io_uring, a sysctl or a seccomp filter forbids it, or
    /// memory is short.
    #[error("io_uring_setup is refused")]
    Setup {
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses to list the operations that it supports.
    #[error("io_uring_register is refused")]
    Register {
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel is too old.
    #[error("this kernel's io_uring cannot {operation}")]
    Operation {
        /// The missing operation.
        operation: &'static str,
    },
    /// The first read failed or returned wrong data.
    #[error("the first read with io_uring failed")]
    FirstRead {
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The thread of the ring, or the descriptor that wakes it, cannot be created.
    #[error("cannot start a thread for io_uring")]
    Thread {
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Tests io_uring, from setup to a first read.
///
/// # Errors
/// Returns the failure of the first step that does not succeed.
pub(crate) fn probe() -> Result<(), Unavailable> {
    let mut ring = open_ring(PROBE_ENTRIES).map_err(|source| Unavailable::Setup { source })?;
    check_operations(&ring)?;
    first_read(&mut ring).map_err(|source| Unavailable::FirstRead { source })
}

/// Opens a ring that only the calling thread uses. Completions are processed when that thread asks for them, if the
/// kernel supports this mode.
pub(crate) fn open_ring(entries: u32) -> io::Result<IoUring> {
    let deferred = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_clamp()
        .build(entries);
    match deferred {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        outcome => return outcome,
    }
    match IoUring::builder()
        .setup_coop_taskrun()
        .setup_clamp()
        .build(entries)
    {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries),
        outcome => outcome,
    }
}

fn check_operations(ring: &IoUring) -> Result<(), Unavailable> {
    let mut found = Probe::new();
    ring.submitter()
        .register_probe(&mut found)
        .map_err(|source| Unavailable::Register { source })?;
    let missing = OPERATIONS
        .iter()
        .find(|(code, _)| !found.is_supported(*code));
    missing.map_or(Ok(()), |&(_, operation)| {
        Err(Unavailable::Operation { operation })
    })
}

/// Reads a page of a memory file and checks its contents.
fn first_read(ring: &mut IoUring) -> io::Result<()> {
    let file = painted_page()?;
    let mut page = vec![0; PAGE.len()];
    let len = u32::try_from(page.len()).expect("a page");
    let read = opcode::Read::new(Fd(file.as_raw_fd()), page.as_mut_ptr(), len).build();
    // SAFETY: the file and the memory of the entry are locals, and this function waits for the completion.
    let pushed = unsafe { ring.submission().push(&read) };
    pushed.expect("an empty queue has room");
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Nothing was submitted, so the kernel does not hold a reference to the entry's memory.
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        if let Some(done) = ring.completion().next() {
            return match usize::try_from(done.result()) {
                Ok(bytes) if bytes == PAGE.len() && page == PAGE => Ok(()),
                Ok(_) => Err(io::ErrorKind::InvalidData.into()),
                Err(_) => Err(io::Error::from_raw_os_error(-done.result())),
            };
        }
    }
}

fn painted_page() -> io::Result<File> {
    let fd = rustix::fs::memfd_create(c"zmove-probe", MemfdFlags::CLOEXEC)?;
    let file = File::from(fd);
    file.write_all_at(&PAGE, 0)?;
    Ok(file)
}

const PROBE_ENTRIES: u32 = 4;
/// The operations that the kernel must support.
const OPERATIONS: [(u8, &str); 6] = [
    (opcode::Read::CODE, "read"),
    (opcode::Write::CODE, "write"),
    (opcode::ReadFixed::CODE, "read into registered memory"),
    (opcode::WriteFixed::CODE, "write from registered memory"),
    (opcode::PollAdd::CODE, "wait for a descriptor"),
    (opcode::AsyncCancel::CODE, "cancel"),
];
const PAGE: [u8; 4096] = [0xa5; 4096];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_works_where_the_lab_is_required() {
        if let Err(error) = probe() {
            let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
            assert!(!required, "ZMOVE_REQUIRE_LAB=1, but {error}");
            eprintln!("skipped: {error}");
        }
    }
}
