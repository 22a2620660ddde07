//! The buffers that the kernel keeps pinned for a ring, so that it need not pin them for each request.
//!
//! Pinned memory is charged to `RLIMIT_MEMLOCK`: what fits is registered, the rest moves unregistered. **Invariant:** a
//! registered index is used only for the very memory that was registered. Memory that has been freed since is
//! recognised by its [`MemoryId`], though a new buffer may have its address, and is unregistered.
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
    /// A registry of up to `buffers_max` buffers; of none where the kernel refuses to register any.
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

    /// The index of the op's memory, which is registered now if it was not and there is room.
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
        self.let_go(submitter);
        if self.full {
            return None;
        }
        let free = self.entries.iter().position(Option::is_none)?;
        let index = u16::try_from(free).ok()?;
        // SAFETY: the memory is the op's and lives now; should it be freed while registered, its `MemoryId` is gone and
        // the index is never used for a request again, so the kernel touches only pages it has pinned for itself.
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

    /// Whether anything is pinned.
    pub(crate) fn pins_any(&self) -> bool {
        self.entries.iter().any(Option::is_some)
    }

    /// Unpins memory that has been freed.
    pub(crate) fn let_go(&mut self, submitter: &Submitter<'_>) {
        for (entry, index) in self.entries.iter_mut().zip(0u32..) {
            if entry.as_ref().is_none_or(|id| !id.is_gone()) {
                continue;
            }
            let nothing = libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            };
            // SAFETY: an empty entry names no memory.
            let unregistered =
                unsafe { submitter.register_buffers_update(index, &[nothing], None) };
            if unregistered.is_ok() {
                *entry = None;
                self.full = false;
            }
        }
    }
}

/// Raises the soft limit of locked memory as far as it goes.
fn raise_memlock() {
    let limit = getrlimit(Resource::Memlock);
    // A refusal leaves the limit as it was: fewer buffers are registered then.
    let _refused = setrlimit(
        Resource::Memlock,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
