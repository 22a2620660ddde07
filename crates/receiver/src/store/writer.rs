//! The writers: threads that take verified work from a bounded queue, store it, and report the results.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;
use rustix::io::Errno;
use zmove_disk::{NameAt, PART_GONE, Span, Staged, Task, Turn, check_name};
use zmove_types::{
    Buffer, Cv, GroupSpan, ItemId, Metadata, MetadataKinds, Name, RelPath, ThreadState,
};
use zmove_wire::{FileHead, FrameKind, Operation, TargetState};

use crate::session::verify::{UnchangedGroup, VerifiedBatch, VerifiedChunk, mismatch_report};
use crate::store::failure::{
    Failure, failure, failure_in, is_no_room, with_entry_operation, with_operation,
};
use crate::store::large_files::{Complete, GroupCopy, LargeFile};
use crate::store::placer::Placer;
use crate::store::publishing::publisher::{ExpectedState, PendingBatch, WholeFile};
use crate::store::publishing::{end_large, make_room};
use crate::store::reports::ThreadReport;
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::tree::{check_close, flush_now};
use crate::store::transfer::Transfer;

/// A job for a writer thread.
#[derive(Debug)]
pub(crate) enum WriterJob {
    Batch(VerifiedBatch),
    Chunk(Arc<LargeFile>, VerifiedChunk),
    Named(Arc<LargeFile>, UnchangedGroup),
}

/// Runs one writer until all lanes have closed their end of the queue. If storage latency is high, other threads help
/// this writer. After the end of the session, drops all jobs in the queue.
pub(crate) fn write_all(transfer: &Transfer, queue: &Receiver<WriterJob>) {
    let is_first = AtomicBool::new(true);
    transfer.run_parallel(Task::Write, "zmove-write", |turn| {
        if is_first.swap(false, Ordering::Relaxed) {
            write(transfer, turn, queue, || queue.recv().ok());
        } else {
            write(transfer, turn, queue, || {
                queue.recv_timeout(HELPER_IDLE_MAX).ok()
            });
        }
    });
}

/// Idle time after which a helper thread ends.
const HELPER_IDLE_MAX: Duration = Duration::from_millis(200);

fn write(
    transfer: &Transfer,
    turn: &Turn<'_>,
    queue: &Receiver<WriterJob>,
    next: impl Fn() -> Option<WriterJob>,
) {
    let mut placer = Placer::new(transfer);
    let mut watch = transfer.meter.store.start();
    while let Some(job) = next() {
        transfer.meter.count_dequeued();
        watch.lap(ThreadState::Starved);
        if turn.is_over() {
            continue;
        }
        if !queue.is_empty() {
            turn.start_helper();
        }
        match job {
            WriterJob::Batch(batch) => {
                // The turn is released, because each thread that places the batch takes its own turn.
                turn.pause();
                store_batch(transfer, turn, &mut placer, batch);
            }
            WriterJob::Chunk(file, chunk) => store_chunk(transfer, turn, &mut placer, &file, chunk),
            WriterJob::Named(file, named) => {
                copy_old_group(transfer, turn, &mut placer, &file, named)
            }
        }
        turn.pause();
        watch.lap(ThreadState::Busy);
    }
}

fn store_batch(
    transfer: &Transfer,
    turn: &Turn<'_>,
    placer: &mut Placer<'_>,
    batch: VerifiedBatch,
) {
    let known = if batch.is_guessed() && transfer.target.state == TargetState::Populated {
        ExpectedState::Unknown
    } else {
        ExpectedState::Absent
    };
    let (item, batch, data, held) = batch.into_parts();
    let _placing = transfer.publisher.begin_batch();
    let pending = PendingBatch::new(item, known, Some(held));
    let entries = batch.entry_count();
    placer.place_groups(batch.groups, &pending, &data, turn);
    // The buffer returns to the pool now, because the calls below may block.
    drop(data);
    transfer
        .reports
        .report(ThreadReport::Stored(item, pending.faults()));
    transfer.publisher.batch_placed(pending, entries);
}

fn store_chunk(
    transfer: &Transfer,
    turn: &Turn<'_>,
    placer: &mut Placer<'_>,
    file: &Arc<LargeFile>,
    chunk: VerifiedChunk,
) {
    let (item, span, cv, data) = chunk.into_parts();
    if !is_first(transfer, file, item, span) {
        return;
    }
    turn.note_write(data.len());
    let shared = transfer.parts.shared.as_ref();
    let cannot = with_operation(Operation::Write);
    let written = open_staged(transfer, placer, file).and_then(|staged| {
        if let Some(shared) = shared
            && shared.is_gone(&staged).map_err(cannot)?
        {
            return Ok(staged);
        }
        write_group(transfer, &staged, &file.head, span, data)?;
        record_group(transfer, file, span, cv).map_err(cannot)?;
        shared
            .map_or(Ok(()), |shared| shared.has_written(file.id))
            .map_err(cannot)?;
        Ok(staged)
    });
    let kind = FrameKind::Chunk;
    finish_group(
        transfer,
        turn,
        file,
        StoredGroup { item, span, kind },
        written,
    );
}

/// Returns whether an item is the first copy of its group. A copy that arrives during the write of the first one is
/// settled together with it. A later copy is settled immediately.
fn is_first(transfer: &Transfer, file: &LargeFile, item: ItemId, span: GroupSpan) -> bool {
    let copy = file.begin(span, item);
    if copy == GroupCopy::Late {
        transfer.reports.settle(item);
    }
    copy == GroupCopy::First
}

/// Writes the data of a group, whose ranges are one after another in the buffer. If the target is full, publishes the
/// pending files and retries once. Publishing frees the space of the replaced files.
fn write_group(
    transfer: &Transfer,
    staged: &Staged,
    head: &FileHead,
    span: GroupSpan,
    mut data: Buffer,
) -> Result<(), Failure> {
    let mut done = 0;
    for range in head.data_within(span) {
        let room = done..done + range.len();
        done = room.end;
        let part = Span::new(span.offset() + range.start as u64, room);
        let write = |data| {
            staged
                .write(|| {
                    transfer
                        .file_io
                        .write_part(staged.data(), part.clone(), data)
                })
                .map_err(with_operation(Operation::Write))
        };
        let (outcome, back) = write(data)?;
        data = back;
        match outcome.map_err(with_operation(Operation::Write)) {
            Err(full) if is_no_room(&full) => {
                make_room(transfer);
                let (outcome, back) = write(data)?;
                data = back;
                outcome.map_err(with_operation(Operation::Write))?;
            }
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Stores a group that the sender has reported as unchanged, by copying it from the old version. If this is not
/// possible, requests the group from the sender.
fn copy_old_group(
    transfer: &Transfer,
    turn: &Turn<'_>,
    placer: &mut Placer<'_>,
    file: &Arc<LargeFile>,
    UnchangedGroup { item, span, cv }: UnchangedGroup,
) {
    if !is_first(transfer, file, item, span) {
        return;
    }
    let kept = open_staged(transfer, placer, file).and_then(|staged| {
        let open_old = || {
            transfer
                .target
                .open_old_at(&transfer.target.final_path(&file.head))
        };
        let cannot = with_operation(Operation::Write);
        let Some(old_version) = &file.old_version else {
            return Ok(None);
        };
        let kept = old_version.copy_group(
            &transfer.old_versions,
            open_old,
            &file.head,
            &staged,
            span,
            cv,
        );
        if !kept.map_err(cannot)? {
            return Ok(None);
        }
        record_group(transfer, file, span, cv).map_err(cannot)?;
        Ok(Some(staged))
    });
    let Some(kept) = kept.transpose() else {
        for item in std::iter::once(item).chain(file.end(span)) {
            transfer
                .reports
                .report(ThreadReport::Item(mismatch_report(item)));
        }
        return;
    };
    let kind = FrameKind::Same;
    finish_group(transfer, turn, file, StoredGroup { item, span, kind }, kept);
}

/// Records in the journal that the group was stored. Records its hash value if hash values are kept.
fn record_group(transfer: &Transfer, file: &LargeFile, span: GroupSpan, cv: Cv) -> io::Result<()> {
    transfer.parts.written(file.id, span.index, cv)?;
    if let Err(error) = file.record_group_hash(span.index, cv) {
        transfer.reports.report(ThreadReport::OverLimit(error));
    }
    Ok(())
}

/// A stored group, with the kind of frame in which it was received.
struct StoredGroup {
    item: ItemId,
    span: GroupSpan,
    kind: FrameKind,
}

/// Handles the result of storing a group: settles its items, finishes a complete file, and fails a file after an error.
fn finish_group(
    transfer: &Transfer,
    turn: &Turn<'_>,
    file: &Arc<LargeFile>,
    StoredGroup { item, span, kind }: StoredGroup,
    written: Result<Arc<Staged>, Failure>,
) {
    if written.is_ok() {
        let origin = transfer.note_group(&file.head.path, span.index, kind);
        file.count(span, origin);
    }
    match written.map(|staged| file.written(span, staged)) {
        Ok(None) => {}
        Ok(Some(complete)) => finish_file(transfer, turn, file, complete),
        // The session has ended. The received groups are kept for a later transfer.
        Err(_) if transfer.target.tree.lease().has_ended() => {}
        // Another receiver has renamed the file into place or has given it up, so there is nothing to write.
        Err((_, error)) if Errno::from_io_error(&error) == Some(PART_GONE) => {}
        Err(failed) => {
            let (operation, error) = &failed;
            if let Some(shared) = transfer
                .parts
                .shared
                .as_ref()
                .filter(|_| is_no_room(&failed))
                && let Some(errno) = Errno::from_io_error(error)
            {
                shared.give_up(file.id, errno);
            }
            let cause = failure_in(&transfer.target.tree, *operation, error);
            transfer.fail_file(file.id, cause);
        }
    }
    for item in std::iter::once(item).chain(file.end(span)) {
        transfer.reports.settle(item);
    }
}

pub(crate) fn open_staged(
    transfer: &Transfer,
    placer: &mut Placer<'_>,
    file: &LargeFile,
) -> Result<Arc<Staged>, Failure> {
    file.staged(|| {
        // The sender may have abandoned the file after this group was accepted.
        if file.is_given_up() {
            return Err((Operation::Create, Errno::CANCELED.into()));
        }
        let path = transfer.target.final_path(&file.head);
        if let Some(shared) = &transfer.parts.shared {
            // The flush at the end covers only registered file systems, so the file system is registered now.
            let known = transfer.target.file_systems.note(&**shared.session.own());
            known.map_err(with_operation(Operation::Create))?;
            let part =
                transfer
                    .parts
                    .open_shared(shared, file.id, &path, &file.head, transfer.direct);
            return part.map_err(with_operation(Operation::Create));
        }
        let parent = file.head.path.directory();
        let directory = placer
            .directory_now(&parent)
            .map_err(with_entry_operation(&transfer.target.tree, &parent))?;
        let name = name_of(&path);
        let FileHead {
            bytes, metadata, ..
        } = &file.head;
        if let Some(staged) = transfer.begin_in_place(&directory, &name, *bytes, metadata)? {
            let data = file.head.data.as_ref();
            data.map_or(Ok(()), |data| staged.make_holes(data))
                .map_err(with_operation(Operation::Write))?;
            file.old_version
                .iter()
                .for_each(|old_version| old_version.set_in_place(&staged));
            return Ok(staged);
        }
        check_name(&directory, &name).map_err(with_operation(Operation::Create))?;
        let mut staged = transfer
            .parts
            .create(
                file.id,
                &path,
                &file.head,
                &directory,
                &transfer.target.part_names,
            )
            .map_err(with_operation(Operation::Create))?;
        let sized = match &file.old_version {
            Some(old_version) => {
                old_version.begin(&directory, &name, &mut staged, &file.head, transfer.direct)
            }
            None => staged.reserve(*bytes, file.head.data.as_deref(), transfer.direct),
        };
        if let Err(error) = sized {
            // The part (temporary file) is removed, because no group can be written to it.
            transfer.parts.remove(file.id, &staged);
            return Err((Operation::Create, error));
        }
        Ok(staged)
    })
}

/// Returns the metadata to set on a large file with this final path.
fn metadata_of<'a>(transfer: &Transfer, head: &'a FileHead, path: &RelPath) -> Cow<'a, Metadata> {
    let target = &transfer.target;
    let parent = path.directory();
    match target.tree.open_directory(&parent) {
        Ok(directory) if !target.view.policy.rules.kinds.has_any(MetadataKinds::MODE) => {
            target.of_file(NameAt::new(&directory, &name_of(path)), &head.metadata)
        }
        _modes_are_kept_or_nothing_is_there => target.view.policy.rules.of_file(&head.metadata),
    }
}

fn name_of(path: &RelPath) -> Name {
    path.file_name().expect("a declared file has a name")
}

/// Finishes a complete large file and passes it to the publisher, which renames it into place. With any durability
/// except `none`, flushes the file individually. The flush is cheap, because most of the data has bypassed the page
/// cache, and its descriptor reports every error since it was opened. With `--verify media`, reads the file back.
pub(crate) fn finish_file(
    transfer: &Transfer,
    turn: &Turn<'_>,
    file: &LargeFile,
    Complete(staged): Complete,
) {
    if !transfer.files.close(file.id) {
        return;
    }
    let path = transfer.target.final_path(&file.head);
    let metadata = metadata_of(transfer, &file.head, &path);
    // The root hash is computed now, because reading the file back consumes the received hash values.
    let root = transfer.named.as_ref().and_then(|_| file.received_root());
    if staged.is_in_place() {
        let prove = |staged: &Staged| {
            // The turn is released, because each thread that reads the file back takes its own turn.
            turn.pause();
            transfer.verify_large(file, staged)
        };
        let at = EntryLocation(&path, None);
        let finished =
            transfer
                .target
                .finish_in_place(staged, &name_of(&path), &metadata, at, prove);
        let fault = match finished {
            Ok(()) => {
                let counters = file.origins().of_file();
                let path = || Some(file.head.path.clone());
                transfer.stored(file.head.bytes, &counters, path, root);
                None
            }
            Err((operation, error)) => Some(failure(operation, &error)),
        };
        return end_large(transfer, file.id, &file.head.path, fault);
    }
    let seal = || {
        let target = &transfer.target;
        let permit = target.tree.lease().permit();
        let permit = permit.map_err(|error| (Operation::SetMetadata, error.into()))?;
        target.set_metadata(permit, staged.file(), &metadata, EntryLocation(&path, None))?;
        flush_now(staged.file(), target.view.policy.rules.flushes())?;
        check_close(&staged)?;
        turn.pause();
        transfer.verify_large(file, &staged)
    };
    let sealed = seal();
    let is_over = transfer.target.tree.lease().has_ended();
    if sealed
        .as_ref()
        .is_err_and(|(_, error)| is_over || error.kind() == io::ErrorKind::Interrupted)
    {
        // The session has ended. The part (temporary file) is still listed in its journal, and the next transfer reads
        // it back.
        return;
    }
    if let Err((operation, error)) = sealed {
        // The part (temporary file) is removed, because it cannot become the final file.
        staged.discard();
        transfer.parts.remove(file.id, &staged);
        let fault = failure(operation, &error);
        return end_large(transfer, file.id, &file.head.path, Some(fault));
    }
    transfer.publisher.add_large(WholeFile {
        id: file.id,
        bytes: file.head.bytes,
        origins: file.origins(),
        root: root.map(|root| (file.head.path.clone(), root)),
        staged,
        path,
        metadata: metadata.into_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::verify::tests::verified_batch;
    use crate::store::failure::FaultCause;
    use crate::store::placer::tests::{
        transfer_with_journals, transfer_with_one_place, without_a_standstill,
    };
    use crate::store::publishing::discard_all;
    use zmove_types::{FileId, GROUP_BYTES, Timestamp};
    use zmove_wire::{FaultCode, FileHead};

    /// Creates a transfer to a new directory, with a declared file of `bytes` bytes.
    fn declared(bytes: u64) -> (tempfile::TempDir, Transfer, Arc<LargeFile>) {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("target")).unwrap();
        let transfer = transfer_with_journals(
            &home.path().join("target"),
            Some(home.path().join("journal")),
        );
        let path = RelPath::from_bytes(b"large").unwrap();
        let metadata = Metadata::default();
        let ctime = Timestamp::default();
        let head = FileHead {
            path,
            metadata,
            bytes,
            ctime,
            inode: 1,
            data: None,
        };
        transfer
            .files
            .declare(FileId(1), head, |_| None, |_| None)
            .unwrap();
        let file = transfer.files.find(FileId(1)).unwrap().unwrap();
        (home, transfer, file)
    }

    #[track_caller]
    fn assert_nothing_is_left(home: &tempfile::TempDir, transfer: Transfer, file: Arc<LargeFile>) {
        transfer.parts.finish();
        drop((transfer, file));
        assert_eq!(
            std::fs::read_dir(home.path().join("target"))
                .unwrap()
                .count(),
            0
        );
        let journals = std::fs::read_dir(home.path().join("journal"));
        assert_eq!(journals.map_or(0, |entries| entries.count()), 0);
    }

    #[test]
    fn a_file_that_is_given_up_before_its_first_group_is_written_is_not_begun() {
        let (home, transfer, file) = declared(5 * GROUP_BYTES);
        transfer.abandon_file(FileId(1));
        assert!(open_staged(&transfer, &mut Placer::new(&transfer), &file).is_err());
        assert_nothing_is_left(&home, transfer, file);
    }

    #[test]
    fn a_file_that_cannot_get_its_size_leaves_nothing() {
        // No file system supports a file of this size.
        let (home, transfer, file) = declared((u64::from(u32::MAX) - 1) * GROUP_BYTES);
        let (operation, error) =
            open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap_err();
        transfer.fail_file(FileId(1), failure(operation, &error));
        assert_nothing_is_left(&home, transfer, file);
    }

    #[test]
    fn a_file_of_which_nothing_was_written_leaves_nothing() {
        let (home, transfer, file) = declared(5 * GROUP_BYTES);
        drop(open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap());
        let no_room = FaultCause::new(Operation::Write, FaultCode::Os(28));
        transfer.fail_file(FileId(1), no_room);
        assert_nothing_is_left(&home, transfer, file);
    }

    #[test]
    fn a_whole_file_of_a_broken_session_that_has_no_name_yet_stays_as_a_part() {
        let (home, transfer, file) = declared(5 * GROUP_BYTES);
        let staged = open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap();
        let mut holds = vec![Arc::clone(&staged); 4];
        holds.push(staged);
        let mut complete = None;
        for (index, hold) in (0..).zip(holds) {
            let len = u32::try_from(GROUP_BYTES).unwrap();
            let span = GroupSpan { index, len };
            record_group(&transfer, &file, span, Cv([7; 32])).unwrap();
            complete = file.written(span, hold);
        }
        let complete = complete.unwrap();
        finish_file(&transfer, &transfer.quota.naming_turn(), &file, complete);
        discard_all(&transfer);
        transfer.drop_overtaken();
        drop((transfer, file));
        let names = |directory| {
            std::fs::read_dir(home.path().join(directory))
                .unwrap()
                .count()
        };
        assert_eq!((names("target"), names("journal")), (1, 1));
    }

    /// The key allows only one turn (permission to run) at a time.
    #[test]
    fn a_writer_gives_its_place_to_those_who_place_its_batch() {
        let home = tempfile::tempdir().unwrap();
        let transfer = transfer_with_one_place(1, home.path(), None);
        without_a_standstill(&transfer, || {
            let (jobs_in, jobs) = crossbeam_channel::unbounded();
            std::thread::scope(|scope| {
                scope.spawn(|| write_all(&transfer, &jobs));
                jobs_in.send(WriterJob::Batch(verified_batch())).unwrap();
                drop(jobs_in);
            });
        });
        assert!(home.path().join("d").is_dir());
    }
}
