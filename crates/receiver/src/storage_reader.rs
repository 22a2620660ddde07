//! The half of a verification at the target: files are hashed as their storage holds them. Used by `zmove verify`, and
//! by transfers that prove what they have received (`store/proving.rs`) or look whether a failed flush has lost it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zmove_chunk::{FileHasher, GroupHasher, sparse_file_root, sparse_group_cv};
use zmove_disk::{FileIo, StoredFile};
use zmove_types::{BufferPool, Cv, GroupSpan, Name, Root};

use crate::config::BUFFER_BYTES;
use crate::store::target::tree::open_old;

/// What it takes to read files from the storage.
#[derive(Debug)]
pub(crate) struct StorageReader {
    file_io: Arc<dyn FileIo>,
    buffers: BufferPool,
}

impl StorageReader {
    /// A reader with so many buffers of a group, each made when it is needed: more threads wait for them.
    pub(crate) fn new(file_io: &Arc<dyn FileIo>, buffers_max: usize) -> Self {
        Self {
            file_io: Arc::clone(file_io),
            buffers: BufferPool::new(BUFFER_BYTES, buffers_max),
        }
    }

    /// The root of a file of at most one group.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn root_at(&self, directory: &OwnedFd, name: &Name) -> io::Result<Root> {
        let file = StoredFile::new(open_old(directory.as_fd(), name)?)?;
        self.root_of(&file, file.bytes())
    }

    /// The root of the first `bytes` of a file, at most a group.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn root_of(&self, file: &StoredFile, bytes: u64) -> io::Result<Root> {
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
    pub(crate) fn value_of(&self, file: &StoredFile, span: GroupSpan) -> io::Result<Option<Cv>> {
        let mut hasher = GroupHasher::new(span.index);
        let has_data = self.show(file, span, &mut |slice| hasher.update(slice))?;
        Ok(has_data.then(|| hasher.finish()))
    }

    /// Whether a group has that value; `None` is that of zeros. Whether these are a hole does not matter.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn has_value(
        &self,
        file: &StoredFile,
        span: GroupSpan,
        wanted: Option<Cv>,
    ) -> io::Result<bool> {
        let zeros = || sparse_group_cv(span, std::iter::empty(), &[]);
        Ok(match (self.value_of(file, span)?, wanted) {
            (None, None) => true,
            (found, wanted) => found.unwrap_or_else(zeros) == wanted.unwrap_or_else(zeros),
        })
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use zmove_disk::Threads;
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
