//! A rate that lanes keep together: those of one push where they send, all of one key where they receive.
//!
//! There is one schedule for all of them, and they are served in the order in which they come. A sending lane waits
//! for the moment of each piece before it goes out. A receiving lane waits for that of what a read has brought before
//! it reads on; the windows then make the sender wait. Without a rate nothing is booked and nobody waits.
//!
//! **Invariant:** whatever the number of lanes, what they send stays below rate × time and a moment's burst;
//! what they take stays there but for a piece and a read of each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use zmove_types::{Doing, Lock, RateLimit, Stopwatch};

use crate::lane::LaneBreaker;

/// A rate that several lanes keep together; none at first by default. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedRate(Arc<Schedule>);

#[derive(Debug, Default)]
struct Schedule {
    /// The rate of what lanes carry, which is below the limit; 0 is no rate.
    bytes_per_second: AtomicU64,
    moments: Lock<Moments>,
    /// A rate that is kept as well, with others who do not keep this one.
    whole: OnceLock<SharedRate>,
}

#[derive(Debug, Default)]
struct Moments {
    /// The moment from which all that was taken is within the rate.
    due: Option<Instant>,
    /// When somebody last began something new.
    begun: Option<Instant>,
    /// When somebody last took something, or had to wait before it, also where only the whole has a rate.
    wanted: Option<Instant>,
}

impl SharedRate {
    /// A rate that nobody uses yet.
    #[must_use]
    pub fn new(limit: RateLimit) -> Self {
        let rate = Self::default();
        rate.set(limit);
        rate
    }

    /// Changes the rate, also for lanes that keep it already.
    pub fn set(&self, limit: RateLimit) {
        let carried = limit.bytes_per_second() / CARRIED_OF * CARRIED;
        self.0
            .bytes_per_second
            .store(carried.max(1), Ordering::Relaxed);
    }

    /// Keeps `whole` as well, as a part of all who keep that. Once only; another one later is not kept.
    pub fn keep_within(&self, whole: Self) {
        let _first = self.0.whole.set(whole);
    }

    /// Whether there is a rate to be kept.
    pub(crate) fn is_set(&self) -> bool {
        self.lowest().is_some()
    }

    /// Whether a lane, or any other holder, has another clone.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// How long whoever wants to begin a frame should wait first; `None` when that may begin now. Lanes that are in
    /// the middle of one use all of the rate meanwhile, and finish it the sooner.
    #[must_use]
    pub fn wait_to_begin(&self, now: Instant) -> Option<Duration> {
        let of_whole = self
            .0
            .whole
            .get()
            .and_then(|whole| whole.wait_to_begin(now));
        let wait = self.own_wait_to_begin(now).max(of_whole);
        if wait.is_some() {
            self.0.moments.lock().wanted = Some(now);
        }
        wait
    }

    fn own_wait_to_begin(&self, now: Instant) -> Option<Duration> {
        let piece = self.time_of(self.piece_bytes()?)?;
        let mut moments = self.0.moments.lock();
        let unused = moments.due.map(|due| due + UNUSED_MIN);
        let next = moments.begun.map(|begun| begun + piece);
        let wait = unused
            .max(next)
            .map(|from| from.saturating_duration_since(now));
        let wait = wait.filter(|wait| !wait.is_zero());
        if wait.is_none() {
            moments.begun = Some(now);
        }
        wait
    }

    /// Whether there is a rate, and lanes have used all of it within the last second.
    #[must_use]
    pub fn is_spent(&self, now: Instant) -> bool {
        let own = self
            .0
            .moments
            .lock()
            .due
            .is_some_and(|due| now < due + SPENT_LATELY);
        self.is_set() && own || self.0.whole.get().is_some_and(|whole| whole.is_spent(now))
    }

    /// Whether there is a rate, and somebody who keeps this one has used some of it within this time, or waited for his
    /// turn.
    #[must_use]
    pub fn is_wanted_within(&self, span: Duration, now: Instant) -> bool {
        self.is_set()
            && self
                .0
                .moments
                .lock()
                .wanted
                .is_some_and(|last| now.saturating_duration_since(last) < span)
    }

    /// What a lane takes in one turn, where there is a rate: so little that the turns of a slow one are short.
    pub(crate) fn piece_bytes(&self) -> Option<usize> {
        let rate = self.lowest()?;
        let piece = usize::try_from(rate / PIECES_PER_SECOND).unwrap_or(usize::MAX);
        Some(piece.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX))
    }

    /// Books `bytes` against the rate; returns the moment from which they are within it.
    fn spend(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let of_whole = self.0.whole.get().and_then(|whole| whole.spend(bytes, now));
        self.0.moments.lock().wanted = Some(now);
        self.spend_own(bytes, now).max(of_whole)
    }

    fn spend_own(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let time = self.time_of(bytes)?;
        let mut moments = self.0.moments.lock();
        let from = now.checked_sub(BURST).max(moments.due).unwrap_or(now);
        moments.due = Some(from + time);
        moments.due
    }

    /// How long the rate takes for so many bytes.
    fn time_of(&self, bytes: usize) -> Option<Duration> {
        let nanoseconds = (bytes as u64).saturating_mul(1_000_000_000) / self.bytes_per_second()?;
        Some(Duration::from_nanos(nanoseconds))
    }

    /// The lower of the rates that are kept.
    fn lowest(&self) -> Option<u64> {
        let of_whole = self.0.whole.get().and_then(Self::lowest);
        self.bytes_per_second().into_iter().chain(of_whole).min()
    }

    fn bytes_per_second(&self) -> Option<u64> {
        Some(self.0.bytes_per_second.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }
}

/// What lanes may carry of a rate. The rest is left to the headers of packets, of which 1500 bytes have some
/// 70, and to [`BURST`].
const CARRIED: u64 = 19;
const CARRIED_OF: u64 = 20;

/// The time for which an unused part of the rate may be used later: threads wake up late.
const BURST: Duration = Duration::from_millis(20);

/// A rate of which nothing was used in this time has room for more lanes. Less than [`BURST`], so that nothing is lost
/// meanwhile.
const UNUSED_MIN: Duration = Duration::from_millis(5);

/// What waited for the rate within this time is not late. On a busy host lanes leave a rate unused for tens of
/// milliseconds, because they do not get a core.
const SPENT_LATELY: Duration = Duration::from_secs(1);

const PIECES_PER_SECOND: u64 = 50;
const PIECE_BYTES_MIN: usize = 1 << 10;
const PIECE_BYTES_MAX: usize = 128 << 10;

/// One lane's limiter, by a rate that it may share with others.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    pub(crate) rate: SharedRate,
    /// Bytes that were taken and are not booked yet.
    open: usize,
    broken: Arc<AtomicBool>,
}

impl RateLimiter {
    pub(crate) fn new(rate: SharedRate) -> Self {
        Self {
            rate,
            ..Self::default()
        }
    }

    /// The most bytes to take at once; everything where there is no rate.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.rate.piece_bytes().unwrap_or(usize::MAX)
    }

    /// Waits for what was taken. Small amounts are left to the wait for what follows, so that lanes whose reads bring
    /// less do not come by a smaller share.
    pub(crate) fn throttle(&mut self, bytes: usize, watch: &mut Stopwatch<'_>) {
        self.open += bytes;
        if self
            .rate
            .piece_bytes()
            .is_none_or(|piece| self.open >= piece)
        {
            let open = std::mem::take(&mut self.open);
            self.throttle_now(open, watch);
        }
    }

    /// Books what has gone out already: others wait for it.
    pub(crate) fn book(&self, bytes: usize) {
        let _others_wait = self.rate.spend(bytes, Instant::now());
    }

    /// Waits until so many bytes, and what others took before, are within the rate, or the lane is broken.
    pub(crate) fn throttle_now(&self, bytes: usize, watch: &mut Stopwatch<'_>) {
        let Some(due) = self.rate.spend(bytes, Instant::now()) else {
            return;
        };
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

/// How soon a lane that waits for long sees that it is broken.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use zmove_types::StageClock;

    use super::*;

    /// A rate of which lanes carry so many bytes per second.
    fn rate(bytes_per_second: u64) -> SharedRate {
        let rate = SharedRate::default();
        rate.0
            .bytes_per_second
            .store(bytes_per_second, Ordering::Relaxed);
        rate
    }

    #[test]
    fn a_shared_rate_knows_who_used_it_and_who_waited() {
        let (whole, now) = (rate(1000), Instant::now());
        let [sends, hangs] = [SharedRate::default(), SharedRate::default()];
        [&sends, &hangs]
            .into_iter()
            .for_each(|part| part.keep_within(whole.clone()));
        sends.spend(5000, now);
        let is_wanted =
            |part: &SharedRate, after| part.is_wanted_within(Duration::from_secs(10), now + after);
        assert!(
            is_wanted(&sends, Duration::from_secs(9))
                && !is_wanted(&sends, Duration::from_secs(10))
        );
        assert!(whole.is_spent(now) && !is_wanted(&hangs, Duration::ZERO));
        let waits = SharedRate::default();
        waits.keep_within(whole.clone());
        assert!(waits.wait_to_begin(now).is_some() && is_wanted(&waits, Duration::from_secs(9)));
        let free = SharedRate::default();
        free.spend(5000, now);
        assert!(!is_wanted(&free, Duration::ZERO), "there is no rate");
    }

    #[test]
    fn those_who_keep_a_part_of_a_rate_keep_the_whole_together() {
        let (whole, begun) = (rate(10_000_000), Instant::now());
        let [slow, free] = [rate(1_000_000), SharedRate::default()];
        for part in [&slow, &free] {
            part.keep_within(whole.clone());
        }
        assert_eq!(
            (slow.lowest(), free.lowest()),
            (Some(1_000_000), Some(10_000_000))
        );
        let first = slow.spend(1_000_000, begun).unwrap();
        assert!(
            first + BURST >= begun + Duration::from_secs(1),
            "its own is the lower one"
        );
        let second = free.spend(1_000_000, begun).unwrap();
        let (due, margin) = (begun + Duration::from_millis(200), BURST);
        assert!(
            second + margin >= due && second <= due,
            "after what the other has taken of the whole"
        );
        assert!(free.is_spent(begun));
    }

    #[test]
    fn lanes_that_share_a_rate_wait_for_each_other() {
        let (one, begun) = (rate(10_000_000), Instant::now());
        let other = one.clone();
        let first = one.spend(1_000_000, begun).unwrap();
        // at most the burst is given away
        assert!(first + BURST >= begun + Duration::from_millis(100));
        assert_eq!(
            other.spend(500_000, begun),
            Some(first + Duration::from_millis(50))
        );
        one.set("1MB".parse().unwrap());
        assert_eq!(
            other.spend(950_000, begun),
            Some(first + Duration::from_millis(1050))
        );
    }

    #[test]
    fn what_was_not_used_for_long_is_lost() {
        let rate = rate(10_000_000);
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(
            rate.spend(1_000_000, later),
            Some(later + Duration::from_millis(100) - BURST)
        );
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        let (rate, now) = (SharedRate::default(), Instant::now());
        assert_eq!(
            (rate.spend(usize::MAX, now), rate.wait_to_begin(now)),
            (None, None)
        );
        assert!(!rate.is_spent(now));
    }

    /// Else each of 64 lanes would hold a frame, and the first would be there when all are.
    #[test]
    fn frames_are_begun_one_after_the_other_while_the_rate_is_used() {
        let (rate, begun) = (rate(1_000_000), Instant::now());
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        assert_eq!(rate.wait_to_begin(at(0)), None);
        assert!(
            rate.wait_to_begin(at(1)).is_some(),
            "another has just begun"
        );
        assert_eq!(
            rate.wait_to_begin(at(20)),
            None,
            "and does not use the rate"
        );
        let due = rate.spend(100_000, at(21)).unwrap();
        assert_eq!(rate.wait_to_begin(at(60)), Some(due + UNUSED_MIN - at(60)));
        assert!(rate.is_spent(due) && !rate.is_spent(due + SPENT_LATELY));
        assert_eq!(rate.wait_to_begin(due + UNUSED_MIN), None);
    }

    #[test]
    fn no_second_has_more_than_the_limit() {
        let (rate, begun) = (SharedRate::new("1MB".parse().unwrap()), Instant::now());
        let piece = rate.piece_bytes().unwrap();
        let due = |rate: &SharedRate| rate.spend(piece, begun).unwrap();
        let in_time = std::iter::repeat_with(|| due(&rate))
            .take_while(|due| *due <= begun + Duration::from_secs(1));
        let carried = in_time.count() * piece;
        assert!((930_000..=980_000).contains(&carried), "{carried}");
    }

    #[test]
    fn a_broken_lane_waits_no_longer() {
        let limiter = RateLimiter::new(rate(1000));
        let breaker = limiter.breaker(LaneBreaker::new(|| ()));
        let waiting = thread::spawn(move || {
            limiter.throttle_now(1 << 40, &mut StageClock::default().start())
        });
        breaker.trip();
        waiting.join().unwrap();
    }

    #[test]
    fn what_is_waited_for_a_rate_is_booked_as_such() {
        let (mut limiter, clock) = (RateLimiter::new(rate(10_000_000)), StageClock::default());
        limiter.throttle(1_000_000, &mut clock.start());
        let times = clock.times();
        assert!(
            times.paced >= Duration::from_millis(100) - BURST,
            "{times:?}"
        );
        assert_eq!(times.total(), times.paced);
    }

    #[test]
    fn who_uses_a_rate_is_known() {
        let rate = rate(10_000_000);
        let limiter = RateLimiter::new(rate.clone());
        assert!(rate.in_use());
        drop(limiter);
        assert!(!rate.in_use());
    }
}
