//! Parts (temporary files) of large files that failed for lack of space. A later transfer can resume from such a part.
//! It is removed earlier if another file needs the space.

use std::sync::{Arc, MutexGuard};

use zmove_types::Lock;

use crate::store::large_files::LargeFile;

/// The parts that may be removed to free space.
#[derive(Debug, Default)]
pub(crate) struct SpareParts {
    /// Files that have failed for lack of space and whose parts (temporary files) still exist.
    failed: Lock<Vec<Arc<LargeFile>>>,
    /// Held while a thread removes parts, so that several threads do not remove more parts than necessary.
    releasing: Lock<()>,
}

/// Maximum number of failed files whose parts are kept open.
const FAILED_MAX: usize = 64;

impl SpareParts {
    /// Adds a failed file, whose part is kept. If there are too many files, removes the oldest file and returns it.
    pub(crate) fn keep(&self, file: &Arc<LargeFile>) -> Option<Arc<LargeFile>> {
        let mut failed = self.failed.lock();
        failed.push(Arc::clone(file));
        (failed.len() > FAILED_MAX).then(|| failed.remove(0))
    }

    /// Waits for the exclusive right to remove parts. The calling thread must not have a part open.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.releasing.lock()
    }

    /// Removes and returns all files. The caller must remove their parts.
    pub(crate) fn take(&self) -> Vec<Arc<LargeFile>> {
        std::mem::take(&mut *self.failed.lock())
    }
}
