//! One change that is being tried, and how long to wait before the next.
//!
//! The rate of the last ticks is the baseline, but not while it rises by itself. The change gets some round trips to
//! take effect and some to be measured. A refused change makes the next one wait, longer each time up to a bound.

use std::time::Duration;

/// A change under trial. First it gets time to take effect, then the rate is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnobAttempt {
    /// The rate before the change.
    baseline: f64,
    /// The time until the change can take effect.
    settling: Duration,
    /// The time to measure.
    measuring: Duration,
    bytes: f64,
    measured: Duration,
}

impl KnobAttempt {
    /// An attempt on a path with this round trip, at this rate in bytes per second.
    pub(super) fn new(baseline: f64, round_trip: Duration) -> Self {
        Self {
            baseline,
            settling: (round_trip * SETTLING_ROUND_TRIPS).max(SETTLING_MIN),
            measuring: (round_trip * MEASURING_ROUND_TRIPS).max(MEASURING_MIN),
            bytes: 0.0,
            measured: Duration::ZERO,
        }
    }

    /// The same attempt with more time, for a change that upsets the path before it shows what it is worth.
    pub(super) fn patiently(self) -> Self {
        Self {
            settling: self.settling * PATIENCE,
            measuring: self.measuring * PATIENCE,
            ..self
        }
    }

    /// Lowers the baseline to `rate`: where the rate was falling when the change came, the change must exceed only the
    /// lower rate.
    pub(super) fn lower_baseline(&mut self, rate: f64) {
        self.baseline = self.baseline.min(rate);
    }

    /// Takes one tick in which the rate was `rate`. Returns the rate after over the rate before, once that is known.
    pub(super) fn tick(&mut self, elapsed: Duration, rate: f64) -> Option<f64> {
        if !self.settling.is_zero() {
            self.settling = self.settling.saturating_sub(elapsed);
            return None;
        }
        self.bytes += rate * elapsed.as_secs_f64();
        self.measured += elapsed;
        if self.measured < self.measuring {
            return None;
        }
        Some(self.bytes / self.measured.as_secs_f64() / self.baseline.max(1.0))
    }
}

/// The time between attempts: short at first, longer with each that was taken back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    left: Duration,
    next: Duration,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            left: Duration::ZERO,
            next: REST_MIN,
        }
    }
}

impl Rest {
    /// A rest of this length, as after something that has failed.
    pub(super) fn of(first: Duration) -> Self {
        Self {
            left: first,
            next: first * 2,
        }
    }

    pub(super) fn tick(&mut self, elapsed: Duration) {
        self.left = self.left.saturating_sub(elapsed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.left.is_zero()
    }

    /// Begins a rest after an attempt that was taken back.
    pub(super) fn refused(&mut self) {
        self.left = self.next;
        self.next = (self.next * 2).min(REST_MAX);
    }
}

/// The rate over the last few ticks, and over as many before.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(Vec<f64>);

impl Recent {
    pub(super) fn tick(&mut self, rate: f64) {
        if self.0.len() == 2 * RECENT_TICKS {
            self.0.remove(0);
        }
        self.0.push(rate);
    }

    pub(super) fn mean(&self) -> f64 {
        mean(&self.0[self.0.len().saturating_sub(RECENT_TICKS)..])
    }

    /// Whether the rate is known and not still rising by itself, as in a slow start: then it can serve as a baseline.
    pub(super) fn is_baseline(&self) -> bool {
        let last = &self.0[self.0.len().saturating_sub(RECENT_TICKS)..];
        last.len() == RECENT_TICKS && last[RECENT_TICKS - 1] <= last[0] * RISING_MIN
    }

    /// Whether the rate is about what it was before.
    pub(super) fn is_steady(&self) -> bool {
        self.0.len() == 2 * RECENT_TICKS && self.mean() > mean(&self.0[..RECENT_TICKS]) * STEADY_MIN
    }
}

fn mean(rates: &[f64]) -> f64 {
    let count = u32::try_from(rates.len().max(1)).unwrap_or(u32::MAX);
    rates.iter().sum::<f64>() / f64::from(count)
}

const RECENT_TICKS: usize = 3;
const RISING_MIN: f64 = 1.1;
const STEADY_MIN: f64 = 0.92;
/// A dial takes three round trips, and a slow start some more.
const SETTLING_ROUND_TRIPS: u32 = 8;
const SETTLING_MIN: Duration = Duration::from_millis(500);
const MEASURING_ROUND_TRIPS: u32 = 5;
const MEASURING_MIN: Duration = Duration::from_millis(500);
const PATIENCE: u32 = 3;
const REST_MIN: Duration = Duration::from_secs(5);
const REST_MAX: Duration = Duration::from_secs(120);
