//! The parts of large files that have failed because there was no room: they stay for a later transfer to resume from,
//! until another file needs the room.

use std::sync::{Arc, MutexGuard};

use zmove_types::Lock;

use crate::store::large_files::LargeFile;

/// The parts that may be removed where there is no room.
#[derive(Debug, Default)]
pub(crate) struct SpareParts {
    /// Files that have failed because there was no room, and whose parts are still there.
    failed: Lock<Vec<Arc<LargeFile>>>,
    /// Held while one file after the other gives way, so that no more do than must.
    releasing: Lock<()>,
}

/// The most failed files whose parts are kept open.
const FAILED_MAX: usize = 64;

impl SpareParts {
    /// Keeps the part of a file; returns the file if there are too many.
    pub(crate) fn keep(&self, file: &Arc<LargeFile>) -> Option<Arc<LargeFile>> {
        let mut failed = self.failed.lock();
        failed.push(Arc::clone(file));
        (failed.len() > FAILED_MAX).then(|| failed.remove(0))
    }

    /// Waits for the turn to change which parts there are. No part may be open in the thread that calls.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.releasing.lock()
    }

    /// Takes all files, so that their parts can be removed.
    pub(crate) fn take(&self) -> Vec<Arc<LargeFile>> {
        std::mem::take(&mut *self.failed.lock())
    }
}
