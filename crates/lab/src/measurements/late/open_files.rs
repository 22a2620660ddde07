//! The open files of a mount, by the handles that the kernel knows.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::FileHandle;

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// Whether data that was written to it has been lost.
    has_lost: AtomicBool,
}

impl OpenFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            has_lost: AtomicBool::new(false),
        }
    }

    /// Records that data has been lost.
    pub(super) fn loses(&self) {
        self.has_lost.store(true, Ordering::Relaxed);
    }

    /// Returns the error that a flush or close of the file must report.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.has_lost.load(Ordering::Relaxed) {
            Err(io::Error::from_raw_os_error(NO_ROOM))
        } else {
            Ok(())
        }
    }
}

/// Open files by handle.
#[derive(Debug)]
pub(super) struct Handles<T> {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<T>>>,
}

impl<T> Handles<T> {
    pub(super) fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
            open: Mutex::new(HashMap::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, opened: T) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, Arc::new(opened));
        FileHandle(number)
    }

    pub(super) fn get(&self, handle: FileHandle) -> io::Result<Arc<T>> {
        self.lock()
            .get(&handle.0)
            .cloned()
            .ok_or_else(|| io::Error::from_raw_os_error(BAD_DESCRIPTOR))
    }

    pub(super) fn remove(&self, handle: FileHandle) {
        let _closed_outside_of_the_lock = self.lock().remove(&handle.0);
    }
}

/// `ENOSPC`.
const NO_ROOM: i32 = 28;
/// `EBADF`.
const BAD_DESCRIPTOR: i32 = 9;
