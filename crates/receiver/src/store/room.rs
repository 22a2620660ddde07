//! Frees space on a full target. The parts (temporary files) of large files may fill the target although these large
//! files cannot be completed. Without this module, small files would then fail for lack of a little space.
//!
//! A large file that failed for lack of space keeps its part until another file needs the space, so that a later
//! transfer can resume from the part. If removing the parts of failed files does not free enough space, the unfinished
//! large file with the most missing bytes fails too, and its part is removed. This happens only if more bytes of that
//! file are missing than are free, because this transfer cannot complete such a file.
//!
//! **Invariant:** a part is removed only if its file has failed or cannot be completed with the free space.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zmove_disk::Staged;
use zmove_wire::Operation;

use crate::store::failure::{Failure, failure, is_no_room};
use crate::store::large_files::LargeFile;
use crate::store::publishing::make_room;
use crate::store::transfer::Transfer;

/// Maximum time to wait until writers have closed a part (temporary file) that was removed.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Transfer {
    /// Retries an operation that failed for lack of space. Before the first retry, publishes all pending files, because
    /// this removes the old files that they replace. Before each further retry, removes the parts of large files. The
    /// calling thread must not have a part open.
    pub(crate) fn retry_after_freeing(
        &self,
        mut again: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        make_room(self);
        let _one_at_a_time = self.spare_parts.turn();
        loop {
            // Try first, because another thread may have freed space while this thread waited for the lock.
            let done = again();
            match &done {
                Err(full) if is_no_room(full) && self.freed_space(full) => {}
                _ => return done,
            }
        }
    }

    /// Removes the parts of failed files. If there are none, fails the unfinished file with the most missing bytes if
    /// it cannot be completed, and removes its part. Returns whether the caller should retry the operation.
    fn freed_space(&self, (_, error): &Failure) -> bool {
        let failed = self.spare_parts.take();
        if !failed.is_empty() {
            failed.iter().for_each(|file| self.release(file));
            return true;
        }
        // In a shared job, keep all parts, because other receivers use them.
        if self.parts.shared.is_some() {
            return false;
        }
        let living = self.files.living().into_iter();
        let lacking = living.filter_map(|file| Some((file.missing_space()?, file)));
        let Some((lacking, file)) = lacking.max_by_key(|(lacking, _)| lacking.bytes) else {
            return false;
        };
        // If a quota is exceeded, ignore the free space of the file system, because it does not show how much the quota
        // still allows.
        let is_quota = Errno::from_io_error(error) == Some(Errno::DQUOT);
        if lacking.bytes == 0 || !is_quota && lacking.bytes <= lacking.free {
            return false;
        }
        let Some(file) = self.files.retire(file.id) else {
            // The file has failed or was completed in the meantime, so space may have become available.
            return true;
        };
        self.release(&file);
        self.report_failed_file(&file, failure(Operation::Write, error));
        true
    }

    /// Removes the part (temporary file) of a retired file and waits until its space is free.
    fn release(&self, file: &LargeFile) {
        let part = file.give_up_and_take_part(|part| self.parts.remove(file.id, part));
        self.parts.ended(file.id);
        part.into_iter().for_each(wait_until_closed);
    }
}

/// Waits until no writer has the part open. Then closes the part, which frees its space.
fn wait_until_closed(mut part: Arc<Staged>) {
    let began = Instant::now();
    while let Err(still_open) = Arc::try_unwrap(part) {
        if began.elapsed() > CLOSE_WAIT_MAX {
            return;
        }
        thread::sleep(CLOSE_POLL_INTERVAL);
        part = still_open;
    }
}
