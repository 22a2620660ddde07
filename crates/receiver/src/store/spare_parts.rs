//! Parts of large files that failed for lack of space. Each part is kept for a later transfer to resume from, until
//! another file needs the space.

use std::sync::{Arc, MutexGuard};

use zmove_types::Lock;

use crate::store::large_files::LargeFile;

/// The parts that may be removed to make room.
#[derive(Debug, Default)]
pub(crate) struct SpareParts {
    /// Files that failed for lack of space and whose parts still exist.
    failed: Lock<Vec<Arc<LargeFile>>>,
    /// Held while parts are removed one at a time, so that no more are removed than necessary.
    releasing: Lock<()>,
}

/// Maximum number of failed files whose parts are kept open.
const FAILED_MAX: usize = 64;

impl SpareParts {
    /// Keeps the part of a failed file. Returns the oldest file if there are now too many.
    pub(crate) fn keep(&self, file: &Arc<LargeFile>) -> Option<Arc<LargeFile>> {
        let mut failed = self.failed.lock();
        failed.push(Arc::clone(file));
        (failed.len() > FAILED_MAX).then(|| failed.remove(0))
    }

    /// Waits for exclusive access to the set of parts. The calling thread must not have a part open.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.releasing.lock()
    }

    /// Takes all files so that their parts can be removed.
    pub(crate) fn take(&self) -> Vec<Arc<LargeFile>> {
        std::mem::take(&mut *self.failed.lock())
    }
}
