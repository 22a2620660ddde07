//! The file systems that a transfer writes to: what is below one target may be several.
//!
//! **Invariant:** of each, a descriptor is open from before the first write to it: the kernel tells a descriptor only of
//! errors that came after it was opened.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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
    /// File by file and directory by directory.
    Each,
}

impl Flush {
    /// # Errors
    /// What the system says.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        let kind = rustix::fs::fstatfs(file)?.f_type;
        Ok(if EACH.contains(&kind) { Self::Each } else { Self::Whole })
    }
}

/// `f_type` of FUSE, which says yes to `syncfs` without asking its server, and of those above another file system, overlayfs
/// and eCryptfs: `syncfs` flushes what is below, and an error of that is told to `fsync` of the file alone.
const EACH: [i64; 3] = [0x6573_5546, 0x794c_7630, 0xf15f];

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
        let flush = Flush::of(directory)?;
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
