//! The end of a transfer: what is incomplete is said, the rest is published, directories get their metadata, and the names are
//! flushed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zmove_disk::{set_directory_metadata, set_usual_mode};
use zmove_types::{Metadata, RelPath};
use zmove_wire::{Durability, Extraneous, Fault, FaultCode, FileDone, Operation};

use crate::store::context::Context;
use crate::store::failure::failure;
use crate::store::large_files::LargeFile;
use crate::store::outcome::Outcome;
use crate::store::publishing::publish_all;
use crate::store::target::directories::Remembered;

/// Finishes; returns how long the flush took, and what is to be told before the end.
///
/// # Errors
/// When the flush fails: nothing may then be promised of any file.
pub(crate) fn finish(context: &Context) -> io::Result<(Duration, Vec<Outcome>)> {
    let incomplete = |file: Arc<LargeFile>| {
        let fault = Some((Operation::Verify, FaultCode::Incomplete));
        Outcome::File(FileDone { file: file.id.0, fault })
    };
    let mut outcomes: Vec<_> = context.files.retire_all().into_iter().map(incomplete).collect();
    // a batch is told as stored just before the publisher has it
    context.publisher.wait_until_placed();
    // an error is told to one flush: from now on there are no others than these
    context.publisher.stop();
    publish_all(context);
    // a small file overtakes the part of a large one when it has its name
    context.parts.drop_overtaken(&context.target.tree);
    let directories = context.directories.take_bottom_up();
    for level in directories.chunk_by(|one, next| one.depth() == next.depth()) {
        outcomes.extend(finish_level(context, level)?.into_iter().map(Outcome::Fault));
    }
    if context.target.is_closed && directories.last().is_none_or(|last| last.depth() > 0) {
        outcomes.extend(open_target(context)?.map(Outcome::Fault));
    }
    let started = Instant::now();
    if context.durability != Durability::None {
        context.file_systems.flush_to_the_end()?;
    }
    context.parts.finish();
    Ok((started.elapsed(), outcomes))
}

/// A target that was made, and for which no mode has come, is as open as any new directory from now on.
fn open_target(context: &Context) -> io::Result<Option<Fault>> {
    let target = context.target.tree.open_directory(&RelPath::root())?;
    if let Err(error) = set_usual_mode(target.as_fd(), &context.temp_names) {
        let (operation, code) = failure(Operation::SetMetadata, &error);
        return Ok(Some(Fault { path: RelPath::root(), operation, code }));
    }
    context.flush_if_each(&target, |target| Ok(rustix::fs::fsync(target)?))?;
    Ok(None)
}

/// Directories none of which is within another, so that several threads can do them.
fn finish_level(context: &Context, level: &[Remembered]) -> io::Result<Vec<Fault>> {
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
        let mut faults = Vec::new();
        for part in parts {
            let done = match part {
                Ok(thread) => thread.join().expect("setting metadata does not panic"),
                Err(part) => finish_part(context, part),
            };
            faults.extend(done?);
        }
        Ok(faults)
    })
}

/// As many threads as there are writers at most.
const THREADS_MAX: usize = 8;
/// What is done sooner than a thread is started.
const PART_DIRECTORIES_MIN: usize = 256;

fn finish_part(context: &Context, part: &[Remembered]) -> io::Result<Vec<Fault>> {
    let mut faults = Vec::new();
    let mirrors = context.extraneous == Extraneous::Goes;
    for remembered in part {
        let path = remembered.path();
        match finish_directory(context, &path, &remembered.metadata) {
            // it may be all that was put into its file system, and the only one to tell of its links and directories
            Ok(directory) => {
                context.flush_if_each(&directory, |directory| Ok(rustix::fs::fsync(directory)?))?;
            }
            // it was there alone: the source has lost it since it was sent
            Err(error) if mirrors && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let (operation, code) = failure(Operation::SetMetadata, &error);
                context.directories.book(path.as_bytes().len()).map_err(io::Error::other)?;
                faults.push(Fault { path, operation, code });
            }
        }
    }
    Ok(faults)
}

fn finish_directory(context: &Context, path: &RelPath, metadata: &Metadata) -> io::Result<Arc<OwnedFd>> {
    let directory = context.target.tree.open_directory(path)?;
    set_directory_metadata(directory.as_fd(), metadata)?;
    Ok(directory)
}
