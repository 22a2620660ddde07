//! The writers: threads that take verified work from a bounded queue, store it and report.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use rustix::io::Errno;
use zmove_disk::Staged;
use zmove_types::{Buffer, Doing, GroupSpan, ItemId, Metadata, RelPath};
use zmove_wire::{Durability, Operation, TargetState};

use crate::session::verify::{NamedGroup, VerifiedBatch, VerifiedChunk, damaged};
use crate::store::context::Context;
use crate::store::failure::{failure, is_no_room};
use crate::store::large_files::{Complete, Copy, LargeFile};
use crate::store::outcome::Outcome;
use crate::store::placer::Placer;
use crate::store::publishing::publisher::{Known, PendingBatch, WholeFile};
use crate::store::publishing::{end_large, make_room};

/// Work for a writer.
#[derive(Debug)]
pub(crate) enum Job {
    Batch(VerifiedBatch),
    Chunk(Arc<LargeFile>, VerifiedChunk),
    Named(Arc<LargeFile>, NamedGroup),
}

/// One writer: runs until all lanes have let go of the queue.
pub(crate) fn write_all(context: &Context, queue: &Receiver<Job>) {
    let mut placer = Placer::new(context);
    let mut watch = context.meter.store.start();
    while let Ok(job) = queue.recv() {
        context.meter.take();
        watch.lap(Doing::Starved);
        match job {
            Job::Batch(batch) => store_batch(context, &mut placer, batch),
            Job::Chunk(file, chunk) => store_chunk(context, &mut placer, &file, chunk),
            Job::Named(file, named) => keep_group(context, &mut placer, &file, named),
        }
        watch.lap(Doing::Busy);
    }
}

fn store_batch(context: &Context, placer: &mut Placer<'_>, batch: VerifiedBatch) {
    let known = if batch.is_guessed() && context.target.state == TargetState::Populated {
        Known::PerhapsThere
    } else {
        Known::Needed
    };
    let (item, batch, data, held) = batch.into_parts();
    let _placing = context.publisher.begin_batch();
    let pending = PendingBatch::new(item, known, Some(held));
    let mut rest: &[u8] = &data;
    let mut first = 0;
    for group in batch.groups {
        let count = u32::try_from(group.entries.len()).expect("bounded when decoded");
        placer.place_group(group, first, &pending, &mut rest);
        first += count;
    }
    // the buffer goes back before this may wait
    drop(data);
    context.tell(Outcome::Stored(item, pending.faults()));
    context.publisher.batch_placed(pending, first as usize);
}

fn store_chunk(context: &Context, placer: &mut Placer<'_>, file: &Arc<LargeFile>, chunk: VerifiedChunk) {
    let (item, span, cv, data) = chunk.into_parts();
    match file.begin(span, item) {
        Copy::First => {}
        Copy::Waiting => return,
        Copy::Late => return context.settle(item, Vec::new()),
    }
    let written = open_staged(context, placer, file).and_then(|staged| {
        write_group(context, &staged, span, data)?;
        context.parts.written(file.id, span.index, cv);
        Ok(staged)
    });
    book_group(context, file, (item, span), written);
}

/// Where there is no room it is tried once more when what is replaced has gone.
fn write_group(
    context: &Context,
    staged: &Staged,
    span: GroupSpan,
    data: Buffer,
) -> Result<(), (Operation, io::Error)> {
    let (outcome, data) = staged.write(|| context.disk.write(staged.data(), span.offset(), data));
    let mut outcome = outcome.map_err(|error| (Operation::Write, error));
    if outcome.as_ref().is_err_and(is_no_room) {
        make_room(context);
        let again = staged.write(|| context.disk.write(staged.data(), span.offset(), data)).0;
        outcome = again.map_err(|error| (Operation::Write, error));
    }
    outcome
}

/// A group that the sender has named: it is there, or the sender has to send it.
fn keep_group(context: &Context, placer: &mut Placer<'_>, file: &Arc<LargeFile>, named: NamedGroup) {
    let NamedGroup { item, span, cv } = named;
    match file.begin(span, item) {
        Copy::First => {}
        Copy::Waiting => return,
        Copy::Late => return context.settle(item, Vec::new()),
    }
    let kept = open_staged(context, placer, file).and_then(|staged| {
        let base = file.base.as_ref().map(|base| base.keep(context, &file.head, &staged, (span, cv)));
        let kept = base.unwrap_or(Ok(false)).map_err(|error| (Operation::Write, error))?;
        Ok(kept.then_some(staged))
    });
    match kept.transpose() {
        Some(kept) => {
            if kept.is_ok() {
                context.parts.written(file.id, span.index, cv);
            }
            book_group(context, file, (item, span), kept);
        }
        None => {
            for item in std::iter::once(item).chain(file.end(span)) {
                context.tell(Outcome::Item(damaged(item, Vec::new())));
            }
        }
    }
}

/// A group is in its place, or could not be put there: with all that follows from it its items are settled.
fn book_group(
    context: &Context,
    file: &Arc<LargeFile>,
    (item, span): (ItemId, GroupSpan),
    written: Result<Arc<Staged>, (Operation, io::Error)>,
) {
    match written.map(|staged| file.written(span, staged)) {
        Ok(None) => {}
        Ok(Some(complete)) => finish_file(context, file, complete),
        Err((operation, error)) => context.fail_file(file.id, failure(operation, &error)),
    }
    for item in std::iter::once(item).chain(file.end(span)) {
        context.settle(item, Vec::new());
    }
}

fn open_staged(
    context: &Context,
    placer: &mut Placer<'_>,
    file: &LargeFile,
) -> Result<Arc<Staged>, (Operation, io::Error)> {
    file.staged(|| {
        // the sender may have given it up since this group was taken on
        if file.is_given_up() {
            return Err((Operation::Create, Errno::CANCELED.into()));
        }
        let directory = parent_directory(placer, file)?;
        let final_path = context.final_path(&file.head);
        if let Some(staged) = open_in_place(context, &directory, &final_path, file)? {
            return Ok(staged);
        }
        let mut staged = context
            .parts
            .create(file.id, (&final_path, &file.head), &directory, &context.temp_names)
            .map_err(|error| (Operation::Create, error))?;
        let (bytes, name) = (file.head.bytes, final_path.file_name());
        let sized = match file.base.as_ref().zip(name) {
            Some((base, name)) => base.begin(&directory, &name, &mut staged, bytes, context.direct),
            None => staged.reserve(bytes, context.direct),
        };
        if let Err(error) = sized {
            // no group can be written
            staged.discard();
            return Err((Operation::Create, error));
        }
        Ok(staged)
    })
}

fn open_in_place(
    context: &Context,
    directory: &Arc<OwnedFd>,
    path: &RelPath,
    file: &LargeFile,
) -> Result<Option<Staged>, (Operation, io::Error)> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let wanted = (file.head.bytes, &file.head.metadata);
    let staged = context.begin_in_place(directory, &name, wanted)?;
    if let (Some(staged), Some(base)) = (&staged, &file.base) {
        base.is_the_file_itself(staged);
    }
    Ok(staged)
}

fn parent_directory(
    placer: &mut Placer<'_>,
    file: &LargeFile,
) -> Result<Arc<OwnedFd>, (Operation, io::Error)> {
    let parent = file.head.path.parent().unwrap_or_else(RelPath::root);
    placer.directory_now(&parent).map_err(|error| (Operation::MakeDirectory, error))
}

/// A large file is flushed by itself as soon as it is whole, unless nothing is to be flushed: its descriptor hears of every
/// error since it was opened, and most of it has passed by the page cache. It gets its name from the publisher.
pub(crate) fn finish_file(context: &Context, file: &LargeFile, Complete(staged): Complete) {
    if !context.files.close(file.id) {
        return;
    }
    let path = context.final_path(&file.head);
    let metadata = context.set_ids.of_file(file.head.metadata);
    if staged.is_in_place() {
        let finished = finish_large_in_place(context, staged, (&path, &metadata));
        context.meter.stored(usize::from(finished.is_ok()));
        let fault = finished.err().map(|(operation, error)| failure(operation, &error));
        return end_large(context, file.id, fault);
    }
    // a part that cannot become the file is of no use
    staged.discard();
    if let Err((operation, error)) = seal(context, &staged, &metadata) {
        return end_large(context, file.id, Some(failure(operation, &error)));
    }
    context.publisher.add_large(WholeFile { id: file.id, staged, path, metadata });
}

/// What a large file gets before its final name.
fn seal(context: &Context, staged: &Staged, metadata: &Metadata) -> Result<(), (Operation, io::Error)> {
    context.set_metadata(staged.file(), metadata)?;
    if context.durability == Durability::None {
        return Ok(());
    }
    staged.file().sync_data().map_err(|error| (Operation::Flush, error))
}

fn finish_large_in_place(
    context: &Context,
    staged: Staged,
    (path, metadata): (&RelPath, &Metadata),
) -> Result<(), (Operation, io::Error)> {
    let name = path.file_name().expect("a declared file has a name");
    context.finish_in_place(staged, &name, |staged| context.set_metadata(staged.file(), metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::placer::tests::transfer_with_journals;
    use zmove_types::{FileId, GROUP_BYTES, Timestamp};
    use zmove_wire::{FaultCode, FileHead};

    /// A transfer to a directory of its own, with a file of so many bytes that has been declared.
    fn declared(bytes: u64) -> (tempfile::TempDir, Context, Arc<LargeFile>) {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("target")).unwrap();
        let context = transfer_with_journals(&home.path().join("target"), Some(home.path().join("journal")));
        let path = RelPath::from_bytes(b"large").unwrap();
        let metadata = Metadata::default();
        let ctime = Timestamp::default();
        let head = FileHead {
            path,
            metadata,
            bytes,
            ctime,
            inode: 1,
            extensions: zmove_wire::Extensions::default(),
        };
        context.files.declare(FileId(1), head, |_| None, |_| None).unwrap();
        let file = context.files.find(FileId(1)).unwrap().unwrap();
        (home, context, file)
    }

    #[track_caller]
    fn assert_nothing_is_left(home: &tempfile::TempDir, context: Context, file: Arc<LargeFile>) {
        context.parts.finish();
        drop((context, file));
        assert_eq!(std::fs::read_dir(home.path().join("target")).unwrap().count(), 0);
        let journals = std::fs::read_dir(home.path().join("journal"));
        assert_eq!(journals.map_or(0, |entries| entries.count()), 0);
    }

    #[test]
    fn a_file_that_is_given_up_before_its_first_group_is_written_is_not_begun() {
        let (home, context, file) = declared(5 * GROUP_BYTES);
        context.abandon_file(FileId(1));
        assert!(open_staged(&context, &mut Placer::new(&context), &file).is_err());
        assert_nothing_is_left(&home, context, file);
    }

    #[test]
    fn a_file_that_cannot_get_its_size_leaves_nothing() {
        // more than any file system takes
        let (home, context, file) = declared((u64::from(u32::MAX) - 1) * GROUP_BYTES);
        let (operation, error) = open_staged(&context, &mut Placer::new(&context), &file).unwrap_err();
        context.fail_file(FileId(1), failure(operation, &error));
        assert_nothing_is_left(&home, context, file);
    }

    #[test]
    fn a_file_of_which_nothing_was_written_leaves_nothing() {
        let (home, context, file) = declared(5 * GROUP_BYTES);
        drop(open_staged(&context, &mut Placer::new(&context), &file).unwrap());
        context.fail_file(FileId(1), (Operation::Write, FaultCode::Os(28)));
        assert_nothing_is_left(&home, context, file);
    }
}
