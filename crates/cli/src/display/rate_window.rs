//! The current rate of a transfer, computed from the receiver's acknowledgements of the last seconds.
//!
//! A large file is acknowledged in groups, and on a slow path the acknowledgements of two groups are far apart. The
//! window therefore starts and ends with an acknowledgement, and is longer if acknowledgements are rare. **Invariant:**
//! no rate is reported until the window is full, because the first rate would reflect a few small files or a connection
//! in slow start.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use zmove_types::ByteCount;

/// The acknowledgements of the last seconds.
#[derive(Debug, Default)]
pub(super) struct RateWindow {
    /// The samples in chronological order. The first sample is the start of the window.
    samples: VecDeque<AckSample>,
}

/// Number of bytes that were acknowledged up to the time `at`.
#[derive(Clone, Copy, Debug)]
struct AckSample {
    at: Instant,
    bytes: u64,
}

impl RateWindow {
    /// Adds acknowledged bytes.
    pub(super) fn add(&mut self, at: Instant, bytes: u64) {
        if self.stands_still(at) {
            self.samples.clear();
        }
        let before = self.samples.back().map_or(0, |last| last.bytes);
        let sample = AckSample {
            at,
            bytes: before + bytes,
        };
        if self.is_crowded() {
            self.samples.pop_back();
        }
        self.samples.push_back(sample);
        while self.samples.len() > SAMPLES_MIN && at.duration_since(self.samples[1].at) >= WINDOW {
            self.samples.pop_front();
        }
    }

    /// Returns the rate in bytes per second. Returns `None` if the window has too few acknowledgements.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        if self.stands_still(now) {
            return Some(0.0);
        }
        let span = self.span()?;
        let bytes = self.samples.back()?.bytes - self.samples.front()?.bytes;
        Some(ByteCount(bytes).as_f64() / span.as_secs_f64())
    }

    /// Returns whether the time between the last two samples is too short, so that the last sample must be merged.
    fn is_crowded(&self) -> bool {
        let mut newest = self.samples.iter().rev();
        let last = newest.next().zip(newest.next());
        last.is_some_and(|(last, before)| last.at.duration_since(before.at) < SPACING)
    }

    /// Returns the duration of the window, if the window is full.
    fn span(&self) -> Option<Duration> {
        let span = self
            .samples
            .back()?
            .at
            .duration_since(self.samples.front()?.at);
        (self.samples.len() >= SAMPLES_MIN && span >= WINDOW).then_some(span)
    }

    /// Returns whether the transfer has stalled. The window must have been full, and the time since the last
    /// acknowledgement must be much longer than the usual interval.
    fn stands_still(&self, now: Instant) -> bool {
        let Some((span, last)) = self.span().zip(self.samples.back()) else {
            return false;
        };
        let gaps = u32::try_from(self.samples.len() - 1).unwrap_or(u32::MAX);
        now.duration_since(last.at) > WINDOW.max(3 * span / gaps)
    }
}

/// Duration over which the rate is smoothed.
const WINDOW: Duration = Duration::from_secs(3);
/// Minimum number of samples in a window.
const SAMPLES_MIN: usize = 2;
/// Minimum time between two samples. Acknowledgements that are closer together are merged into one sample.
const SPACING: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds acknowledgements of 1,000 bytes each at the times `millis`. Returns the rate `later` milliseconds after the
    /// last acknowledgement.
    fn rate(millis: impl IntoIterator<Item = u64>, later: u64) -> Option<f64> {
        let begin = Instant::now();
        let mut window = RateWindow::default();
        let mut last = 0;
        for at in millis {
            window.add(begin + Duration::from_millis(at), 1_000);
            last = at;
        }
        assert!(window.samples.len() < 40, "{}", window.samples.len());
        window.rate(begin + Duration::from_millis(last + later))
    }

    #[track_caller]
    fn assert_near(rate: Option<f64>, expected: f64) {
        let rate = rate.expect("a rate");
        assert!((rate / expected - 1.0).abs() < 0.05, "{rate}");
    }

    #[test]
    fn there_is_no_rate_before_the_window_is_full() {
        assert_eq!(rate([], 10_000), None);
        assert_eq!(rate([0, 10, 2_990], 0), None);
        assert_eq!(rate([5_000], 0), None, "one group");
        assert_near(rate([0, 5_000], 0), 200.0);
        assert_near(rate((0..=300).map(|at| at * 10), 0), 100_000.0);
    }

    #[test]
    fn the_rate_follows_the_last_seconds() {
        let slow = (0..100).map(|at| at * 100);
        let fast = (0..400).map(|at| 10_000 + at * 10);
        assert_near(rate(slow.clone(), 0), 10_000.0);
        assert_near(rate(slow.chain(fast), 0), 100_000.0);
    }

    #[test]
    fn between_the_groups_of_a_slow_path_the_rate_stays() {
        let groups = || (0..9).map(|at| at * 10_000);
        for later in [0, 5_000, 9_999, 20_000] {
            assert_near(rate(groups(), later), 100.0);
        }
    }

    #[test]
    fn a_transfer_that_stands_still_has_no_rate_and_begins_anew() {
        let even = || (0..500).map(|at| at * 10);
        assert_near(rate(even(), 2_900), 100_000.0);
        assert_eq!(rate(even(), 3_100), Some(0.0));
        assert_eq!(rate(even().chain([60_000]), 0), None);
        let again = (0..=400).map(|at| 60_000 + at * 10);
        assert_near(rate(even().chain(again), 0), 100_000.0);
    }
}
