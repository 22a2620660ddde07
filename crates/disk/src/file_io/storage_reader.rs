//! Hashes of files as their storage holds them, for verifications, and for transfers that prove what they have stored
//! or look whether a failed flush has lost it.

use std::io;
use std::sync::Arc;

use zmove_chunk::{FileHasher, GroupHasher, sparse_file_root, sparse_group_cv};
use zmove_types::{BufferPool, Cv, GROUP_BYTES, GroupSpan, Root};

use crate::file_io::FileIo;
use crate::file_io::stored_file::StoredFile;

/// What it takes to read files from their storage.
#[derive(Debug)]
pub struct StorageReader {
    file_io: Arc<dyn FileIo>,
    buffers: BufferPool,
}

/// The size of a buffer for data: one group.
#[expect(clippy::cast_possible_truncation, reason = "4 MiB fits any usize")]
pub const BUFFER_BYTES: usize = GROUP_BYTES as usize;

impl StorageReader {
    /// A reader with so many buffers of a group, each made when it is needed: more threads wait for them.
    #[must_use]
    pub fn new(file_io: &Arc<dyn FileIo>, buffers_max: usize) -> Self {
        Self {
            file_io: Arc::clone(file_io),
            buffers: BufferPool::new(BUFFER_BYTES, buffers_max),
        }
    }

    /// The root of the first `bytes` of a file, at most a group.
    ///
    /// # Errors
    /// The system's error.
    pub fn root_of(&self, file: &StoredFile, bytes: u64) -> io::Result<Root> {
        let Some(span) = GroupSpan::of(bytes, 0) else {
            return Ok(FileHasher::default().finish());
        };
        let mut hasher = FileHasher::default();
        let has_data = self.show(file, span, &mut |slice| hasher.update(slice))?;
        let zeros = || sparse_file_root(span.len as usize, std::iter::empty(), &[]);
        Ok(if has_data { hasher.finish() } else { zeros() })
    }

    /// The value of a group; `None` of one that is a hole.
    ///
    /// # Errors
    /// The system's error.
    pub fn value_of(&self, file: &StoredFile, span: GroupSpan) -> io::Result<Option<Cv>> {
        let mut hasher = GroupHasher::new(span.index);
        let has_data = self.show(file, span, &mut |slice| hasher.update(slice))?;
        Ok(has_data.then(|| hasher.finish()))
    }

    /// Whether a group has that value; `None` is that of zeros. Whether these are a hole does not matter.
    ///
    /// # Errors
    /// The system's error.
    pub fn has_value(
        &self,
        file: &StoredFile,
        span: GroupSpan,
        wanted: Option<Cv>,
    ) -> io::Result<bool> {
        let found = self.value_of(file, span)?;
        Ok(found == wanted || value_or_zeros(span, found) == value_or_zeros(span, wanted))
    }

    fn show(
        &self,
        file: &StoredFile,
        span: GroupSpan,
        seen: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        file.show(
            (self.file_io.as_ref(), &self.buffers),
            (span.offset(), span.len as usize),
            seen,
        )
    }
}

/// The value of a group; a hole and zeros are the same contents.
#[must_use]
pub fn value_or_zeros(span: GroupSpan, value: Option<Cv>) -> Cv {
    value.unwrap_or_else(|| sparse_group_cv(span, std::iter::empty(), &[]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::file_io::threads::Threads;
    use zmove_types::GROUP_BYTES;

    /// Groups of zeros that are a hole, and one that is allocated.
    #[test]
    fn zeros_are_a_hole_or_none() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0; 4096], GROUP_BYTES).unwrap();
        file.write_all_at(b"data", 2 * GROUP_BYTES).unwrap();
        let reader = StorageReader::new(&(Arc::new(Threads) as Arc<dyn FileIo>), 1);
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
