//! Time accounting for the stages of the pipeline.
//!
//! A thread of a stage is *busy* (working), *starved* (waiting for its upstream stage), *blocked* (waiting for its
//! downstream stage) or *paced* (waiting to stay below a rate limit). Each thread adds to the totals of its stage. A
//! thread reads the clock at most twice per chunk, except for lanes with a rate limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The states of a thread for time accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Working on data.
    Busy,
    /// Waiting for work.
    Starved,
    /// Waiting for the next stage to accept the output.
    Blocked,
    /// Waiting to stay below a rate limit.
    Paced,
}

/// The times of one stage, summed over all its threads.
#[derive(Debug, Default)]
pub struct StageClock {
    busy_ns: AtomicU64,
    starved_ns: AtomicU64,
    blocked_ns: AtomicU64,
    paced_ns: AtomicU64,
    bytes_in_progress: AtomicU64,
}

/// A snapshot of a stage's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Time spent working.
    pub busy: Duration,
    /// Time spent waiting for upstream.
    pub starved: Duration,
    /// Time spent waiting for downstream.
    pub blocked: Duration,
    /// Time spent waiting to stay below a rate limit.
    pub paced: Duration,
}

/// The stopwatch of a thread, which adds time to its stage's clock.
#[derive(Debug)]
pub struct Stopwatch<'a> {
    clock: &'a StageClock,
    since: Instant,
    bytes_in_progress: u64,
}

impl StageClock {
    /// Starts a thread's stopwatch.
    #[must_use]
    pub fn start(&self) -> Stopwatch<'_> {
        Stopwatch {
            clock: self,
            since: Instant::now(),
            bytes_in_progress: 0,
        }
    }

    /// Adds `time` spent in the state `doing`.
    pub fn add(&self, doing: ThreadState, time: Duration) {
        let counter = match doing {
            ThreadState::Busy => &self.busy_ns,
            ThreadState::Starved => &self.starved_ns,
            ThreadState::Blocked => &self.blocked_ns,
            ThreadState::Paced => &self.paced_ns,
        };
        counter.fetch_add(
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Returns the totals so far.
    #[must_use]
    pub fn times(&self) -> StageTimes {
        let read = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        StageTimes {
            busy: read(&self.busy_ns),
            starved: read(&self.starved_ns),
            blocked: read(&self.blocked_ns),
            paced: read(&self.paced_ns),
        }
    }

    /// Returns the number of bytes that the stage's threads have started but not finished processing.
    #[must_use]
    pub fn bytes_in_progress(&self) -> u64 {
        self.bytes_in_progress.load(Ordering::Relaxed)
    }
}

impl Stopwatch<'_> {
    /// Sets the number of bytes received so far of the thread's current frame. On a slow path, a frame takes many
    /// seconds to arrive.
    pub fn set_bytes_in_progress(&mut self, bytes: u64) {
        self.clock
            .bytes_in_progress
            .fetch_add(bytes, Ordering::Relaxed);
        self.clock.bytes_in_progress.fetch_sub(
            std::mem::replace(&mut self.bytes_in_progress, bytes),
            Ordering::Relaxed,
        );
    }

    /// Adds the time since the last call (or the start) to the state `doing`.
    pub fn lap(&mut self, doing: ThreadState) {
        let now = Instant::now();
        self.clock.add(doing, now - self.since);
        self.since = now;
    }

    /// Discards the time since the last call (or the start), because the stage was not involved.
    pub fn skip(&mut self) {
        self.since = Instant::now();
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        self.set_bytes_in_progress(0);
    }
}

impl StageTimes {
    /// Returns the sum of all times.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.busy + self.starved + self.blocked + self.paced
    }

    /// Returns the times that were added after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            starved: self.starved.saturating_sub(before.starved),
            blocked: self.blocked.saturating_sub(before.blocked),
            paced: self.paced.saturating_sub(before.paced),
        }
    }

    /// Returns the share of `part` in the total time, from 0 to 1.
    #[must_use]
    pub fn share(&self, part: Duration) -> f64 {
        let total = self.total().as_secs_f64();
        if total > 0.0 {
            part.as_secs_f64() / total
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_have_at_hand_goes_with_them() {
        let clock = StageClock::default();
        let (mut one, mut other) = (clock.start(), clock.start());
        one.set_bytes_in_progress(3);
        one.set_bytes_in_progress(5);
        other.set_bytes_in_progress(2);
        assert_eq!(clock.bytes_in_progress(), 7);
        drop(one);
        assert_eq!(clock.bytes_in_progress(), 2);
        other.set_bytes_in_progress(0);
        assert_eq!(clock.bytes_in_progress(), 0);
    }

    #[test]
    fn shares_add_up() {
        let clock = StageClock::default();
        clock.add(ThreadState::Busy, Duration::from_millis(30));
        clock.add(ThreadState::Starved, Duration::from_millis(10));
        let times = clock.times();
        assert!((times.share(times.busy) - 0.75).abs() < 1e-9);
        assert_eq!(times.total(), Duration::from_millis(40));
    }
}
