//! Side directories: hidden directories inside an existing directory, used if storage latency is high. New files are
//! created in a side directory, flushed, and immediately linked to their final names.
//!
//! The kernel creates and renames entries of a directory one at a time, and holds the directory's lock while it waits
//! for the storage. Creating a file under a hidden name in the final directory takes this lock twice, for four or five
//! storage requests. Linking a file into the final directory takes the lock once, for two requests. Meanwhile, files in
//! the side directory can be created without that lock.
//!
//! Side directories are used only if each file is flushed individually or nothing is flushed. Otherwise, a file must
//! not have its final name before the file system was flushed. They are not used for a file whose name already exists,
//! because a link cannot replace an entry.
//!
//! **Invariant:** a file that has not been flushed has no name outside of its side directory (except with `--durability
//! none`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use zmove_disk::{Lease, NameAt, StagingDirectory, publish_from};
use zmove_types::Name;

use crate::rights::quota::StagingCharge;

/// The side directories of one directory for one batch.
#[derive(Debug, Default)]
pub(super) struct SideDirectories {
    begun: [OnceLock<Option<Arc<SideDirectory>>>; BEGUN_MAX],
    /// Number of runs that have asked for a side directory.
    runs: AtomicUsize,
    /// Whether a link has failed, because the name exists or the file system does not support links.
    refused: AtomicBool,
}

/// A hidden directory, with its charge for descriptors. Dropping this value removes the directory.
#[derive(Debug)]
pub(super) struct SideDirectory {
    pub(super) staging: StagingDirectory,
    _held: StagingCharge,
}

/// Maximum number of side directories. While one file is created and removed in a side directory, two or three files of
/// other side directories can be linked to their final names.
const BEGUN_MAX: usize = 3;

/// Minimum number of files for which a side directory is useful. Creating and removing it each take the lock of the
/// parent directory once.
pub(super) const SIDE_FILES_MIN: usize = 32;

impl SideDirectories {
    /// Returns a side directory for the next run. Calls `begin` to create it on first use. Returns `None` if it cannot
    /// be created or if a link has failed before.
    pub(super) fn next(
        &self,
        begin: impl FnOnce() -> Option<(StagingDirectory, StagingCharge)>,
    ) -> Option<Arc<SideDirectory>> {
        if self.is_refused() {
            return None;
        }
        let next = self.runs.fetch_add(1, Ordering::Relaxed) % BEGUN_MAX;
        let begin = || begin().map(|(staging, _held)| Arc::new(SideDirectory { staging, _held }));
        self.begun[next].get_or_init(begin).clone()
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Links a file in a side directory to its final name. Returns whether the link was created. If not, removes the
    /// file.
    pub(super) fn give_name(
        &self,
        lease: &Lease,
        SideDirectory { staging, .. }: &SideDirectory,
        file: &Name,
        NameAt {
            directory: into,
            name,
        }: NameAt<'_>,
    ) -> bool {
        let is_named =
            publish_from(lease, NameAt::new(staging.directory(), file), into, name).is_ok();
        if !is_named {
            self.refused.store(true, Ordering::Relaxed);
            // If this fails, the file is removed later together with the side directory.
            let _removed_later = staging.discard(file);
        }
        is_named
    }
}
