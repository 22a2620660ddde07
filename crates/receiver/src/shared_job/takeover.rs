//! Takes over the remains of a dead job at the target of a new job's session: the parts of large files, with the groups
//! that its journals list as flushed.
//!
//! **Invariant:** a group counts in the new job only for the very part that was moved into it. Each group that counts
//! is therefore recorded again. A part that a receiver was about to publish is not moved. The journals themselves are
//! not taken over: they may name parts that no longer exist and whose inode numbers other files may get.

use std::collections::HashSet;
use std::io;

use zmove_disk::{JobSession, SharedJobDirectory};

use crate::resume::journal::{Journal, UnfinishedFile};
use crate::shared_job::groups::PartKey;
use crate::shared_job::journals;

/// Takes over the parts of a dead job. Journals longer than `bytes_max` are ignored.
///
/// # Errors
/// Returns an I/O error if a part cannot be moved or recorded. Everything taken over before the error counts.
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
    // The session's own files have low numbers.
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
