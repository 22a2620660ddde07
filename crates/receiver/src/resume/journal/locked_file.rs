//! Opens and locks the files of a journal directory.
//!
//! **Invariant:** a [`LockedFile`] is the file at its path, and no other process holds its lock. After locking a file,
//! the code checks that the file still has a name, because its previous holder may have removed it.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{FileIdentity, create_at, open_at};

use super::JournalError;

/// The locked file of a journal.
#[derive(Debug)]
pub(crate) struct LockedFile {
    pub(super) file: HeldFile,
    pub(super) path: PathBuf,
}

impl LockedFile {
    /// Creates and locks a new file. Removes an existing file whose writer has died.
    ///
    /// # Errors
    /// The system's error: `EEXIST` if another process is creating the same file.
    pub(crate) fn create(path: &Path) -> Result<Self, JournalError> {
        for _ in 0..CREATE_TRIES_MAX {
            if let Some(left_behind) = Self::take(path)? {
                left_behind.remove()?;
            }
            let file = create_at(CWD, path, Mode::RUSR | Mode::WUSR)
                .map_err(JournalError::io("create", path))?;
            // Until the new file is locked, another process may assume that its writer has died.
            if lock(&file).map_err(JournalError::io("lock", path))? {
                return Ok(Self {
                    file: HeldFile(file),
                    path: path.to_owned(),
                });
            }
        }
        Err(JournalError::io("create", path)(Errno::EXIST))
    }

    /// Takes over a file. Returns `None` if another process holds its lock or it no longer exists.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn take(path: &Path) -> Result<Option<Self>, JournalError> {
        let Some(file) = open(path)? else {
            return Ok(None);
        };
        let held = lock(&file).map_err(JournalError::io("lock", path))?;
        Ok(held.then(|| Self {
            file: HeldFile(file),
            path: path.to_owned(),
        }))
    }

    /// Removes the file.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(JournalError::io("remove", &self.path))
    }
}

/// A file whose lock is released on drop. Closing the file is not enough, because a child process that has not executed
/// its program yet holds a copy of the descriptor, which keeps the lock.
#[derive(Debug)]
pub(super) struct HeldFile(pub(super) File);

impl Deref for HeldFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        unlock(self);
    }
}

/// Releases the lock of a file and leaves the file open.
pub(super) fn unlock(file: &File) {
    // If the file system does not support locks, there is no lock to release.
    let _best_effort = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Opens an existing file. Returns `None` if the file does not exist, is not a regular file, belongs to another user,
/// or has several hard links.
pub(super) fn open(path: &Path) -> Result<Option<File>, JournalError> {
    let file = match open_at(CWD, path, OFlags::RDWR | OFlags::NONBLOCK) {
        Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR) => return Ok(None),
        opened => opened.map_err(JournalError::io("open", path))?,
    };
    let there = FileIdentity::of(&file).map_err(JournalError::io("inspect", path))?;
    // Another user with write access to the directory may have created a hard link to any file, so files with several
    // hard links are rejected.
    let is_own = there.ids.user == rustix::process::geteuid().as_raw() && there.names <= 1;
    Ok((there.regular && is_own).then(|| File::from(file)))
}

/// Returns whether another process holds the lock of the file, in order to write the file or to take it over.
pub(super) fn is_in_use(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => rustix::fs::flock(file, FlockOperation::Unlock)
            .map(|()| false)
            .map_err(io::Error::from),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Creates the directory if it does not exist, accessible only to its owner.
pub(crate) fn ensure_directory(path: &Path) -> Result<(), JournalError> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(JournalError::io("make directory", path))
}

/// Flushes a directory to stable storage.
pub(super) fn sync_directory(path: &Path) -> Result<(), JournalError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(JournalError::io("flush", path))
}

/// Locks a file and checks that it still has a name. Returns `false` if another process holds the lock or has removed
/// the file.
pub(super) fn lock(file: &File) -> io::Result<bool> {
    for _ in 0..LOCK_TRIES_MAX {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(rustix::fs::fstat(file)?.st_nlink > 0),
            Err(Errno::WOULDBLOCK) if is_in_use(file)? => return Ok(false),
            Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_RETRY_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Pause between attempts to lock. A process that only checks whether a file is [in use](is_in_use) holds the lock for
/// about this time.
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(1);
const LOCK_TRIES_MAX: usize = 100;
/// Maximum number of attempts to create a file. An attempt fails if another process assumes that the writer of the new
/// file has died.
const CREATE_TRIES_MAX: usize = 16;
