//! Room on a target that is full. Parts of large files may hold all of it although their files cannot become whole,
//! while small files fail for want of a little.
//!
//! A large file that has failed because there was no room keeps its part for a later transfer to resume from, until
//! another file needs the room. If that is not enough, the unfinished large file that lacks most is failed, and its
//! part removed, but only if what it lacks is more than what is free: then it cannot become whole in this transfer.
//!
//! **Invariant:** a part is removed only if its file has failed, or cannot become whole with what is free.

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

/// How long writers may take to let go of a part that was removed.
const LET_GO_MAX: Duration = Duration::from_secs(10);
const LET_GO_POLL: Duration = Duration::from_millis(2);

impl Transfer {
    /// Repeats what has failed because there was no room: when what waits has been published, since it may replace what
    /// takes the room, and then while parts of large files give way to it. The caller must not have a part open.
    pub(crate) fn retry_with_room(
        &self,
        mut again: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        make_room(self);
        let _one_at_a_time = self.spare_parts.turn();
        loop {
            // Another thread may have made room while this one waited for its turn.
            let done = again();
            match &done {
                Err(full) if is_no_room(full) && self.has_given_way(full) => {}
                _ => return done,
            }
        }
    }

    /// Removes the parts of files that have failed meanwhile. Without any, has the unfinished file fail that lacks
    /// most, if it cannot become whole. Returns whether there was one.
    fn has_given_way(&self, (_, error): &Failure) -> bool {
        let failed = self.spare_parts.take();
        if !failed.is_empty() {
            failed.iter().for_each(|file| self.release(file));
            return true;
        }
        // The parts of a job are of use to other receivers.
        if self.parts.shared.is_some() {
            return false;
        }
        let living = self.files.living().into_iter();
        let lacking = living.filter_map(|file| Some((file.lacking()?, file)));
        let Some((lacking, file)) = lacking.max_by_key(|(lacking, _)| lacking.bytes) else {
            return false;
        };
        // What is free says nothing about a quota.
        let is_quota = Errno::from_io_error(error) == Some(Errno::DQUOT);
        if lacking.bytes == 0 || !is_quota && lacking.bytes <= lacking.free {
            return false;
        }
        let Some(file) = self.files.retire(file.id) else {
            // It has failed, or has become whole, meanwhile: the room may be there.
            return true;
        };
        self.release(&file);
        self.report_failed_file(&file, failure(Operation::Write, error));
        true
    }

    /// Removes the part of a retired file, and waits until its room is free.
    fn release(&self, file: &LargeFile) {
        let part = file.let_go(|part| self.parts.remove(file.id, part));
        self.parts.ended(file.id);
        part.into_iter().for_each(wait_until_closed);
    }
}

/// Waits until no writer has a part open, and closes it: then what it took is free.
fn wait_until_closed(mut part: Arc<Staged>) {
    let began = Instant::now();
    while let Err(still_open) = Arc::try_unwrap(part) {
        if began.elapsed() > LET_GO_MAX {
            return;
        }
        thread::sleep(LET_GO_POLL);
        part = still_open;
    }
}
