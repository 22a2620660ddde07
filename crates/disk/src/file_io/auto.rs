//! The storage engine that is used where none is asked for: plain system calls, which are as fast on local disks
//! (`docs/PERFORMANCE.md`), and io_uring for the one case in which they cannot be.
//!
//! A file system in user space (FUSE) lets go of a file for the next write only when the server has answered the one
//! before, also past the page cache, unless the request is asynchronous. So what many threads write to one large file
//! there by `pwrite` goes one write at a time, and what they hand to a ring does not.
//!
//! The ring is started by the first such write. Where io_uring is refused all goes by plain system calls.

use std::sync::{Arc, OnceLock};

use zmove_types::Buffer;
use zmove_uring::{RingConfig, Span};

use crate::file_io::threads::Threads;
use crate::file_io::uring::Uring;
use crate::file_io::{Engine, FileIo, Moved, Slices, Way};

/// Plain system calls, or io_uring where only that keeps several writes to one file in flight.
#[derive(Debug, Default)]
pub struct Auto {
    ring: OnceLock<Option<Uring>>,
}

impl Engine for Auto {
    fn read_some(
        &self,
        way: Way<'_>,
        span: Span,
        buffer: Buffer,
        seen: Slices<'_>,
    ) -> Moved<usize> {
        Threads.read_some(way, span, buffer, seen)
    }

    fn write_some(&self, way: Way<'_>, span: Span, buffer: Buffer) -> Moved<usize> {
        let ring = match way {
            Way::DirectInTurns(_) => self
                .ring
                .get_or_init(|| Uring::start(RingConfig::default()).ok())
                .as_ref(),
            Way::Cached(_) | Way::Direct(_) => None,
        };
        match ring {
            Some(ring) => ring.write_some(way, span, buffer),
            None => Threads.write_some(way, span, buffer),
        }
    }

    /// An engine with a ring of its own, like that of [`Uring`], which starts with the first write that needs it.
    fn anew(&self) -> Option<Arc<dyn FileIo>> {
        Some(Arc::new(Self::default()))
    }
}
