//! Frees space on a full target. The parts (temporary files) of large files that cannot be completed may fill the
//! target. Without this module, small files would then fail too.
//!
//! If a large file fails for lack of space, its part is kept for a later transfer until another file needs the space.
//! If removing the parts of failed files is not enough, the unfinished large file with the most missing bytes fails
//! too, and its part is removed. This happens only if the file needs more bytes than are free, so that this transfer
//! cannot complete it.
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

/// Maximum wait until writers have closed a removed part (temporary file).
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Transfer {
    /// Retries an operation that failed for lack of space. Before the first retry, publishes all pending files, which
    /// frees the space of the old files that they replace. Before each further retry, removes parts of large files. The
    /// calling thread must not have a part open.
    pub(crate) fn retry_after_freeing(
        &self,
        mut again: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        make_room(self);
        let _one_at_a_time = self.spare_parts.turn();
        loop {
            // The operation is tried first, because another thread may have freed space while this thread waited for
            // the lock.
            let done = again();
            match &done {
                Err(full) if is_no_room(full) && self.freed_space(full) => {}
                _ => return done,
            }
        }
    }

    /// Removes the parts of failed files. If there are none, looks at the unfinished file with the most missing bytes.
    /// If that file cannot be completed, fails it and removes its part. Returns whether the caller should retry the
    /// operation.
    fn freed_space(&self, (_, error): &Failure) -> bool {
        let failed = self.spare_parts.take();
        if !failed.is_empty() {
            failed.iter().for_each(|file| self.release(file));
            return true;
        }
        // In a shared job, all parts are kept, because other receivers use them.
        if self.parts.shared.is_some() {
            return false;
        }
        let living = self.files.living().into_iter();
        let lacking = living.filter_map(|file| Some((file.missing_space()?, file)));
        let Some((lacking, file)) = lacking.max_by_key(|(lacking, _)| lacking.bytes) else {
            return false;
        };
        // If a quota is exceeded, the free space of the file system does not matter, because it does not show the rest
        // of the quota.
        let is_quota = Errno::from_io_error(error) == Some(Errno::DQUOT);
        if lacking.bytes == 0 || !is_quota && lacking.bytes <= lacking.free {
            return false;
        }
        let Some(file) = self.files.retire(file.id) else {
            // The file has failed or was completed in the meantime, so space may be available now.
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

/// Waits until no writer has the part open, and then closes the part, which frees its space.
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
