//! `--inplace`: files that are there are changed in their place, and keep inode and hard links.
//!
//! Where this says that a file is to be made anew, it is staged and gets its name at the end as always.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use zmove_disk::{Change, Existing, FileIdentity, FileKey, Staged};
use zmove_types::{Metadata, Name, RelPath};
use zmove_wire::{Durability, Operation};

use crate::place::Failure;
use crate::store::Context;

/// What a transfer that changes files in their place knows of them.
///
/// **Invariant:** a file is changed under one of its names only. Another that is sent too is made anew: it may be another
/// file at the source.
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    /// Files that have several names, with the one under which they are changed.
    shared: Mutex<HashMap<FileKey, RelPath>>,
}

impl InPlace {
    /// Whether a file may be changed under this name.
    fn takes(&self, key: FileKey, path: &RelPath) -> bool {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.entry(key).or_insert_with(|| path.clone()) == path
    }
}

impl Context {
    /// Opens the file of that name to be changed in its place; `None` when it is to be made anew.
    pub(crate) fn begin_in_place(
        &self,
        directory: &Arc<OwnedFd>,
        (parent, name): (&RelPath, &Name),
        (bytes, metadata): (u64, &Metadata),
    ) -> Result<Option<Staged>, Failure> {
        let Some(in_place) = &self.in_place else { return Ok(None) };
        let cannot = |error| (Operation::OpenInPlace, error);
        let Some(existing) = Existing::open(directory, name).map_err(cannot)? else { return Ok(None) };
        if let Some(key) = existing.shared().map_err(cannot)?
            && let Ok(path) = parent.join(name)
            && !in_place.takes(key, &path)
        {
            return Ok(None);
        }
        let survives_power_cut = self.durability != Durability::None;
        let change = Change { bytes, mtime: metadata.mtime, survives_power_cut };
        existing.begin(change, self.direct).map(Some).map_err(cannot)
    }

    /// Whether the file of that name will be changed in its place.
    pub(crate) fn is_for_change_in_place(&self, directory: &OwnedFd, name: &Name) -> bool {
        self.in_place.is_some() && FileIdentity::at(directory, name).is_ok_and(|there| there.regular)
    }

    /// The end of a file that was changed in its place. Its data is flushed before it looks finished: what was written over
    /// other data may come to the disk later than length and time do.
    pub(crate) fn finish_in_place(
        &self,
        staged: Staged,
        name: &Name,
        finish: impl FnOnce(&Staged) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.durability != Durability::None {
            staged.file().sync_data().map_err(|error| (Operation::Flush, error))?;
        }
        staged.set_final_length().map_err(|error| (Operation::Write, error))?;
        finish(&staged)?;
        staged.commit(name, &self.temp_names).map_err(|error: io::Error| (Operation::Verify, error))
    }
}
