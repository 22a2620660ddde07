//! The timeline of a push: the clocks of its stages on this side, and the moments of the first and the last data.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zmove_types::StageClock;

use crate::account::bottleneck::Stages;

/// The clocks and the moments of one session.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) started: Instant,
    pub(crate) read_clock: StageClock,
    pub(crate) lane_clock: StageClock,
    handed_over_us: AtomicU64,
    first_byte: OnceLock<FirstByte>,
}

/// The moment of the first data.
#[derive(Clone, Copy, Debug)]
struct FirstByte {
    /// The time since the start.
    after: Duration,
    /// The times that stages had booked until then.
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

    /// Books the moment of the first data byte; returns it to the lane that was first.
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

    /// Books the moment at which a lane had taken all of a frame that was not in flight already.
    pub(crate) fn note_handed_over(&self) {
        let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.handed_over_us.fetch_max(micros, Ordering::Relaxed);
    }

    /// The moment, after the start, when a lane last took data that was not in flight already.
    pub(crate) fn handed_over(&self) -> Option<Duration> {
        let micros = self.handed_over_us.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// The moment, after the start, when the first data byte was handed to a lane.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        self.first_byte.get().map(|first| first.after)
    }

    /// The times that readers and lanes have booked since the first data byte: before, they waited for the dial.
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
