//! `--verify media`: before a file gets its name, it is read back from the storage, flushed and past the page cache,
//! and has to have the hashes by which it came.
//!
//! Small files are read back by the publisher, after the flush of their generation (`publishing`); large ones here,
//! when they are whole and have been flushed by themselves; files that are changed in their place while they still have
//! another length than in the end. **Invariant:** with [`Proof::Media`] a file is reported as whole only when the
//! storage has given back what was received of it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use zmove_disk::{Staged, StoredFile, Task};
use zmove_types::{Cv, GroupSpan, Root};
use zmove_wire::{FileHead, Operation, Proof};

use crate::store::failure::{Failure, failed_to};
use crate::store::large_files::LargeFile;
use crate::store::large_files::came::Came;
use crate::store::transfer::Transfer;
use crate::sync::run_on_several;

/// Threads that read back one file: more of them hash no faster on most hosts, and take the cores of others.
const READERS_MAX: usize = 4;

impl Transfer {
    /// Whether files are read back before they get their names.
    pub(crate) fn reads_back(&self) -> bool {
        self.target.view.keeper.rules.proof == Proof::Media
    }

    /// Reads back a large file that is whole and flushed, where that is asked for; this thread must hold no turn.
    ///
    /// # Errors
    /// It is not as it came, or cannot be read; `EINTR` where the session has ended before that was known.
    pub(crate) fn prove_large(&self, file: &LargeFile, staged: &Staged) -> Result<(), Failure> {
        let Some(Came {
            values,
            held: _until_then,
        }) = file.came()
        else {
            return Ok(());
        };
        let prove = || -> io::Result<()> {
            let stored = StoredFile::new(staged.file().try_clone()?)?;
            self.find(&stored, &file.head, &values)
        };
        prove().map_err(failed_to(Operation::Verify))
    }

    fn find(
        &self,
        stored: &StoredFile,
        head: &FileHead,
        values: &HashMap<u32, Cv>,
    ) -> io::Result<()> {
        let groups = GroupSpan::count(head.bytes).unwrap_or(0);
        let next = AtomicU32::new(0);
        let look = || {
            let turn = self.turn(Task::Look);
            let look_at = |index| {
                let span = GroupSpan::of(head.bytes, index).ok_or(Errno::INVAL)?;
                if turn.is_over() {
                    return Err(Errno::INTR.into());
                }
                let is_there = self
                    .storage
                    .has_value(stored, span, values.get(&index).copied())?;
                if is_there {
                    Ok(())
                } else {
                    Err(not_as_it_came())
                }
            };
            let mut indices = std::iter::from_fn(|| {
                Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < groups)
            });
            let found = indices.try_for_each(look_at);
            if found.is_err() {
                // The other threads need not go on.
                next.store(groups, Ordering::Relaxed);
            }
            vec![found]
        };
        let helpers = READERS_MAX.min(groups as usize).saturating_sub(1);
        let book = || self.quota.book_thread();
        run_on_several("zmove-look", std::iter::from_fn(book).take(helpers), look)
            .into_iter()
            .collect()
    }

    /// Reads back a file of at most one group, where that is asked for.
    ///
    /// # Errors
    /// It is not as it came, or cannot be read.
    pub(crate) fn prove_small(
        &self,
        staged: &Staged,
        bytes: u32,
        root: Root,
    ) -> Result<(), Failure> {
        if !self.reads_back() {
            return Ok(());
        }
        let prove = || -> io::Result<()> {
            let stored = StoredFile::new(staged.file().try_clone()?)?;
            let found = self.storage.root_of(&stored, u64::from(bytes))?;
            if found == root {
                Ok(())
            } else {
                Err(not_as_it_came())
            }
        };
        prove().map_err(failed_to(Operation::Verify))
    }
}

/// The error of a file that the storage does not give back as it came, which `failure` tells by a code of its own.
pub(crate) fn not_as_it_came() -> io::Error {
    Errno::BADMSG.into()
}
