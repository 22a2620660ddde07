//! `--inplace`: files that are there are changed in their place, and keep their inode.
//!
//! To the rest of the receiver such a file is a `Staged` file like any other, whose commit only checks that the name
//! still leads to it, and which has no part and no journal: a later run compares the file itself. Group `i` is only
//! ever compared with, and written at, its own place, so groups may come in any order. Groups that the sender names as
//! the same are read back from the file and hashed, and left alone. `--delta auto` always compares here, also for a
//! local target, since what is the same is to stay as it is on the storage below.
//!
//! Data is flushed before the file gets its length and time, also of small files: blocks that are written
//! over are not ordered before the inode, as new ones are. A file that has the right length and time at the
//! start, and yet is to be changed (`--checksum`), is flushed when it has been made longer.
//!
//! Staging directories are for new directories and are not affected: a file that somebody else puts into such a
//! directory before it has its name is replaced by a rename. A transfer does not resume from an earlier part of a file
//! that is there, since the part would take the file's place; the part is removed when the file has been changed.
//!
//! With `--update` a push in place does not start again by itself when its connections are lost, for it could end well
//! with a file that is not finished: each write is followed by the oldest time, but a kill may come between the two.
//!
//! **Invariant:** a file with several names is not changed. Its other names would look finished as soon as it does, and
//! at the source they may be other files: the next session, perhaps after a break, would take them for up to date.
//!
//! A file that is to be made anew is staged and gets its name at the end as always.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zmove_disk::{Change, Existing, Replace, Staged};
use zmove_types::{Metadata, Name};
use zmove_wire::Operation;

use crate::store::failure::{Failure, failed_to};
use crate::store::target::keeper::At;
use crate::store::target::tree::{TargetTree, check_close, flush_now};
use crate::store::transfer::Transfer;

impl Transfer {
    /// Opens the file of that name to be changed in its place; `None` where it is to be made anew.
    pub(crate) fn begin_in_place(
        &self,
        directory: &Arc<OwnedFd>,
        name: &Name,
        bytes: u64,
        metadata: &Metadata,
    ) -> Result<Option<Staged>, Failure> {
        let target = &self.target;
        // A file that must stay may have come since the sender was answered. For a file that is made anew, that is
        // checked when it gets its name.
        if !target.view.keeper.rules.in_place
            || target.may_not_be_replaced(directory, name, metadata.mtime)
        {
            return Ok(None);
        }
        let cannot = failed_to(Operation::OpenInPlace);
        let Some(existing) = Existing::open(directory, name).map_err(cannot)? else {
            return Ok(None);
        };
        if existing.has_other_names().map_err(cannot)? {
            return Ok(None);
        }
        let descriptors = self.quota.book_file().map_err(cannot)?;
        let change = Change {
            bytes,
            mode: metadata.mode,
            mtime: metadata.mtime,
            survives_power_cut: target.view.keeper.rules.flushes(),
        };
        let mut staged = existing
            .begin(target.tree.lease(), change, self.direct)
            .map_err(cannot)?;
        staged.attach(descriptors);
        Ok(Some(staged))
    }
}

impl TargetTree {
    /// Whether the file of that name will be changed in its place.
    pub(crate) fn is_for_change_in_place(&self, directory: &OwnedFd, name: &Name) -> bool {
        self.view.keeper.rules.in_place && Existing::is_alone(directory, name)
    }

    /// Finishes a file that was changed in its place, and which nobody else was noticed to have changed. Its data is
    /// flushed before it looks finished: what was written over other data may reach the disk later than length and time
    /// do.
    pub(crate) fn finish_in_place(
        &self,
        staged: Staged,
        name: &Name,
        metadata: &Metadata,
        at: At<'_>,
        prove: impl FnOnce(&Staged) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // The file may be on a file system of its own, mounted in its place.
        self.file_systems
            .note(staged.file())
            .map_err(failed_to(Operation::Flush))?;
        flush_now(staged.file(), self.view.keeper.rules.flushes())?;
        check_close(&staged)?;
        // One that is not proven stays as long as it is, and looks unfinished.
        prove(&staged)?;
        let verify = failed_to(Operation::Verify);
        staged.set_final_length().map_err(verify)?;
        self.set_metadata_in_place(staged.file(), metadata, at)?;
        self.flush_if_each(staged.file())
            .map_err(failed_to(Operation::Flush))?;
        staged
            .commit(self.tree.lease(), name, Replace::Existing)
            .map_err(verify)
    }
}
