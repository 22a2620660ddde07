//! A file as its storage holds it, to be compared with what should be there.
//!
//! After a write-back that failed, or on a disk that has changed a bit, the page cache still has what was written. So
//! clean pages are dropped before anything is read, and what can be read past the page cache is. Pages that are still
//! to be written, or that somebody has mapped, are read from memory: the storage does not have them yet.

use std::fs::File;
use std::io;

use rustix::io::Errno;
use zmove_types::BufferPool;

use crate::file_io::data_file::{DataFile, Direct};
use crate::file_io::{FileIo, Slices};
use crate::holes::data_begins;

/// A file that is read as its storage holds it.
#[derive(Debug)]
pub struct StoredFile {
    data: DataFile,
    bytes: u64,
}

impl StoredFile {
    /// An open file.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Self {
            data: DataFile::for_reading(file, bytes, Direct::On),
            bytes,
        })
    }

    /// The length of the file in bytes when it was opened.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.data.file()
    }

    /// Shows `seen` all of the `len` bytes from `offset` on; nothing of a span that is a hole. Returns whether there
    /// was data. The span must fit into a buffer of the pool.
    ///
    /// # Errors
    /// The system's error, `UnexpectedEof` where the file ends within the span.
    pub fn show(
        &self,
        (file_io, buffers): (&dyn FileIo, &BufferPool),
        (offset, len): (u64, usize),
        seen: Slices<'_>,
    ) -> io::Result<bool> {
        let data = data_begins(self.file(), offset)?;
        if data.is_none_or(|begin| begin >= offset + len as u64) {
            return Ok(false);
        }
        self.data.drop_cached_span(offset, len as u64)?;
        let buffer = buffers.take().ok_or(Errno::NOBUFS)?;
        let (outcome, buffer) = file_io.read(&self.data, offset, len, buffer, seen);
        outcome?;
        if buffer.len() == len {
            Ok(true)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::file_io::threads::Threads;

    fn shown(file: &StoredFile, span: (u64, usize)) -> io::Result<Option<Vec<u8>>> {
        let mut all = Vec::new();
        let buffers = BufferPool::new(span.1, 1);
        let has_data = file.show((&Threads, &buffers), span, &mut |slice| {
            all.extend_from_slice(slice)
        })?;
        Ok(has_data.then_some(all))
    }

    #[test]
    fn data_is_shown_and_holes_are_not_read() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"data", 1 << 20).unwrap();
        file.set_len(4 << 20).unwrap();
        let file = StoredFile::new(file).unwrap();
        assert_eq!(file.bytes(), 4 << 20);
        assert_eq!(shown(&file, (1 << 20, 4)).unwrap().unwrap(), b"data");
        assert_eq!(shown(&file, (2 << 20, 4096)).unwrap(), None);
    }

    #[test]
    fn a_file_that_was_cut_off_meanwhile_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let stored = StoredFile::new(file.try_clone().unwrap()).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(
            shown(&stored, (0, 8192)).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
