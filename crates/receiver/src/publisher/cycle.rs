//! One turn of publishing: flush, look at what the flush has failed for, give names, tell.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, AtFlags};
use rustix::io::Errno;
use zmove_chunk::file_root;
use zmove_disk::{DataFile, Direct, FileIdentity, Replace, StagingDirectory, publish_file};
use zmove_types::{BufferPool, FileId, Name, RelPath, Timestamp};
use zmove_wire::{Durability, Fault, FaultCode, FileDone, FileEntry, Operation, Overwrite};

use super::{Filled, Filling, Generation, HiddenFile, PendingBatch, WholeFile};
use crate::compare::stays;
use crate::config::BUFFER_BYTES;
use crate::old::open_old;
use crate::place::{ALREADY_THERE, Failure, Known, Placer, failure};
use crate::publisher::Wake;
use crate::store::{Context, Outcome};

/// The thread that publishes, until it is [stopped](super::Publisher::stop). It also flushes while nothing is to be published, for four
/// fifths of the time at most, so that little is left for the end.
pub(crate) fn run(context: &Context) {
    let mut pause = FLUSH_PAUSE;
    loop {
        let publish = match context.publisher.next(pause) {
            Wake::Stopped => return,
            Wake::Requested => true,
            Wake::Time => context.publisher.is_due(context.promptly),
        };
        let started = Instant::now();
        if publish {
            publish_all(context);
        } else {
            flush_ahead(context);
        }
        pause = (started.elapsed() / 4).max(FLUSH_PAUSE);
    }
}

/// The shortest pause between two flushes.
const FLUSH_PAUSE: Duration = Duration::from_millis(50);
/// Threads that read back what a failed flush has left in doubt.
const READERS: usize = 8;

/// Flushes what has been written, and publishes it.
pub(crate) fn publish_all(context: &Context) {
    let _one_at_a_time = context.publisher.cycle.lock().unwrap_or_else(PoisonError::into_inner);
    let mut generation = context.publisher.take();
    let flushed = flush(context);
    if flushed.is_err() {
        // what came while the flush ran may be what it failed for
        context.publisher.suspect();
        generation.suspect = true;
    }
    // told before another turn can come: who publishes last may say after that that all is done
    generation.publish(context).into_iter().for_each(|batch| batch.release(context));
}

fn flush_ahead(context: &Context) {
    let _one_at_a_time = context.publisher.cycle.lock().unwrap_or_else(PoisonError::into_inner);
    if flush(context).is_err() {
        context.publisher.suspect();
    }
}

/// Flushes the file systems, unless the sender wants no flush.
fn flush(context: &Context) -> Result<(), Errno> {
    if context.durability == Durability::None {
        return Ok(());
    }
    let mark = context.parts.mark();
    let flushed = context.file_systems.flush();
    match flushed {
        Ok(()) => mark.into_iter().for_each(|mark| context.parts.flushed(mark)),
        Err(_) => context.parts.flush_failed(),
    }
    flushed
}

impl Generation {
    /// Gives everything its name; returns the batches that have all of theirs now, as far as this generation goes.
    fn publish(mut self, context: &Context) -> Vec<Arc<PendingBatch>> {
        let mut placer = Placer::new(context);
        if self.suspect {
            self.drop_what_is_not_on_the_storage(&mut placer);
        }
        let mut batches = self.batches;
        let flushes_directories = context.durability == Durability::File || context.file_systems.any_each();
        let mut changed = HashSet::new();
        // sorted, so that each directory is opened once
        self.files.sort_by(|one, other| one.directory.cmp(&other.directory));
        for file in self.files {
            publish_hidden(context, &mut placer, &file);
            if flushes_directories {
                changed.insert(file.directory.as_ref().clone());
            }
            batches.push(file.batch);
        }
        for file in self.large {
            changed.extend(file.path.parent());
            publish_large(context, &mut placer, file);
        }
        // the deepest first: one that cannot become its directory takes along what is below it under final names
        let mut staging: Vec<_> = self.staging.into_iter().collect();
        staging.sort_by_key(|(path, _)| std::cmp::Reverse(path.depth()));
        for (path, filling) in staging {
            changed.extend(path.parent());
            changed.insert(path.clone());
            batches.extend(publish_staging(context, &mut placer, &path, filling));
        }
        if flushes_directories {
            flush_directories(context, &mut placer, &changed);
        }
        batches
    }

    /// After a flush that failed: the kernel has told that once, and calls the pages clean that it could not write. What is not
    /// on the storage as it should be is removed.
    fn drop_what_is_not_on_the_storage(&mut self, placer: &mut Placer<'_>) {
        let context = placer.context();
        let mut suspects = Vec::new();
        for file in self.files.drain(..) {
            match placer.directory_as_it_is(&file.directory) {
                Ok(directory) => suspects.push((directory, file.hidden.clone(), Suspect::Hidden(file))),
                Err(error) => file.batch.fault(file.entry, failure(Operation::Flush, &error)),
            }
        }
        for (path, filling) in &mut self.staging {
            for filled in &mut filling.filled {
                for (entry, file) in filled.files.drain(..) {
                    let (directory, name) = (Arc::clone(filling.staging.directory()), file.name.clone());
                    let suspect = Suspect::Staged(path.clone(), Arc::clone(&filled.batch), entry, file);
                    suspects.push((directory, name, suspect));
                }
            }
        }
        for (suspect, found) in look_at_all(context, suspects) {
            match (suspect, found) {
                (Suspect::Hidden(file), Ok(())) => self.files.push(file),
                (Suspect::Hidden(file), Err(error)) => {
                    file.batch.fault(file.entry, failure(Operation::Flush, &error));
                    remove_hidden(placer, &file);
                }
                (Suspect::Staged(path, batch, entry, file), found) => {
                    let Some(filling) = self.staging.get_mut(&path) else { continue };
                    if let Err(error) = found {
                        batch.fault(entry, failure(Operation::Flush, &error));
                        filling.spoiled.push(file.name);
                        continue;
                    }
                    filling.filled.push(Filled { batch, files: vec![(entry, file)] });
                }
            }
        }
    }
}

/// A small file of which nobody knows whether it is on the storage.
enum Suspect {
    Hidden(HiddenFile),
    /// In the staging directory of that path.
    Staged(RelPath, Arc<PendingBatch>, u32, FileEntry),
}

impl Suspect {
    const fn file(&self) -> &FileEntry {
        match self {
            Self::Hidden(HiddenFile { file, .. }) | Self::Staged(.., file) => file,
        }
    }
}

type Found = (Suspect, io::Result<()>);

/// Flushes each file by itself and reads it back, many at a time.
fn look_at_all(context: &Context, suspects: Vec<(Arc<OwnedFd>, Name, Suspect)>) -> Vec<Found> {
    let (give, take) = crossbeam_channel::unbounded();
    suspects.into_iter().for_each(|suspect| give.send(suspect).expect("the other end is here"));
    drop(give);
    thread::scope(|scope| {
        let look = || {
            let buffers = BufferPool::new(BUFFER_BYTES, 1);
            let look = |(directory, name, suspect): (Arc<OwnedFd>, Name, Suspect)| {
                let found = look_at(context, &buffers, (&directory, &name), suspect.file());
                (suspect, found)
            };
            take.iter().map(look).collect::<Vec<_>>()
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(look)).collect();
        readers.into_iter().flat_map(|reader| reader.join().expect("reading does not panic")).collect()
    })
}

/// Whether a file is on the storage as it should be, read past the page cache.
fn look_at(
    context: &Context,
    buffers: &BufferPool,
    (directory, name): (&OwnedFd, &Name),
    wanted: &FileEntry,
) -> io::Result<()> {
    let opened = open_old(directory.as_fd(), name)?;
    opened.sync_all()?;
    // where the file system knows no direct reads, clean pages are at least let go of
    rustix::fs::fadvise(&opened, 0, None, Advice::DontNeed)?;
    let data = DataFile::for_reading(opened, u64::from(wanted.bytes), Direct::On);
    let buffer = buffers.take().ok_or(Errno::NOBUFS)?;
    let (outcome, buffer) = context.disk.read(&data, 0, wanted.bytes as usize, buffer, &mut |_slice| {});
    outcome?;
    let is_right = buffer.len() == wanted.bytes as usize && file_root(&buffer) == wanted.root;
    if is_right { Ok(()) } else { Err(Errno::IO.into()) }
}

/// What a file has come to that was to get its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    Named,
    /// What is there stays: it is the same, or newer, or not to be replaced.
    AlreadyThere,
}

fn publish_hidden(context: &Context, placer: &mut Placer<'_>, file: &HiddenFile) {
    let directory = placer.directory_as_it_is(&file.directory).map_err(|error| (Operation::Rename, error));
    let named = directory.and_then(|directory| {
        let name = context.target.name(&file.directory, &file.file.name);
        if stays_there(context, &directory, name, (file.batch.known, &file.file)) {
            return Ok(Naming::AlreadyThere);
        }
        or_already_there(publish_file(&directory, &file.hidden, name, replaces(context)))
    });
    if !matches!(named, Ok(Naming::Named)) {
        remove_hidden(placer, file);
    }
    match named {
        Ok(Naming::Named) => context.meter.stored(1),
        Ok(Naming::AlreadyThere) => file.batch.fault(file.entry, ALREADY_THERE),
        Err((operation, error)) => file.batch.fault(file.entry, failure(operation, &error)),
    }
}

/// Whether what has a small file's name already stays.
fn stays_there(
    context: &Context,
    directory: &OwnedFd,
    name: &Name,
    (known, file): (Known, &FileEntry),
) -> bool {
    let metadata = context.set_ids.of_file(file.metadata);
    match known {
        Known::PerhapsThere => context.is_kept(directory, name, u64::from(file.bytes), &metadata),
        Known::Needed => may_not_be_replaced(context, directory, name, metadata.mtime),
    }
}

/// Whether something stands there that `--update` or `--ignore-existing` keeps. It may have come since the sender was told.
fn may_not_be_replaced(context: &Context, directory: &OwnedFd, name: &Name, mtime: Timestamp) -> bool {
    context.overwrite != Overwrite::Differing
        && FileIdentity::at(directory, name)
            .is_ok_and(|there| stays(context.overwrite, &there, || context.times.kept(directory, mtime)))
}

fn replaces(context: &Context) -> Replace {
    match context.overwrite {
        Overwrite::Differing | Overwrite::Older => Replace::Existing,
        Overwrite::Nothing => Replace::Nothing,
    }
}

fn or_already_there(published: io::Result<()>) -> Result<Naming, Failure> {
    match published {
        Ok(()) => Ok(Naming::Named),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => Ok(Naming::AlreadyThere),
        Err(error) => Err((Operation::Rename, error)),
    }
}

fn remove_hidden(placer: &mut Placer<'_>, file: &HiddenFile) {
    if let Ok(directory) = placer.directory_as_it_is(&file.directory) {
        // the next transfer that comes here sweeps what stays
        let _best_effort = rustix::fs::unlinkat(&directory, file.hidden.as_os_str(), AtFlags::empty());
    }
}

fn publish_large(context: &Context, placer: &mut Placer<'_>, whole: WholeFile) {
    let WholeFile { id, mut staged, path, metadata } = whole;
    let parent = path.parent().unwrap_or_else(RelPath::root);
    let name = path.file_name().expect("a declared file has a name");
    let directory = placer.directory_as_it_is(&parent).map_err(|error| (Operation::Rename, error));
    let named = directory.and_then(|directory| {
        if may_not_be_replaced(context, &directory, &name, metadata.mtime) {
            return Ok(Naming::AlreadyThere);
        }
        staged.move_to(directory);
        or_already_there(staged.commit(&name, replaces(context)))
    });
    let fault = match named {
        Ok(Naming::Named) => {
            context.meter.stored(1);
            None
        }
        Ok(Naming::AlreadyThere) => Some(ALREADY_THERE),
        Err((operation, error)) => Some(failure(operation, &error)),
    };
    end_large(context, id, fault);
}

/// A large file has its name, or cannot get it.
pub(crate) fn end_large(context: &Context, id: FileId, fault: Option<(Operation, FaultCode)>) {
    context.parts.ended(id);
    context.tell(Outcome::File(FileDone { file: id.0, fault }));
    context.files.closed(id);
}

/// Returns the batches whose files were in it.
fn publish_staging(
    context: &Context,
    placer: &mut Placer<'_>,
    path: &RelPath,
    filling: Filling,
) -> Vec<Arc<PendingBatch>> {
    let Filling { staging, filled, mut spoiled, abandoned, .. } = filling;
    spoiled.retain(|name| staging.discard(name).is_err_and(|error| error.kind() != io::ErrorKind::NotFound));
    let published = if abandoned || !spoiled.is_empty() {
        Err(Errno::NOTEMPTY.into())
    } else {
        staging.publish(replaces(context))
    };
    match published {
        Ok(()) => context.meter.stored(filled.iter().map(|filled| filled.files.len()).sum()),
        // what is in it goes with it
        Err(error) if abandoned => fault_all(&filled, &error),
        Err(_in_the_way) => merge(context, placer, (path, &staging), (&filled, &spoiled)),
    }
    context.publisher.named(path);
    filled.into_iter().map(|filled| filled.batch).collect()
}

fn fault_all(filled: &[Filled], error: &io::Error) {
    for Filled { batch, files } in filled {
        files.iter().for_each(|(entry, _)| batch.fault(*entry, failure(Operation::Rename, error)));
    }
}

/// Somebody else has put something where the directory was to be: what is in it goes there entry by entry.
fn merge(
    context: &Context,
    placer: &mut Placer<'_>,
    (path, staging): (&RelPath, &StagingDirectory),
    (filled, spoiled): (&[Filled], &[Name]),
) {
    let target = match placer.final_directory(path) {
        Ok(target) => target,
        Err(error) => return fault_all(filled, &error),
    };
    let mut files: HashMap<&[u8], (&Arc<PendingBatch>, u32, &FileEntry)> = HashMap::new();
    for Filled { batch, files: some } in filled {
        files.extend(some.iter().map(|(entry, file)| (file.name.as_bytes(), (batch, *entry, file))));
    }
    // what is not come upon is gone, as when somebody has removed the staging directory
    let gone = failure(Operation::Rename, &Errno::NOENT.into());
    let mut outcomes: HashMap<Vec<u8>, Option<_>> =
        files.keys().map(|name| (name.to_vec(), Some(gone))).collect();
    let mut failed = Vec::new();
    let mut stays = |into: &OwnedFd, below: &RelPath| {
        let Some((batch, _, file)) = files.get(below.as_bytes()) else {
            // what is not a file of a batch moves, but for what is not whole
            return spoiled.iter().any(|name| name.as_bytes() == below.as_bytes());
        };
        let stays = stays_there(context, into, &file.name, (batch.known, file));
        outcomes.insert(below.as_bytes().to_vec(), stays.then_some(ALREADY_THERE));
        stays
    };
    staging.move_into(&target, &mut stays, &mut |below, error| failed.push((below, error)));
    for (below, error) in failed {
        outcomes.insert(below.as_bytes().to_vec(), Some(failure(Operation::Rename, &error)));
    }
    for (name, (batch, entry, _)) in files {
        match outcomes.get(name) {
            Some(Some(code)) => batch.fault(entry, *code),
            _ => context.meter.stored(1),
        }
    }
}

/// `--durability file` promises each name before it is told, and some file systems flush nothing as a whole.
fn flush_directories(context: &Context, placer: &mut Placer<'_>, changed: &HashSet<RelPath>) {
    for path in changed {
        let flushed = placer.directory_as_it_is(path).and_then(|directory| Ok(rustix::fs::fsync(directory)?));
        if let Err(error) = flushed {
            let (operation, code) = failure(Operation::Flush, &error);
            context.tell(Outcome::Fault(Fault { path: path.clone(), operation, code }));
        }
    }
}
