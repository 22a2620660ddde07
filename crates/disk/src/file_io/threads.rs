//! The storage engine of plain system calls: `pread` and `pwrite` on the calling thread.

use std::io;
use std::os::unix::fs::FileExt;

use zmove_types::Buffer;
use zmove_uring::Span;

use crate::file_io::{Engine, Moved, Slices, Way};

/// Blocking positional I/O.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

/// One read from the page cache: large enough that the call costs nothing, small enough to be hashed out of
/// the second-level cache.
const SLICE_BYTES: usize = 256 << 10;

impl Engine for Threads {
    fn read_some(
        &self,
        way: Way<'_>,
        span: Span,
        mut buffer: Buffer,
        seen: Slices<'_>,
    ) -> Moved<usize> {
        let slice_bytes = match way {
            Way::Cached(_) => SLICE_BYTES,
            // One request for everything, since the device waits for each.
            Way::Direct(_) | Way::DirectInTurns(_) => span.len(),
        };
        let mut moved = 0;
        while moved < span.len() {
            let slice = span.part(moved, slice_bytes);
            let room = &mut buffer.room()[slice.room()];
            match way.file().read_at(room, slice.offset()) {
                Ok(0) => break,
                Ok(taken) => {
                    seen(&room[..taken]);
                    moved += taken;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if moved == 0 => return (Err(error), buffer),
                Err(_told_to_the_next_call) => break,
            }
        }
        (Ok(moved), buffer)
    }

    fn write_some(&self, way: Way<'_>, span: Span, buffer: Buffer) -> Moved<usize> {
        loop {
            match way.file().write_at(&buffer[span.room()], span.offset()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return (outcome, buffer),
            }
        }
    }
}
