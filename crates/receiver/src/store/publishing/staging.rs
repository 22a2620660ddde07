//! Gives a staging directory its final name, or moves its entries into the directory that has that name.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{FileIdentity, MergeCallbacks, NameAt, StagingDirectory, Turn};
use zmove_types::{Name, RelPath};
use zmove_wire::Operation;

use super::is_kept;
use super::lost::LostEntries;
use super::publisher::{SmallFile, StagingContents};
use crate::store::failure::{FaultCause, KEPT_EXISTING, failure};
use crate::store::target::open_directories::OpenDirectories;
use crate::store::target::tree::TargetTree;
use crate::store::transfer::Transfer;

/// Renames a staging directory into place, or merges it into an existing directory of that name. Returns the files that
/// were in the staging directory.
pub(super) fn publish_staging(
    transfer: &Transfer,
    directories: &mut OpenDirectories<'_>,
    path: &RelPath,
    filling: StagingContents,
    lost: &mut LostEntries,
    turn: &Turn<'_>,
) -> Vec<SmallFile> {
    let StagingContents {
        staging,
        filled,
        mut spoiled,
        abandoned,
        ..
    } = filling;
    // A merge of the parent directory may have moved the staging directory. In that case, its parent is now the
    // directory at the final path.
    if !staging.has_hidden_name()
        && let Ok(parent) = directories.open_existing(&path.directory())
    {
        staging.move_to(parent);
    }
    spoiled.retain(|name| {
        staging
            .discard(name)
            .is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
    });
    let published = if abandoned || !spoiled.is_empty() {
        Err(Errno::NOTEMPTY.into())
    } else {
        staging.publish(
            transfer.target.tree.lease(),
            transfer.target.view.policy.rules.replaces(),
        )
    };
    // After this, threads that open the path look for the directory under its final name.
    transfer.publisher.note_staging_published(path);
    let merged = match published {
        Ok(()) => Ok(()),
        // An abandoned directory is not merged. All files in it fail.
        Err(error) if abandoned => Err(error),
        Err(error) if !staging.has_hidden_name() => Err(error),
        Err(_in_the_way) => directories.open_published(path).map(|standing| {
            // If an exchange with the existing directory could not be undone, the staging directory may already have
            // its final name. In that case, no merge is needed.
            if !staging.is(&standing) {
                merge(
                    &transfer.target,
                    &staging,
                    &standing,
                    &filled,
                    &spoiled,
                    |below, cause| lost.insert(path, below, cause),
                    turn,
                );
                directories.close_below(path);
            }
        }),
    };
    if let Err(error) = merged {
        let cause = failure(Operation::Rename, &error);
        lost.insert(path, &RelPath::root(), cause);
    }
    filled
}

/// Moves the entries of a staging directory, one at a time, into the directory `standing`, which another process has
/// created under the final name.
fn merge(
    target: &TargetTree,
    staging: &StagingDirectory,
    standing: &Arc<OwnedFd>,
    filled: &[SmallFile],
    spoiled: &[Name],
    lose: impl FnMut(&RelPath, FaultCause),
    turn: &Turn<'_>,
) {
    let files: HashMap<_, _> = filled
        .iter()
        .map(|small| (small.file.name.as_bytes(), small))
        .collect();
    // The set starts with all files, and the walk removes each file that it finds. The remaining files no longer exist,
    // for example because another process has removed the staging directory.
    let mut gone: HashSet<&[u8]> = files.keys().copied().collect();
    let lose = RefCell::new(lose);
    let lose = |below: &RelPath, cause| (lose.borrow_mut())(below, cause);
    let cannot = |error: &io::Error| failure(Operation::Rename, error);
    let mut keeps_existing = |from: &OwnedFd, into: &OwnedFd, below: &RelPath| {
        gone.remove(below.as_bytes());
        let keeps_existing = if let Some(small) = files.get(below.as_bytes()) {
            is_kept(
                target,
                NameAt::new(from, &small.file.name),
                NameAt::new(into, &small.file.name),
                small,
            )
        } else if spoiled
            .iter()
            .any(|name| name.as_bytes() == below.as_bytes())
        {
            return true;
        } else {
            let name = below.file_name().expect("an entry has a name");
            FileIdentity::at(from, &name)
                .is_ok_and(|coming| target.may_not_be_replaced(into, &name, coming.mtime))
        };
        if keeps_existing {
            lose(below, KEPT_EXISTING);
        }
        keeps_existing
    };
    let mut failed = |below: RelPath, error: io::Error| lose(&below, cannot(&error));
    let pause = || {
        turn.is_over();
    };
    staging.merge_into(
        target.tree.lease(),
        standing,
        &mut MergeCallbacks {
            keeps_existing: &mut keeps_existing,
            failed: &mut failed,
            pause: &pause,
        },
    );
    for name in gone {
        let below = RelPath::from_bytes(name).expect("a name is a path");
        lose(&below, cannot(&Errno::NOENT.into()));
    }
}
