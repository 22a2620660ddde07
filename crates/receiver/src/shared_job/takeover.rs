//! Takeover of a dead job by a new job at the same target. The new job gets the parts (temporary files) of large files,
//! with the groups that the old journals list as flushed.
//!
//! **Invariant:** a group counts as received in the new job only if its part was moved into the new job. Each such
//! group is recorded again in the new journal. A part that a receiver was about to publish is not moved. The old
//! journals are not moved either, because they may list parts that no longer exist and whose inode numbers may be
//! reused.

use std::collections::HashSet;
use std::io;

use zmove_disk::{JobSession, SharedJobDirectory};

use crate::resume::journal::{Journal, UnfinishedFile};
use crate::shared_job::groups::PartKey;
use crate::shared_job::journals;

/// Takes over the parts (temporary files) of a dead job. Journals longer than `bytes_max` are ignored.
///
/// # Errors
/// Returns an I/O error if a part cannot be moved or recorded. Everything taken over before the error remains valid.
pub(crate) fn take_over(
    dead: &SharedJobDirectory,
    session: &JobSession,
    journal: &Journal,
    bytes_max: u64,
) -> io::Result<()> {
    let files = journals::flushed_files(dead.fd(), bytes_max)?;
    let mut taken = HashSet::new();
    for file in &files {
        let part = key(file);
        if !taken.contains(&part) && session.adopt_part(dead, &part.0, part.1)? {
            taken.insert(part);
        }
    }
    session.flush_part_names()?;
    // These files are numbered downwards from the maximum, because the session's own files have low numbers.
    for (number, file) in (0..u64::MAX).rev().zip(files) {
        if taken.contains(&key(&file)) {
            journal.adopt(number, &file).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn key(file: &UnfinishedFile) -> PartKey {
    (file.part.part.clone(), file.part.inode)
}
