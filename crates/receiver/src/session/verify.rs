//! The proof that data arrived as it was sent.
//!
//! **Invariant:** a [`VerifiedBatch`] or [`VerifiedChunk`] is made here alone, after its bytes were hashed; the writers
//! take nothing else.

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
use crate::rights::quota::{Booking, Quota};
use crate::store::large_files::RANGE_BYTES;
use crate::store::publishing::publisher::UNPUBLISHED_BYTES;

/// A batch whose head and files all hashed right.
#[derive(Debug)]
pub(crate) struct VerifiedBatch {
    item: ItemId,
    guessed: bool,
    batch: Batch,
    data: Buffer,
    held: Booking,
}

/// A group whose bytes hashed right at its place in its file.
#[derive(Debug)]
pub(crate) struct VerifiedChunk {
    item: ItemId,
    span: GroupSpan,
    cv: Cv,
    data: Buffer,
}

/// A group for which the sender has the value that this receiver reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedGroup {
    pub(crate) item: ItemId,
    pub(crate) span: GroupSpan,
    pub(crate) cv: Cv,
}

impl VerifiedBatch {
    /// Checks the head, then every file; returns the report for the sender when one of them is damaged. Takes a turn
    /// for files with holes, whose zeros cost hashing here and nothing at the sender; leaves them unhashed when the
    /// session is ending.
    ///
    /// # Errors
    /// [`WireError`] when the head arrived undamaged and yet is no batch, or takes more memory than the key may have.
    pub(crate) fn check(
        frame: Frame,
        quota: &Quota,
        turn: &Turn<'_>,
    ) -> Result<Result<Self, StoredItem>, WireError> {
        let Frame { header, head, data } = frame;
        if !is_sealed(&header, blake3::hash(&head).as_bytes()) {
            return Ok(Err(damaged(header.item)));
        }
        let mut held = quota.book_memory(head.len())?;
        let batch = Batch::decode(&head, header.data_bytes)?;
        held.grow(ELEMENT_BYTES * batch.groups.len() + UNPUBLISHED_BYTES * batch.entry_count())?;
        held.grow(extra_bytes(&batch))?;
        if has_holes(&batch) && turn.is_over() {
            return Ok(Err(damaged(header.item)));
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
            ..damaged(header.item)
        }))
    }

    /// Whether the files of the batch may be there already.
    pub(crate) fn is_guessed(&self) -> bool {
        self.guessed
    }

    /// The bytes of contents of each of its entries.
    pub(crate) fn entry_bytes(&self) -> Box<[Option<u32>]> {
        let bytes = |entry: &BatchEntry| match entry {
            BatchEntry::File(file) => Some(u32::try_from(file.data_bytes()).unwrap_or(u32::MAX)),
            BatchEntry::Directory(..) | BatchEntry::Itself(_) => None,
            _ => Some(0),
        };
        entries(&self.batch).map(bytes).collect()
    }

    /// The entries.
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The item, its batch and data, and the booking that lasts as long as they are at work.
    pub(crate) fn into_parts(self) -> (ItemId, Batch, Buffer, Booking) {
        (self.item, self.batch, self.data, self.held)
    }
}

fn entries(batch: &Batch) -> impl Iterator<Item = &BatchEntry> {
    batch.groups.iter().flat_map(|group| &group.entries)
}

fn has_holes(batch: &Batch) -> bool {
    entries(batch).any(|entry| matches!(entry, BatchEntry::File(FileEntry { data: Some(_), .. })))
}

/// What there is in memory of what entries have beside mode and time; those that share it come one after the other.
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
    /// Checks one group of a file, or the data of one that has holes, with a [`turn`](VerifiedBatch::check) for that.
    ///
    /// # Errors
    /// The report for the sender when the group does not exist, has another length or does not hash right.
    pub(crate) fn check(
        frame: Frame,
        head: &FileHead,
        turn: &Turn<'_>,
    ) -> Result<Self, StoredItem> {
        let Frame { header, data, .. } = frame;
        if head.data.is_some() && turn.is_over() {
            return Err(damaged(header.item));
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
            _ => Err(damaged(header.item)),
        }
    }

    pub(crate) fn into_parts(self) -> (ItemId, GroupSpan, Cv, Buffer) {
        (self.item, self.span, self.cv, self.data)
    }
}

impl NamedGroup {
    /// Checks a frame that names one group of a file of `file_bytes`; `told` returns the value that this receiver
    /// reported.
    ///
    /// # Errors
    /// The report for the sender when its value is another one, or none was reported.
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
            _ => Err(damaged(header.item)),
        }
    }
}

/// Checks and reads the declaration of a large file; `None` when it arrived damaged.
///
/// # Errors
/// [`WireError`] when the frame arrived undamaged and is no valid declaration.
pub(crate) fn check_declaration(frame: &Frame) -> Result<Option<(FileId, FileHead)>, WireError> {
    if !is_sealed(&frame.header, blake3::hash(&frame.head).as_bytes()) {
        return Ok(None);
    }
    Ok(Some((frame.header.file, FileHead::decode(&frame.head)?)))
}

/// Whether a frame is filler that arrived undamaged.
pub(crate) fn is_filler(frame: &Frame) -> bool {
    frame.header.kind == FrameKind::Filler
        && is_sealed(&frame.header, blake3::hash(&frame.data).as_bytes())
}

fn is_sealed(header: &FrameHeader, content: &[u8; 32]) -> bool {
    seal(&header.prefix(), content) == header.digest
}

pub(crate) fn damaged(item: ItemId) -> StoredItem {
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
