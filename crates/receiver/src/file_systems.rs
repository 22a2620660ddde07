//! The file systems that a transfer writes to: what is below one target may be several.
//!
//! **Invariant:** of each, a descriptor is open from before the first write to it: the kernel tells a descriptor only of
//! errors that came after it was opened.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Dev;
use rustix::io::Errno;

/// One open directory of each file system.
#[derive(Debug, Default)]
pub(crate) struct FileSystems(Mutex<HashMap<Dev, FileSystem>>);

#[derive(Debug)]
struct FileSystem {
    directory: Arc<OwnedFd>,
    flush: Flush,
}

/// How data comes to the storage below a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// By one call for all of it.
    Whole,
    /// File by file and directory by directory: FUSE says yes to `syncfs` without asking its server.
    Each,
}

/// `FUSE_SUPER_MAGIC` of the kernel.
const FUSE: i64 = 0x6573_5546;

impl FileSystems {
    /// To be called with a directory before anything is written to it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn note(&self, directory: &Arc<OwnedFd>) -> io::Result<Flush> {
        let device = rustix::fs::fstat(directory)?.st_dev;
        if let Some(known) = self.lock().get(&device) {
            return Ok(known.flush);
        }
        let kind = rustix::fs::fstatfs(directory)?.f_type;
        let flush = if kind == FUSE { Flush::Each } else { Flush::Whole };
        let file_system = FileSystem { directory: Arc::clone(directory), flush };
        // who was first has the descriptor that knows more
        Ok(self.lock().entry(device).or_insert(file_system).flush)
    }

    /// Flushes those that can be as a whole.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        let whole = |known: &FileSystem| (known.flush == Flush::Whole).then(|| Arc::clone(&known.directory));
        let directories: Vec<_> = self.lock().values().filter_map(whole).collect();
        // each is flushed, whatever becomes of the others: an error is told once
        let results: Vec<_> = directories.iter().map(rustix::fs::syncfs).collect();
        results.into_iter().collect()
    }

    /// Whether some are flushed file by file.
    pub(crate) fn any_each(&self) -> bool {
        self.lock().values().any(|known| known.flush == Flush::Each)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Dev, FileSystem>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
