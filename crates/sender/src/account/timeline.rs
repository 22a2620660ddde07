//! Where the time of a push goes: the clocks of its stages on this side, and the moments of the first and the last
//! data.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zmove_types::{StageClock, StageTimes};

/// The clocks and the moments of one session.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) started: Instant,
    pub(crate) read_clock: StageClock,
    pub(crate) lane_clock: StageClock,
    first_byte_us: AtomicU64,
    handed_over_us: AtomicU64,
    before_first_byte: OnceLock<Spent>,
}

/// What the threads of both stages have booked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) read: StageTimes,
    pub(crate) lane: StageTimes,
}

impl Timeline {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            started,
            read_clock: StageClock::default(),
            lane_clock: StageClock::default(),
            first_byte_us: AtomicU64::new(0),
            handed_over_us: AtomicU64::new(0),
            before_first_byte: OnceLock::new(),
        }
    }

    /// Books the moment of the first data byte; returns it to the one who was first.
    pub(crate) fn note_first_byte(&self) -> Option<Duration> {
        if self.first_byte_us.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let elapsed = self.started.elapsed();
        let first = micros(elapsed).max(1);
        self.first_byte_us.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        // set once, by the one who was first
        let _set = self.before_first_byte.set(self.spent_in_all());
        Some(elapsed)
    }

    /// Books the moment at which a lane had taken all of a frame that was not in flight already.
    pub(crate) fn note_handed_over(&self) {
        self.handed_over_us.fetch_max(micros(self.started.elapsed()), Ordering::Relaxed);
    }

    /// When a lane last took data that was not in flight already, after the start.
    pub(crate) fn handed_over(&self) -> Option<Duration> {
        moment(&self.handed_over_us)
    }

    /// When the first data byte was handed to a lane, after the start.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        moment(&self.first_byte_us)
    }

    /// What readers and lanes have booked since the first data byte: before, they waited for the dial.
    pub(crate) fn spent(&self) -> Spent {
        let before = self.before_first_byte.get().copied().unwrap_or_default();
        let now = self.spent_in_all();
        Spent { read: now.read.since(&before.read), lane: now.lane.since(&before.lane) }
    }

    fn spent_in_all(&self) -> Spent {
        Spent { read: self.read_clock.times(), lane: self.lane_clock.times() }
    }
}

fn moment(micros: &AtomicU64) -> Option<Duration> {
    let micros = micros.load(Ordering::Relaxed);
    (micros > 0).then(|| Duration::from_micros(micros))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
