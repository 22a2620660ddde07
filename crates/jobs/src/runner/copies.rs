//! Ends copies between two other hosts that go on although their jobs are held or over: no process was there that could
//! have seen to it, or it was killed. A process of its own does that for each, which holds the job's lock, so that no
//! attempt begins meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsString;
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

#[derive(Debug)]
struct Ender {
    process: Option<Process>,
    tries: u32,
    next: Instant,
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
            let begun = || Ender { process: None, tries: 0, next: Instant::now() };
            self.0.entry(*id).or_insert_with(begun);
        }
        // A job that goes on takes its copy up again.
        self.0.retain(|id, ender| left.contains_key(id) || ender.process.is_some());
        for (id, ender) in &mut self.0 {
            let path = place.lock(*id);
            let lock = StoreError::io("lock", &path);
            match ender.process.as_mut().map(|process| process.life(place, *id)) {
                Some(Ok(Life::Lives)) => continue,
                Some(Ok(Life::Ended(exit))) => {
                    ender.process = None;
                    let is_over = exit == Some(0) || ender.tries >= TRIES_MAX;
                    if let (true, Some(copy)) = (is_over, left.get(id)) {
                        let kind = if exit == Some(0) { COPY_ENDED } else { COPY_LEFT };
                        store.let_copy_go(*id, copy, kind, now)?;
                        continue;
                    }
                }
                Some(Err(error)) => return Err(lock(error)),
                None => {}
            }
            if ender.next <= Instant::now()
                && let Some(copy) = left.get(id)
                && let Some(file) = take_lock(place, *id).map_err(lock)?
            {
                ender.next = Instant::now() + WAIT_MAX.min(WAIT_MIN * (1 << ender.tries.min(16)));
                ender.tries += 1;
                // One that does not start is tried again as one that fails.
                ender.process = start_to_end(place, *id, file, &store.work(*id)?, copy, words).ok();
            }
        }
        Ok(())
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
