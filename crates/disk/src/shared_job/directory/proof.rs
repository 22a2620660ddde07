//! Proof that a directory is the directory of a job.
//!
//! **Invariant:** a receiver writes into a directory, or removes entries from it, only if the directory was created for
//! this job. Any user with write access to the target could rename another directory to the job's name. So the job's
//! directory contains a proof: the name of the subdirectory that holds the parts. This name is derived from the job ID
//! and the inode number of the job's directory. Nobody else can forge the proof. A receiver rejects paths with such a
//! name from a sender, and other users have no access to the receiver's private directories. The proof is created
//! before the directory is renamed to the job's name, and is removed last. A copy of the job's directory has another
//! inode number, so the proof does not match. Receivers whose hosts see different inode numbers for the same directory
//! cannot share a job.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;
use zmove_types::{Name, SharedJobId};

use super::{SharedJobDirectory, SharedJobError, name_of};
use crate::metadata::entry::number_of;
use crate::metadata::inheritance::disable_inheritance;
use crate::opening::by_name::{open_at, remove_directory_at, stat_at};
use crate::opening::tree::DIRECTORY;
use crate::publishing::remove::remove_best_effort;
use crate::staging::hidden::make_hidden;

/// Opens a directory, or creates it if it does not exist. Other users have no access to the directory, and its entries
/// inherit nothing from it.
pub(super) fn make(parent: &OwnedFd, name: &Name) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name.as_os_str(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = open(parent, name)?;
    // Another host may create the directory at the same time.
    disable_inheritance(directory.as_fd())?;
    Ok(directory)
}

/// Opens a directory that must belong to this user, so that its contents can be trusted.
pub(super) fn open(parent: &OwnedFd, name: &Name) -> io::Result<OwnedFd> {
    let directory = open_at(parent, name, DIRECTORY)?;
    if is_own(&rustix::fs::fstat(&directory)?) {
        Ok(directory)
    } else {
        Err(Errno::PERM.into())
    }
}

pub(super) fn is_own(found: &Stat) -> bool {
    found.st_uid == rustix::process::geteuid().as_raw()
}

/// Returns the name of the subdirectory of parts, for a job directory with this inode number.
pub(super) fn proof_name(job: SharedJobId, inode: u64) -> Name {
    let bound = u128::from_le_bytes(job.0) ^ u128::from(inode);
    name_of(SharedJobId(bound.to_le_bytes()))
}

/// Returns whether a directory denies all access except to its owner.
fn is_closed(directory: &Stat) -> bool {
    let open = Mode::RWXG | Mode::RWXO;
    !Mode::from_raw_mode(directory.st_mode).intersects(open)
}

/// Creates the directory of a job with its proof, unless the name exists. The directory is first created inside a
/// private directory, so that nobody can replace it before it has the proof.
pub(super) fn create_with_proof(root: &OwnedFd, job: SharedJobId) -> io::Result<()> {
    let make_closed = |name: &Name| rustix::fs::mkdirat(root, name.as_os_str(), Mode::RWXU);
    let (hidden, ()) = make_hidden(root.as_fd(), make_closed)?;
    let made = open(root, &hidden).and_then(|closed| {
        if !is_closed(&rustix::fs::fstat(&closed)?) {
            return Err(Errno::PERM.into());
        }
        make_within(root, &Arc::new(closed), job)
    });
    let _gone_unless_renamed = remove_directory_at(root, &hidden);
    made
}

fn make_within(root: &OwnedFd, closed: &Arc<OwnedFd>, job: SharedJobId) -> io::Result<()> {
    let name = name_of(job);
    let to = name.as_os_str();
    let made = make(closed, &name).and_then(|made| {
        let proof = proof_name(job, number_of(&made)?.inode);
        rustix::fs::mkdirat(&made, proof.as_os_str(), Mode::RWXU)?;
        // The rename can replace only an empty directory, and the directory of a job is never empty.
        match rustix::fs::renameat(closed, to, root, to) {
            Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
            renamed => Ok(renamed?),
        }
    });
    remove_best_effort(closed, &name);
    made
}

impl SharedJobDirectory {
    /// Opens an existing directory of a job, if a receiver of this user created it.
    ///
    /// # Errors
    /// See [`SharedJobError`].
    pub fn open_with_proof(root: impl AsFd, job: SharedJobId) -> Result<Self, SharedJobError> {
        let name = name_of(job);
        let root = root.as_fd();
        let opened = open_at(root, &name, DIRECTORY);
        let directory = opened.map_err(|error| {
            let is_closed_by_another =
                error == Errno::ACCESS && stat_at(root, &name).is_ok_and(|found| !is_own(&found));
            if is_closed_by_another {
                SharedJobError::OfAnotherUser
            } else {
                error.into()
            }
        })?;
        let found = rustix::fs::fstat(&directory)?;
        if !is_own(&found) {
            return Err(SharedJobError::OfAnotherUser);
        }
        let parts = proof_name(job, found.st_ino);
        let is_proof = |found: Stat| {
            is_own(&found) && FileType::from_raw_mode(found.st_mode) == FileType::Directory
        };
        if !is_closed(&found) || !stat_at(&directory, &parts).is_ok_and(is_proof) {
            return Err(SharedJobError::Foreign);
        }
        Ok(Self {
            directory: Arc::new(directory),
            parts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{JOB, job, place};
    use super::*;
    use crate::publishing::lease::Lease;
    use rustix::fs::Dir;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;
    use zmove_types::Beginning;

    /// A user with write access to the target can give the name of a job to any directory there.
    #[test]
    fn a_directory_that_was_not_made_as_that_of_the_job_is_neither_written_to_nor_emptied() {
        let (home, root) = place();
        let path = home.path().join(name_of(JOB).as_os_str());
        let make = |target: &Path| {
            for inside in [
                "parts",
                "journal-2025",
                ".zmove-1-own",
                name_of(JOB).as_os_str().to_str().unwrap(),
            ] {
                std::fs::create_dir_all(target.join(inside)).unwrap();
                std::fs::write(target.join(inside).join("data"), "x").unwrap();
            }
            std::fs::set_permissions(target, std::fs::Permissions::from_mode(0o700)).unwrap();
        };
        make(&path);
        assert_foreign(&root, 4);
        std::fs::rename(&path, home.path().join("other")).unwrap();
        let other = SharedJobId([8; 16]);
        drop(SharedJobDirectory::open(&root, other, Beginning::Allowed).unwrap());
        std::fs::rename(home.path().join(name_of(other).as_os_str()), &path).unwrap();
        assert_foreign(&root, 1);
    }

    #[track_caller]
    fn assert_foreign(root: &Arc<OwnedFd>, entries: usize) {
        for beginning in [Beginning::Allowed, Beginning::UnderWay] {
            let refused = SharedJobDirectory::open(root, JOB, beginning);
            assert!(
                matches!(refused, Err(SharedJobError::Foreign)),
                "{refused:?}"
            );
        }
        let refused = SharedJobDirectory::end_dead(&Lease::constant(), root, JOB);
        assert!(
            matches!(refused, Err(SharedJobError::Foreign)),
            "{refused:?}"
        );
        assert!(!SharedJobDirectory::undo_begin(root, JOB, "a"));
        assert!(!SharedJobDirectory::remove_empty(
            &Lease::constant(),
            root,
            JOB
        ));
        let directory = open_at(root, name_of(JOB), DIRECTORY);
        let left = Dir::read_from(directory.unwrap()).unwrap().count();
        assert_eq!(left, entries + 2, "with the directory and the one above");
    }

    #[test]
    fn two_receivers_that_make_the_directory_at_one_time_open_the_same() {
        let (home, root) = place();
        let first = job(&root);
        create_with_proof(&root, JOB).unwrap();
        let second = job(&root);
        assert_eq!(
            number_of(first.fd()).unwrap(),
            number_of(second.fd()).unwrap()
        );
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }

    /// A receiver that ends a job may be interrupted just before the last step.
    #[test]
    fn what_is_left_of_a_job_that_has_ended_is_not_under_way_and_goes() {
        let (home, root) = place();
        job(&root).clear(Duration::ZERO, || false).unwrap();
        let refused = SharedJobDirectory::open(&root, JOB, Beginning::UnderWay);
        assert!(
            matches!(refused, Err(SharedJobError::Foreign)),
            "{refused:?}"
        );
        assert!(SharedJobDirectory::remove_empty(
            &Lease::constant(),
            &root,
            JOB
        ));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
