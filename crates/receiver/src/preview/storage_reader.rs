//! The half of a verification at the target: files are hashed as their storage holds them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_chunk::{FileHasher, GroupHasher, sparse_file_root};
use zmove_disk::{FileIo, StoredFile, Task, Turn};
use zmove_types::{BufferPool, Cv, GroupSpan, Name, Root};
use zmove_wire::limits::{HASHED_GROUPS_MAX, within};
use zmove_wire::{FaultCode, HashOrder, Hashed, WireError};

use crate::config::{BUFFER_BYTES, ReceiverConfig};
use crate::preview::inquiry::{Place, Previewer};
use crate::store::target::renamed;
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

    fn show(&self, file: &StoredFile, span: GroupSpan, seen: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        file.show((self.file_io.as_ref(), &self.buffers), (span.offset(), span.len as usize), seen)
    }
}

impl Previewer {
    /// The values of the groups that are ordered, as far as the file goes.
    pub(super) fn hash(&self, order: &HashOrder) -> Hashed {
        let mut values = Vec::new();
        let turn = self.quota.turn(Task::Look, &self.stopping);
        let fault = self.hash_into(&mut values, &turn, order).err().map(|error| FaultCode::os(&error));
        Hashed { order: order.order, values, fault }
    }

    fn hash_into(
        &self,
        values: &mut Vec<Option<[u8; 32]>>,
        turn: &Turn<'_>,
        HashOrder { path, first, groups, .. }: &HashOrder,
    ) -> io::Result<()> {
        let storage = self.storage.as_ref().ok_or(Errno::INVAL)?;
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::ISDIR)?;
        let Place::There(directory) = self.place(&parent) else { return Err(Errno::NOENT.into()) };
        let name = renamed(self.seen.rename.as_ref(), &parent, &name);
        let file = StoredFile::new(open_old(directory.as_fd(), name)?)?;
        for index in *first..first.saturating_add(*groups) {
            let Some(span) = GroupSpan::of(file.bytes(), index) else { break };
            if turn.is_over() {
                break;
            }
            values.push(storage.value_of(&file, span)?.map(|cv| cv.0));
        }
        Ok(())
    }
}

/// Refuses an order of a conversation that verifies nothing, and one for more groups than an answer may have.
pub(super) fn check(order: &HashOrder, previewer: &Previewer) -> Result<(), WireError> {
    if previewer.storage.is_none() {
        return Err(WireError::OutOfOrder { what: "an order to hash, without a verification" });
    }
    within("groups to hash", order.groups as usize, HASHED_GROUPS_MAX)
}
