//! The storage engine of plain system calls: `pread` and `pwrite` on the calling thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use zmove_types::Buffer;

use crate::backend::{Disk, Slices};

/// Blocking positional I/O through the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

/// One read: large enough that the call costs nothing, small enough to be hashed out of the second-level cache.
const SLICE_BYTES: usize = 256 << 10;

impl Disk for Threads {
    fn read(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        mut buffer: Buffer,
        seen: Slices<'_>,
    ) -> (io::Result<()>, Buffer) {
        let mut filled = 0;
        while filled < len {
            let end = len.min(filled + SLICE_BYTES);
            match file.read_at(&mut buffer.room()[filled..end], offset + filled as u64) {
                Ok(0) => break,
                Ok(taken) => {
                    seen(&buffer.room()[filled..filled + taken]);
                    filled += taken;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        buffer.set_len(filled);
        (Ok(()), buffer)
    }

    fn write(&self, file: &File, offset: u64, buffer: Buffer) -> (io::Result<()>, Buffer) {
        (file.write_all_at(&buffer, offset), buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::BufferPool;

    #[test]
    fn what_was_written_is_read_in_order() {
        let file = tempfile::tempfile().unwrap();
        let pool = BufferPool::new(1 << 20, 1);
        let mut buffer = pool.take().unwrap();
        let painted: Vec<u8> = (0..700_000).map(|i| u8::try_from(i % 251).unwrap()).collect();
        buffer.room()[..painted.len()].copy_from_slice(&painted);
        buffer.set_len(painted.len());
        let (outcome, buffer) = Threads.write(&file, 5, buffer);
        outcome.unwrap();
        let mut slices = Vec::new();
        let (outcome, buffer) =
            Threads.read(&file, 5, 1 << 20, buffer, &mut |slice| slices.extend_from_slice(slice));
        outcome.unwrap();
        assert_eq!(*buffer, painted[..]);
        assert_eq!(slices, painted);
    }
}
