//! The large files of one transfer while their groups arrive. Groups may arrive in any order and over any lane.
//!
//! ```text
//!  declared ──first group──► open ──last group──► committing ──► gone
//!      │                      │
//!      └──── abandoned, failed, contradicted ──► dead (its groups are dropped)
//! ```
//!
//! **Invariant:** a file becomes [`Complete`] exactly once, after each group that contains data has been written once.
//! Groups that are holes are not sent. If a file contains no data, the sender sends one of its holes as a group, to
//! complete the file.

pub(crate) mod delta;
pub(crate) mod received_hashes;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zmove_disk::{FileIdentity, Staged, free_bytes};
use zmove_types::{BytesByOrigin, Cv, FileId, GroupSpan, ItemId, Origin, Root};
use zmove_wire::limits::FILES_UNFINISHED_MAX;
use zmove_wire::{Fault, FaultCode, FileHead, Operation, WireError};

use crate::resume::parts::ResumedPart;
use crate::rights::quota::{Charge, Quota};
use crate::store::large_files::delta::OldVersion;
use crate::store::large_files::received_hashes::ReceivedHashes;
use zmove_types::Lock;

/// All large files of a transfer.
#[derive(Debug)]
pub(crate) struct FileTable {
    quota: Quota,
    /// Quota that is charged for received hash values, or `None` if hash values are not kept.
    values: Option<Quota>,
    completion: Completion,
    table: Lock<Table>,
}

#[derive(Debug)]
struct Table {
    slots: HashMap<FileId, FileSlot>,
    /// Number of live files.
    living: usize,
    /// Number of files that were abandoned before they were declared.
    abandoned_undeclared: usize,
    /// The memory that is charged for the slots, which exist until the transfer ends.
    held: Charge,
}

#[derive(Debug)]
enum FileSlot {
    Live(Arc<LargeFile>),
    /// The file is complete and about to be renamed into place. Further copies of its chunks are not reported as done
    /// before the rename.
    Closing(Arc<LargeFile>),
    Dead,
    /// The file was abandoned, but its declaration may still arrive.
    AbandonedUndeclared,
}

/// One large file.
#[derive(Debug)]
pub(crate) struct LargeFile {
    pub(crate) id: FileId,
    pub(crate) head: FileHead,
    /// The old version of the file at the target.
    pub(crate) old_version: Option<OldVersion>,
    given_up: AtomicBool,
    completion: Completion,
    state: Lock<LargeFileState>,
    _held: Charge,
}

#[derive(Debug, Default)]
struct LargeFileState {
    staged: Option<Arc<Staged>>,
    written: HashSet<u32>,
    /// Number of groups with data that were not written yet.
    unwritten: usize,
    is_complete: bool,
    /// Groups that are being written. Each has the items of copies of the group that arrived during the write.
    writing: HashMap<u32, Vec<ItemId>>,
    /// The received hash values, if they are needed to read the file back or to compute its root.
    received_hashes: Option<ReceivedHashes>,
    /// Origins of the bytes in the groups that were written.
    origins: BytesByOrigin,
}

/// The order of a chunk among the copies of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupCopy {
    /// The chunk must be written.
    First,
    /// An earlier copy is being written. This copy is reported as done together with it.
    Waiting,
    /// An earlier copy was already written, or the file is already complete. This copy is not needed.
    Late,
}

/// The condition for a file to be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The file is complete when all of its groups have been received.
    AllGroups,
    /// The file is complete when the sender orders its commit, because other receivers write to the file too.
    SenderOrder,
}

/// The space that an unfinished file still needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingSpace {
    /// Bytes of data for which no space is allocated yet.
    pub(crate) bytes: u64,
    /// Free bytes on the file system.
    pub(crate) free: u64,
}

/// The unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Proof that every group of a file was written.
#[derive(Debug)]
pub(crate) struct Complete(pub(crate) Staged);

impl FileTable {
    pub(crate) fn new(quota: &Quota, values: Option<Quota>, completion: Completion) -> Self {
        Self {
            quota: quota.clone(),
            values,
            completion,
            table: Lock::new(Table {
                slots: HashMap::new(),
                living: 0,
                abandoned_undeclared: 0,
                held: quota.empty_charge(),
            }),
        }
    }

    /// Registers a file that is about to be abandoned, even if its declaration has not been received yet.
    ///
    /// # Errors
    /// Returns an error if more undeclared files were abandoned than a sender may have in progress.
    pub(crate) fn register_abandoned(&self, id: FileId) -> Result<(), WireError> {
        let mut table = self.table.lock();
        if table.slots.contains_key(&id) {
            return Ok(());
        }
        if table.abandoned_undeclared >= FILES_UNFINISHED_MAX {
            return Err(WireError::OutOfOrder {
                what: "the end of a file that was not started",
            });
        }
        table.held.grow(SLOT_BYTES)?;
        table.abandoned_undeclared += 1;
        table.slots.insert(id, FileSlot::AbandonedUndeclared);
        Ok(())
    }

    /// Declares a file. Ignores a repeated declaration that is equal to the first one. `old_version` returns the old
    /// version of the file. `prior` returns the part (the temporary file of an earlier transfer) from which the file
    /// resumes, and the origins of its bytes. Only this file is locked while `prior` runs.
    ///
    /// # Errors
    /// Returns an error if the declaration contradicts an earlier one, in which case the file has failed. Also returns
    /// an error if too many files are live.
    pub(crate) fn declare(
        &self,
        id: FileId,
        head: FileHead,
        old_version: impl FnOnce(&FileHead) -> Option<OldVersion>,
        prior: impl FnOnce(&FileHead) -> Option<(ResumedPart, BytesByOrigin)>,
    ) -> Result<(), Undeclarable> {
        let mut table = self.table.lock();
        match table.slots.get(&id) {
            None if GroupSpan::count(head.bytes).is_some_and(|count| count > 1) => {
                if table.living >= FILES_UNFINISHED_MAX {
                    let limit = FILES_UNFINISHED_MAX as u64;
                    return Err(WireError::OverLimit {
                        what: "number of unfinished large files",
                        value: limit + 1,
                        limit,
                    }
                    .into());
                }
                table.held.grow(SLOT_BYTES)?;
                let ranges = head.data.as_ref().map_or(0, |data| data.ranges().len());
                let beside = head.metadata.extra_bytes() + RANGE_BYTES * ranges;
                let held = self
                    .quota
                    .charge_memory(FILE_BYTES + 2 * head.path.as_bytes().len() + beside)?;
                let received_hashes = self.values.as_ref().map(ReceivedHashes::new);
                let file = Arc::new(LargeFile {
                    id,
                    old_version: old_version(&head),
                    head,
                    given_up: AtomicBool::new(false),
                    completion: self.completion,
                    state: Lock::default(),
                    _held: held,
                });
                let mut state = file.state.lock();
                table.slots.insert(id, FileSlot::Live(Arc::clone(&file)));
                table.living += 1;
                drop(table);
                *state =
                    LargeFileState::resume_from(&file.head, prior(&file.head), received_hashes)?;
                Ok(())
            }
            Some(FileSlot::Live(file)) if file.head == head => Ok(()),
            Some(FileSlot::Dead | FileSlot::Closing(_)) => Ok(()),
            Some(FileSlot::AbandonedUndeclared) => {
                table.abandoned_undeclared -= 1;
                table.slots.insert(id, FileSlot::Dead);
                Ok(())
            }
            earlier => {
                let was_live = matches!(earlier, Some(FileSlot::Live(_)));
                let is_new = earlier.is_none();
                if is_new {
                    table.held.grow(SLOT_BYTES)?;
                }
                table.living -= usize::from(was_live);
                table.slots.insert(id, FileSlot::Dead);
                Err(Undeclarable::Contradicted(Fault {
                    path: head.path,
                    operation: Operation::Verify,
                    code: FaultCode::Contradiction,
                }))
            }
        }
    }

    /// Returns the file, or `None` if it has ended or was abandoned. Returns an error if it was never declared.
    pub(crate) fn find(&self, id: FileId) -> Result<Option<Arc<LargeFile>>, Undeclared> {
        match self.table.lock().slots.get(&id) {
            None => Err(Undeclared),
            Some(FileSlot::Dead | FileSlot::AbandonedUndeclared) => Ok(None),
            Some(FileSlot::Live(file) | FileSlot::Closing(file)) => Ok(Some(Arc::clone(file))),
        }
    }

    /// Returns all live files.
    pub(crate) fn living(&self) -> Vec<Arc<LargeFile>> {
        let table = self.table.lock();
        let living = table.slots.values().filter_map(|slot| match slot {
            FileSlot::Live(file) => Some(Arc::clone(file)),
            FileSlot::Closing(_) | FileSlot::Dead | FileSlot::AbandonedUndeclared => None,
        });
        living.collect()
    }

    /// Ends a file and returns it if it was live. So only one caller reports the end of the file.
    pub(crate) fn retire(&self, id: FileId) -> Option<Arc<LargeFile>> {
        self.end(id, |_| FileSlot::Dead)
    }

    /// Marks a file as complete and queued for its rename, until [`closed`](Self::closed) is called. Returns whether
    /// the file was live.
    pub(crate) fn close(&self, id: FileId) -> bool {
        self.end(id, FileSlot::Closing).is_some()
    }

    /// Marks a complete file as ended after its rename has succeeded or failed.
    pub(crate) fn closed(&self, id: FileId) {
        self.table.lock().slots.insert(id, FileSlot::Dead);
    }

    fn end(
        &self,
        id: FileId,
        into: impl FnOnce(Arc<LargeFile>) -> FileSlot,
    ) -> Option<Arc<LargeFile>> {
        let mut table = self.table.lock();
        match table.slots.entry(id) {
            Entry::Vacant(place) => {
                place.insert(FileSlot::Dead);
                None
            }
            Entry::Occupied(mut slot) => match slot.get() {
                FileSlot::Live(file) => {
                    let file = Arc::clone(file);
                    slot.insert(into(Arc::clone(&file)));
                    table.living -= 1;
                    Some(file)
                }
                FileSlot::Closing(_) | FileSlot::Dead | FileSlot::AbandonedUndeclared => None,
            },
        }
    }

    /// Ends all live files and returns them.
    pub(crate) fn retire_all(&self) -> Vec<Arc<LargeFile>> {
        let living = self.living().into_iter();
        living.filter_map(|file| self.retire(file.id)).collect()
    }
}

/// Memory for one slot, in bytes. It includes the spare capacity of a table that has just grown.
const SLOT_BYTES: usize = 64;
/// Memory for one live file without its path and its groups, in bytes.
const FILE_BYTES: usize = 1024;

/// Memory for one data range, in bytes.
pub(crate) const RANGE_BYTES: usize = 16;

/// The reason why a declaration is rejected.
#[derive(Debug)]
pub(crate) enum Undeclarable {
    Contradicted(Fault),
    /// There is no memory for the file, or more than [`FILES_UNFINISHED_MAX`] files are in progress.
    OverLimit(WireError),
}

impl From<WireError> for Undeclarable {
    fn from(error: WireError) -> Self {
        Self::OverLimit(error)
    }
}

/// The error for a file that no lane has declared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undeclared;

impl LargeFileState {
    fn resume_from(
        head: &FileHead,
        prior: Option<(ResumedPart, BytesByOrigin)>,
        mut received_hashes: Option<ReceivedHashes>,
    ) -> Result<Self, WireError> {
        let (prior, origins) = prior.unzip();
        let (staged, groups) = prior
            .map(|prior| (Arc::new(prior.staged), prior.groups))
            .unzip();
        let groups = groups.unwrap_or_default();
        if let Some(received_hashes) = &mut received_hashes {
            groups
                .iter()
                .try_for_each(|(index, cv)| received_hashes.note(*index, *cv))?;
        }
        let written: HashSet<_> = groups.into_iter().map(|(index, _)| index).collect();
        let unwritten = match &head.data {
            Some(data) => {
                data.group_count()
                    - written
                        .iter()
                        .filter(|index| data.has_group(**index))
                        .count()
            }
            // There are at most as many written groups as groups in the file, because a journal lists no group beyond
            // the end of its file.
            None => {
                GroupSpan::count(head.bytes).expect("checked when declared") as usize
                    - written.len()
            }
        };
        Ok(Self {
            staged,
            written,
            unwritten,
            received_hashes,
            origins: origins.unwrap_or_default(),
            ..Self::default()
        })
    }
}

impl LargeFile {
    /// Gives up a retired file. If the file has a part (a temporary file with received groups), calls `remove` with the
    /// part.
    pub(crate) fn give_up(&self, remove: impl FnMut(&Arc<Staged>)) {
        // A thread that is creating the part holds the lock, so the code below waits for it. A thread that takes the
        // lock later sees this flag.
        self.given_up.store(true, Ordering::Relaxed);
        self.state.lock().staged.iter().for_each(remove);
    }

    /// Gives up a retired file like [`give_up`](Self::give_up), and returns its part. Writers may still have the part
    /// open.
    pub(crate) fn give_up_and_take_part(
        &self,
        remove: impl FnMut(&Arc<Staged>),
    ) -> Option<Arc<Staged>> {
        self.give_up(remove);
        self.state.lock().staged.take()
    }

    /// Returns the space that the file still needs, or `None` if it has no part (temporary file).
    pub(crate) fn missing_space(&self) -> Option<MissingSpace> {
        // This code keeps the lock and does not clone the reference to the part, because the thread that completes the
        // file must hold the only reference.
        let state = self.state.lock();
        let staged = state.staged.as_ref()?;
        if staged.is_in_place() {
            return None;
        }
        let data = self.head.data.as_ref();
        let bytes = data.map_or(self.head.bytes, |data| data.data_bytes());
        let taken = rustix::fs::fstat(staged.file()).ok()?.st_blocks;
        let taken = u64::try_from(taken)
            .unwrap_or(0)
            .saturating_mul(BLOCK_BYTES);
        let system = rustix::fs::fstatvfs(staged.file()).ok()?;
        Some(MissingSpace {
            bytes: bytes.saturating_sub(taken),
            free: free_bytes(&system),
        })
    }

    /// Returns whether the file has been given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Records the hash value of a received group, if hash values are kept for this file.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the value.
    pub(crate) fn record_group_hash(&self, index: u32, cv: Cv) -> Result<(), WireError> {
        self.state
            .lock()
            .received_hashes
            .as_mut()
            .map_or(Ok(()), |received_hashes| received_hashes.note(index, cv))
    }

    /// Returns the root hash of the received data, if hash values are kept and all data was received.
    pub(crate) fn received_root(&self) -> Option<Root> {
        self.state
            .lock()
            .received_hashes
            .as_ref()?
            .root(self.head.bytes)
    }

    /// Removes and returns the received hash values. Later calls return `None`.
    pub(crate) fn take_received_hashes(&self) -> Option<ReceivedHashes> {
        self.state.lock().received_hashes.take()
    }

    /// Adds the bytes of a written group.
    pub(crate) fn count(&self, span: GroupSpan, origin: Origin) {
        let bytes = self.head.data_bytes_within(span);
        self.state.lock().origins += BytesByOrigin::of(origin, bytes);
    }

    /// Returns the origins of the bytes in the written groups.
    pub(crate) fn origins(&self) -> BytesByOrigin {
        self.state.lock().origins
    }

    /// Returns whether no group of the file has been written.
    pub(crate) fn is_blank(&self) -> bool {
        self.state.lock().written.is_empty()
    }

    /// Returns the current identity of the file's part (temporary file), or `None` if it does not exist or cannot be
    /// examined.
    pub(crate) fn identity(&self) -> Option<FileIdentity> {
        FileIdentity::of(self.state.lock().staged.as_ref()?.file()).ok()
    }

    /// Returns the part (the temporary file that holds the received groups). The first call creates the part with
    /// `create`.
    pub(crate) fn staged<E>(
        &self,
        create: impl FnOnce() -> Result<Staged, E>,
    ) -> Result<Arc<Staged>, E> {
        let mut state = self.state.lock();
        if let Some(staged) = &state.staged {
            return Ok(Arc::clone(staged));
        }
        let staged = Arc::new(create()?);
        state.staged = Some(Arc::clone(&staged));
        Ok(staged)
    }

    /// Records that a group was written, and drops `hold`, which is the writer's reference to the part. If this was the
    /// last missing group, returns the complete file.
    pub(crate) fn written(&self, span: GroupSpan, hold: Arc<Staged>) -> Option<Complete> {
        let mut state = self.state.lock();
        drop(hold);
        let has_data = self
            .head
            .data
            .as_ref()
            .is_none_or(|data| data.has_group(span.index));
        if state.written.insert(span.index) && has_data {
            state.unwritten -= 1;
        }
        if self.completion == Completion::SenderOrder
            || state.unwritten > 0
            || std::mem::replace(&mut state.is_complete, true)
        {
            return None;
        }
        // Each writer drops its reference under this lock when it records its group. So after the last group, the
        // reference in `state` is the only one.
        let staged = Arc::try_unwrap(state.staged.take()?).ok()?;
        Some(Complete(staged))
    }

    /// Marks a group as being written if this is its first copy. A copy that arrives during the write is settled by
    /// [`end`](Self::end). A copy that arrives after the write is not written.
    pub(crate) fn begin(&self, span: GroupSpan, item: ItemId) -> GroupCopy {
        let mut state = self.state.lock();
        // This copy is not settled early. Its group may be the last one of the file, and the writer of the first copy
        // may still be renaming the file into place.
        if let Some(waiting) = state.writing.get_mut(&span.index) {
            waiting.push(item);
            return GroupCopy::Waiting;
        }
        if state.written.contains(&span.index) || state.is_complete {
            return GroupCopy::Late;
        }
        state.writing.insert(span.index, Vec::new());
        GroupCopy::First
    }

    /// Ends the write of a group's first copy. Returns the items of the copies that arrived during the write.
    pub(crate) fn end(&self, span: GroupSpan) -> Vec<ItemId> {
        self.state
            .lock()
            .writing
            .remove(&span.index)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
