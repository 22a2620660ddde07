//! The end of a transfer: what is incomplete is said, the rest is published, directories get their metadata, and the names are
//! flushed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zmove_disk::{set_directory_metadata, set_usual_mode};
use zmove_types::{Metadata, RelPath};
use zmove_wire::{Extraneous, Fault, FaultCode, FileDone, Operation};

use crate::sharing::{Lock, by_several};
use crate::store::failure::failure;
use crate::store::large_files::LargeFile;
use crate::store::publishing::publish_all;
use crate::store::reports::Outcome;
use crate::store::target::directories::Remembered;
use crate::store::target::tree::TargetTree;
use crate::store::transfer::Transfer;

/// Finishes; returns how long the flush took, and what is to be told before the end.
///
/// # Errors
/// When the flush fails: nothing may then be promised of any file.
pub(crate) fn finish(transfer: &Transfer) -> io::Result<(Duration, Vec<Outcome>)> {
    let target = &transfer.target;
    let incomplete = |file: Arc<LargeFile>| {
        let fault = Some((Operation::Verify, FaultCode::Incomplete));
        Outcome::File(FileDone { file: file.id.0, fault })
    };
    let mut outcomes: Vec<_> = transfer.files.retire_all().into_iter().map(incomplete).collect();
    // a batch is told as stored just before the publisher has it
    transfer.publisher.wait_until_placed();
    // an error is told to one flush: from now on there are no others than these
    transfer.publisher.stop();
    publish_all(transfer);
    // a small file overtakes the part of a large one when it has its name
    transfer.parts.drop_overtaken(&target.tree);
    let directories = target.directories.take_bottom_up();
    for level in directories.chunk_by(|one, next| one.depth() == next.depth()) {
        outcomes.extend(finish_level(target, level)?.into_iter().map(Outcome::Fault));
    }
    if target.is_closed && directories.last().is_none_or(|last| last.depth() > 0) {
        outcomes.extend(open_target(target)?.map(Outcome::Fault));
    }
    let started = Instant::now();
    if target.rules.flushes() {
        target.file_systems.flush_to_the_end()?;
    }
    transfer.parts.finish();
    Ok((started.elapsed(), outcomes))
}

/// A target that was made, and for which no mode has come, is as open as any new directory from now on.
fn open_target(target: &TargetTree) -> io::Result<Option<Fault>> {
    let directory = target.tree.open_directory(&RelPath::root())?;
    if let Err(error) = set_usual_mode(directory.as_fd(), &target.temp_names) {
        let (operation, code) = failure(Operation::SetMetadata, &error);
        return Ok(Some(Fault { path: RelPath::root(), operation, code }));
    }
    target.flush_if_each(&directory)?;
    Ok(None)
}

/// Directories none of which is within another, so that several threads can do them.
fn finish_level(target: &TargetTree, level: &[Remembered]) -> io::Result<Vec<Fault>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let part = level.len().div_ceil(cores.min(THREADS_MAX)).max(PART_DIRECTORIES_MIN);
    let parts = Lock::new(level.chunks(part));
    let finish = || {
        let next = || parts.lock().next();
        std::iter::from_fn(next).map(|part| finish_part(target, part)).collect()
    };
    let done = by_several("zmove-finish", 1..level.len().div_ceil(part), finish);
    Ok(done.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
}

/// As many threads as there are writers at most.
const THREADS_MAX: usize = 8;
/// What is done sooner than a thread is started.
const PART_DIRECTORIES_MIN: usize = 256;

fn finish_part(target: &TargetTree, part: &[Remembered]) -> io::Result<Vec<Fault>> {
    let mut faults = Vec::new();
    let mirrors = target.rules.extraneous == Extraneous::Goes;
    for remembered in part {
        let path = remembered.path();
        match finish_directory(target, &path, &remembered.metadata) {
            // it may be all that was put into its file system, and the only one to tell of its links and directories
            Ok(directory) => {
                target.flush_if_each(&directory)?;
            }
            // it was there alone: the source has lost it since it was sent
            Err(error) if mirrors && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let (operation, code) = failure(Operation::SetMetadata, &error);
                target.directories.book(path.as_bytes().len()).map_err(io::Error::other)?;
                faults.push(Fault { path, operation, code });
            }
        }
    }
    Ok(faults)
}

fn finish_directory(target: &TargetTree, path: &RelPath, metadata: &Metadata) -> io::Result<Arc<OwnedFd>> {
    let directory = target.tree.open_directory(path)?;
    set_directory_metadata(directory.as_fd(), metadata)?;
    Ok(directory)
}
