//! The half of a verification at the target: files are hashed as their storage holds them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zmove_chunk::{FileHasher, GroupHasher, sparse_file_root};
use zmove_disk::{FileIo, StoredFile, Turn};
use zmove_types::{BufferPool, Cv, GroupSpan, Name, Root};
use zmove_wire::limits::{HASHED_GROUPS_MAX, within};
use zmove_wire::{HashOrder, WireError};

use crate::config::{BUFFER_BYTES, ReceiverConfig};
use crate::store::target::tree::open_old;

/// What it takes to read files from the storage.
#[derive(Debug)]
pub(crate) struct StorageReader {
    file_io: Arc<dyn FileIo>,
    buffers: BufferPool,
}

impl StorageReader {
    pub(crate) fn new(config: &ReceiverConfig) -> Self {
        let buffers = BufferPool::new(BUFFER_BYTES, config.buffers_max);
        Self { file_io: Arc::clone(&config.file_io), buffers }
    }

    /// The root of a file of at most one group.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn root_at(&self, directory: &OwnedFd, name: &Name) -> io::Result<Root> {
        let file = StoredFile::new(open_old(directory.as_fd(), name)?)?;
        let Some(span) = GroupSpan::of(file.bytes(), 0) else { return Ok(FileHasher::default().finish()) };
        let mut hasher = FileHasher::default();
        let has_data = self.show(&file, span, &mut |slice| hasher.update(slice))?;
        let zeros = || sparse_file_root(span.len as usize, std::iter::empty(), &[]);
        Ok(if has_data { hasher.finish() } else { zeros() })
    }

    /// The value of a group; `None` of one that is a hole.
    fn value_of(&self, file: &StoredFile, span: GroupSpan) -> io::Result<Option<Cv>> {
        let mut hasher = GroupHasher::new(span.index);
        let has_data = self.show(file, span, &mut |slice| hasher.update(slice))?;
        Ok(has_data.then(|| hasher.finish()))
    }

    /// Adds the values of the groups of a file that are ordered, as far as it goes.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn hash_into(
        &self,
        values: &mut Vec<Option<[u8; 32]>>,
        turn: &Turn<'_>,
        file: File,
        CheckedOrder(HashOrder { first, groups, .. }): &CheckedOrder,
    ) -> io::Result<()> {
        let file = StoredFile::new(file)?;
        for index in *first..first.saturating_add(*groups) {
            let Some(span) = GroupSpan::of(file.bytes(), index) else { break };
            if turn.is_over() {
                break;
            }
            values.push(self.value_of(&file, span)?.map(|cv| cv.0));
        }
        Ok(())
    }

    fn show(&self, file: &StoredFile, span: GroupSpan, seen: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        file.show((self.file_io.as_ref(), &self.buffers), (span.offset(), span.len as usize), seen)
    }
}

/// An order to hash that may be given.
#[derive(Debug)]
pub(super) struct CheckedOrder(HashOrder);

impl CheckedOrder {
    /// Refuses an order of a conversation that verifies nothing, and one for more groups than an answer may have.
    pub(super) fn new(order: HashOrder, storage: Option<&StorageReader>) -> Result<Self, WireError> {
        if storage.is_none() {
            return Err(WireError::OutOfOrder { what: "an order to hash, without a verification" });
        }
        within("groups to hash", order.groups as usize, HASHED_GROUPS_MAX)?;
        Ok(Self(order))
    }

    pub(super) fn order(&self) -> &HashOrder {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use zmove_types::RelPath;

    use super::*;

    #[test]
    fn orders_are_bounded_and_need_a_verification() {
        let order = |groups| HashOrder { order: 1, path: RelPath::root(), first: 0, groups };
        let most = u32::try_from(HASHED_GROUPS_MAX).unwrap();
        let storage = StorageReader::new(&ReceiverConfig::default());
        assert!(CheckedOrder::new(order(most), Some(&storage)).is_ok());
        assert!(CheckedOrder::new(order(most + 1), Some(&storage)).is_err());
        assert!(CheckedOrder::new(order(1), None).is_err());
    }
}
