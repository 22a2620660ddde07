//! Hashes the stored contents of files. Used for verification, for transfers that read back what they have written, and
//! for transfers that check whether a failed flush has lost data.
//!
//! After a failed write-back or a bit error on the disk, the page cache still holds the data that was written. So clean
//! pages are dropped before reading, and reads bypass the page cache if possible. Dirty pages and mapped pages cannot
//! be dropped, so they are read from memory.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use zmove_chunk::{FileHasher, GroupHasher, sparse_file_root, sparse_group_cv};
use zmove_types::{BufferPool, Cv, GROUP_BYTES, GroupSpan, Root};

use crate::storage::file_io::data_file::{DataFile, Direct};
use crate::storage::file_io::{FileIo, SliceCallback};
use crate::storage::holes::next_data_offset;

/// A file whose contents are read from its storage instead of the page cache.
#[derive(Debug)]
pub struct StoredFile {
    data: DataFile,
    bytes: u64,
}

impl StoredFile {
    /// Prepares an open file for reading from its storage.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Self {
            data: DataFile::for_reading(file, bytes, Direct::On),
            bytes,
        })
    }

    /// Returns the length of the file in bytes at the time it was opened.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the open file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.data.file()
    }
}

/// Reads files from storage, with shared buffers.
#[derive(Debug)]
pub struct StorageReader {
    file_io: Arc<dyn FileIo>,
    buffers: BufferPool,
}

/// The size of a data buffer in bytes, which is one group.
#[expect(clippy::cast_possible_truncation, reason = "4 MiB fits any usize")]
pub const BUFFER_BYTES: usize = GROUP_BYTES as usize;

impl StorageReader {
    /// Creates a reader with up to `buffers_max` buffers of one group each, allocated on demand. Further threads wait
    /// for a buffer.
    #[must_use]
    pub fn new(file_io: &Arc<dyn FileIo>, buffers_max: usize) -> Self {
        Self {
            file_io: Arc::clone(file_io),
            buffers: BufferPool::new(BUFFER_BYTES, buffers_max),
        }
    }

    /// Returns the root hash of the first `bytes` of a file, at most one group.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn root_of(&self, file: &StoredFile, bytes: u64) -> io::Result<Root> {
        let Some(span) = GroupSpan::of(bytes, 0) else {
            return Ok(FileHasher::default().finish());
        };
        let mut hasher = FileHasher::default();
        let has_data = self.read_slices(file, span, &mut |slice| hasher.update(slice))?;
        let zeros = || sparse_file_root(span.len as usize, std::iter::empty(), &[]);
        Ok(if has_data { hasher.finish() } else { zeros() })
    }

    /// Returns the chaining value of a group, or `None` if the whole group is a hole.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn value_of(&self, file: &StoredFile, span: GroupSpan) -> io::Result<Option<Cv>> {
        let mut hasher = GroupHasher::new(span.index);
        let has_data = self.read_slices(file, span, &mut |slice| hasher.update(slice))?;
        Ok(has_data.then(|| hasher.finish()))
    }

    /// Returns whether a group has the chaining value `wanted`, where `None` means that all bytes are zero. Zero bytes
    /// match `None` whether they are stored or a hole.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn has_value(
        &self,
        file: &StoredFile,
        span: GroupSpan,
        wanted: Option<Cv>,
    ) -> io::Result<bool> {
        let found = self.value_of(file, span)?;
        Ok(found == wanted || value_or_zeros(span, found) == value_or_zeros(span, wanted))
    }

    /// Passes all bytes of a group to `seen`, or none if the group is a hole. Returns whether the group contains data.
    /// Fails if the file ends inside the group.
    fn read_slices(
        &self,
        file: &StoredFile,
        span: GroupSpan,
        seen: SliceCallback<'_>,
    ) -> io::Result<bool> {
        let offset = span.offset();
        let data = next_data_offset(file.file(), offset)?;
        if data.is_none_or(|begin| begin >= offset + u64::from(span.len)) {
            return Ok(false);
        }
        file.data.drop_cached_span(offset, span.len.into())?;
        let buffer = self.buffers.take().ok_or(Errno::NOBUFS)?;
        let len = span.len as usize;
        let (outcome, buffer) = self.file_io.read(&file.data, offset, len, buffer, seen);
        outcome?;
        if buffer.len() == len {
            Ok(true)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Returns the chaining value of a group. If the group is a hole (`None`), returns the value of a group of zeros.
#[must_use]
pub fn value_or_zeros(span: GroupSpan, value: Option<Cv>) -> Cv {
    value.unwrap_or_else(|| sparse_group_cv(span, std::iter::empty(), &[]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::storage::file_io::storage_engine::StorageEngine;
    use zmove_types::GROUP_BYTES;

    fn reader() -> StorageReader {
        StorageReader::new(&(Arc::new(StorageEngine::Threads) as Arc<dyn FileIo>), 1)
    }

    fn shown(file: &StoredFile, index: u32) -> io::Result<Option<Vec<u8>>> {
        let mut all = Vec::new();
        let span = GroupSpan::of(file.bytes(), index).unwrap();
        let has_data =
            reader().read_slices(file, span, &mut |slice| all.extend_from_slice(slice))?;
        Ok(has_data.then_some(all))
    }

    #[test]
    fn data_is_shown_and_holes_are_not_read() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"data", 2 * GROUP_BYTES).unwrap();
        let file = StoredFile::new(file).unwrap();
        assert_eq!(file.bytes(), 2 * GROUP_BYTES + 4);
        assert_eq!(shown(&file, 2).unwrap().unwrap(), b"data");
        assert_eq!(shown(&file, 1).unwrap(), None);
    }

    #[test]
    fn a_file_that_was_cut_off_meanwhile_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let stored = StoredFile::new(file.try_clone().unwrap()).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(
            shown(&stored, 0).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    /// Some groups of zeros are holes, and one is allocated.
    #[test]
    fn zeros_are_a_hole_or_none() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0; 4096], GROUP_BYTES).unwrap();
        file.write_all_at(b"data", 2 * GROUP_BYTES).unwrap();
        let reader = reader();
        let bytes = 2 * GROUP_BYTES + 4;
        let file = StoredFile::new(file).unwrap();
        let is = |index, wanted| {
            reader
                .has_value(&file, GroupSpan::of(bytes, index).unwrap(), wanted)
                .unwrap()
        };
        let zeros = |index| {
            sparse_group_cv(
                GroupSpan::of(bytes, index).unwrap(),
                std::iter::empty(),
                &[],
            )
        };
        assert!(is(0, None) && is(0, Some(zeros(0))) && !is(0, Some(zeros(1))));
        assert!(is(1, None) && is(1, Some(zeros(1))));
        assert!(!is(2, None) && is(2, Some(zmove_chunk::group_cv(2, b"data"))));
    }
}
