//! The removal of what processes that have ended have left in a directory; see [`hidden`](crate::hidden).

use std::io;
use std::os::fd::BorrowedFd;

use zmove_types::{RelPath, SharedJobId};

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
    let Hidden { left, jobs } = hidden_in(directory)?;
    if !left.is_empty() {
        let _counted = remove_entries(tree, path, left.iter(), |_path, _stays_for_another_time| {});
    }
    Ok(jobs)
}
