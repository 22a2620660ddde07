//! A change that is being tried, and the pause before the next change.
//!
//! The baseline is the mean rate of the last ticks. If the rate is still rising on its own, there is no baseline yet.
//! The change gets some round trips to take effect and some more to be measured. After a rejected change, the pause
//! before the next change is longer, up to a maximum.

use std::time::Duration;

/// A change that is being tried. The change first gets time to take effect. The rate is measured afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnobAttempt {
    /// Rate before the change, in bytes per second.
    baseline: f64,
    /// Remaining time for the change to take effect.
    settling: Duration,
    /// Duration of the measurement.
    measuring: Duration,
    bytes: f64,
    measured: Duration,
}

impl KnobAttempt {
    /// Creates an attempt on a path with the given round-trip time. `baseline` is the current rate in bytes per second.
    pub(super) fn new(baseline: f64, round_trip: Duration) -> Self {
        Self {
            baseline,
            settling: (round_trip * SETTLING_ROUND_TRIPS).max(SETTLING_MIN),
            measuring: (round_trip * MEASURING_ROUND_TRIPS).max(MEASURING_MIN),
            bytes: 0.0,
            measured: Duration::ZERO,
        }
    }

    /// Returns the same attempt with more time. Used for a change that disturbs the path before it has a benefit.
    pub(super) fn with_more_time(self) -> Self {
        Self {
            settling: self.settling * PATIENCE,
            measuring: self.measuring * PATIENCE,
            ..self
        }
    }

    /// Lowers the baseline to `rate` if `rate` is lower. If the rate was already falling when the change was made, the
    /// change is compared with the lower rate.
    pub(super) fn lower_baseline(&mut self, rate: f64) {
        self.baseline = self.baseline.min(rate);
    }

    /// Processes one tick with the given rate. Returns `None` until the measurement is complete. Then returns the rate
    /// after the change divided by the baseline.
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

/// The time between attempts. It is short at first and doubles with each rejected attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptBackoff {
    left: Duration,
    next: Duration,
}

impl Default for AttemptBackoff {
    fn default() -> Self {
        Self {
            left: Duration::ZERO,
            next: REST_MIN,
        }
    }
}

impl AttemptBackoff {
    /// Starts with a pause of this length, as if an attempt had just failed.
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

    /// Starts a pause after a rejected attempt.
    pub(super) fn refused(&mut self) {
        self.left = self.next;
        self.next = (self.next * 2).min(REST_MAX);
    }
}

/// The rates of the most recent ticks, and of the same number of ticks before them.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentRates(Vec<f64>);

impl RecentRates {
    pub(super) fn tick(&mut self, rate: f64) {
        if self.0.len() == 2 * RECENT_TICKS {
            self.0.remove(0);
        }
        self.0.push(rate);
    }

    pub(super) fn mean(&self) -> f64 {
        mean(&self.0[self.0.len().saturating_sub(RECENT_TICKS)..])
    }

    /// Returns whether the rate can serve as a baseline. The rate must have been measured for some ticks and must not
    /// be rising on its own, as it does in slow start.
    pub(super) fn is_baseline(&self) -> bool {
        let last = &self.0[self.0.len().saturating_sub(RECENT_TICKS)..];
        last.len() == RECENT_TICKS && last[RECENT_TICKS - 1] <= last[0] * RISING_MIN
    }

    /// Returns whether the mean rate has not fallen noticeably since a few ticks ago.
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
/// A new connection takes three round trips to be established, and some more for its slow start.
const SETTLING_ROUND_TRIPS: u32 = 8;
const SETTLING_MIN: Duration = Duration::from_millis(500);
const MEASURING_ROUND_TRIPS: u32 = 5;
const MEASURING_MIN: Duration = Duration::from_millis(500);
const PATIENCE: u32 = 3;
const REST_MIN: Duration = Duration::from_secs(5);
const REST_MAX: Duration = Duration::from_secs(120);
