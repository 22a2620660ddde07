//! Makes room on a full target. Parts of large files may fill it although those files cannot be completed, while small
//! files fail for lack of a little space.
//!
//! A large file that failed for lack of space keeps its part, so that a later transfer can resume from it, until
//! another file needs the space. If this does not free enough, the unfinished large file with the most missing bytes is
//! failed and its part is removed. This happens only if the file is missing more than the free space, because then this
//! transfer cannot complete it.
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

/// Maximum time to wait for writers to close a part that was removed.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Transfer {
    /// Retries an operation that failed for lack of space. The first retry follows the publication of all pending
    /// files, which may replace files that use the space. Further retries follow each removal of a large file's part.
    /// The calling thread must not have a part open.
    pub(crate) fn retry_after_freeing(
        &self,
        mut again: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        make_room(self);
        let _one_at_a_time = self.spare_parts.turn();
        loop {
            // Another thread may have made room while this thread waited for its turn.
            let done = again();
            match &done {
                Err(full) if is_no_room(full) && self.freed_space(full) => {}
                _ => return done,
            }
        }
    }

    /// Removes the parts of files that have failed. If there are none, fails the unfinished file with the most missing
    /// bytes, provided that it cannot be completed. Returns whether the operation is worth another try.
    fn freed_space(&self, (_, error): &Failure) -> bool {
        let failed = self.spare_parts.take();
        if !failed.is_empty() {
            failed.iter().for_each(|file| self.release(file));
            return true;
        }
        // Other receivers use the parts of a shared job.
        if self.parts.shared.is_some() {
            return false;
        }
        let living = self.files.living().into_iter();
        let lacking = living.filter_map(|file| Some((file.missing_space()?, file)));
        let Some((lacking, file)) = lacking.max_by_key(|(lacking, _)| lacking.bytes) else {
            return false;
        };
        // The free space of the file system does not show how much a quota still allows.
        let is_quota = Errno::from_io_error(error) == Some(Errno::DQUOT);
        if lacking.bytes == 0 || !is_quota && lacking.bytes <= lacking.free {
            return false;
        }
        let Some(file) = self.files.retire(file.id) else {
            // The file has failed or was completed in the meantime, so there may be room.
            return true;
        };
        self.release(&file);
        self.report_failed_file(&file, failure(Operation::Write, error));
        true
    }

    /// Removes the part of a retired file and waits until its space is free.
    fn release(&self, file: &LargeFile) {
        let part = file.give_up_and_take_part(|part| self.parts.remove(file.id, part));
        self.parts.ended(file.id);
        part.into_iter().for_each(wait_until_closed);
    }
}

/// Waits until no writer has the part open, then closes it, which frees its space.
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
