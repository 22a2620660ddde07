//! What a dead job has left at the target of the session that begins another: the parts of large files, with the groups
//! that its journals say are flushed.
//!
//! **Invariant:** a group counts in the new job only for the very part that has been moved into it. So each group that
//! counts is recorded anew. No part is moved that a receiver was about to publish. The journals themselves stay behind:
//! they may name parts that have gone, whose inodes other files may get.

use std::collections::HashSet;
use std::io;

use zmove_disk::{JobSession, SharedJobDirectory};

use crate::resume::journal::{Journal, UnfinishedFile};
use crate::shared_job::groups::PartKey;
use crate::shared_job::journals;

/// Takes over the parts of a dead job. Journals that are longer than `bytes_max` tell nothing.
///
/// # Errors
/// The system's error. What has been taken over by then counts.
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
        if !taken.contains(&part) && session.take_part(dead, &part.0, part.1)? {
            taken.insert(part);
        }
    }
    session.flush_part_names()?;
    // the files of the session itself have low numbers
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
