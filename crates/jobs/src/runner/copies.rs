//! Ends copies between two other hosts that go on although their jobs are held or over: no process was there that could
//! have seen to it, or it was killed. A process of its own does that for each, which holds the job's lock, so that no
//! attempt begins meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::child::{Life, Process, start_to_end, take_lock};
use crate::error::StoreError;
use crate::job::JobId;
use crate::moment::Moment;
use crate::place::Place;
use crate::store::{COPY_ENDED, COPY_LEFT, Store};

/// The copies that are to end, by job.
#[derive(Debug, Default)]
pub(super) struct Copies(BTreeMap<JobId, Ender>);

/// What sees to the end of one copy.
///
/// ```text
///  waits ──its time, the job's lock is free──► process ──exit 0────────► let go
///    ▲                                            │
///    ├──────────── any other end ─────────────────┘
///    └── no process starts: a try all the same;  after TRIES_MAX ───────► let go
/// ```
#[derive(Debug)]
struct Ender {
    process: Option<Process>,
    tries: u32,
    next: Instant,
}

impl Ender {
    fn step(
        &mut self,
        place: &Place,
        store: &mut Store,
        id: JobId,
        copy: Option<&str>,
        words: &[OsString],
        now: Moment,
    ) -> Result<(), StoreError> {
        let path = place.lock(id);
        let cannot_lock = |error: io::Error| StoreError::io("lock", &path)(error);
        if let Some(process) = &mut self.process {
            let Life::Ended(exit) = process.life(place, id).map_err(cannot_lock)? else {
                return Ok(());
            };
            self.process = None;
            if exit == Some(0)
                && let Some(copy) = copy
            {
                return store.let_copy_go(id, copy, COPY_ENDED, now);
            }
        }
        let Some(copy) = copy.filter(|_| self.next <= Instant::now()) else {
            return Ok(());
        };
        if self.tries >= TRIES_MAX {
            return store.let_copy_go(id, copy, COPY_LEFT, now);
        }
        let locked = take_lock(place, id).map_err(cannot_lock);
        if matches!(locked, Ok(None)) {
            return Ok(());
        }
        self.next = Instant::now() + WAIT_MAX.min(WAIT_MIN * (1 << self.tries.min(16)));
        self.tries += 1;
        if let Some(lock) = locked? {
            // One that does not start is tried again as one that fails.
            self.process = start_to_end(place, id, lock, &store.work(id)?, copy, words).ok();
        }
        Ok(())
    }
}

impl Copies {
    /// Does what is to be done now; `words` are the program and what stands before a job's own words.
    pub(super) fn end(
        &mut self,
        place: &Place,
        store: &mut Store,
        words: &[OsString],
        now: Moment,
    ) -> Result<(), StoreError> {
        let left: BTreeMap<_, _> = store.copies_left()?.into_iter().collect();
        for id in left.keys() {
            let begun = || Ender {
                process: None,
                tries: 0,
                next: Instant::now(),
            };
            self.0.entry(*id).or_insert_with(begun);
        }
        // A job that goes on takes its copy up again.
        self.0
            .retain(|id, ender| left.contains_key(id) || ender.process.is_some());
        let ends = self.0.iter_mut().map(|(id, ender)| {
            let copy = left.get(id).map(String::as_str);
            ender.step(place, store, *id, copy, words, now)
        });
        // The trouble of one is no reason to leave the others.
        ends.fold(Ok(()), Result::and)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is readable at the end of a process.
    pub(super) fn pidfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes().filter_map(Process::pidfd)
    }

    /// Whether it is one of these processes.
    pub(super) fn has_child(&self, pid: Pid) -> bool {
        self.processes().any(|process| process.is_child(pid))
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.0.values().filter_map(|ender| ender.process.as_ref())
    }
}

/// The time from the first try to the second; each is twice as long as the one before.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(600);
/// The tries before a copy is left to itself: those of a day.
const TRIES_MAX: u32 = 150;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{START, left_copy};

    /// The directory of the job may be gone, or the program.
    #[test]
    fn a_copy_for_which_no_process_starts_is_left_to_itself_in_the_end() {
        let (mut site, id) = left_copy();
        let mut copies = Copies::default();
        let mut end = |copies: &mut Copies| {
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
        assert_eq!((end(&mut copies), copies.0[&id].tries), (1, 1));
        for _ in 1..TRIES_MAX {
            copies.0.get_mut(&id).unwrap().next = Instant::now();
            assert_eq!(end(&mut copies), 1);
        }
        copies.0.get_mut(&id).unwrap().next = Instant::now();
        assert_eq!(end(&mut copies), 0);
        end(&mut copies);
        assert!(copies.is_empty());
    }
}
