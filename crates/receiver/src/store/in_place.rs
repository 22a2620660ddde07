//! `--inplace`: existing files are overwritten in place and keep their inode.
//!
//! The rest of the receiver treats such a file like any other `Staged` file. Its commit only checks that the file still
//! has its name. It has no part (temporary file) and no journal, because a later run compares the file itself. Each
//! group is compared and written only at its own offset, so groups may arrive in any order. Groups that the sender
//! reports as unchanged are read back and hashed, but not written. With `--delta auto`, groups are always compared in
//! this mode, even for a local target, so that unchanged blocks are not rewritten on the storage.
//!
//! The data is flushed before the length and time of the file are set, even for small files. Unlike new blocks,
//! overwritten blocks may reach the disk after the inode. With `--checksum`, a file that must be changed may already
//! have the right length and time. Such a file is first extended and flushed, so that it looks unfinished.
//!
//! Staging directories are used only for new directories, so `--inplace` does not affect them. If another process
//! creates a file with the same final path in the meantime, a rename replaces that file. An existing file is not
//! resumed from an earlier part, because the part would replace it. The part is removed after the file was changed.
//!
//! With `--update`, an in-place push does not restart automatically when its connections are lost, because it could
//! succeed although a file is unfinished. After each write, the file gets the oldest possible time, but the process may
//! be killed between the write and that change.
//!
//! **Invariant:** a file with several hard links is never changed in place. Its other names may be different files at
//! the source, but would look finished together with this one. A later session, for example after an interruption,
//! would consider them up to date.
//!
//! A file that does not exist, or cannot be changed in place, is staged and renamed into place as usual.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zmove_disk::{Change, Existing, Replace, Staged};
use zmove_types::{Metadata, Name};
use zmove_wire::Operation;

use crate::store::failure::{Failure, with_operation};
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::tree::{TargetTree, check_close, flush_now};
use crate::store::transfer::Transfer;

impl Transfer {
    /// Opens the file `name` to change it in place. Returns `None` if the file must be created anew.
    pub(crate) fn begin_in_place(
        &self,
        directory: &Arc<OwnedFd>,
        name: &Name,
        bytes: u64,
        metadata: &Metadata,
    ) -> Result<Option<Staged>, Failure> {
        let target = &self.target;
        // This checks again that the file may be changed, because it may have been created after the sender received
        // its answer. A new file is checked later, when it is renamed into place.
        if !target.view.policy.rules.in_place
            || target.may_not_be_replaced(directory, name, metadata.mtime)
        {
            return Ok(None);
        }
        let cannot = with_operation(Operation::OpenInPlace);
        let Some(existing) = Existing::open(directory, name).map_err(cannot)? else {
            return Ok(None);
        };
        if existing.has_other_names().map_err(cannot)? {
            return Ok(None);
        }
        let descriptors = self.quota.charge_file().map_err(cannot)?;
        let change = Change {
            bytes,
            mode: metadata.mode,
            mtime: metadata.mtime,
            survives_power_cut: target.view.policy.rules.flushes(),
        };
        let mut staged = existing
            .begin(target.tree.lease(), change, self.direct)
            .map_err(cannot)?;
        staged.attach(descriptors);
        Ok(Some(staged))
    }
}

impl TargetTree {
    /// Returns whether the file `name` will be changed in place.
    pub(crate) fn will_change_in_place(&self, directory: &OwnedFd, name: &Name) -> bool {
        self.view.policy.rules.in_place && Existing::has_single_name(directory, name)
    }

    /// Finishes a file that was changed in place. Fails if a change by another process was detected. The data is
    /// flushed before the final length and time are set, because overwritten blocks may reach the disk after them.
    pub(crate) fn finish_in_place(
        &self,
        staged: Staged,
        name: &Name,
        metadata: &Metadata,
        at: EntryLocation<'_>,
        prove: impl FnOnce(&Staged) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // The file may be a mount point, so its own file system is added to the final flush.
        self.file_systems
            .note(staged.file())
            .map_err(with_operation(Operation::Flush))?;
        flush_now(staged.file(), self.view.policy.rules.flushes())?;
        check_close(&staged)?;
        // If this check fails, the file keeps its temporary length and looks unfinished.
        prove(&staged)?;
        let verify = with_operation(Operation::Verify);
        staged.set_final_length().map_err(verify)?;
        self.set_metadata_in_place(staged.file(), metadata, at)?;
        self.flush_if_per_file(staged.file())
            .map_err(with_operation(Operation::Flush))?;
        staged
            .commit(self.tree.lease(), name, Replace::Existing)
            .map_err(verify)
    }
}
