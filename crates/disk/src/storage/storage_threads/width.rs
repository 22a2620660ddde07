//! Determines how many threads are useful on a storage system. This is a pure controller: it takes samples of the work
//! of the threads and returns the number of threads to use.
//!
//! By Little's law, the number of requests in flight is rate × latency. So on slow storage that accepts many
//! concurrent requests, the rate grows with the number of threads. The rate does not grow if the threads keep the
//! cores busy, wait for each other (the kernel creates files in one directory one after the other), or wait for a
//! peer. So the controller adds threads only while the existing threads are mostly asleep. If an attempt does not
//! increase the rate, the controller removes the added threads:
//!
//! ```text
//!            mostly asleep: 2 or 4 times as many          the rate has not grown: as many as before
//!  settled ──────────────────────────────────────► trying ─────────────────────────────────────────► settled,
//!     ▲                                              │                                                which rests
//!     └───────────────── the rate has grown ─────────┘
//! ```
//!
//! After an attempt that had no benefit, the next attempt halves the number of threads. The smaller number is kept if
//! the rate stays the same. Each failed attempt doubles the wait before the next attempt.
//!
//! At the start, the storage is unknown. Short samples are enough as long as each attempt improves the rate by more
//! than random variation. In this phase the controller reaches a hundred threads after about twenty latencies.

use std::time::Duration;

/// The controller for the threads of one task.
#[derive(Debug)]
pub(super) struct ThreadCountController {
    cores: usize,
    threads_max: usize,
    threads: usize,
    attempt: Option<ThreadCountAttempt>,
    /// The direction of the next attempt. More threads are tried only while the current threads are mostly asleep.
    next: ThreadCountStep,
    /// Whether every attempt so far has improved the rate by a large factor.
    is_starting: bool,
    /// Whether the number of threads comes from an earlier transfer and has not been confirmed on this storage yet.
    is_recalled: bool,
    /// The number of useful threads at the last sample in which the threads had enough work.
    found: Option<usize>,
    /// The time until the next attempt.
    rest: Duration,
    /// The wait after the next failed attempt.
    rest_next: Duration,
    /// The weighted number of recent reports, in which older reports count less. `prompt` counts only reports of prompt
    /// storage.
    reports: f64,
    prompt: f64,
}

#[derive(Clone, Copy, Debug)]
struct ThreadCountAttempt {
    before: usize,
    /// The actual number of working threads. The controller does not control all of them.
    at_work: usize,
    /// Pieces per second with this number of threads.
    rate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadCountStep {
    More,
    Fewer,
}

/// The work of the threads in one period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkSample {
    pub(super) wall: Duration,
    /// Number of completed pieces of work.
    pub(super) done: u64,
    /// The total duration of the pieces, over all threads.
    pub(super) elapsed: Duration,
    /// The part of `elapsed` for which the threads were awake.
    pub(super) awake: Duration,
    /// Number of reports in this sample. Each report is from one thread.
    pub(super) reports: u32,
    /// Number of reports in which the thread slept so little that its storage counts as prompt.
    pub(super) prompt: u32,
}

/// Minimum length of a sample. A shorter sample is not reliable.
const SAMPLE_MIN: Duration = Duration::from_millis(25);
/// Maximum length of a sample. A longer sample would only delay decisions.
const SAMPLE_MAX: Duration = Duration::from_millis(500);
/// Number of pieces that each thread should complete in one sample.
const PIECES_EACH: u64 = 8;
/// Minimum length of a sample at the start. The kernel updates a thread's awake time at its ticks, every 4 ms.
const SAMPLE_MIN_AT_START: Duration = Duration::from_millis(12);
const PIECES_EACH_AT_START: u64 = 4;
/// The minimum factor by which the rate must increase for a doubled number of threads to be kept.
const GAIN_MIN: f64 = 1.08;
/// The factor by which an attempt must increase the rate for the start phase to continue.
const GAIN_AT_START: f64 = 1.7;
/// The minimum share of the rate that must remain for a halved number of threads to be kept.
const KEPT_MIN: f64 = 0.9;
/// The minimum share of the threads' time that must be spent on work for an attempt to be evaluated.
const USED_MIN: f64 = 0.75;
/// The minimum shares of time asleep for trying twice (`ASLEEP`) and four times (`FAST_ASLEEP`) as many threads.
const ASLEEP: f64 = 0.5;
const FAST_ASLEEP: f64 = 0.9;
/// The factor of the first attempt if a single thread is mostly asleep. With a smaller factor, the gain could not be
/// distinguished from the cost of starting the threads.
const FIRST_STEP: usize = 16;
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(1);
/// Minimum number of reports before storage can count as slow.
const REPORTS_MIN: f64 = 8.0;
/// Maximum share of prompt reports for storage to count as slow. Threads sleep in almost every report from slow
/// storage. On prompt storage, threads also sleep sometimes: for a log, for memory, or for a kernel thread that waits
/// for a core.
const PROMPT_SHARE_MAX: f64 = 0.05;
/// The factor by which the weight of earlier reports decreases with each sample.
const REPORTS_KEPT: f64 = 0.9;

impl ThreadCountController {
    /// Creates a controller that starts with one thread and uses at most `threads_max`.
    pub(super) const fn new(cores: usize, threads_max: usize) -> Self {
        Self {
            cores,
            threads_max,
            threads: 1,
            attempt: None,
            next: ThreadCountStep::More,
            is_starting: true,
            is_recalled: false,
            found: None,
            rest: Duration::ZERO,
            rest_next: REST_MIN,
            reports: 0.0,
            prompt: 0.0,
        }
    }

    /// Starts with this number of threads, unless the controller already has samples of the storage.
    pub(super) fn start_with(&mut self, threads: usize) {
        if self.found.is_none() && self.attempt.is_none() && self.reports == 0.0 {
            self.threads = threads.clamp(1, self.threads_max);
            self.is_recalled = true;
            self.rest = REST_MIN;
        }
    }

    /// Returns the number of threads that was useful, or `None` if the threads have not had enough work.
    pub(super) const fn useful_threads(&self) -> Option<usize> {
        self.found
    }

    #[cfg(test)]
    pub(super) const fn find(&mut self, threads: usize) {
        self.found = Some(threads);
    }

    /// Returns the number of threads to use.
    pub(super) const fn threads(&self) -> usize {
        self.threads
    }

    /// Returns whether a sample is long enough to be used.
    pub(super) fn is_complete(&self, sample: &WorkSample) -> bool {
        let enough = sample.done >= self.pieces_each() * self.threads as u64;
        sample.wall >= SAMPLE_MAX || enough && sample.wall >= self.sample_min()
    }

    const fn pieces_each(&self) -> u64 {
        if self.is_starting {
            PIECES_EACH_AT_START
        } else {
            PIECES_EACH
        }
    }

    const fn sample_min(&self) -> Duration {
        if self.is_starting {
            SAMPLE_MIN_AT_START
        } else {
            SAMPLE_MIN
        }
    }

    /// Takes the sample of the work since the last sample, and updates the number of threads.
    pub(super) fn add_sample(&mut self, sample: &WorkSample) {
        let rate = sample.done as f64 / sample.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        let at_work =
            sample.elapsed.as_secs_f64() / sample.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        self.reports = self.reports * REPORTS_KEPT + f64::from(sample.reports);
        self.prompt = self.prompt * REPORTS_KEPT + f64::from(sample.prompt);
        let may_attempt = match self.attempt.take() {
            Some(attempt) => self.evaluate(attempt, rate, at_work),
            None => {
                let rested = self.rest.is_zero();
                self.rest = self.rest.saturating_sub(sample.wall);
                rested
            }
        };
        // Such short samples are reliable only if the threads sleep almost all the time.
        self.is_starting &= sample.asleep() >= FAST_ASLEEP;
        if self.is_recalled && self.reports >= REPORTS_MIN {
            self.is_recalled = false;
            if !self.is_slow() {
                self.threads = 1;
            }
        }
        if at_work >= USED_MIN * self.threads as f64 {
            self.found = Some(self.threads.min(self.threads_for_cores(sample)));
        }
        if may_attempt && at_work >= USED_MIN * self.threads as f64 {
            self.attempt(rate, at_work, sample.asleep());
        }
        self.threads = self
            .threads
            .min(self.threads_for_cores(sample))
            .clamp(1, self.threads_max);
    }

    /// Evaluates an attempt. Returns whether its number of threads is kept.
    fn evaluate(&mut self, attempt: ThreadCountAttempt, rate: f64, at_work: f64) -> bool {
        let grown = self.threads > attempt.before;
        let least = if grown { GAIN_MIN } else { KEPT_MIN };
        if at_work < USED_MIN * self.threads.min(attempt.at_work) as f64 {
            // There was too little work to evaluate the attempt.
            self.threads = attempt.before;
            return false;
        }
        self.is_starting &= rate >= GAIN_AT_START * attempt.rate;
        let is_kept = rate >= least * attempt.rate;
        if is_kept {
            self.rest_next = REST_MIN;
        } else {
            self.threads = attempt.before;
            self.next = if grown {
                ThreadCountStep::Fewer
            } else {
                ThreadCountStep::More
            };
            self.rest = self.rest_next;
            self.rest_next = (2 * self.rest_next).min(REST_MAX);
        }
        is_kept
    }

    fn attempt(&mut self, rate: f64, at_work: f64, asleep: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of threads"
        )]
        let at_work = self.threads.max(at_work.round() as usize);
        let wanted = match self.next {
            ThreadCountStep::More if !self.is_slow() => return,
            ThreadCountStep::More if asleep >= FAST_ASLEEP && self.threads == 1 => {
                FIRST_STEP * at_work
            }
            ThreadCountStep::More if asleep >= FAST_ASLEEP => 4 * at_work,
            ThreadCountStep::More if asleep >= ASLEEP => 2 * at_work,
            ThreadCountStep::More => return,
            ThreadCountStep::Fewer => self.threads / 2,
        };
        let wanted = wanted.clamp(1, self.threads_max);
        if wanted == self.threads {
            self.next = ThreadCountStep::More;
            return;
        }
        self.attempt = Some(ThreadCountAttempt {
            before: self.threads,
            at_work,
            rate,
        });
        self.threads = wanted;
    }

    /// Returns whether storage is slow, which means that the threads slept long in most reports.
    fn is_slow(&self) -> bool {
        self.reports >= REPORTS_MIN && self.prompt <= PROMPT_SHARE_MAX * self.reports
    }

    /// Returns the number of threads that keeps all cores busy, if threads sleep as much as in the sample. More threads
    /// would only wait for a core.
    fn threads_for_cores(&self, sample: &WorkSample) -> usize {
        let asleep_too = sample.elapsed.as_nanos() / sample.awake.as_nanos().max(1);
        self.cores
            .saturating_mul(usize::try_from(asleep_too).unwrap_or(usize::MAX))
    }
}

impl WorkSample {
    /// Returns the share of time for which the threads slept.
    fn asleep(&self) -> f64 {
        1.0 - self.awake.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulated storage and work, in simulated time.
    struct World {
        cores: usize,
        /// The time for which a piece occupies a core.
        awake: Duration,
        /// The time for which a piece waits for storage.
        latency: Duration,
        /// The number of pieces that storage serves concurrently. All further pieces wait in its queue.
        depth: usize,
        /// Pieces that arrive per second.
        offered: f64,
        /// The share of reports from prompt storage.
        prompt: f64,
    }

    const LATE: World = World {
        cores: 2,
        awake: Duration::from_micros(100),
        latency: Duration::from_millis(5),
        depth: 300,
        offered: f64::INFINITY,
        prompt: 0.0,
    };

    impl World {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number of pieces"
        )]
        /// Returns the work of the threads in one sample, with a random error of 10%.
        fn sample(&self, width: &ThreadCountController, number: u32) -> WorkSample {
            // Two threads always work.
            let threads = width.threads().max(2);
            let each = (self.awake + self.latency).as_secs_f64();
            let by_latency = threads.min(self.depth) as f64 / each;
            let by_cores = self.cores as f64 / self.awake.as_secs_f64();
            let possible = by_latency.min(by_cores);
            let rate =
                possible.min(self.offered) * if number.is_multiple_of(2) { 1.03 } else { 0.97 };
            let shortest = width.sample_min().as_secs_f64() + 0.0001;
            let wall = (width.pieces_each() as f64 * threads as f64 / rate).clamp(shortest, 0.501);
            let used = (self.offered / possible).min(1.0);
            let elapsed = threads as f64 * wall * used;
            // A thread that waits for a core is awake.
            let waiting = (elapsed - rate * wall * each).max(0.0)
                * if by_cores < by_latency { 1.0 } else { 0.0 };
            let awake = (rate * wall * self.awake.as_secs_f64() + waiting).min(elapsed);
            WorkSample {
                wall: Duration::from_secs_f64(wall),
                done: (rate * wall).ceil() as u64,
                elapsed: Duration::from_secs_f64(elapsed),
                awake: Duration::from_secs_f64(awake),
                reports: 100,
                prompt: (100.0 * self.prompt) as u32,
            }
        }

        /// Runs the simulation for this many seconds. Returns the length of each sample and the number of threads after
        /// it.
        fn run(&self, width: &mut ThreadCountController, seconds: f64) -> Vec<(f64, usize)> {
            let (mut time, mut course) = (0.0, Vec::new());
            for number in 0.. {
                if time >= seconds {
                    break;
                }
                let sample = self.sample(width, number);
                assert!(width.is_complete(&sample) || sample.done == 0);
                time += sample.wall.as_secs_f64();
                width.add_sample(&sample);
                course.push((time, width.threads()));
            }
            course
        }
    }

    #[test]
    fn late_storage_soon_has_as_many_requests_as_keep_the_cores_busy() {
        let mut width = ThreadCountController::new(2, 256);
        let course = LATE.run(&mut width, 20.0);
        let (found, _) = course.iter().find(|(_, threads)| *threads >= 64).unwrap();
        assert!(*found < 0.1, "{found} s");
        // About 2 cores × 5.1 ms / 0.1 ms.
        assert!((64..=110).contains(&width.threads()), "{}", width.threads());
    }

    #[test]
    fn storage_that_takes_few_requests_at_once_gets_no_more() {
        let mut width = ThreadCountController::new(64, 256);
        World {
            cores: 64,
            depth: 16,
            ..LATE
        }
        .run(&mut width, 60.0);
        assert!((16..=32).contains(&width.threads()), "{}", width.threads());
    }

    #[test]
    fn threads_that_keep_the_cores_busy_or_wait_for_each_other_stay_as_few_as_they_are() {
        let local = World {
            latency: Duration::from_micros(20),
            ..LATE
        };
        let one_directory = World { depth: 1, ..LATE };
        for world in [local, one_directory] {
            let mut width = ThreadCountController::new(2, 256);
            let course = world.run(&mut width, 60.0);
            let trying = course.iter().filter(|(_, threads)| *threads > 2).count();
            assert!(trying * 10 < course.len(), "{trying} of {}", course.len());
        }
    }

    /// On prompt storage, threads also sleep: for a log, or until a kernel thread gets a core.
    #[test]
    fn prompt_storage_gets_no_more_threads_however_much_they_sleep() {
        for prompt in [0.1, 1.0] {
            let mut width = ThreadCountController::new(2, 256);
            let course = World {
                depth: 1,
                prompt,
                ..LATE
            }
            .run(&mut width, 60.0);
            assert!(course.iter().all(|(_, threads)| *threads == 1));
        }
    }

    #[test]
    fn threads_that_were_of_use_before_are_there_at_once() {
        let mut width = ThreadCountController::new(2, 256);
        width.start_with(96);
        let course = LATE.run(&mut width, 5.0);
        assert!(
            course.iter().all(|(_, threads)| *threads >= 64),
            "{course:?}"
        );
        assert!(
            (64..=110).contains(&width.useful_threads().unwrap()),
            "{:?}",
            width.useful_threads()
        );
        width.start_with(7);
        assert!(width.threads() >= 64, "more is known by now");
    }

    #[test]
    fn threads_that_were_of_use_before_go_where_storage_is_prompt_by_now() {
        let mut width = ThreadCountController::new(2, 256);
        width.start_with(96);
        let course = World {
            depth: 1,
            prompt: 1.0,
            ..LATE
        }
        .run(&mut width, 5.0);
        assert!(
            course.iter().skip(1).all(|(_, threads)| *threads == 1),
            "{course:?}"
        );
    }

    #[test]
    fn a_peer_that_sends_slowly_keeps_the_threads_few() {
        let mut width = ThreadCountController::new(2, 256);
        World {
            offered: 100.0,
            ..LATE
        }
        .run(&mut width, 60.0);
        assert!(width.threads() <= 2);
    }

    #[test]
    fn threads_that_are_no_longer_of_use_go() {
        let mut width = ThreadCountController::new(2, 256);
        LATE.run(&mut width, 5.0);
        assert!(width.threads() >= 64);
        World {
            latency: Duration::ZERO,
            ..LATE
        }
        .run(&mut width, 1.0);
        assert!(width.threads() <= 2);
        LATE.run(&mut width, 60.0);
        World { depth: 4, ..LATE }.run(&mut width, 60.0);
        assert!(width.threads() <= 8, "{}", width.threads());
    }
}
