//! One thread per lane: receives frames, checks them while they are in cache, hands them to the writers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use zmove_transport::{Frame, LaneError, LaneSource};
use zmove_types::{Doing, ItemId, Stopwatch};
use zmove_wire::limits::FILES_UNFINISHED_MAX;
use zmove_wire::{FileHead, FrameKind, StoredItem, WireError};

use crate::session::verify::{Checked, NamedGroup, VerifiedBatch, VerifiedChunk, check_declaration, damaged};
use crate::store::large_files::Undeclarable;
use crate::store::reports::Outcome;
use crate::store::transfer::Transfer;
use crate::store::writer::Job;

/// Runs one lane to its end and reports how it ended.
pub(crate) fn run_lane(transfer: &Transfer, number: u32, source: Box<dyn LaneSource>, queue: &Sender<Job>) {
    let ended = match receive_all(transfer, source, queue) {
        // what breaks while everything is being stopped is no news
        Err(_) if transfer.stopping.load(Ordering::Relaxed) => Ok(()),
        ended => ended,
    };
    transfer.reports.tell(Outcome::LaneEnded(number, ended));
}

fn receive_all(
    transfer: &Transfer,
    mut source: Box<dyn LaneSource>,
    queue: &Sender<Job>,
) -> Result<(), LaneError> {
    let mut watch = transfer.meter.receive.start();
    while let Some(frame) = source.receive(&transfer.pool, &mut watch)? {
        // a socket that is shut down still hands out what has arrived
        if transfer.stopping.load(Ordering::Relaxed) {
            return Err(LaneError::Stopped);
        }
        // it may come again, or come when it has been given up
        let has_item = !matches!(frame.header.kind, FrameKind::Declare | FrameKind::Filler);
        if has_item && !transfer.let_in(frame.header.item.0)? {
            continue;
        }
        transfer.meter.came(frame.data.len());
        let job = match frame.header.kind {
            FrameKind::Batch | FrameKind::Guess => check_batch(transfer, frame)?,
            FrameKind::Declare => declare(transfer, &frame)?,
            FrameKind::Chunk | FrameKind::Same => check_group(transfer, frame)?,
            FrameKind::Filler => return Err(WireError::OutOfOrder { what: "filler in a transfer" }.into()),
        };
        watch.lap(Doing::Busy);
        if let Some(job) = job {
            transfer.meter.queue();
            hand_on(queue, job, &mut watch)?;
        }
    }
    Ok(())
}

fn hand_on(queue: &Sender<Job>, job: Job, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
    let sent = queue.send(job);
    watch.lap(Doing::Blocked);
    sent.map_err(|_| LaneError::Stopped)
}

fn check_batch(transfer: &Transfer, frame: Frame) -> Result<Option<Job>, WireError> {
    match VerifiedBatch::check(frame, &transfer.account)? {
        Checked::Batch(batch) => Ok(Some(Job::Batch(batch))),
        Checked::Damaged(item) => Ok(report(transfer, item)),
    }
}

/// A declaration that came damaged is as if it had not come: the chunk after it is reported, and both come again.
fn declare(transfer: &Transfer, frame: &Frame) -> Result<Option<Job>, WireError> {
    let Some((id, head)) = check_declaration(frame)? else { return Ok(None) };
    if head.path.is_root() {
        return Err(WireError::OutOfOrder { what: "a file without a name" });
    }
    let base = |head: &FileHead| transfer.bases.take(&transfer.target.final_path(head));
    let prior = |head: &FileHead| transfer.parts.take_up(id, &transfer.target.final_path(head), head);
    match transfer.files.declare(id, head, base, prior) {
        Ok(()) => {}
        Err(Undeclarable::Full(error)) => return Err(error),
        Err(Undeclarable::Contradicted(fault)) => transfer.reports.tell(Outcome::Fault(fault)),
        Err(Undeclarable::TooMany) => {
            let limit = FILES_UNFINISHED_MAX as u64;
            return Err(WireError::OverLimit { what: "large files under way", value: limit + 1, limit });
        }
    }
    Ok(None)
}

fn check_group(transfer: &Transfer, frame: Frame) -> Result<Option<Job>, WireError> {
    let item = frame.header.item;
    let Ok(found) = transfer.files.find(frame.header.file) else {
        return Ok(report(transfer, damaged(item, Vec::new())));
    };
    let Some(file) = found else {
        return Ok(drop_chunk(transfer, item));
    };
    let checked = if frame.header.kind == FrameKind::Same {
        let told = |group| file.base.as_ref().and_then(|base| base.cv(group));
        NamedGroup::check(&frame.header, file.head.bytes, told)
            .map(|named| Job::Named(Arc::clone(&file), named))
    } else {
        VerifiedChunk::check(frame, file.head.bytes).map(|chunk| Job::Chunk(Arc::clone(&file), chunk))
    };
    Ok(match checked {
        Ok(job) => Some(job),
        Err(item) => report(transfer, item),
    })
}

/// The file has failed already: its data is of no use, but the sender must not wait for it.
fn drop_chunk(transfer: &Transfer, item: ItemId) -> Option<Job> {
    transfer.reports.settle(item);
    None
}

fn report(transfer: &Transfer, item: StoredItem) -> Option<Job> {
    transfer.reports.tell(Outcome::Item(item));
    None
}
