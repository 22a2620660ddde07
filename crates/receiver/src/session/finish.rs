//! The end of a transfer: what is incomplete is said, the rest is published, directories get their metadata, and the names are
//! flushed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zmove_disk::{set_metadata, set_usual_mode};
use zmove_types::{Metadata, RelPath};
use zmove_wire::{Extraneous, Fault, FaultCode, FileDone, Operation};

use crate::store::failure::failure;
use crate::store::large_files::LargeFile;
use crate::store::publishing::publish_all;
use crate::store::reports::Outcome;
use crate::store::target::directories::Remembered;
use crate::store::transfer::Transfer;

/// Finishes; returns how long the flush took, and what is to be told before the end.
///
/// # Errors
/// When the flush fails: nothing may then be promised of any file.
pub(crate) fn finish(transfer: &Transfer) -> io::Result<(Duration, Vec<Outcome>)> {
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
    transfer.parts.drop_overtaken(&transfer.target.tree);
    let directories = transfer.target.directories.take_bottom_up();
    for level in directories.chunk_by(|one, next| one.depth() == next.depth()) {
        outcomes.extend(finish_level(transfer, level)?.into_iter().map(Outcome::Fault));
    }
    if transfer.target.is_closed && directories.last().is_none_or(|last| last.depth() > 0) {
        outcomes.extend(open_target(transfer)?.map(Outcome::Fault));
    }
    let started = Instant::now();
    if transfer.target.rules.flushes() {
        transfer.target.file_systems.flush_to_the_end()?;
    }
    transfer.parts.finish();
    Ok((started.elapsed(), outcomes))
}

/// A target that was made, and for which no mode has come, is as open as any new directory from now on.
fn open_target(transfer: &Transfer) -> io::Result<Option<Fault>> {
    let target = transfer.target.tree.open_directory(&RelPath::root())?;
    if let Err(error) = set_usual_mode(target.as_fd(), &transfer.target.temp_names) {
        let (operation, code) = failure(Operation::SetMetadata, &error);
        return Ok(Some(Fault { path: RelPath::root(), operation, code }));
    }
    transfer.target.flush_if_each(&target)?;
    Ok(None)
}

/// Directories none of which is within another, so that several threads can do them.
fn finish_level(transfer: &Transfer, level: &[Remembered]) -> io::Result<Vec<Fault>> {
    if level.len() <= PART_DIRECTORIES_MIN {
        return finish_part(transfer, level);
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let part = level.len().div_ceil(cores.min(THREADS_MAX)).max(PART_DIRECTORIES_MIN);
    thread::scope(|scope| {
        let begin = |part| {
            let builder = thread::Builder::new().name("zmove-finish".to_owned());
            // where there can be no more threads, this one does it
            builder.spawn_scoped(scope, move || finish_part(transfer, part)).map_err(|_no_thread| part)
        };
        let parts: Vec<_> = level.chunks(part).map(begin).collect();
        let mut faults = Vec::new();
        for part in parts {
            let done = match part {
                Ok(thread) => thread.join().expect("setting metadata does not panic"),
                Err(part) => finish_part(transfer, part),
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

fn finish_part(transfer: &Transfer, part: &[Remembered]) -> io::Result<Vec<Fault>> {
    let mut faults = Vec::new();
    let mirrors = transfer.target.rules.extraneous == Extraneous::Goes;
    for remembered in part {
        let path = remembered.path();
        match finish_directory(transfer, &path, &remembered.metadata) {
            // it may be all that was put into its file system, and the only one to tell of its links and directories
            Ok(directory) => {
                transfer.target.flush_if_each(&directory)?;
            }
            // it was there alone: the source has lost it since it was sent
            Err(error) if mirrors && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let (operation, code) = failure(Operation::SetMetadata, &error);
                transfer.target.directories.book(path.as_bytes().len()).map_err(io::Error::other)?;
                faults.push(Fault { path, operation, code });
            }
        }
    }
    Ok(faults)
}

fn finish_directory(transfer: &Transfer, path: &RelPath, metadata: &Metadata) -> io::Result<Arc<OwnedFd>> {
    // two sources may have given it a mode, the first of which has closed it
    let directory = transfer.target.tree.open_own_directory(path)?;
    set_metadata(directory.as_fd(), metadata)?;
    Ok(directory)
}
