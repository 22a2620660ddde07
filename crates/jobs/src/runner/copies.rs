//! Ends copies between two other hosts that continue although their jobs are paused or have ended. A copy continues if
//! the process of its job was killed or could not end the copy. A separate process ends the copy. That process holds
//! the job's lock, so that no attempt starts in the meantime.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::child::{Process, ProcessStatus, start_to_end, take_lock};
use crate::error::StoreError;
use crate::job::JobId;
use crate::moment::Moment;
use crate::place::JobsDirectory;
use crate::store::{COPY_ENDED, COPY_LEFT, Store};

/// The copies to end, by job.
#[derive(Debug, Default)]
pub(super) struct PendingCopies(BTreeMap<JobId, CopyTerminator>);

/// Ends one copy.
///
/// ```text
///  waits ──due, and the job's lock is free──► process ──exit 0────────► forget the copy
///    ▲                                           │
///    ├──────────── any other end ────────────────┘
///    └── process does not start: counts as a try;  after TRIES_MAX ──► forget the copy
/// ```
#[derive(Debug)]
struct CopyTerminator {
    process: Option<Process>,
    tries: u32,
    next: Instant,
}

impl CopyTerminator {
    fn step(
        &mut self,
        place: &JobsDirectory,
        store: &mut Store,
        id: JobId,
        copy: Option<&str>,
        words: &[OsString],
        now: Moment,
    ) -> Result<(), StoreError> {
        let path = place.lock(id);
        let cannot_lock = |error: io::Error| StoreError::io("lock", &path)(error);
        if let Some(process) = &mut self.process {
            let ProcessStatus::Ended(exit) =
                process.check_status(place, id).map_err(cannot_lock)?
            else {
                return Ok(());
            };
            self.process = None;
            if exit == Some(0)
                && let Some(copy) = copy
            {
                return store.forget_copy(id, copy, COPY_ENDED, now);
            }
        }
        let Some(copy) = copy.filter(|_| self.next <= Instant::now()) else {
            return Ok(());
        };
        if self.tries >= TRIES_MAX {
            return store.forget_copy(id, copy, COPY_LEFT, now);
        }
        let locked = take_lock(place, id).map_err(cannot_lock);
        if matches!(locked, Ok(None)) {
            return Ok(());
        }
        self.next = Instant::now() + WAIT_MAX.min(WAIT_MIN * (1 << self.tries.min(16)));
        self.tries += 1;
        if let Some(lock) = locked? {
            // If the process cannot be started, that counts as a failed try, and a later try follows.
            self.process = start_to_end(place, id, lock, &store.work(id)?, copy, words).ok();
        }
        Ok(())
    }
}

impl PendingCopies {
    /// Starts and checks the processes that end copies. `words` are the program and arguments that precede the job's
    /// own arguments.
    pub(super) fn end(
        &mut self,
        place: &JobsDirectory,
        store: &mut Store,
        words: &[OsString],
        now: Moment,
    ) -> Result<(), StoreError> {
        let left: BTreeMap<_, _> = store.copies_left()?.into_iter().collect();
        for id in left.keys() {
            let begun = || CopyTerminator {
                process: None,
                tries: 0,
                next: Instant::now(),
            };
            self.0.entry(*id).or_insert_with(begun);
        }
        // If a job continues, its next attempt takes over the copy.
        self.0
            .retain(|id, terminator| left.contains_key(id) || terminator.process.is_some());
        let ends = self.0.iter_mut().map(|(id, terminator)| {
            let copy = left.get(id).map(String::as_str);
            terminator.step(place, store, *id, copy, words, now)
        });
        // An error for one copy does not prevent the end of the other copies.
        ends.fold(Ok(()), Result::and)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pidfds, each of which becomes readable when its process ends.
    pub(super) fn pidfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes().filter_map(Process::pidfd)
    }

    /// Returns whether `pid` is one of these processes.
    pub(super) fn has_child(&self, pid: Pid) -> bool {
        self.processes().any(|process| process.is_child(pid))
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.0
            .values()
            .filter_map(|terminator| terminator.process.as_ref())
    }
}

/// The wait before the second try. Each further wait is twice as long.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Number of tries before a copy is given up, which take about a day.
const TRIES_MAX: u32 = 150;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{START, left_copy};

    /// The directory of the job or the program may have been removed.
    #[test]
    fn a_copy_for_which_no_process_starts_is_left_to_itself_in_the_end() {
        let (mut site, id) = left_copy();
        let mut copies = PendingCopies::default();
        let mut end = |copies: &mut PendingCopies| {
            copies
                .end(
                    &site.place,
                    &mut site.store,
                    &["/no/such/program".into()],
                    START,
                )
                .unwrap();
            site.store.copies_left().unwrap().len()
        };
        assert_eq!(end(&mut copies), 1);
        // A process that another test starts holds the lock until it executes its program. This is no try.
        while copies.0[&id].tries < TRIES_MAX {
            copies.0.get_mut(&id).unwrap().next = Instant::now();
            assert_eq!(end(&mut copies), 1);
        }
        copies.0.get_mut(&id).unwrap().next = Instant::now();
        assert_eq!(end(&mut copies), 0);
        end(&mut copies);
        assert!(copies.is_empty());
    }
}
