//! Measures the maximum rate that the path has carried over one round trip, for use by the next push on it.
//!
//! The session reports some dozens of times a second how many bytes have been acknowledged on all lanes.
//!
//! **Invariant:** the measured rate never exceeds the rate at which bytes were acknowledged, because each measurement
//! covers an interval of one round trip or slightly more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use zmove_wire::BestRate;

/// Counts for the current round trip, and the best rate measured so far.
#[derive(Debug, Default)]
pub(crate) struct BestRound {
    counts: VecDeque<Count>,
    round_trip: Option<Duration>,
    bytes_per_second: u64,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    at: Instant,
    acked: u64,
}

impl BestRound {
    /// Records that `acked` bytes have been acknowledged at the time `at`. `round_trip` is the shortest round trip of
    /// the lanes.
    pub(crate) fn note(&mut self, at: Instant, acked: u64, round_trip: Option<Duration>) {
        self.round_trip = self.round_trip.into_iter().chain(round_trip).min();
        let Some(round_trip) = self.round_trip else {
            return;
        };
        let is_old = |count: &Count| at.saturating_duration_since(count.at) >= round_trip;
        while self.counts.get(1).is_some_and(is_old) {
            self.counts.pop_front();
        }
        if let Some(before) = self.counts.front().copied().filter(is_old) {
            let micros = u64::try_from((at - before.at).as_micros())
                .unwrap_or(u64::MAX)
                .max(1);
            // The count of a lost lane is no longer included, so the total may shrink.
            let bytes = acked.saturating_sub(before.acked);
            self.bytes_per_second = self
                .bytes_per_second
                .max(bytes.saturating_mul(1_000_000) / micros);
        }
        self.counts.push_back(Count { at, acked });
    }

    pub(crate) fn found(&self) -> Option<BestRate> {
        let round_trip = self.round_trip?;
        let bytes_per_second = Some(self.bytes_per_second).filter(|rate| *rate > 0)?;
        Some(BestRate {
            bytes_per_second,
            round_trip,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_millis(100);

    /// Returns the best rate for a path. Each pair contains a time in milliseconds and the bytes acknowledged by that
    /// time.
    fn found(counts: &[(u64, u64)]) -> Option<u64> {
        let start = Instant::now();
        let mut best = BestRound::default();
        for (millis, acked) in counts {
            best.note(start + Duration::from_millis(*millis), *acked, Some(TRIP));
        }
        best.found().map(|found| found.bytes_per_round_trip())
    }

    #[test]
    fn the_best_round_trip_counts_wherever_it_begins() {
        let acked = |step: u64| step.saturating_sub(10).min(4) * 1_000;
        let counts: Vec<_> = (0..40).map(|step| (step * 25, acked(step))).collect();
        assert_eq!(found(&counts), Some(4_000));
    }

    #[test]
    fn looking_back_for_longer_than_a_round_trip_finds_no_more() {
        assert_eq!(found(&[(0, 0), (150, 1_500), (300, 3_000)]), Some(1_000));
    }

    #[test]
    fn less_than_a_round_trip_tells_nothing_and_a_lost_lane_no_less() {
        assert_eq!(found(&[(0, 0), (50, 5_000)]), None);
        assert_eq!(
            found(&[(0, 0), (100, 5_000), (200, 1_000), (300, 2_000)]),
            Some(5_000)
        );
    }
}
