//! Limits the writers of a cell to the cell's time. The number of written bytes that are not flushed never exceeds the
//! number that the storage can flush in the remaining time.
//!
//! As at the receiver of a push, a separate thread flushes repeatedly. **Invariant:** every write that was admitted is
//! reported as complete, even if it failed.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_types::{ByteCount, GROUP_BYTES, Lock};

use crate::sweep::error::SweepError;

/// Limits the writes of a cell, or the duration of its reads.
pub(crate) struct CellPace<'a> {
    until: Instant,
    stop: &'a AtomicBool,
    state: Lock<PaceState>,
    changed: Condvar,
}

/// The byte counts of a cell, and whether it has ended.
#[derive(Default)]
struct PaceState {
    admitted: u64,
    completed: u64,
    flushed: u64,
    /// Maximum number of bytes that may be written but not flushed.
    allowance: u64,
    ended: bool,
    failed: Option<SweepError>,
}

impl PaceState {
    /// Returns whether `bytes` more bytes may be written now.
    fn takes(&self, bytes: u64) -> bool {
        let waiting = self.admitted - self.flushed;
        waiting == 0 || waiting + bytes <= self.allowance
    }
}

impl<'a> CellPace<'a> {
    /// Creates the limiter for `threads` threads. The cell ends at `until` or when `stop` is set.
    pub(crate) fn new(until: Instant, stop: &'a AtomicBool, threads: usize) -> Self {
        // Every thread must be able to write a group at the same time, even if no flush is needed.
        let allowance = FIRST_BYTES.max(2 * GROUP_BYTES * threads as u64);
        let state = PaceState {
            allowance,
            ..PaceState::default()
        };
        Self {
            until,
            stop,
            state: Lock::new(state),
            changed: Condvar::new(),
        }
    }

    /// Returns whether the time of the cell is not over yet.
    pub(crate) fn has_time(&self) -> bool {
        self.may_go_on(&self.state.lock())
    }

    /// Waits until `bytes` bytes may be written. Returns `false` if the time is over.
    pub(crate) fn admit(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        while self.may_go_on(&state) {
            if state.takes(bytes) {
                state.admitted += bytes;
                return true;
            }
            state = self.wait(state, LOOK_PAUSE);
        }
        false
    }

    /// Records bytes that were written through the page cache.
    pub(crate) fn complete(&self, bytes: u64) {
        self.state.lock().completed += bytes;
    }

    /// Records bytes that were written without the page cache and need no flush.
    pub(crate) fn complete_flushed(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.completed += bytes;
        state.flushed += bytes;
        self.changed.notify_all();
    }

    /// Records an error, which makes all threads of the cell stop.
    pub(crate) fn fail(&self, error: SweepError) {
        self.state.lock().failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Returns the first error of any thread, if there was one.
    pub(crate) fn failure(&self) -> Result<(), SweepError> {
        self.state.lock().failed.take().map_or(Ok(()), Err)
    }

    /// Ends the cell: no more bytes will be written.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Flushes repeatedly until the cell has ended, and then once more.
    pub(crate) fn flush_repeatedly(
        &self,
        directory: BorrowedFd<'_>,
        cannot: impl Fn(io::Error) -> SweepError,
    ) {
        loop {
            let (before, ended) = {
                let state = self.pause();
                (state.completed, state.ended)
            };
            let started = Instant::now();
            if let Err(error) = rustix::fs::syncfs(directory) {
                return self.fail(cannot(error.into()));
            }
            self.flushed(before, started.elapsed());
            if ended {
                return;
            }
        }
    }

    fn pause(&self) -> MutexGuard<'_, PaceState> {
        let state = self.state.lock();
        if state.ended {
            state
        } else {
            self.wait(state, FLUSH_PAUSE)
        }
    }

    /// Records a flush that took `took` and covered all bytes that were complete at `before`. If the flush took at most
    /// half of the remaining time, the allowance doubles. Otherwise, the allowance becomes the number of bytes that can
    /// be flushed in half of the remaining time.
    fn flushed(&self, before: u64, took: Duration) {
        let mut state = self.state.lock();
        let bytes = before.saturating_sub(state.flushed);
        state.flushed = state.flushed.max(before);
        let half = self
            .until
            .saturating_duration_since(Instant::now())
            .max(LAST_FLUSH)
            / 2;
        let twice = state.allowance.saturating_mul(2);
        if bytes > 0 {
            // Each flush has a fixed cost. While flushes are short, flushing more bytes at a time costs less.
            let in_time =
                ByteCount(bytes).as_f64() * half.as_secs_f64() / took.as_secs_f64().max(1e-9);
            let low = FIRST_BYTES / 8;
            state.allowance = if took <= half {
                twice
            } else {
                whole(in_time).clamp(low, twice.max(low))
            };
        }
        self.changed.notify_all();
    }

    fn may_go_on(&self, state: &PaceState) -> bool {
        state.failed.is_none() && !self.stop.load(Ordering::Relaxed) && Instant::now() < self.until
    }

    fn wait<'s>(
        &self,
        state: MutexGuard<'s, PaceState>,
        time: Duration,
    ) -> MutexGuard<'s, PaceState> {
        self.changed
            .wait_timeout(state, time)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is too large is cut"
)]
fn whole(bytes: f64) -> u64 {
    bytes.max(0.0) as u64
}

/// Number of bytes that may be written before the speed of the storage is known.
const FIRST_BYTES: u64 = 64 << 20;
/// The pause between two flushes, as at a receiver.
const FLUSH_PAUSE: Duration = Duration::from_millis(50);
/// How far the last flush may exceed the time of the cell.
const LAST_FLUSH: Duration = Duration::from_millis(500);
/// Interval at which a waiting writer checks whether it must stop.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn nobody_is_admitted_after_the_end() {
        let (stop, now) = (AtomicBool::new(false), Instant::now());
        assert!(!CellPace::new(now, &stop, 2).admit(1));
        let pace = CellPace::new(now + Duration::from_secs(60), &stop, 2);
        assert!(pace.admit(1));
        stop.store(true, Ordering::Relaxed);
        assert!(!pace.admit(1) && !pace.has_time());
    }

    #[test]
    fn what_is_not_flushed_is_bounded_until_it_is() {
        let stop = AtomicBool::new(false);
        let pace = CellPace::new(Instant::now() + Duration::from_secs(60), &stop, 2);
        assert!(pace.admit(FIRST_BYTES));
        pace.complete(FIRST_BYTES);
        assert!(!pace.state.lock().takes(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pace.admit(1));
            pace.flushed(FIRST_BYTES, Duration::from_secs(10));
            assert!(waiting.join().unwrap());
        });
        assert!(pace.state.lock().takes(1));
        assert_eq!(
            pace.state.lock().allowance,
            2 * FIRST_BYTES,
            "that was quick enough"
        );
        pace.flushed(FIRST_BYTES + 1, Duration::from_secs(1000));
        assert_eq!(pace.state.lock().allowance, FIRST_BYTES / 8);
    }

    #[test]
    fn the_first_failure_counts_and_ends_all() {
        let stop = AtomicBool::new(false);
        let pace = CellPace::new(Instant::now() + Duration::from_secs(60), &stop, 2);
        pace.fail(SweepError::Interrupted);
        pace.fail(SweepError::io("write", Path::new("x"))(io::Error::other(
            "the second",
        )));
        assert!(!pace.admit(1));
        assert!(matches!(pace.failure(), Err(SweepError::Interrupted)));
    }
}
