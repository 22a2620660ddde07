//! The end of a transfer: what is incomplete is said, directories get their metadata, everything is flushed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use rustix::fs::Dev;
use zmove_disk::set_directory_metadata;
use zmove_types::{Metadata, RelPath};
use zmove_wire::{Durability, Extraneous, Fault, FaultCode, FileDone, Operation};

use crate::files::LargeFile;
use crate::place::failure;
use crate::store::{Context, Outcome};

/// Finishes; returns how long the flush took, and what is to be told before the end.
///
/// # Errors
/// When the flush fails: nothing may then be promised of any file.
pub(crate) fn finish(context: &Context) -> io::Result<(Duration, Vec<Outcome>)> {
    context.parts.drop_overtaken(&context.target.tree);
    let incomplete = |file: Arc<LargeFile>| {
        let fault = Some((Operation::Verify, FaultCode::Incomplete));
        Outcome::File(FileDone { file: file.id.0, fault })
    };
    let mut outcomes: Vec<_> = context.files.bury_all().into_iter().map(incomplete).collect();
    let mut file_systems = FileSystems::default();
    file_systems.add(context.target.tree.open_directory(&RelPath::root())?)?;
    for level in directories_bottom_up(context).chunk_by(|one, next| one.0.depth() == next.0.depth()) {
        let (reached, faults) = finish_level(context, level)?;
        file_systems.merge(reached);
        outcomes.extend(faults.into_iter().map(Outcome::Fault));
    }
    let started = Instant::now();
    if context.durability != Durability::None {
        let failed = context.flush.lock().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)?;
        file_systems.flush()?;
    }
    Ok((started.elapsed(), outcomes))
}

/// Flushes the target over and over while data comes in, until `stop` is closed, so that little is left for the end. It
/// flushes for four fifths of the time at most, however slow the storage is. A flush that fails ends the session: the kernel
/// tells nobody again, so that another session of the run would not know.
pub(crate) fn flush_rolling(context: &Context, stop: &Receiver<()>) {
    let mut pause = FLUSH_PAUSE;
    while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let started = Instant::now();
        let mut failed = context.flush.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = context.parts.mark();
        match rustix::fs::syncfs(context.target.tree.fd()) {
            Ok(()) => mark.into_iter().for_each(|mark| context.parts.flushed(mark)),
            Err(error) => {
                context.parts.flush_failed();
                *failed = Some(error);
                // the end waits for this
                drop(failed);
                return context.tell(Outcome::FlushFailed(error));
            }
        }
        drop(failed);
        pause = (started.elapsed() / 4).max(FLUSH_PAUSE);
    }
}

/// The shortest pause between two flushes.
const FLUSH_PAUSE: Duration = Duration::from_millis(50);

/// Deepest first, so that a directory is still open to us when those below it are set.
fn directories_bottom_up(context: &Context) -> Vec<(RelPath, Metadata)> {
    let mut directories =
        std::mem::take(&mut *context.directories.lock().unwrap_or_else(PoisonError::into_inner));
    directories.sort_by_cached_key(|(path, _)| std::cmp::Reverse(path.depth()));
    directories
}

/// Directories none of which is within another, so that several threads can do them.
fn finish_level(context: &Context, level: &[(RelPath, Metadata)]) -> io::Result<(FileSystems, Vec<Fault>)> {
    if level.len() <= PART_DIRECTORIES_MIN {
        return finish_part(context, level);
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let part = level.len().div_ceil(cores.min(THREADS_MAX)).max(PART_DIRECTORIES_MIN);
    thread::scope(|scope| {
        let begin = |part| {
            let builder = thread::Builder::new().name("zmove-finish".to_owned());
            // where there can be no more threads, this one does it
            builder.spawn_scoped(scope, move || finish_part(context, part)).map_err(|_no_thread| part)
        };
        let parts: Vec<_> = level.chunks(part).map(begin).collect();
        let (mut reached, mut faults) = (FileSystems::default(), Vec::new());
        for part in parts {
            let done = match part {
                Ok(thread) => thread.join().expect("setting metadata does not panic"),
                Err(part) => finish_part(context, part),
            };
            let (also_reached, more_faults) = done?;
            reached.merge(also_reached);
            faults.extend(more_faults);
        }
        Ok((reached, faults))
    })
}

/// As many threads as there are writers at most.
const THREADS_MAX: usize = 8;
/// What is done sooner than a thread is started.
const PART_DIRECTORIES_MIN: usize = 256;

fn finish_part(context: &Context, part: &[(RelPath, Metadata)]) -> io::Result<(FileSystems, Vec<Fault>)> {
    let (mut reached, mut faults) = (FileSystems::default(), Vec::new());
    let mirrors = context.extraneous == Extraneous::Goes;
    for (path, metadata) in part {
        match finish_directory(context, path, metadata) {
            Ok(directory) => reached.add(directory)?,
            // it was there alone: the source has lost it since it was sent
            Err(error) if mirrors && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let (operation, code) = failure(Operation::SetMetadata, &error);
                faults.push(Fault { path: path.clone(), operation, code });
            }
        }
    }
    Ok((reached, faults))
}

fn finish_directory(context: &Context, path: &RelPath, metadata: &Metadata) -> io::Result<Arc<OwnedFd>> {
    let directory = context.target.tree.open_directory(path)?;
    set_directory_metadata(directory.as_fd(), metadata)?;
    Ok(directory)
}

/// One open directory of each file system that the target reaches into.
#[derive(Default)]
struct FileSystems(HashMap<Dev, Arc<OwnedFd>>);

impl FileSystems {
    fn add(&mut self, directory: Arc<OwnedFd>) -> io::Result<()> {
        let device = rustix::fs::fstat(&directory)?.st_dev;
        self.0.entry(device).or_insert(directory);
        Ok(())
    }

    /// Each keeps the descriptor that was opened first: one that was opened since is not told of errors before.
    fn merge(&mut self, other: Self) {
        for (device, directory) in other.0 {
            self.0.entry(device).or_insert(directory);
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.0.values().try_for_each(|directory| Ok(rustix::fs::syncfs(directory)?))
    }
}
