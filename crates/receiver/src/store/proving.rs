//! `--verify media`: before a file is renamed into place, it is flushed and read back from the storage, bypassing the
//! page cache. The hashes of the stored data must match the received hashes.
//!
//! The publisher reads back small files after the flush of their generation (`publishing`). This module reads back
//! large files after they are complete and were flushed individually. Files that are changed in place are read back
//! while they still have their temporary length.
//!
//! **Invariant:** with [`Proof::Media`], a file is reported as complete only if the storage has returned the data that
//! was received.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use zmove_disk::{Staged, StoredFile, Task};
use zmove_types::{Cv, GroupSpan, Root};
use zmove_wire::{FileHead, Operation, Proof};

use crate::store::failure::{Failure, with_operation};
use crate::store::large_files::LargeFile;
use crate::store::large_files::received_hashes::ReceivedHashes;
use crate::store::transfer::Transfer;
use crate::sync::run_on_several;

/// Maximum number of threads that read back one file. On most hosts, more threads do not hash faster and only take CPU
/// time from other work.
const READERS_MAX: usize = 4;

impl Transfer {
    /// Returns whether files are read back before they are renamed into place.
    pub(crate) fn reads_back(&self) -> bool {
        self.target.view.policy.rules.proof == Proof::Media
    }

    /// Reads back a complete and flushed large file, if `--verify media` is set. The calling thread must not hold a
    /// turn (permission to run), because the reading threads need turns.
    ///
    /// # Errors
    /// Returns an error if the file differs from the received data or cannot be read, and `EINTR` if the session ends
    /// first.
    pub(crate) fn verify_large(&self, file: &LargeFile, staged: &Staged) -> Result<(), Failure> {
        let Some(ReceivedHashes {
            values,
            held: _until_then,
        }) = file.take_received_hashes()
        else {
            return Ok(());
        };
        let prove = || -> io::Result<()> {
            let stored = StoredFile::new(staged.file().try_clone()?)?;
            self.verify_groups(&stored, &file.head, &values)
        };
        prove().map_err(with_operation(Operation::Verify))
    }

    fn verify_groups(
        &self,
        stored: &StoredFile,
        head: &FileHead,
        values: &HashMap<u32, Cv>,
    ) -> io::Result<()> {
        let groups = GroupSpan::count(head.bytes).unwrap_or(0);
        let next = AtomicU32::new(0);
        let look = || {
            let turn = self.turn(Task::Read);
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
                    Err(differs_from_received())
                }
            };
            let mut indices = std::iter::from_fn(|| {
                Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < groups)
            });
            let found = indices.try_for_each(look_at);
            if found.is_err() {
                // The file has already failed, so the other threads stop.
                next.store(groups, Ordering::Relaxed);
            }
            vec![found]
        };
        let helpers = READERS_MAX.min(groups as usize).saturating_sub(1);
        let book = || self.quota.charge_thread();
        run_on_several("zmove-look", std::iter::from_fn(book).take(helpers), look)
            .into_iter()
            .collect()
    }

    /// Reads back a file of at most one group, if `--verify media` is set.
    ///
    /// # Errors
    /// Returns an error if the file differs from the received data or cannot be read.
    pub(crate) fn verify_small(
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
                Err(differs_from_received())
            }
        };
        prove().map_err(with_operation(Operation::Verify))
    }
}

/// Returns the error for a file whose stored data differs from the received data. `failure` converts this error to its
/// own fault code.
pub(crate) fn differs_from_received() -> io::Error {
    Errno::BADMSG.into()
}
