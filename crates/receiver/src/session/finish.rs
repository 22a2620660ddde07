//! The end of a transfer. Reports incomplete files, publishes the remaining ones, sets the metadata of directories, and
//! flushes the new names.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zmove_disk::{Task, Tree, Turn, set_default_mode};
use zmove_types::RelPath;
use zmove_wire::{Extraneous, Fault, FaultCode, Operation};

use crate::store::failure::{FaultCause, failure};
use crate::store::large_files::LargeFile;
use crate::store::publishing::publish_all;
use crate::store::reports::ThreadReport;
use crate::store::target::directories::Remembered;
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::tree::TargetTree;
use crate::store::transfer::Transfer;
use zmove_types::Lock;

/// Finishes a transfer. Returns the duration of the flush, and the outcomes to report before the end.
///
/// # Errors
/// Returns an error if a flush fails. In that case, no file can be reported as durable.
pub(crate) fn finish(transfer: &Transfer) -> io::Result<(Duration, Vec<ThreadReport>)> {
    let target = &transfer.target;
    let incomplete = |file: Arc<LargeFile>| {
        let cause = FaultCause::new(Operation::Verify, FaultCode::Incomplete);
        ThreadReport::File(cause.of_file(file.id))
    };
    let unfinished = transfer.files.retire_all().into_iter();
    // In a shared job, an order of a sender completes a file, possibly at another receiver. So the file is not reported
    // as incomplete here.
    let mut outcomes: Vec<_> = unfinished
        .filter(|_| target.shared_job.is_none())
        .map(incomplete)
        .collect();
    // A batch is reported as stored just before it is passed to the publisher, so this waits until all batches were
    // passed.
    transfer.publisher.wait_until_placed();
    // The kernel reports a write error to only one flush. The publisher is stopped, so that only the flushes below can
    // receive the error.
    transfer.publisher.stop();
    publish_all(transfer);
    // Files that were just published may have made parts of earlier transfers obsolete.
    transfer.parts.drop_overtaken(&target.tree);
    let directories = match target.shared_job {
        None => target.directories.take_bottom_up(),
        // Other sessions of the job still write to these directories. When they have finished, the head (the node that
        // leads the job) orders a receiver to set the metadata.
        Some(_) => Vec::new(),
    };
    for level in directories.chunk_by(|one, next| one.depth == next.depth) {
        outcomes.extend(
            finish_level(transfer, level)?
                .into_iter()
                .map(ThreadReport::Fault),
        );
    }
    if target.shared_job.is_none() && directories.last().is_none_or(|last| last.depth > 0) {
        outcomes.extend(set_mode_of_target(target)?.map(ThreadReport::Fault));
    }
    let started = Instant::now();
    if target.view.policy.rules.flushes() {
        target.file_systems.flush_without_timeout()?;
    }
    transfer.parts.finish();
    Ok((started.elapsed(), outcomes))
}

/// Sets the mode of the target directory if the source has not sent one. An existing directory gets back the mode that
/// it had before it was made accessible. A directory that this transfer has created gets the usual mode.
fn set_mode_of_target(target: &TargetTree) -> io::Result<Option<Fault>> {
    let directory = target.tree.open_directory(&RelPath::root())?;
    let set = match target.mode_before {
        Some(mode) => target.tree.set_root_mode(mode),
        None if target.is_closed => set_default_mode(target.tree.lease(), directory.as_fd()),
        None => return Ok(None),
    };
    if let Err(error) = set {
        let cause = failure(Operation::SetMetadata, &error);
        return Ok(Some(cause.at(RelPath::root())));
    }
    target.flush_if_per_file(&directory)?;
    Ok(None)
}

/// Finishes directories of the same depth. Several threads can do this, because none of these directories contains
/// another.
fn finish_level(transfer: &Transfer, level: &[Remembered]) -> io::Result<Vec<Fault>> {
    let parts = Lock::new(level.chunks(PART_DIRECTORIES));
    let done = transfer.run_parallel(Task::Write, "zmove-finish", |turn| {
        let mut faults = Vec::new();
        let next = || parts.lock().next();
        for part in std::iter::from_fn(next) {
            faults.extend(finish_part(transfer, turn, part)?);
        }
        Ok(faults)
    });
    Ok(done.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
}

/// Number of directories that a thread takes at a time. Directories with the same parent are adjacent in the list.
const PART_DIRECTORIES: usize = 16;

fn finish_part(
    transfer: &Transfer,
    turn: &Turn<'_>,
    part: &[Remembered],
) -> io::Result<Vec<Fault>> {
    let target = &transfer.target;
    let mut faults = Vec::new();
    let mirrors = target.view.policy.rules.extraneous == Extraneous::Goes;
    let mut opener = Opener {
        tree: &target.tree,
        last: None,
    };
    for remembered in part {
        if turn.is_over() {
            return Err(Errno::CANCELED.into());
        }
        turn.start_helper();
        let opened = opener.open(remembered);
        let at = EntryLocation(&remembered.path, remembered.name.as_ref());
        let set = |opened: Arc<OwnedFd>| {
            target
                .set_directory(&opened, &remembered.metadata, at)
                .map(|()| opened)
        };
        match opened.and_then(set) {
            // Opening the directory adds its file system to the final flush, which the directory may be the only one to
            // change. If files are flushed one by one, only this call makes the links and subdirectories in the
            // directory durable.
            Ok(directory) => {
                target.flush_if_per_file(&directory)?;
            }
            // The source has lost the directory after it was sent, so the mirror has removed it from the target.
            Err(error) if mirrors && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = remembered.path();
                target
                    .directories
                    .charge(path.as_bytes().len())
                    .map_err(io::Error::other)?;
                faults.push(failure(Operation::SetMetadata, &error).at(path));
            }
        }
    }
    Ok(faults)
}

/// Opens remembered directories in order. Only the first directory of a parent is opened by its path from the root. The
/// others are opened relative to the parent, because thousands of directories may share a parent with a very long path.
struct Opener<'a> {
    tree: &'a Tree,
    /// The parent path of the last directory. The parent itself is opened when a second directory in it is requested.
    last: Option<(&'a Arc<RelPath>, Option<Tree>)>,
}

impl<'a> Opener<'a> {
    fn open(&mut self, remembered: &'a Remembered) -> io::Result<Arc<OwnedFd>> {
        let Remembered { path, name, .. } = remembered;
        let Some((_, above)) = self
            .last
            .as_mut()
            .filter(|(last, _)| Arc::ptr_eq(last, path))
        else {
            self.last = Some((path, None));
            // Another source may already have set a mode that denies access to this directory.
            return self.tree.open_own_directory(&remembered.path());
        };
        let above = match above {
            Some(above) => above,
            None => above.insert(self.tree.with_root(self.tree.open_own_directory(path)?)),
        };
        let Some(name) = name else {
            return above.open_directory(&RelPath::root());
        };
        above.open_own_directory(&RelPath::from(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::Ordering;
    use zmove_types::Metadata;

    use crate::store::placer::tests::transfer;

    /// The next transfer of the run may already write to these directories.
    #[test]
    fn a_session_that_is_over_changes_no_directory() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("d");
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, Permissions::from_mode(0o500)).unwrap();
        let transfer = transfer(home.path());
        let (path, metadata) = (
            RelPath::from_bytes(b"d").unwrap(),
            Metadata {
                mode: 0o755,
                ..Metadata::default()
            },
        );
        transfer.remember_directory(&Arc::new(path), None, metadata);
        transfer.stopping.store(true, Ordering::Relaxed);
        let done = finish_level(&transfer, &transfer.target.directories.take_bottom_up());
        assert_eq!(
            Errno::from_io_error(&done.unwrap_err()),
            Some(Errno::CANCELED)
        );
        assert_eq!(
            directory.metadata().unwrap().permissions().mode() & 0o7777,
            0o500
        );
    }
}
