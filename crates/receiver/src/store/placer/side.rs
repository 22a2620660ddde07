//! Side directories: where storage answers late, files for a directory that was there are made in hidden directories in
//! it, and linked from these as soon as each is flushed.
//!
//! The kernel makes and renames entries of one directory one after the other, and waits for the storage meanwhile. A
//! file under a hidden name takes that turn twice, for four or five requests; one that is linked takes it once, for
//! two. It is made while others wait in the directory where it will stay.
//!
//! Only where each file is flushed by itself, or nothing is: elsewhere a file may not have its name before the flush of
//! all. Only where nothing has the file's name: a link replaces nothing.
//!
//! **Invariant:** a file that is not flushed has no name outside of the side directory (`--durability none` excepted).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use zmove_disk::{Lease, NameAt, StagingDirectory, publish_from};
use zmove_types::Name;

use crate::rights::quota::StagingBooking;

/// The side directories of one directory and one batch.
#[derive(Debug, Default)]
pub(super) struct SideDirectories {
    begun: [OnceLock<Option<Arc<SideDirectory>>>; BEGUN_MAX],
    /// The number of runs that have asked for one.
    runs: AtomicUsize,
    /// Whether a link has failed: other files have names there, or the file system takes no links.
    refused: AtomicBool,
}

/// A hidden directory, with the booking of its descriptors. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct SideDirectory {
    pub(super) staging: StagingDirectory,
    _held: StagingBooking,
}

/// A file is made and removed again in a side directory in the time in which two or three get their names.
const BEGUN_MAX: usize = 3;

impl SideDirectories {
    /// A side directory for the next run, begun with `begin` where it is the first; `None` where there can be none, or
    /// a link has failed.
    pub(super) fn next(
        &self,
        begin: impl FnOnce() -> Option<(StagingDirectory, StagingBooking)>,
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

    /// Gives a file of a side directory its name; returns whether it has it. One that has not is removed.
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
            // A file that stays goes with the side directory.
            let _removed_later = staging.discard(file);
        }
        is_named
    }
}
