//! The removal of what processes that have ended have left in a directory; see [`hidden`](crate::hidden). The marks of
//! shared jobs that have ended long ago go with it.

use std::os::fd::BorrowedFd;

use zmove_types::RelPath;

use crate::hidden::left_in;
use crate::remove::remove_entries;
use crate::shared_job_directory::ended_long_ago;
use crate::tree::Tree;

/// Removes what processes that have ended have left in `directory`, which is `path` of `tree`. What cannot be listed or
/// removed stays for another time.
pub fn remove_abandoned(tree: &Tree, path: &RelPath, directory: BorrowedFd<'_>) {
    let left = left_in(directory, |name| ended_long_ago(directory, name));
    if !left.is_empty() {
        let _counted = remove_entries(tree, path, left.iter(), |_path, _stays_for_another_time| {});
    }
}
