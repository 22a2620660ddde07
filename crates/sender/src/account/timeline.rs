//! The timeline of a push: the clocks of its stages on this side, and the times of the first and the last data.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zmove_types::StageClock;

use crate::account::bottleneck::Stages;

/// The clocks and timestamps of one session.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) started: Instant,
    pub(crate) read_clock: StageClock,
    pub(crate) lane_clock: StageClock,
    handed_over_us: AtomicU64,
    first_byte: OnceLock<FirstByte>,
}

/// The time of the first data.
#[derive(Clone, Copy, Debug)]
struct FirstByte {
    /// Time since the start.
    after: Duration,
    /// The times that the stages had recorded when the first data was sent.
    spent: Stages,
}

impl Timeline {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            started,
            read_clock: StageClock::default(),
            lane_clock: StageClock::default(),
            handed_over_us: AtomicU64::new(0),
            first_byte: OnceLock::new(),
        }
    }

    /// Records the time of the first data byte. Returns that time to the first caller, and `None` to later callers.
    pub(crate) fn note_first_byte(&self) -> Option<Duration> {
        if self.first_byte.get().is_some() {
            return None;
        }
        let after = self.started.elapsed();
        self.first_byte
            .set(FirstByte {
                after,
                spent: self.spent_in_all(),
            })
            .ok()?;
        Some(after)
    }

    /// Records the current time as the latest time at which a lane finished sending a frame. Second copies of a chunk
    /// do not count.
    pub(crate) fn note_handed_over(&self) {
        let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.handed_over_us.fetch_max(micros, Ordering::Relaxed);
    }

    /// Returns the time since the start at which a lane last finished sending a frame. Second copies of a chunk do not
    /// count.
    pub(crate) fn handed_over(&self) -> Option<Duration> {
        let micros = self.handed_over_us.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Returns the time since the start at which the first data byte was handed to a lane.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        self.first_byte.get().map(|first| first.after)
    }

    /// Returns the times that readers and lanes have recorded since the first data byte. Before that, they waited for
    /// connections to be established.
    pub(crate) fn spent(&self) -> Stages {
        let before = self
            .first_byte
            .get()
            .map(|first| first.spent)
            .unwrap_or_default();
        self.spent_in_all().since(&before)
    }

    fn spent_in_all(&self) -> Stages {
        Stages {
            read: self.read_clock.times(),
            lane: self.lane_clock.times(),
            ..Stages::default()
        }
    }
}
