//! The storage engine's one shape: owned buffers in, owned buffers out.
//!
//! **Invariant:** the buffer comes back on every path, success or not; a read shows each slice once, in order.

use std::fmt;
use std::fs::File;
use std::io;

use zmove_types::Buffer;

/// Reads and writes at positions.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Reads up to `len` bytes from `offset`, fewer only at the end of the file, and shows each slice to `seen` while it
    /// is in cache. The buffer's length is set to what was read.
    ///
    /// # Panics
    /// When `len` is more than the buffer's capacity.
    fn read(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        buffer: Buffer,
        seen: Slices<'_>,
    ) -> (io::Result<()>, Buffer);

    /// Writes the whole buffer at `offset`.
    fn write(&self, file: &File, offset: u64, buffer: Buffer) -> (io::Result<()>, Buffer);
}

/// Takes the slices of a read as they come.
pub type Slices<'a> = &'a mut dyn FnMut(&[u8]);
