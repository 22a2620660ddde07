//! Verification that data arrived unchanged.
//!
//! **Invariant:** only this module creates a [`VerifiedBatch`] or a [`VerifiedChunk`], after it has hashed the bytes.
//! Writers accept no other data.

use std::ops::Range;
use std::sync::Arc;

use zmove_chunk::{file_root, seal, sparse_file_root, sparse_group_cv};
use zmove_disk::Turn;
use zmove_transport::Frame;
use zmove_types::{Buffer, Cv, FileId, GroupSpan, ItemId, Root};
use zmove_wire::{
    Batch, BatchEntry, EntryFault, FaultCode, FileEntry, FileHead, FrameHeader, FrameKind,
    Operation, StoredItem, WireError,
};

use crate::rights::quota::messages::ELEMENT_BYTES;
use crate::rights::quota::{Charge, Quota};
use crate::store::large_files::RANGE_BYTES;
use crate::store::publishing::publisher::UNPUBLISHED_BYTES;

/// A batch whose head and files match their hashes.
#[derive(Debug)]
pub(crate) struct VerifiedBatch {
    item: ItemId,
    guessed: bool,
    batch: Batch,
    data: Buffer,
    held: Charge,
}

/// A group whose bytes match the hash for its position in the file.
#[derive(Debug)]
pub(crate) struct VerifiedChunk {
    item: ItemId,
    span: GroupSpan,
    cv: Cv,
    data: Buffer,
}

/// A group that the sender has not sent, because its hash equals the value that this receiver reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnchangedGroup {
    pub(crate) item: ItemId,
    pub(crate) span: GroupSpan,
    pub(crate) cv: Cv,
}

impl VerifiedBatch {
    /// Verifies the head of the frame (the list of entries), and then every file. Returns a report for the sender if
    /// the head or a file is damaged.
    ///
    /// A batch with holes needs a turn (permission to run), because this side must hash the zeros of holes for which no
    /// data was sent. Such a batch is not hashed if the session is ending.
    ///
    /// # Errors
    /// [`WireError`] if the head is undamaged but not a valid batch, or needs more memory than the key's quota allows.
    pub(crate) fn check(
        frame: Frame,
        quota: &Quota,
        turn: &Turn<'_>,
    ) -> Result<Result<Self, StoredItem>, WireError> {
        let Frame { header, head, data } = frame;
        if !is_sealed(&header, blake3::hash(&head).as_bytes()) {
            return Ok(Err(mismatch_report(header.item)));
        }
        let mut held = quota.charge_memory(head.len())?;
        let batch = Batch::decode(&head, header.data_bytes)?;
        held.grow(ELEMENT_BYTES * batch.groups.len() + UNPUBLISHED_BYTES * batch.entry_count())?;
        held.grow(extra_bytes(&batch))?;
        if has_holes(&batch) && turn.is_over() {
            return Ok(Err(mismatch_report(header.item)));
        }
        let faults = damaged_files(&batch, &data);
        if faults.is_empty() {
            let guessed = header.kind == FrameKind::Guess;
            return Ok(Ok(Self {
                item: header.item,
                guessed,
                batch,
                data,
                held,
            }));
        }
        Ok(Err(StoredItem {
            faults,
            ..mismatch_report(header.item)
        }))
    }

    /// Returns whether the sender did not know if the files exist at the target when it sent the batch.
    pub(crate) fn is_guessed(&self) -> bool {
        self.guessed
    }

    /// Returns the number of content bytes of each entry.
    pub(crate) fn entry_bytes(&self) -> Box<[Option<u32>]> {
        let bytes = |entry: &BatchEntry| match entry {
            BatchEntry::File(file) => Some(u32::try_from(file.data_bytes()).unwrap_or(u32::MAX)),
            BatchEntry::Directory(..) | BatchEntry::Itself(_) => None,
            _ => Some(0),
        };
        entries(&self.batch).map(bytes).collect()
    }

    /// Returns the batch.
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Returns the item, its batch and data, and the memory reservation to keep while they are processed.
    pub(crate) fn into_parts(self) -> (ItemId, Batch, Buffer, Charge) {
        (self.item, self.batch, self.data, self.held)
    }
}

fn entries(batch: &Batch) -> impl Iterator<Item = &BatchEntry> {
    batch.groups.iter().flat_map(|group| &group.entries)
}

fn has_holes(batch: &Batch) -> bool {
    entries(batch).any(|entry| matches!(entry, BatchEntry::File(FileEntry { data: Some(_), .. })))
}

/// Returns the memory used by entry metadata other than mode and time. Entries that share such metadata are adjacent.
fn extra_bytes(batch: &Batch) -> usize {
    let mut extras: Vec<_> = entries(batch)
        .filter_map(|entry| entry.metadata().extra.as_ref())
        .collect();
    extras.dedup_by(|one, other| Arc::ptr_eq(one, other));
    let ranges = entries(batch).map(|entry| match entry {
        BatchEntry::File(FileEntry {
            data: Some(data), ..
        }) => data.ranges().len(),
        _ => 0,
    });
    extras.iter().map(|extra| extra.bytes()).sum::<usize>() + ranges.sum::<usize>() * RANGE_BYTES
}

impl VerifiedChunk {
    /// Verifies one group of a file, or only its data if the file has holes. A file with holes needs a turn (permission
    /// to run), like [a batch](VerifiedBatch::check) with holes.
    ///
    /// # Errors
    /// A report for the sender if the group does not exist, has the wrong length or does not match its hash.
    pub(crate) fn check(
        frame: Frame,
        head: &FileHead,
        turn: &Turn<'_>,
    ) -> Result<Self, StoredItem> {
        let Frame { header, data, .. } = frame;
        if head.data.is_some() && turn.is_over() {
            return Err(mismatch_report(header.item));
        }
        let hashed = GroupSpan::of(head.bytes, header.group).and_then(|span| {
            let pieces = head.data_within(span);
            let is_whole = pieces.iter().map(Range::len).sum::<usize>() == data.len();
            is_whole.then(|| (span, sparse_group_cv(span, pieces.into_iter(), &data)))
        });
        match hashed {
            Some((span, cv)) if is_sealed(&header, &cv.0) => Ok(Self {
                item: header.item,
                span,
                cv,
                data,
            }),
            _ => Err(mismatch_report(header.item)),
        }
    }

    pub(crate) fn into_parts(self) -> (ItemId, GroupSpan, Cv, Buffer) {
        (self.item, self.span, self.cv, self.data)
    }
}

impl UnchangedGroup {
    /// Verifies a frame according to which one group of a file of `file_bytes` bytes is unchanged. `told` returns the
    /// value that this receiver has reported for a group.
    ///
    /// # Errors
    /// A report for the sender if the value in the frame differs from the reported value, or if this receiver reported
    /// no value.
    pub(crate) fn check(
        header: &FrameHeader,
        file_bytes: u64,
        told: impl FnOnce(u32) -> Option<Cv>,
    ) -> Result<Self, StoredItem> {
        let found = GroupSpan::of(file_bytes, header.group).zip(told(header.group));
        match found {
            Some((span, cv)) if is_sealed(header, &cv.0) => Ok(Self {
                item: header.item,
                span,
                cv,
            }),
            _ => Err(mismatch_report(header.item)),
        }
    }
}

/// Verifies and decodes the declaration of a large file. Returns `None` if it is damaged.
///
/// # Errors
/// [`WireError`] if the frame is undamaged but not a valid declaration.
pub(crate) fn check_declaration(frame: &Frame) -> Result<Option<(FileId, FileHead)>, WireError> {
    if !is_sealed(&frame.header, blake3::hash(&frame.head).as_bytes()) {
        return Ok(None);
    }
    Ok(Some((frame.header.file, FileHead::decode(&frame.head)?)))
}

/// Returns whether a frame is undamaged filler.
pub(crate) fn is_filler(frame: &Frame) -> bool {
    frame.header.kind == FrameKind::Filler
        && is_sealed(&frame.header, blake3::hash(&frame.data).as_bytes())
}

fn is_sealed(header: &FrameHeader, content: &[u8; 32]) -> bool {
    seal(&header.prefix(), content) == header.digest
}

pub(crate) fn mismatch_report(item: ItemId) -> StoredItem {
    StoredItem {
        item: item.0,
        mismatch: true,
        faults: Vec::new(),
    }
}

fn damaged_files(batch: &Batch, data: &[u8]) -> Vec<EntryFault> {
    let mut rest = data;
    let mut faults = Vec::new();
    for (entry, content) in (0..).zip(entries(batch)) {
        let BatchEntry::File(file) = content else {
            continue;
        };
        let (bytes, after) = rest.split_at(file.data_bytes());
        rest = after;
        if root_of(file, bytes) != file.root {
            faults.push(EntryFault {
                entry,
                operation: Operation::Verify,
                code: FaultCode::Damaged,
            });
        }
    }
    faults
}

fn root_of(file: &FileEntry, bytes: &[u8]) -> Root {
    match (&file.data, GroupSpan::of(u64::from(file.bytes), 0)) {
        (Some(data), Some(span)) => sparse_file_root(span.len as usize, data.within(span), bytes),
        _ => file_root(bytes),
    }
}

pub(crate) mod fuzzing;

#[cfg(test)]
pub(crate) mod tests;
