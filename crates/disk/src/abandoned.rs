//! The removal of what processes that have ended have left in a directory; see [`hidden`](crate::hidden).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::Mode;
use zmove_types::{Name, RelPath, SharedJobId};

use crate::entry::xattrs::Descriptor;
use crate::entry::{FileIdentity, set_file_mtime};
use crate::hidden::{Hidden, hidden_in};
use crate::remove::remove_entries;
use crate::tree::Tree;

/// Removes what processes that have ended have left in `directory`, which is `path` of `tree`, and returns the shared
/// jobs whose directories are there. What cannot be removed stays for another time.
///
/// # Errors
/// The system's error: the directory cannot be listed.
pub fn remove_abandoned(
    tree: &Tree,
    path: &RelPath,
    directory: BorrowedFd<'_>,
) -> io::Result<Vec<SharedJobId>> {
    let Hidden { left, jobs, .. } = hidden_in(directory, |_not_hidden| {})?;
    if !left.is_empty() {
        let _counted = remove_entries(tree, path, left.iter(), |_path, _stays_for_another_time| {});
    }
    Ok(jobs)
}

/// Removes an entry of the directory `path` of `tree`, with all below it. The directory keeps its mode and its time.
/// Returns the number of removed entries. An entry that could not be removed is reported with its path in `tree`.
///
/// # Errors
/// The system's error: the directory cannot be opened, or there is no permit.
pub fn remove_leftover(
    tree: &Tree,
    path: &RelPath,
    name: &Name,
    failed: impl FnMut(RelPath, io::Error),
) -> io::Result<u64> {
    let directory = tree.open_directory(path)?;
    let before = FileIdentity::of(&directory)?;
    // One for all of it: whoever opens up a directory closes it again.
    let permit = tree.lease().permit()?;
    let removed = remove_entries(tree, path, std::iter::once(name), failed);
    if FileIdentity::of(&directory)?.mode != before.mode {
        let mode = Mode::from_raw_mode(before.mode);
        Descriptor::Open(directory.as_fd()).set_mode(&permit, mode)?;
    }
    let _best_effort = set_file_mtime(permit, &directory, before.mtime);
    Ok(removed)
}
