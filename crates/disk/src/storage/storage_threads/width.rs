//! The number of threads that storage is worth: a pure controller, which takes samples of what threads have done and
//! returns how many there should be.
//!
//! By Little's law the requests under way are rate × latency, so where storage answers late and takes many requests at
//! once the rate grows with the threads. It does not where threads keep the cores busy, wait for each other (the kernel
//! makes files in one directory one after the other), or wait for a peer. So more threads are an attempt, made only
//! while those that there are mostly sleep, and taken back unless the rate has grown:
//!
//! ```text
//!            mostly asleep: 2 or 4 times as many          the rate has not grown: as many as before
//!  settled ──────────────────────────────────────► trying ─────────────────────────────────────────► settled,
//!     ▲                                              │                                                which rests
//!     └───────────────── the rate has grown ─────────┘
//! ```
//!
//! After an attempt that brought nothing the next one is half as many threads, which are kept if they do as much. Each
//! attempt that fails makes the next one wait for twice as long.
//!
//! At the start, when nothing is known, short samples are enough, for as long as each attempt brings so much that
//! chance cannot be the reason: a hundred threads are there after about twenty latencies.

use std::time::Duration;

/// The controller of one task's threads; see the module.
#[derive(Debug)]
pub(super) struct Width {
    cores: usize,
    most: usize,
    threads: usize,
    attempt: Option<WidthAttempt>,
    /// The direction of the next attempt; more threads are not tried while these are awake.
    next: WidthStep,
    /// Whether every attempt so far has brought much more.
    is_starting: bool,
    /// Whether the threads are those of an earlier transfer, and nothing has been seen of the storage yet.
    is_recalled: bool,
    /// The number of threads that had enough to do when it was last settled.
    found: Option<usize>,
    /// How long it is until the next attempt.
    rest: Duration,
    /// The rest after an attempt that fails.
    rest_next: Duration,
    /// The reports of the last samples, older ones counting less, and those of prompt storage among them.
    reports: f64,
    prompt: f64,
}

#[derive(Clone, Copy, Debug)]
struct WidthAttempt {
    before: usize,
    /// The number of threads in fact: some may work whatever this controller returns.
    at_work: usize,
    /// Pieces per second with so many threads.
    rate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WidthStep {
    More,
    Fewer,
}

/// The work of the threads in a stretch of time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WidthSample {
    pub(super) wall: Duration,
    /// Pieces of work done.
    pub(super) done: u64,
    /// The time that the pieces took, over all threads.
    pub(super) elapsed: Duration,
    /// The part of that for which their threads were awake.
    pub(super) awake: Duration,
    /// The number of reports that make up this sample, each of one thread.
    pub(super) reports: u32,
    /// The number of them in which the thread has slept for so short a time that its storage is prompt.
    pub(super) prompt: u32,
}

/// The least length of a sample: a shorter one proves nothing.
const SAMPLE_MIN: Duration = Duration::from_millis(25);
/// The greatest length of a sample: a longer one only delays.
const SAMPLE_MAX: Duration = Duration::from_millis(500);
/// Pieces that each thread should have done in one sample.
const PIECES_EACH: u64 = 8;
/// The least length of a sample at the start. The kernel books at its ticks how long a thread was awake, every 4 ms.
const SAMPLE_MIN_AT_START: Duration = Duration::from_millis(12);
const PIECES_EACH_AT_START: u64 = 4;
/// How much more twice the threads must do to stay.
const GAIN_MIN: f64 = 1.08;
/// How much more they must do for the start to go on.
const GAIN_AT_START: f64 = 1.7;
/// How much of the rate half the threads must keep to be enough.
const KEPT_MIN: f64 = 0.9;
/// The least share of the threads' time that must be spent at work for an attempt to be judged.
const USED_MIN: f64 = 0.75;
/// The shares of time asleep from which twice, and four times, as many threads are tried.
const ASLEEP: f64 = 0.5;
const FAST_ASLEEP: f64 = 0.9;
/// So many times more threads than one are tried where that mostly sleeps: what a few more bring cannot be told from
/// what their start costs.
const FIRST_STEP: usize = 16;
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(1);
/// The least number of reports by which storage can be found late.
const REPORTS_MIN: f64 = 8.0;
/// The greatest share of prompt reports from storage that is late, which is so each time. Prompt storage also keeps
/// threads waiting, but only for a while: for a log, for memory, for a kernel thread without a core.
const PROMPT_SHARE_MAX: f64 = 0.05;
/// The share of what reports count that they still count a sample later.
const REPORTS_KEPT: f64 = 0.9;

impl Width {
    /// A controller that begins with one thread, and has no more than `most`.
    pub(super) const fn new(cores: usize, most: usize) -> Self {
        Self {
            cores,
            most,
            threads: 1,
            attempt: None,
            next: WidthStep::More,
            is_starting: true,
            is_recalled: false,
            found: None,
            rest: Duration::ZERO,
            rest_next: REST_MIN,
            reports: 0.0,
            prompt: 0.0,
        }
    }

    /// Begins with so many threads, unless something has been seen of the storage.
    pub(super) fn begin_with(&mut self, threads: usize) {
        if self.found.is_none() && self.attempt.is_none() && self.reports == 0.0 {
            self.threads = threads.clamp(1, self.most);
            self.is_recalled = true;
            self.rest = REST_MIN;
        }
    }

    /// The number of threads that was found to be of use; `None` before they have had enough to do.
    pub(super) const fn found(&self) -> Option<usize> {
        self.found
    }

    #[cfg(test)]
    pub(super) const fn find(&mut self, threads: usize) {
        self.found = Some(threads);
    }

    /// The number of threads that there should be.
    pub(super) const fn threads(&self) -> usize {
        self.threads
    }

    /// Whether a sample is long enough to be used.
    pub(super) fn is_ripe(&self, sample: &WidthSample) -> bool {
        let enough = sample.done >= self.pieces_each() * self.threads as u64;
        sample.wall >= SAMPLE_MAX || enough && sample.wall >= self.shortest()
    }

    const fn pieces_each(&self) -> u64 {
        if self.is_starting {
            PIECES_EACH_AT_START
        } else {
            PIECES_EACH
        }
    }

    const fn shortest(&self) -> Duration {
        if self.is_starting {
            SAMPLE_MIN_AT_START
        } else {
            SAMPLE_MIN
        }
    }

    /// Takes the sample of the work since the last one.
    pub(super) fn take(&mut self, sample: &WidthSample) {
        let rate = sample.done as f64 / sample.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        let at_work =
            sample.elapsed.as_secs_f64() / sample.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        self.reports = self.reports * REPORTS_KEPT + f64::from(sample.reports);
        self.prompt = self.prompt * REPORTS_KEPT + f64::from(sample.prompt);
        let may_attempt = match self.attempt.take() {
            Some(attempt) => self.judge(attempt, rate, at_work),
            None => {
                let rested = self.rest.is_zero();
                self.rest = self.rest.saturating_sub(sample.wall);
                rested
            }
        };
        // so short a sample tells only that threads hardly do anything but sleep
        self.is_starting &= sample.asleep() >= FAST_ASLEEP;
        if self.is_recalled && self.reports >= REPORTS_MIN {
            self.is_recalled = false;
            if !self.is_late() {
                self.threads = 1;
            }
        }
        if at_work >= USED_MIN * self.threads as f64 {
            self.found = Some(self.threads.min(self.keep_cores_busy(sample)));
        }
        if may_attempt && at_work >= USED_MIN * self.threads as f64 {
            self.attempt(rate, at_work, sample.asleep());
        }
        self.threads = self
            .threads
            .min(self.keep_cores_busy(sample))
            .clamp(1, self.most);
    }

    /// Whether an attempt has brought what it should.
    fn judge(&mut self, attempt: WidthAttempt, rate: f64, at_work: f64) -> bool {
        let grown = self.threads > attempt.before;
        let least = if grown { GAIN_MIN } else { KEPT_MIN };
        if at_work < USED_MIN * self.threads.min(attempt.at_work) as f64 {
            // There was too little work to judge the attempt.
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
                WidthStep::Fewer
            } else {
                WidthStep::More
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
            WidthStep::More if !self.is_late() => return,
            WidthStep::More if asleep >= FAST_ASLEEP && self.threads == 1 => FIRST_STEP * at_work,
            WidthStep::More if asleep >= FAST_ASLEEP => 4 * at_work,
            WidthStep::More if asleep >= ASLEEP => 2 * at_work,
            WidthStep::More => return,
            WidthStep::Fewer => self.threads / 2,
        };
        let wanted = wanted.clamp(1, self.most);
        if wanted == self.threads {
            self.next = WidthStep::More;
            return;
        }
        self.attempt = Some(WidthAttempt {
            before: self.threads,
            at_work,
            rate,
        });
        self.threads = wanted;
    }

    /// Whether threads have slept for long in most reports.
    fn is_late(&self) -> bool {
        self.reports >= REPORTS_MIN && self.prompt <= PROMPT_SHARE_MAX * self.reports
    }

    /// The number of threads that keeps the cores busy, if each sleeps as those in the sample have: more would only
    /// wait for a core.
    fn keep_cores_busy(&self, sample: &WidthSample) -> usize {
        let asleep_too = sample.elapsed.as_nanos() / sample.awake.as_nanos().max(1);
        self.cores
            .saturating_mul(usize::try_from(asleep_too).unwrap_or(usize::MAX))
    }
}

impl WidthSample {
    /// The share of the time for which threads slept.
    fn asleep(&self) -> f64 {
        1.0 - self.awake.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage and the work that it is given, in simulated time.
    struct World {
        cores: usize,
        /// The time for which a piece keeps a core.
        awake: Duration,
        /// The time for which a piece waits for storage.
        latency: Duration,
        /// The number of pieces that storage serves at once; the others queue.
        depth: usize,
        /// Pieces per second that arrive.
        offered: f64,
        /// The share of reports in which contents are written promptly.
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
        /// What threads do in a sample, with an error of one part in ten.
        fn sample(&self, width: &Width, number: u32) -> WidthSample {
            // two are there in any case
            let threads = width.threads().max(2);
            let each = (self.awake + self.latency).as_secs_f64();
            let by_latency = threads.min(self.depth) as f64 / each;
            let by_cores = self.cores as f64 / self.awake.as_secs_f64();
            let possible = by_latency.min(by_cores);
            let rate =
                possible.min(self.offered) * if number.is_multiple_of(2) { 1.03 } else { 0.97 };
            let shortest = width.shortest().as_secs_f64() + 0.0001;
            let wall = (width.pieces_each() as f64 * threads as f64 / rate).clamp(shortest, 0.501);
            let used = (self.offered / possible).min(1.0);
            let elapsed = threads as f64 * wall * used;
            // A thread that waits for a core is awake.
            let waiting = (elapsed - rate * wall * each).max(0.0)
                * if by_cores < by_latency { 1.0 } else { 0.0 };
            let awake = (rate * wall * self.awake.as_secs_f64() + waiting).min(elapsed);
            WidthSample {
                wall: Duration::from_secs_f64(wall),
                done: (rate * wall).ceil() as u64,
                elapsed: Duration::from_secs_f64(elapsed),
                awake: Duration::from_secs_f64(awake),
                reports: 100,
                prompt: (100.0 * self.prompt) as u32,
            }
        }

        /// The number of threads after each sample of so many seconds, and how long each took.
        fn run(&self, width: &mut Width, seconds: f64) -> Vec<(f64, usize)> {
            let (mut time, mut course) = (0.0, Vec::new());
            for number in 0.. {
                if time >= seconds {
                    break;
                }
                let sample = self.sample(width, number);
                assert!(width.is_ripe(&sample) || sample.done == 0);
                time += sample.wall.as_secs_f64();
                width.take(&sample);
                course.push((time, width.threads()));
            }
            course
        }
    }

    #[test]
    fn late_storage_soon_has_as_many_requests_as_keep_the_cores_busy() {
        let mut width = Width::new(2, 256);
        let course = LATE.run(&mut width, 20.0);
        let (found, _) = course.iter().find(|(_, threads)| *threads >= 64).unwrap();
        assert!(*found < 0.1, "{found} s");
        // 2 cores × 5.1 ms / 0.1 ms, about
        assert!((64..=110).contains(&width.threads()), "{}", width.threads());
    }

    #[test]
    fn storage_that_takes_few_requests_at_once_gets_no_more() {
        let mut width = Width::new(64, 256);
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
            let mut width = Width::new(2, 256);
            let course = world.run(&mut width, 60.0);
            let trying = course.iter().filter(|(_, threads)| *threads > 2).count();
            assert!(trying * 10 < course.len(), "{trying} of {}", course.len());
        }
    }

    /// There, threads sleep as well: for a log, or until a kernel thread gets a core.
    #[test]
    fn prompt_storage_gets_no_more_threads_however_much_they_sleep() {
        for prompt in [0.1, 1.0] {
            let mut width = Width::new(2, 256);
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
        let mut width = Width::new(2, 256);
        width.begin_with(96);
        let course = LATE.run(&mut width, 5.0);
        assert!(
            course.iter().all(|(_, threads)| *threads >= 64),
            "{course:?}"
        );
        assert!(
            (64..=110).contains(&width.found().unwrap()),
            "{:?}",
            width.found()
        );
        width.begin_with(7);
        assert!(width.threads() >= 64, "more is known by now");
    }

    #[test]
    fn threads_that_were_of_use_before_go_where_storage_is_prompt_by_now() {
        let mut width = Width::new(2, 256);
        width.begin_with(96);
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
        let mut width = Width::new(2, 256);
        World {
            offered: 100.0,
            ..LATE
        }
        .run(&mut width, 60.0);
        assert!(width.threads() <= 2);
    }

    #[test]
    fn threads_that_are_no_longer_of_use_go() {
        let mut width = Width::new(2, 256);
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
