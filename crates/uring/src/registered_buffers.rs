//! The buffers that the kernel keeps pinned for a ring, so that they need not be pinned for each request.
//!
//! Pinned memory is charged to `RLIMIT_MEMLOCK`. Buffers are registered up to that limit. Further buffers are used
//! without registration. **Invariant:** a registered index is used only for the memory that was registered under it. A
//! new buffer may have the address of freed memory, so freed memory is recognized by its [`MemoryId`] and is then
//! unregistered.
#![expect(unsafe_code, reason = "buffers are registered by address")]

use io_uring::Submitter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zmove_types::MemoryId;

use crate::op::Op;

/// The buffers registered with one ring.
#[derive(Debug)]
pub(crate) struct RegisteredBuffers {
    entries: Vec<Option<MemoryId>>,
    full: bool,
}

impl RegisteredBuffers {
    /// Creates a registry of up to `buffers_max` buffers. The registry is empty if the kernel refuses to register
    /// buffers.
    pub(crate) fn new(submitter: &Submitter<'_>, buffers_max: u16) -> Self {
        raise_memlock();
        let refused = buffers_max == 0
            || submitter
                .register_buffers_sparse(u32::from(buffers_max))
                .is_err();
        let entries = if refused { 0 } else { usize::from(buffers_max) };
        Self {
            entries: vec![None; entries],
            full: refused,
        }
    }

    /// Returns the index of the op's memory. Registers the memory first if it is not registered and the limits permit
    /// it.
    pub(crate) fn index(&mut self, submitter: &Submitter<'_>, op: &Op) -> Option<u16> {
        if self.entries.is_empty() {
            return None;
        }
        let (id, memory) = op.memory();
        if let Some(index) = self
            .entries
            .iter()
            .position(|entry| entry.as_ref() == Some(&id))
        {
            return u16::try_from(index).ok();
        }
        self.unpin_freed(submitter);
        if self.full {
            return None;
        }
        let free = self.entries.iter().position(Option::is_none)?;
        let index = u16::try_from(free).ok()?;
        // SAFETY: the memory belongs to the op and is alive. If it is freed while registered, its `MemoryId` becomes
        // invalid and the index is never used for a request again, so the kernel touches only pages that it has pinned
        // itself.
        let registered =
            unsafe { submitter.register_buffers_update(u32::from(index), &[memory], None) };
        match registered {
            Ok(()) => {
                self.entries[free] = Some(id);
                Some(index)
            }
            Err(_over_the_limit) => {
                self.full = true;
                None
            }
        }
    }

    /// Returns whether any buffer is pinned.
    pub(crate) fn has_pinned(&self) -> bool {
        self.entries.iter().any(Option::is_some)
    }

    /// Unpins memory that has been freed.
    pub(crate) fn unpin_freed(&mut self, submitter: &Submitter<'_>) {
        for (entry, index) in self.entries.iter_mut().zip(0u32..) {
            if entry.as_ref().is_none_or(|id| !id.is_gone()) {
                continue;
            }
            let nothing = libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            };
            // SAFETY: an empty entry refers to no memory.
            let unregistered =
                unsafe { submitter.register_buffers_update(index, &[nothing], None) };
            if unregistered.is_ok() {
                *entry = None;
                self.full = false;
            }
        }
    }
}

/// Raises the soft limit of locked memory to the hard limit.
fn raise_memlock() {
    let limit = getrlimit(Resource::Memlock);
    // If the kernel refuses, the limit is unchanged and fewer buffers are registered.
    let _refused = setrlimit(
        Resource::Memlock,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
