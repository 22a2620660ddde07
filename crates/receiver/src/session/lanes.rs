//! The threads of lanes, one for each lane. A thread receives frames, verifies them while they are in the CPU cache,
//! and passes them to the writers.

use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use zmove_disk::Task;
use zmove_transport::{Frame, LaneError, LaneSource};
use zmove_types::ThreadState;
use zmove_wire::{FileHead, FrameKind, StoredItem, WireError};

use crate::error::SessionError;
use crate::rights::grant::{PendingId, Received};
use crate::session::verify::{
    UnchangedGroup, VerifiedBatch, VerifiedChunk, check_declaration, mismatch_report,
};
use crate::store::large_files::Undeclarable;
use crate::store::reports::ThreadReport;
use crate::store::transfer::Transfer;
use crate::store::writer::WriterJob;

/// Receives from one lane until it ends, and reports the result.
pub(crate) fn run_lane(
    transfer: &Transfer,
    number: u32,
    source: Box<dyn LaneSource>,
    queue: &Sender<WriterJob>,
) {
    let mut has_delivered = false;
    let ended = match receive_all(transfer, source, queue, &mut has_delivered) {
        // A broken lane is not an error while the session is stopping.
        Err(_) if transfer.stopping.load(Ordering::Relaxed) => Ok(()),
        ended => ended.map_err(SessionError::from),
    };
    transfer.reports.report(ThreadReport::LaneEnded {
        number,
        has_delivered,
        ended,
    });
}

fn receive_all(
    transfer: &Transfer,
    mut source: Box<dyn LaneSource>,
    queue: &Sender<WriterJob>,
    has_delivered: &mut bool,
) -> Result<(), LaneError> {
    let mut watch = transfer.meter.receive.start();
    while let Some(frame) = source.receive(&transfer.pool, &mut watch)? {
        *has_delivered = true;
        watch.set_bytes_in_progress(0);
        // After the shutdown of a socket, data that was received before can still be read.
        if transfer.stopping.load(Ordering::Relaxed) {
            return Err(LaneError::Stopped);
        }
        // An item may arrive twice, or after the sender has given it up.
        let has_item = !matches!(frame.header.kind, FrameKind::Declare | FrameKind::Filler);
        if has_item && !transfer.accept_item(frame.header.item.0)? {
            continue;
        }
        transfer.meter.count_received(frame.data.len());
        let item = PendingId::Item(frame.header.item.0);
        let job = match frame.header.kind {
            FrameKind::Batch | FrameKind::Guess => {
                let checked =
                    VerifiedBatch::check(frame, &transfer.quota, &transfer.turn(Task::Read))?;
                if let Ok(batch) = &checked {
                    transfer.top_names.check_batch(batch.batch())?;
                    if transfer.allowance.is_some() {
                        transfer.charge_directories(batch.batch())?;
                        transfer.charge(item, Received::Batch(batch.entry_bytes()))?;
                    }
                }
                Some(checked.map(WriterJob::Batch))
            }
            FrameKind::Declare => {
                declare(transfer, &frame)?;
                None
            }
            FrameKind::Chunk | FrameKind::Same => {
                transfer.charge(item, Received::Group(frame.data.len() as u64))?;
                check_group(transfer, frame)
            }
            FrameKind::Filler => {
                return Err(WireError::OutOfOrder {
                    what: "filler in a transfer",
                }
                .into());
            }
        };
        watch.lap(ThreadState::Busy);
        match job {
            Some(Ok(job)) => {
                transfer.meter.count_queued();
                let sent = queue.send(job);
                watch.lap(ThreadState::Blocked);
                sent.map_err(|_| LaneError::Stopped)?;
            }
            Some(Err(mismatch_report)) => {
                transfer.reports.report(ThreadReport::Item(mismatch_report))
            }
            None => {}
        }
    }
    Ok(())
}

/// Declares a large file. A damaged declaration is ignored. The next chunk on the lane is then reported as damaged, and
/// the sender resends both the declaration and the chunk.
fn declare(transfer: &Transfer, frame: &Frame) -> Result<(), WireError> {
    let Some((id, head)) = check_declaration(frame)? else {
        return Ok(());
    };
    if head.path.is_root() {
        return Err(WireError::OutOfOrder {
            what: "a file without a name",
        });
    }
    transfer.top_names.check(&head.path)?;
    let mut allowed = Ok(());
    // Each lane carries the declaration of a file, but this closure runs only for the first one.
    let old_version = |head: &FileHead| {
        allowed = transfer.charge_parents(&head.path);
        if allowed.is_ok() {
            allowed = transfer.charge(PendingId::File(id.0), Received::File);
        }
        transfer
            .old_versions
            .take(&transfer.target.final_path(head))
    };
    let prior = |head: &FileHead| {
        let path = transfer.target.final_path(head);
        let prior = transfer.parts.resume(id, &path, head)?;
        let origins = transfer.origins_of_held(head, &prior.groups);
        Some((prior, origins))
    };
    let declared = transfer.files.declare(id, head, old_version, prior);
    allowed?;
    match declared {
        Err(Undeclarable::OverLimit(error)) => return Err(error),
        Err(Undeclarable::Contradicted(fault)) => {
            transfer.reports.report(ThreadReport::Fault(fault))
        }
        Ok(()) => {}
    }
    Ok(())
}

/// Returns a group to store, or a report if the group is damaged.
fn check_group(transfer: &Transfer, frame: Frame) -> Option<Result<WriterJob, StoredItem>> {
    let item = frame.header.item;
    let Ok(found) = transfer.files.find(frame.header.file) else {
        return Some(Err(mismatch_report(item)));
    };
    let Some(file) = found else {
        // The file has already failed, so its data is not needed. The item is settled, so that the sender does not wait
        // for it.
        transfer.reports.settle(item);
        return None;
    };
    Some(if frame.header.kind == FrameKind::Same {
        let told = |group| {
            file.old_version
                .as_ref()
                .and_then(|old_version| old_version.cv(group))
        };
        let checked = UnchangedGroup::check(&frame.header, file.head.bytes, told);
        checked.map(|named| WriterJob::Named(file, named))
    } else {
        VerifiedChunk::check(frame, &file.head, &transfer.turn(Task::Read))
            .map(|chunk| WriterJob::Chunk(file, chunk))
    })
}
