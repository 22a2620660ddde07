//! The rate limit of the storage: reads and writes pass one after the other, regardless of how many wait.
//!
//! **Invariant:** within any period, the data that passes is at most the rate times the period, plus one request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::units::ByteRate;

/// The time at which the next request may start.
#[derive(Debug)]
pub(super) struct Pace {
    rate: ByteRate,
    free_at: Mutex<Option<Instant>>,
}

impl Pace {
    pub(super) fn new(rate: ByteRate) -> Self {
        Self {
            rate,
            free_at: Mutex::new(None),
        }
    }

    /// Takes the next turn for `bytes` bytes. Returns the time from `now` until the last byte has passed.
    pub(super) fn wait_for(&self, bytes: usize, now: Instant) -> Duration {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let passed =
            free_at.map_or(now, |free| free.max(now)) + self.rate.duration_of(bytes as u64);
        *free_at = Some(passed);
        passed - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_pass_at_the_rate_and_time_without_any_is_not_made_up_for() {
        let pace = Pace::new("1MB/s".parse().unwrap());
        let start = Instant::now();
        let waits: Vec<u128> = (0..3)
            .map(|_| pace.wait_for(1_000, start).as_millis())
            .collect();
        assert_eq!(waits, [1, 2, 3]);
        let later = start + Duration::from_secs(1);
        assert_eq!(pace.wait_for(1_000, later), Duration::from_millis(1));
    }
}
