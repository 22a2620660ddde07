//! The writers: threads that take verified work from a bounded queue, store it and report.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Receiver;
use rustix::io::Errno;
use tokio::sync::mpsc::Sender;
use zmove_disk::{Direct, Disk, FileIdentity, Staged, TempNames, set_directory_metadata};
use zmove_transport::LaneError;
use zmove_types::{BufferPool, Doing, FileId, GroupSpan, ItemId, Metadata, RelPath, Stopwatch};
use zmove_wire::{
    Answer, Durability, EntryFault, Extraneous, Fault, FaultCode, FileDone, FileHead, Held, Operation,
    Overwrite, StoredItem, TargetState, ToSender, WireError, session::Arrivals,
};

use crate::check::{NamedGroup, VerifiedBatch, VerifiedChunk, damaged};
use crate::delta::Bases;
use crate::files::{Complete, Copy, FileTable, LargeFile};
use crate::meters::TransferMeter;
use crate::nurseries::{Nurseries, Unsettled};
use crate::parts::{Parts, is_overtaken};
use crate::place::{Known, Placer, commit, failure};
use crate::set_ids::SetIds;
use crate::target::Target;
use crate::untouched::Untouched;

/// What all threads of one transfer share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) target: Target,
    pub(crate) durability: Durability,
    pub(crate) overwrite: Overwrite,
    pub(crate) extraneous: Extraneous,
    /// Whether files that are there are to be changed in their place.
    pub(crate) in_place: bool,
    pub(crate) set_ids: SetIds,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) direct: Direct,
    pub(crate) pool: BufferPool,
    pub(crate) files: FileTable,
    pub(crate) parts: Parts,
    pub(crate) bases: Bases,
    pub(crate) arrivals: Mutex<Arrivals>,
    pub(crate) temp_names: TempNames,
    pub(crate) untouched: Untouched,
    pub(crate) nurseries: Nurseries,
    pub(crate) directories: Mutex<Vec<(RelPath, Metadata)>>,
    pub(crate) outcomes: Sender<Outcome>,
    pub(crate) meter: Arc<TransferMeter>,
    /// Held while flushing, with the error of one that failed: the kernel tells it only once.
    pub(crate) flush: Mutex<Option<Errno>>,
    pub(crate) stopping: AtomicBool,
}

/// What threads tell the session.
#[derive(Debug)]
pub(crate) enum Outcome {
    Item(StoredItem),
    File(FileDone),
    Fault(Fault),
    /// What is held of an offer's files, its answer, and whether that ends it.
    Answer(Vec<Held>, Answer, bool),
    /// More of what is held, and whether that ends its offer.
    Held(Held, bool),
    /// What else is where names stay, or what has gone.
    Mirror(ToSender),
    /// The lane of that number, and how.
    LaneEnded(u32, Result<(), LaneError>),
    /// What has been stored may not be on the storage.
    FlushFailed(Errno),
    Panicked,
}

/// Work for a writer.
#[derive(Debug)]
pub(crate) enum Job {
    Batch(VerifiedBatch),
    Chunk(Arc<LargeFile>, VerifiedChunk),
    Named(Arc<LargeFile>, NamedGroup),
}

impl Context {
    /// Directories get their mode and time at the end, when nothing is put into them any more.
    pub(crate) fn remember_directory(&self, path: RelPath, metadata: Metadata) {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner).push((path, metadata));
    }

    /// Tells the session; waits while it has much to tell the peer. For threads only.
    pub(crate) fn tell(&self, outcome: Outcome) {
        // nobody listens any more only when the session is over
        let _session_over = self.outcomes.blocking_send(outcome);
    }

    /// Whether an item has come for the first time; it is dropped otherwise.
    pub(crate) fn let_in(&self, item: u64) -> Result<bool, WireError> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).insert(item)
    }

    pub(crate) fn settle(&self, item: ItemId, faults: Vec<EntryFault>) {
        self.tell(Outcome::Item(StoredItem { item: item.0, mismatch: false, faults }));
    }

    /// Where a large file goes in the end.
    pub(crate) fn final_path(&self, head: &FileHead) -> RelPath {
        let parent = head.path.parent().unwrap_or_else(RelPath::root);
        let Some(name) = head.path.file_name() else { return head.path.clone() };
        parent.join(self.target.name(&parent, &name)).unwrap_or_else(|_| head.path.clone())
    }

    /// The sender has given a large file up: nothing is left of it.
    pub(crate) fn abandon_file(&self, id: FileId) {
        if let Some(file) = self.files.bury(id) {
            file.discard();
            self.parts.ended(id);
        }
    }

    /// Drops what has come of files that somebody else has put there since, whose directory keeps its times. To be called when
    /// nothing is written any more.
    pub(crate) fn drop_overtaken(&self) {
        for file in self.files.living() {
            let Some(directory) = self.where_overtaken(&file) else { continue };
            let before = FileIdentity::of(&directory);
            self.abandon_file(file.id);
            // the last who holds it: now it goes
            drop(file);
            if let Ok(before) = before {
                let _best_effort = set_directory_metadata(directory.as_fd(), &before.metadata());
            }
        }
        self.parts.finish();
    }

    fn where_overtaken(&self, file: &LargeFile) -> Option<Arc<OwnedFd>> {
        let path = self.final_path(&file.head);
        let directory = self.target.tree.open_directory(&path.parent()?).ok()?;
        is_overtaken(&directory, &path.file_name()?, &file.identity()?).then_some(directory)
    }

    /// Ends a large file badly, unless it has ended before. What has come of it stays for another transfer, if anything has.
    pub(crate) fn fail_file(&self, id: FileId, fault: (Operation, FaultCode)) {
        if let Some(file) = self.files.bury(id) {
            if file.is_blank() {
                file.discard();
                self.parts.ended(id);
            }
            self.tell(Outcome::File(FileDone { file: id.0, fault: Some(fault) }));
        }
    }
}

/// One writer: runs until all lanes have let go of the queue.
pub(crate) fn write_all(context: &Context, queue: &Receiver<Job>) {
    let mut placer = Placer::new(context);
    let mut watch = context.meter.store.start();
    while let Some(job) = next_job(&mut placer, &mut watch, queue) {
        context.meter.take();
        watch.lap(Doing::Starved);
        match job {
            Job::Batch(batch) => store_batch(context, &mut placer, batch),
            Job::Chunk(file, chunk) => store_chunk(context, &mut placer, &file, chunk),
            Job::Named(file, named) => keep_group(context, &mut placer, &file, named),
        }
        placer.publish_old();
        watch.lap(Doing::Busy);
    }
}

/// The next piece of work. Before waiting for one, everything that has come gets its name.
fn next_job(placer: &mut Placer<'_>, watch: &mut Stopwatch<'_>, queue: &Receiver<Job>) -> Option<Job> {
    queue.try_recv().ok().or_else(|| {
        placer.publish_all();
        watch.lap(Doing::Busy);
        queue.recv().ok()
    })
}

fn store_batch(context: &Context, placer: &mut Placer<'_>, batch: VerifiedBatch) {
    let known = if batch.is_guessed() && context.target.state == TargetState::Populated {
        Known::PerhapsThere
    } else {
        Known::Needed
    };
    let (item, batch, data) = batch.into_parts();
    let unsettled = Unsettled::new(item, known);
    let mut rest: &[u8] = &data;
    let mut first = 0;
    for group in batch.groups {
        let count = u32::try_from(group.entries.len()).expect("bounded when decoded");
        placer.place_group(group, first, &unsettled, &mut rest);
        first += count;
    }
    unsettled.release(context);
}

fn store_chunk(context: &Context, placer: &mut Placer<'_>, file: &Arc<LargeFile>, chunk: VerifiedChunk) {
    let (item, span, cv, data) = chunk.into_parts();
    match file.begin(span, item) {
        Copy::First => {}
        Copy::Waiting => return,
        Copy::Late => return context.settle(item, Vec::new()),
    }
    let written = open_staged(context, placer, file).and_then(|staged| {
        let (outcome, _data) = context.disk.write(staged.data(), span.offset(), data);
        outcome.map_err(|error| (Operation::Write, error))?;
        context.parts.written(file.id, span.index, cv);
        Ok(staged)
    });
    book_group(context, placer, file, (item, span), written);
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
            book_group(context, placer, file, (item, span), kept);
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
    placer: &mut Placer<'_>,
    file: &Arc<LargeFile>,
    (item, span): (ItemId, GroupSpan),
    written: Result<Arc<Staged>, (Operation, io::Error)>,
) {
    match written.map(|staged| file.written(span, staged)) {
        Ok(None) => {}
        Ok(Some(complete)) => finish_file(context, placer, file, complete),
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
    if let (Some(_), Some(base)) = (&staged, &file.base) {
        base.is_the_file_itself();
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

/// A large file is flushed before it gets its name unless nothing is to be flushed: its size is set from the start, so
/// after a power cut a name without the data would look finished.
pub(crate) fn finish_file(
    context: &Context,
    placer: &mut Placer<'_>,
    file: &LargeFile,
    Complete(mut staged): Complete,
) {
    if !context.files.close(file.id) {
        return;
    }
    let path = context.final_path(&file.head);
    let parent = path.parent().unwrap_or_else(RelPath::root);
    let name = path.file_name().expect("a declared file has a name");
    let flush = context.durability != Durability::None;
    if let Ok(directory) = placer.directory_now(&parent) {
        staged.move_to(directory);
    }
    // a part that cannot become the file is of no use
    staged.discard();
    let committed = commit(context, staged, &name, &context.set_ids.of_file(file.head.metadata), flush);
    context.meter.stored(usize::from(committed.is_ok()));
    let fault = committed.err().map(|(operation, error)| failure(operation, &error));
    context.parts.ended(file.id);
    context.tell(Outcome::File(FileDone { file: file.id.0, fault }));
    context.files.closed(file.id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::transfer_with_journals;
    use zmove_types::{GROUP_BYTES, Timestamp};

    /// A transfer to a directory of its own, with a file of so many bytes that has been declared.
    fn declared(bytes: u64) -> (tempfile::TempDir, Context, Arc<LargeFile>) {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("target")).unwrap();
        let context = transfer_with_journals(&home.path().join("target"), Some(home.path().join("journal")));
        let path = RelPath::from_bytes(b"large").unwrap();
        let metadata = Metadata::default();
        let head = FileHead { path, metadata, bytes, ctime: Timestamp::default(), inode: 1 };
        context.files.declare(FileId(1), head, |_| (None, None)).unwrap();
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
