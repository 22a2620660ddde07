//! The end of a transfer: incomplete files are reported, the rest is published, directories get their metadata, and the
//! names are flushed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zmove_disk::{Task, Tree, Turn, set_usual_mode};
use zmove_types::RelPath;
use zmove_wire::{Extraneous, Fault, FaultCode, Operation};

use crate::store::failure::{FaultCause, failure};
use crate::store::large_files::LargeFile;
use crate::store::publishing::publish_all;
use crate::store::reports::Outcome;
use crate::store::target::directories::Remembered;
use crate::store::target::keeper::At;
use crate::store::target::tree::TargetTree;
use crate::store::transfer::Transfer;
use zmove_types::Lock;

/// Finishes a transfer; returns how long the flush took, and the outcomes to report before the end.
///
/// # Errors
/// When the flush fails: nothing may then be promised of any file.
pub(crate) fn finish(transfer: &Transfer) -> io::Result<(Duration, Vec<Outcome>)> {
    let target = &transfer.target;
    let incomplete = |file: Arc<LargeFile>| {
        let cause = FaultCause::new(Operation::Verify, FaultCode::Incomplete);
        Outcome::File(cause.of_file(file.id))
    };
    let unfinished = transfer.files.retire_all().into_iter();
    // Files of a job become whole by an order, perhaps to another receiver.
    let mut outcomes: Vec<_> = unfinished
        .filter(|_| target.shared_job.is_none())
        .map(incomplete)
        .collect();
    // A batch is reported as stored just before the publisher has it, so wait until it has.
    transfer.publisher.wait_until_placed();
    // The kernel reports a write error to one flush only: from now on there are no others than these.
    transfer.publisher.stop();
    publish_all(transfer);
    // A small file overtakes the part of a large one once it has its name.
    transfer.parts.drop_overtaken(&target.tree);
    let directories = match target.shared_job {
        None => target.directories.take_bottom_up(),
        // others go on writing there when this session ends: an order sets them when that is over
        Some(_) => Vec::new(),
    };
    for level in directories.chunk_by(|one, next| one.depth == next.depth) {
        outcomes.extend(
            finish_level(transfer, level)?
                .into_iter()
                .map(Outcome::Fault),
        );
    }
    if target.shared_job.is_none() && directories.last().is_none_or(|last| last.depth > 0) {
        outcomes.extend(set_mode_of_target(target)?.map(Outcome::Fault));
    }
    let started = Instant::now();
    if target.view.keeper.rules.flushes() {
        target.file_systems.flush_to_the_end()?;
    }
    transfer.parts.finish();
    Ok((started.elapsed(), outcomes))
}

/// Gives a target for which no mode has come the one that it had before it was opened up, or the usual mode of a new
/// directory where it was made here.
fn set_mode_of_target(target: &TargetTree) -> io::Result<Option<Fault>> {
    let directory = target.tree.open_directory(&RelPath::root())?;
    let set = match target.mode_before {
        Some(mode) => target.tree.set_root_mode(mode),
        None if target.is_closed => set_usual_mode(target.tree.lease(), directory.as_fd()),
        None => return Ok(None),
    };
    if let Err(error) = set {
        let cause = failure(Operation::SetMetadata, &error);
        return Ok(Some(cause.at(RelPath::root())));
    }
    target.flush_if_each(&directory)?;
    Ok(None)
}

/// Finishes directories none of which is within another, so that several threads can do them.
fn finish_level(transfer: &Transfer, level: &[Remembered]) -> io::Result<Vec<Fault>> {
    let parts = Lock::new(level.chunks(PART_DIRECTORIES));
    let done = transfer.side_by_side(Task::Write, "zmove-finish", |turn| {
        let mut faults = Vec::new();
        let next = || parts.lock().next();
        for part in std::iter::from_fn(next) {
            faults.extend(finish_part(transfer, turn, part)?);
        }
        Ok(faults)
    });
    Ok(done.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
}

/// The directories that a thread takes at a time: those of one parent come together.
const PART_DIRECTORIES: usize = 16;

fn finish_part(
    transfer: &Transfer,
    turn: &Turn<'_>,
    part: &[Remembered],
) -> io::Result<Vec<Fault>> {
    let target = &transfer.target;
    let mut faults = Vec::new();
    let mirrors = target.view.keeper.rules.extraneous == Extraneous::Goes;
    let mut opener = Opener {
        tree: &target.tree,
        last: None,
    };
    for remembered in part {
        if turn.is_over() {
            return Err(Errno::CANCELED.into());
        }
        turn.get_help();
        let opened = opener.open(remembered);
        let at = At(&remembered.path, remembered.name.as_ref());
        let set = |opened: Arc<OwnedFd>| {
            target
                .set_directory(&opened, &remembered.metadata, at)
                .map(|()| opened)
        };
        match opened.and_then(set) {
            // it may be all that was put into its file system, and the only one to tell of its links and directories
            Ok(directory) => {
                target.flush_if_each(&directory)?;
            }
            // The directory was at the target alone, and has been removed: the source has lost it since it was sent.
            Err(error) if mirrors && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = remembered.path();
                target
                    .directories
                    .book(path.as_bytes().len())
                    .map_err(io::Error::other)?;
                faults.push(failure(Operation::SetMetadata, &error).at(path));
            }
        }
    }
    Ok(faults)
}

/// Opens remembered directories one after the other. Of several in one parent only the first is opened from
/// the root, since a path of thousands of components may be the parent of thousands of directories.
struct Opener<'a> {
    tree: &'a Tree,
    /// The parent path of the directory opened last, and that parent itself once it has been opened.
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
            // The directory may be closed already, by the mode that another source has given it.
            return self.tree.open_own_directory(&remembered.path());
        };
        let above = match above {
            Some(above) => above,
            None => above.insert(self.tree.like_this_at(self.tree.open_own_directory(path)?)),
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

    /// The next transfer of its run may be at work there.
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
