//! A rate that the receiving lanes of one key keep together.
//!
//! A lane books the bytes of a read, a bounded piece at a time, and waits until they are within the rate before it
//! reads on; the windows then make the sender wait. Lanes of keys without a rate do not wait.
//!
//! **Invariant:** whatever the number of lanes, the bytes they take stay below rate × time, except for one share and
//! one read of each lane and a short burst.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use zmove_types::{Doing, RateLimit, Stopwatch};

use crate::lane::LaneBreaker;

/// A rate that several lanes keep together. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Mutex<Schedule>>);

#[derive(Debug)]
struct Schedule {
    bytes_per_second: u64,
    /// The moment from which all bytes taken so far are within the rate.
    due: Instant,
}

impl SharedRate {
    /// A rate that nobody uses yet.
    #[must_use]
    pub fn new(limit: RateLimit) -> Self {
        let schedule = Schedule { bytes_per_second: limit.bytes_per_second(), due: Instant::now() };
        Self(Arc::new(Mutex::new(schedule)))
    }

    /// Changes the rate, also for lanes that keep it already.
    pub fn set(&self, limit: RateLimit) {
        self.lock().bytes_per_second = limit.bytes_per_second();
    }

    /// Whether a lane, or any other holder, has another clone.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Books `bytes` against the rate; returns the moment from which they are within it.
    fn spend(&self, bytes: usize, now: Instant) -> Instant {
        let mut schedule = self.lock();
        let nanoseconds = (bytes as u64).saturating_mul(1_000_000_000) / schedule.bytes_per_second.max(1);
        let from = now.checked_sub(BURST).unwrap_or(now).max(schedule.due);
        schedule.due = from + Duration::from_nanos(nanoseconds);
        schedule.due
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Schedule> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time for which an unused part of the rate may be used later: threads wake up late.
const BURST: Duration = Duration::from_millis(20);

/// One lane's account with a rate, where it is held to one.
#[derive(Debug, Default)]
pub(crate) struct Toll {
    pub(crate) rate: Option<SharedRate>,
    /// Bytes that were taken and not booked yet.
    open: usize,
    broken: Arc<AtomicBool>,
}

impl Toll {
    pub(crate) fn new(rate: Option<SharedRate>) -> Self {
        Self { rate, ..Self::default() }
    }

    /// Waits until the bytes that this and other lanes have taken are within the rate, or the lane is broken. Small
    /// amounts are booked with the next ones, so that lanes with smaller reads do not get a smaller share.
    pub(crate) fn pay(&mut self, bytes: usize, watch: &mut Stopwatch<'_>) {
        let Some(rate) = &self.rate else { return };
        self.open += bytes;
        if self.open < SHARE_BYTES {
            return;
        }
        let due = rate.spend(std::mem::take(&mut self.open), Instant::now());
        while !self.broken.load(Ordering::Relaxed) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
        watch.lap(Doing::Paced);
    }

    /// A breaker for a lane that may be waiting here: it trips `inner` and ends the wait.
    pub(crate) fn breaker(&self, inner: LaneBreaker) -> LaneBreaker {
        let broken = Arc::clone(&self.broken);
        LaneBreaker::new(move || {
            broken.store(true, Ordering::Relaxed);
            inner.trip();
        })
    }
}

/// The bytes that a lane books at a time.
const SHARE_BYTES: usize = 256 << 10;

/// How soon a lane that waits for long notices that it is broken.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use zmove_types::StageClock;

    use super::*;

    fn rate(text: &str) -> SharedRate {
        SharedRate::new(text.parse().unwrap())
    }

    #[test]
    fn lanes_that_share_a_rate_wait_for_each_other() {
        let (one, begun) = (rate("10MB"), Instant::now());
        let other = one.clone();
        let first = one.spend(1_000_000, begun);
        // At most the burst is given away.
        assert!(first + BURST >= begun + Duration::from_millis(100));
        assert_eq!(other.spend(500_000, begun) - first, Duration::from_millis(50));
        one.set("1MB".parse().unwrap());
        assert_eq!(other.spend(500_000, begun) - first, Duration::from_millis(550));
    }

    #[test]
    fn what_was_not_used_for_long_is_lost() {
        let rate = rate("10MB");
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(rate.spend(1_000_000, later), later + Duration::from_millis(100) - BURST);
    }

    #[test]
    fn a_broken_lane_waits_no_longer() {
        let mut toll = Toll::new(Some(rate("1000B")));
        let breaker = toll.breaker(LaneBreaker::new(|| ()));
        let waiting = thread::spawn(move || toll.pay(1 << 40, &mut StageClock::default().start()));
        breaker.trip();
        waiting.join().unwrap();
    }

    #[test]
    fn what_is_waited_for_a_rate_is_booked_as_such() {
        let (mut toll, clock) = (Toll::new(Some(rate("10MB"))), StageClock::default());
        toll.pay(1_000_000, &mut clock.start());
        let times = clock.times();
        assert!(times.paced >= Duration::from_millis(100) - BURST, "{times:?}");
        assert_eq!(times.total(), times.paced);
    }

    #[test]
    fn who_uses_a_rate_is_known() {
        let rate = rate("10MB");
        let toll = Toll::new(Some(rate.clone()));
        assert!(rate.in_use());
        drop(toll);
        assert!(!rate.in_use());
    }
}
