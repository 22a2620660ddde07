//! A rate limit that several lanes share. At the sender, the lanes of one push share a limit. At the receiver, all
//! lanes of one key share a limit.
//!
//! All lanes share one schedule and are served in the order of their requests. A sending lane waits until a piece is
//! due before it sends the piece. A receiving lane waits until its bytes are due after it has read them, and flow
//! control then slows the sender. Without a limit, no lane waits.
//!
//! **Invariant:** for any number of lanes, the bytes sent stay below rate × time plus one short burst. The bytes
//! received may exceed this limit by one piece and one read per lane.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use zmove_types::{Lock, RateLimit, Stopwatch, ThreadState};

use crate::lane::LaneBreaker;

/// A rate that several lanes share. By default there is no limit. Clones share the rate.
#[derive(Clone, Debug, Default)]
pub struct SharedRate(Arc<Schedule>);

#[derive(Debug, Default)]
struct Schedule {
    /// The rate at which lanes may carry data, in bytes per second. It is slightly below the limit. 0 means no limit.
    bytes_per_second: AtomicU64,
    state: Lock<ScheduleState>,
    /// A second rate that also limits these lanes. Other lanes may share it too.
    parent: OnceLock<SharedRate>,
}

#[derive(Debug, Default)]
struct ScheduleState {
    /// The time at which all bytes charged so far are within the rate.
    due: Option<Instant>,
    /// The time at which a frame was last begun.
    begun: Option<Instant>,
    /// The time of the last charge or wait. It is recorded even if only `parent` has a limit.
    wanted: Option<Instant>,
}

impl SharedRate {
    /// Creates a rate that no lane uses yet.
    #[must_use]
    pub fn new(limit: RateLimit) -> Self {
        let rate = Self::default();
        rate.set(limit);
        rate
    }

    /// Changes the rate, including for lanes that already use it.
    pub fn set(&self, limit: RateLimit) {
        let carried = limit.bytes_per_second() / PAYLOAD_SHARE_DIVISOR * PAYLOAD_SHARE;
        self.0
            .bytes_per_second
            .store(carried.max(1), Ordering::Relaxed);
    }

    /// Makes this rate a part of the rate `parent`, which then limits the lanes too. The parent can be set only once.
    /// Later calls have no effect.
    pub fn set_parent(&self, parent: Self) {
        let _first = self.0.parent.set(parent);
    }

    /// Returns whether there is a limit.
    pub(crate) fn is_set(&self) -> bool {
        self.lowest().is_some()
    }

    /// Returns whether another clone of this rate exists, for example in a lane.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the time to wait before a new frame may be begun, or `None` if it may begin now. During this time, lanes
    /// in the middle of a frame get the whole rate, so that their frames are completed sooner.
    #[must_use]
    pub fn wait_to_begin(&self, now: Instant) -> Option<Duration> {
        let of_parent = self
            .0
            .parent
            .get()
            .and_then(|parent| parent.wait_to_begin(now));
        let wait = self.own_wait_to_begin(now).max(of_parent);
        if wait.is_some() {
            self.0.state.lock().wanted = Some(now);
        }
        wait
    }

    fn own_wait_to_begin(&self, now: Instant) -> Option<Duration> {
        let piece = self.time_of(self.piece_bytes()?)?;
        let mut state = self.0.state.lock();
        let unused = state.due.map(|due| due + UNUSED_MIN);
        let next = state.begun.map(|begun| begun + piece);
        let wait = unused
            .max(next)
            .map(|from| from.saturating_duration_since(now));
        let wait = wait.filter(|wait| !wait.is_zero());
        if wait.is_none() {
            state.begun = Some(now);
        }
        wait
    }

    /// Returns whether there is a limit and lanes have exhausted it within the last second.
    #[must_use]
    pub fn is_spent(&self, now: Instant) -> bool {
        let own = self
            .0
            .state
            .lock()
            .due
            .is_some_and(|due| now < due + RECENTLY_SPENT);
        self.is_set() && own
            || self
                .0
                .parent
                .get()
                .is_some_and(|parent| parent.is_spent(now))
    }

    /// Returns whether there is a limit and lanes were charged or had to wait during the last `span`.
    #[must_use]
    pub fn is_wanted_within(&self, span: Duration, now: Instant) -> bool {
        self.is_set()
            && self
                .0
                .state
                .lock()
                .wanted
                .is_some_and(|last| now.saturating_duration_since(last) < span)
    }

    /// Returns the number of bytes that a lane may take before the next lane is served, or `None` without a limit. The
    /// number is small, so that lanes alternate quickly even at a low rate.
    pub(crate) fn piece_bytes(&self) -> Option<usize> {
        let rate = self.lowest()?;
        let piece = usize::try_from(rate / PIECES_PER_SECOND).unwrap_or(usize::MAX);
        Some(piece.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX))
    }

    /// Charges `bytes` to the rate. Returns the time at which these bytes are within the limit, or `None` without a
    /// limit.
    fn spend(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let of_parent = self
            .0
            .parent
            .get()
            .and_then(|parent| parent.spend(bytes, now));
        self.0.state.lock().wanted = Some(now);
        self.spend_own(bytes, now).max(of_parent)
    }

    fn spend_own(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let time = self.time_of(bytes)?;
        let mut state = self.0.state.lock();
        let from = now.checked_sub(BURST).max(state.due).unwrap_or(now);
        state.due = Some(from + time);
        state.due
    }

    /// Returns the time that `bytes` take at this rate.
    fn time_of(&self, bytes: usize) -> Option<Duration> {
        let nanoseconds = (bytes as u64).saturating_mul(1_000_000_000) / self.bytes_per_second()?;
        Some(Duration::from_nanos(nanoseconds))
    }

    /// Returns the lowest of the rates that apply.
    fn lowest(&self) -> Option<u64> {
        let of_parent = self.0.parent.get().and_then(Self::lowest);
        self.bytes_per_second().into_iter().chain(of_parent).min()
    }

    fn bytes_per_second(&self) -> Option<u64> {
        Some(self.0.bytes_per_second.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }
}

/// The share of the limit that lanes may carry. The rest is left for packet headers, which take about 70 of 1500 bytes,
/// and for [`BURST`].
const PAYLOAD_SHARE: u64 = 19;
const PAYLOAD_SHARE_DIVISOR: u64 = 20;

/// Maximum time for which unused capacity is kept. It compensates for threads that wake up late.
const BURST: Duration = Duration::from_millis(20);

/// If a rate has not been used for this time, another frame may begin. This time is shorter than [`BURST`], so that the
/// unused capacity is not lost before the frame begins.
const UNUSED_MIN: Duration = Duration::from_millis(5);

/// A rate counts as exhausted if it was exhausted within this time. On a busy host, lanes that get no CPU may leave the
/// rate unused for tens of milliseconds.
const RECENTLY_SPENT: Duration = Duration::from_secs(1);

const PIECES_PER_SECOND: u64 = 50;
const PIECE_BYTES_MIN: usize = 1 << 10;
const PIECE_BYTES_MAX: usize = 128 << 10;

/// The rate limiter of one lane. Its rate may be shared with other lanes.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    pub(crate) rate: SharedRate,
    /// Bytes that the lane has taken but that have not been charged to the rate yet.
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

    /// Returns the maximum number of bytes that the lane may take at a time. Unlimited without a rate.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.rate.piece_bytes().unwrap_or(usize::MAX)
    }

    /// Charges `bytes` that the lane has taken, and waits until they are within the rate. Small amounts are collected
    /// until they add up to one piece. Otherwise, lanes with short reads would get a smaller share of the rate.
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

    /// Charges bytes that have already been sent. Does not wait, but later calls of all lanes wait for these bytes too.
    pub(crate) fn charge(&self, bytes: usize) {
        let _others_wait = self.rate.spend(bytes, Instant::now());
    }

    /// Waits until these bytes, and all bytes charged earlier, are within the rate. Returns early if the lane is
    /// broken.
    pub(crate) fn throttle_now(&self, bytes: usize, watch: &mut Stopwatch<'_>) {
        let Some(due) = self.rate.spend(bytes, Instant::now()) else {
            return;
        };
        while !self.broken.load(Ordering::Relaxed) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(CHECK_INTERVAL));
        }
        watch.lap(ThreadState::Paced);
    }

    /// Returns a breaker that trips `inner` and ends the waits of this limiter.
    pub(crate) fn breaker(&self, inner: LaneBreaker) -> LaneBreaker {
        let broken = Arc::clone(&self.broken);
        LaneBreaker::new(move || {
            broken.store(true, Ordering::Relaxed);
            inner.trip();
        })
    }
}

/// Interval at which a waiting lane checks whether it has been broken.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use zmove_types::StageClock;

    use super::*;

    /// Creates a rate at which lanes carry this number of bytes per second.
    fn rate(bytes_per_second: u64) -> SharedRate {
        let rate = SharedRate::default();
        rate.0
            .bytes_per_second
            .store(bytes_per_second, Ordering::Relaxed);
        rate
    }

    #[test]
    fn a_shared_rate_knows_who_used_it_and_who_waited() {
        let (parent, now) = (rate(1000), Instant::now());
        let [sends, hangs] = [SharedRate::default(), SharedRate::default()];
        [&sends, &hangs]
            .into_iter()
            .for_each(|part| part.set_parent(parent.clone()));
        sends.spend(5000, now);
        let is_wanted =
            |part: &SharedRate, after| part.is_wanted_within(Duration::from_secs(10), now + after);
        assert!(
            is_wanted(&sends, Duration::from_secs(9))
                && !is_wanted(&sends, Duration::from_secs(10))
        );
        assert!(parent.is_spent(now) && !is_wanted(&hangs, Duration::ZERO));
        let waits = SharedRate::default();
        waits.set_parent(parent.clone());
        assert!(waits.wait_to_begin(now).is_some() && is_wanted(&waits, Duration::from_secs(9)));
        let free = SharedRate::default();
        free.spend(5000, now);
        assert!(!is_wanted(&free, Duration::ZERO), "there is no rate");
    }

    #[test]
    fn those_who_keep_a_part_of_a_rate_keep_the_whole_together() {
        let (parent, begun) = (rate(10_000_000), Instant::now());
        let [slow, free] = [rate(1_000_000), SharedRate::default()];
        for part in [&slow, &free] {
            part.set_parent(parent.clone());
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
        // The first bytes may be sent up to `BURST` early.
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

    /// If all 64 lanes began a frame at the same time, the first frame would be complete only together with the last
    /// one.
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
        assert!(rate.is_spent(due) && !rate.is_spent(due + RECENTLY_SPENT));
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
