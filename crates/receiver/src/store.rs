//! The writers: threads that take verified work from a bounded queue, store it and report.

pub(crate) mod compare;
pub(crate) mod delta;
pub(crate) mod directories;
pub(crate) mod existing;
pub(crate) mod file_systems;
pub(crate) mod in_place;
pub(crate) mod large_files;
pub(crate) mod placer;
pub(crate) mod publisher;
pub(crate) mod read_only_target;
pub(crate) mod set_ids;
pub(crate) mod target;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Receiver;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::Sender;
use zmove_disk::{
    Direct, Disk, FileIdentity, KeptTimes, Staged, TempNames, retouch, set_directory_metadata,
    set_new_file_metadata,
};
use zmove_transport::LaneError;
use zmove_types::{Buffer, BufferPool, Doing, FileId, GroupSpan, ItemId, Metadata, Name, RelPath};
use zmove_wire::{
    Answer, Durability, EntryFault, Extraneous, Fault, FaultCode, FileDone, FileHead, Held, Operation,
    Overwrite, StoredItem, TargetState, ToSender, WireError, session::Arrivals,
};

use crate::account::{Account, Held as Booked};
use crate::meters::TransferMeter;
use crate::resume::parts::{Parts, is_overtaken};
use crate::session::verify::{NamedGroup, VerifiedBatch, VerifiedChunk, damaged};
use crate::store::delta::Bases;
use crate::store::directories::Directories;
use crate::store::file_systems::{FileSystems, Flush};
use crate::store::large_files::{Complete, Copy, FileTable, LargeFile};
use crate::store::placer::{Failure, Known, Placer, failure, is_no_room};
use crate::store::publisher::{PendingBatch, Publisher, WholeFile, end_large, make_room};
use crate::store::set_ids::SetIds;
use crate::store::target::Target;

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
    pub(crate) times: KeptTimes,
    /// How many files have another time than the source's, since their file system does not have that.
    pub(crate) times_beyond_range: AtomicU64,
    pub(crate) file_systems: FileSystems,
    pub(crate) publisher: Publisher,
    /// Whether what is written is to be published without waiting for more: the sender goes on only then, or wants each file
    /// durable by itself.
    pub(crate) promptly: bool,
    pub(crate) directories: Directories,
    /// How many directories each writer may keep open.
    pub(crate) directories_each: usize,
    pub(crate) outcomes: Sender<Told>,
    /// What the transfer holds is booked there.
    pub(crate) account: Account,
    pub(crate) meter: Arc<TransferMeter>,
    pub(crate) stopping: AtomicBool,
}

/// What threads tell the session.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Data has come, whole or damaged; a group of a large file is settled with that.
    Item(StoredItem),
    /// A batch is verified and written, but for these.
    Stored(ItemId, Vec<EntryFault>),
    /// The files of a batch have been flushed as asked and have their final names, but for these.
    Published(ItemId, Vec<EntryFault>),
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
    /// The transfer would keep more than its key may.
    OverLimit(WireError),
    Panicked,
}

/// What the session is told, with what it takes until the peer has been told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) outcome: Outcome,
    pub(crate) held: Booked,
}

impl Told {
    fn new(outcome: Outcome, account: &Account) -> Self {
        match account.hold_memory(outcome.bytes()) {
            Ok(held) => Self { outcome, held },
            Err(error) => Self { outcome: Outcome::OverLimit(error), held: account.nothing() },
        }
    }
}

impl Outcome {
    /// What it keeps in memory beside itself, but for what is booked by whoever tells it.
    fn bytes(&self) -> usize {
        match self {
            Self::Item(StoredItem { faults, .. }) | Self::Stored(_, faults) | Self::Published(_, faults) => {
                size_of_val(&faults[..])
            }
            Self::Fault(fault) => fault.path.as_bytes().len(),
            Self::Answer(held, answer, _) => {
                let cvs: usize = held.iter().map(|held| size_of_val(held) + size_of_val(&held.cvs[..])).sum();
                cvs + size_of_val(&answer.verdicts[..])
            }
            Self::Held(held, _) => size_of_val(&held.cvs[..]),
            _ => 0,
        }
    }
}

/// Work for a writer.
#[derive(Debug)]
pub(crate) enum Job {
    Batch(VerifiedBatch),
    Chunk(Arc<LargeFile>, VerifiedChunk),
    Named(Arc<LargeFile>, NamedGroup),
}

impl Context {
    /// Directories get their mode and time at the end, when nothing is put into them any more: this one, or that of the name
    /// in it.
    pub(crate) fn remember_directory(&self, path: &Arc<RelPath>, name: Option<&Name>, metadata: Metadata) {
        if let Err(error) = self.directories.remember(path, name, metadata) {
            self.tell(Outcome::OverLimit(error));
        }
    }

    /// What a new file gets before its name.
    pub(crate) fn set_metadata(&self, file: &File, metadata: &Metadata) -> Result<(), Failure> {
        set_new_file_metadata(file, metadata).map_err(|error| (Operation::SetMetadata, error))?;
        self.count_beyond_range(metadata.mtime, || FileIdentity::of(file));
        Ok(())
    }

    /// Sets mode and time of a file that is there.
    pub(crate) fn retouch(&self, directory: &OwnedFd, name: &Name, metadata: &Metadata) -> io::Result<()> {
        self.file_systems.note(directory)?;
        retouch(directory.as_fd(), name, metadata)?;
        self.flush_if_each(directory, |directory| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty())?;
            Ok(rustix::fs::fsync(file)?)
        })
    }

    /// Flushes what has been changed at once, where the end of the transfer flushes nothing as a whole.
    pub(crate) fn flush_if_each<F: AsFd>(
        &self,
        changed: &F,
        flush: impl FnOnce(&F) -> io::Result<()>,
    ) -> io::Result<()> {
        let each = self.durability != Durability::None && self.file_systems.note(changed)? == Flush::Each;
        if each { flush(changed) } else { Ok(()) }
    }

    /// Tells the session; waits while it has much to tell the peer. For threads only.
    pub(crate) fn tell(&self, outcome: Outcome) {
        // nobody listens any more only when the session is over
        let _session_over = self.outcomes.blocking_send(Told::new(outcome, &self.account));
    }

    /// The same with what the outcome takes, which is booked already.
    pub(crate) fn tell_booked(&self, outcome: Outcome, held: Booked) {
        // as above
        let _session_over = self.outcomes.blocking_send(Told { outcome, held });
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
        if let Some(file) = self.files.retire(id) {
            self.discard_retired(&file);
        }
    }

    /// Nothing is left of a file that has been retired.
    pub(crate) fn discard_retired(&self, file: &LargeFile) {
        file.discard();
        self.parts.ended(file.id);
    }

    /// Drops what has come of files that somebody else has put there since, whose directory keeps its times; of the others it
    /// tells how they are left. To be called when nothing is written any more.
    pub(crate) fn drop_overtaken(&self) {
        for file in self.files.living() {
            let Some(directory) = self.where_overtaken(&file) else {
                if let Some(there) = file.identity() {
                    self.parts.left(file.id, &there);
                }
                continue;
            };
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
        if let Some(file) = self.files.retire(id) {
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
    use zmove_types::{GROUP_BYTES, Timestamp};

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
