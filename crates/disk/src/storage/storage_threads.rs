//! Threads that wait for storage concurrently and share the cores.
//!
//! A peer may request an unlimited amount of work, and the operating system shares the cores among threads, not among
//! keys. So the threads that work for one key share a limited number of places. A place is the permission to run. On
//! fast storage there are as many places as cores, regardless of the number of transfers. Work is divided into pieces.
//! A piece is one request to storage, or a few related requests, such as all requests for a small file. Before each
//! piece, a thread asks for its turn. If another thread is waiting, the running thread passes its place to that thread.
//!
//! Threads that wait for storage do not occupy a core. On slow storage, [`ThreadCountController`] adds places as long
//! as they are useful. The program measures the duration of each piece and the time for which its thread was awake
//! (`/proc/thread-self/schedstat`). If writes complete promptly, no threads are added: each would hold a buffer and
//! only wait for the same storage. A thread whose storage hangs, or whose peer does not read, stops asking for its
//! turn. After [`LEASE`], its place counts as free.
//!
//! Work that consists of many pieces can run [in parallel](StorageThreads::run_parallel): while places are free, more
//! threads join.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, Thread};
use std::time::{Duration, Instant};

use zmove_types::Lock;

use self::width::{ThreadCountController, WorkSample};
use crate::publishing::lease::waited_for_permits;

pub(crate) mod memory;
mod width;

/// The threads that work for one key or for one push.
#[derive(Debug)]
pub struct StorageThreads {
    /// The number of threads that may work concurrently even on fast storage.
    places: usize,
    /// The time after which a thread that does not ask for its turn no longer counts as running.
    lease: Duration,
    /// Function that returns the total time for which the calling thread has been awake, or `None` if it is unknown.
    awake: fn() -> Option<Duration>,
    state: Lock<TurnState>,
    /// For each task, whether one more thread would be useful.
    needs_thread: [AtomicBool; 2],
}

/// The task of a thread. The useful number of threads is determined separately for each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Threads that look up or read entries.
    Read,
    /// Threads that create, write and flush entries.
    Write,
}

#[derive(Debug)]
struct TurnState {
    tasks: [TaskThreads; 2],
    /// The working threads by number, each with its task and the time of its last request for a turn.
    at_work: HashMap<u64, (Task, Instant)>,
    /// The waiting threads in order of arrival. When a place may be free, the first waiting thread of each task is
    /// woken.
    waiting: VecDeque<WaitingThread>,
    next: u64,
}

#[derive(Debug)]
struct WaitingThread {
    number: u64,
    task: Task,
    thread: Thread,
}

/// The threads that work on one task.
#[derive(Debug)]
struct TaskThreads {
    width: ThreadCountController,
    at_work: usize,
    /// The number of helper threads that were started but have not asked for a turn yet.
    starting: usize,
    /// The start of the sample. It is moved forward by the time for which no thread was working.
    since: Instant,
    idle_since: Instant,
    sample: WorkSample,
}

/// The membership of one thread in the group of threads that take turns. The thread occupies a place from its [request
/// for a turn](Self::is_over) until it [pauses](Self::pause) or this value is dropped.
pub struct Turn<'a> {
    threads: &'a StorageThreads,
    task: Task,
    stopping: &'a AtomicBool,
    place: Lock<ThreadPlace>,
    /// Function that starts another thread for the same work, if the work can be shared.
    start_another: Option<&'a (dyn Fn() + Sync)>,
}

/// The place of a thread, if it occupies one, and the work that the thread has not reported yet.
#[derive(Debug, Default)]
struct ThreadPlace {
    /// The number that identifies the thread, and a stopwatch started at its last report.
    held: Option<(u64, Stopwatch)>,
    elapsed: Duration,
    done: u64,
    /// Maximum sleep between two reports for the writes to count as prompt.
    prompt: Duration,
    /// The total time for which the thread had been awake at its last report.
    awake: Option<Duration>,
}

/// Measures the elapsed time of the calling thread, except its waits for permits, which storage does not cause.
#[derive(Clone, Copy, Debug)]
struct Stopwatch {
    began: Instant,
    /// The thread's total wait for permits when the stopwatch was started.
    waited: Duration,
}

/// The state shared by the threads that work on one task in parallel.
struct ParallelWork<'a, Work, Admit, T> {
    threads: &'a StorageThreads,
    task: Task,
    stopping: &'a AtomicBool,
    name: &'a str,
    work: Work,
    admit: Admit,
    done: Lock<Vec<T>>,
}

/// The first waiting thread checks after this time whether its session has ended, or whether another thread has not
/// asked for its turn for [`LEASE`].
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of threads ahead of a waiting thread that delay its next check, by [`CHECK_INTERVAL`] each. Hundreds
/// of waiting threads must not keep the cores busy with checks.
const DELAYED_CHECKS_MAX: usize = 9;
/// The time after which a thread that does not ask for its turn no longer counts as running.
const LEASE: Duration = Duration::from_secs(1);
/// The minimum total duration of the pieces that are measured together.
const MEASURED_MIN: Duration = Duration::from_millis(2);
/// Maximum sleep of a thread while it writes a file or group, for the storage to count as prompt.
/// [`PROMPT_PER_MEBIBYTE`] is added to this time. On a network file system, writing a file takes several round trips.
const PROMPT_MAX: Duration = Duration::from_micros(500);
/// The time that a slow disk (500 MB/s) needs for 1 MiB.
const PROMPT_PER_MEBIBYTE: Duration = Duration::from_millis(2);
/// Maximum number of threads. The metadata servers of parallel file systems accept this many concurrent requests from
/// one client.
const THREADS_MAX: usize = 256;

impl Default for StorageThreads {
    /// Creates threads that may all work concurrently.
    fn default() -> Self {
        Self::with_places(usize::MAX, LEASE)
    }
}

impl StorageThreads {
    /// Creates threads that take turns. Unless storage is slow, at most as many threads as cores run concurrently.
    #[must_use]
    pub fn limited_to_cores() -> Self {
        Self::with_places(cores(), LEASE)
    }

    /// Creates threads of which only one works at a time, even if that thread never asks for its turn. Tests use this
    /// to show that no thread with a place waits for a thread without one.
    #[must_use]
    pub fn one_at_a_time() -> Self {
        Self::with_places(1, Duration::MAX)
    }

    fn with_places(places: usize, lease: Duration) -> Self {
        let state = TurnState {
            tasks: [TaskThreads::new(), TaskThreads::new()],
            at_work: HashMap::new(),
            waiting: VecDeque::new(),
            next: 0,
        };
        Self {
            places,
            lease,
            awake,
            state: Lock::new(state),
            needs_thread: Default::default(),
        }
    }

    /// Returns a [`Turn`] for a thread of a session that ends when `stopping` is set.
    pub fn turn<'a>(&'a self, task: Task, stopping: &'a AtomicBool) -> Turn<'a> {
        Turn {
            threads: self,
            task,
            stopping,
            place: Lock::default(),
            start_another: None,
        }
    }

    /// Runs `work` on this thread and on as many further threads as are useful. Returns the results of all threads.
    /// Between two pieces, `work` must [ask for its turn](Turn::is_over) and may [start helper
    /// threads](Turn::start_helper). `admit` is called for each further thread, and its result is kept until that
    /// thread ends.
    pub fn run_parallel<T: Send, Permit: Send + 'static>(
        &self,
        task: Task,
        name: &str,
        stopping: &AtomicBool,
        admit: impl Fn() -> Option<Permit> + Sync,
        work: impl Fn(&Turn<'_>) -> T + Sync,
    ) -> Vec<T> {
        let shared = ParallelWork {
            threads: self,
            task,
            stopping,
            name,
            work,
            admit,
            done: Lock::default(),
        };
        thread::scope(|scope| shared.run(scope));
        shared.done.into_inner()
    }

    /// Returns whether more threads than cores work on the task because storage is slow.
    #[must_use]
    pub fn is_slow(&self, task: Task) -> bool {
        self.state.lock().task_threads(task).width.threads() > cores()
    }

    /// Starts a task with the number of threads that was useful in an earlier transfer, unless the task has already
    /// started.
    pub fn start_with(&self, task: Task, threads: usize) {
        let mut state = self.state.lock();
        state.task_threads(task).width.start_with(threads);
        self.note_thread_need(&state, task);
    }

    fn note_thread_need(&self, state: &TurnState, task: Task) {
        self.needs_thread[task as usize].store(state.needs_thread(task), Ordering::Relaxed);
    }

    /// Returns the number of threads that was useful for a task, or `None` if there was too little work to determine
    /// it.
    pub(crate) fn useful_threads(&self, task: Task) -> Option<usize> {
        self.state.lock().task_threads(task).width.useful_threads()
    }

    /// Waits for a place in the order of arrival, and returns the number of the thread. Returns `None` if the session
    /// has ended.
    fn enter(&self, task: Task, stopping: &AtomicBool) -> Option<u64> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(WaitingThread {
            number,
            task,
            thread: thread::current(),
        });
        loop {
            if stopping.load(Ordering::Relaxed) {
                state.waiting.retain(|other| other.number != number);
                state.wake_first();
                return None;
            }
            if state.may_enter(number, task, self) {
                state.waiting.retain(|other| other.number != number);
                state.at_work.insert(number, (task, Instant::now()));
                state.task_threads(task).enter();
                state.wake_first();
                return Some(number);
            }
            let next_check_after = state.next_check_after(number);
            drop(state);
            thread::park_timeout(next_check_after);
            state = self.state.lock();
        }
    }

    fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some((task, _)) = state.at_work.remove(&number) {
            state.task_threads(task).leave();
        }
        state.wake_first();
    }

    /// Records pieces of work. Returns whether the thread must give up its place.
    fn record_work(&self, task: Task, number: u64, pieces: &WorkSample) -> bool {
        let mut state = self.state.lock();
        state.task_threads(task).measure(pieces);
        self.note_thread_need(&state, task);
        if let Some((_, asked)) = state.at_work.get_mut(&number) {
            *asked = Instant::now();
        }
        !state.waiting.is_empty() || state.is_over_full(task, self.places)
    }

    /// Returns whether one more thread would be useful. If so, records that a thread is being started.
    fn begin_start(&self, task: Task) -> bool {
        let mut state = self.state.lock();
        let needs_thread = state.needs_thread(task);
        state.task_threads(task).starting += usize::from(needs_thread);
        self.note_thread_need(&state, task);
        needs_thread
    }

    fn end_start(&self, task: Task) {
        self.state.lock().task_threads(task).starting -= 1;
    }
}

impl<
    Work: Fn(&Turn<'_>) -> T + Sync,
    Admit: Fn() -> Option<Permit> + Sync,
    Permit: Send + 'static,
    T: Send,
> ParallelWork<'_, Work, Admit, T>
{
    fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let start_another = || self.start_another(scope);
        let mut turn = self.threads.turn(self.task, self.stopping);
        turn.start_another = Some(&start_another);
        let done = (self.work)(&turn);
        self.done.lock().push(done);
    }

    fn start_another<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if !self.threads.begin_start(self.task) {
            return;
        }
        let started = (self.admit)().and_then(|held| {
            let help = move || {
                let _until_it_ends = held;
                self.threads.end_start(self.task);
                self.run(scope);
            };
            thread::Builder::new()
                .name(self.name.to_owned())
                .spawn_scoped(scope, help)
                .ok()
        });
        if started.is_none() {
            self.threads.end_start(self.task);
        }
    }
}

/// Returns the number of cores that this process may use. The number is determined once, because that takes a dozen
/// system calls.
#[must_use]
pub fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

impl TurnState {
    fn wake_first(&self) {
        for task in [Task::Read, Task::Write] {
            if let Some(first) = self.first(task) {
                first.thread.unpark();
            }
        }
    }

    fn first(&self, task: Task) -> Option<&WaitingThread> {
        self.waiting.iter().find(|waiting| waiting.task == task)
    }

    /// Returns the time after which a waiting thread checks again whether it may start, unless it is woken first.
    fn next_check_after(&self, number: u64) -> Duration {
        let waiting = self.waiting.iter().take(DELAYED_CHECKS_MAX);
        let ahead = waiting.take_while(|other| other.number != number);
        CHECK_INTERVAL + ahead.map(|_| CHECK_INTERVAL).sum()
    }

    /// Returns whether a waiting thread may start. The first thread in the queue may take any place that is available
    /// to its task. If the controller has added a place for a task, only the first waiting thread of that task may take
    /// it. That thread need not wait behind threads of the other task.
    fn may_enter(&self, number: u64, task: Task, threads: &StorageThreads) -> bool {
        let task_threads = &self.tasks[task as usize];
        let is_first =
            |first: Option<&WaitingThread>| first.is_some_and(|first| first.number == number);
        is_first(self.waiting.front()) && self.has_room(task, threads)
            || is_first(self.first(task)) && task_threads.at_work < task_threads.width.threads()
    }

    /// Returns whether one more thread may work on a task. The thread count of the other task is ignored, because that
    /// task may have ended or use other storage.
    fn has_room(&self, task: Task, &StorageThreads { places, lease, .. }: &StorageThreads) -> bool {
        let width = self.tasks[task as usize].width.threads();
        if self.at_work.len() < places || self.tasks[task as usize].at_work < width {
            return true;
        }
        let leased = || {
            self.at_work
                .values()
                .filter(|(_, asked)| asked.elapsed() < lease)
        };
        leased().count() < places || leased().filter(|(other, _)| *other == task).count() < width
    }

    fn is_over_full(&self, task: Task, places: usize) -> bool {
        let task_threads = &self.tasks[task as usize];
        self.at_work.len() > places && task_threads.at_work > task_threads.width.threads()
    }

    fn needs_thread(&self, task: Task) -> bool {
        let task_threads = &self.tasks[task as usize];
        self.first(task).is_none()
            && task_threads.at_work + task_threads.starting < task_threads.width.threads()
    }

    fn task_threads(&mut self, task: Task) -> &mut TaskThreads {
        &mut self.tasks[task as usize]
    }
}

impl TaskThreads {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            width: ThreadCountController::new(cores(), THREADS_MAX),
            at_work: 0,
            starting: 0,
            since: now,
            idle_since: now,
            sample: WorkSample::default(),
        }
    }

    fn enter(&mut self) {
        if self.at_work == 0 {
            self.since += self.idle_since.elapsed();
        }
        self.at_work += 1;
    }

    fn leave(&mut self) {
        self.at_work -= 1;
        if self.at_work == 0 {
            self.idle_since = Instant::now();
        }
    }

    fn measure(&mut self, pieces: &WorkSample) {
        self.sample.done += pieces.done;
        self.sample.elapsed += pieces.elapsed;
        self.sample.awake += pieces.awake;
        self.sample.reports += pieces.reports;
        self.sample.prompt += pieces.prompt;
        self.sample.wall = self.since.elapsed();
        if self.width.is_complete(&self.sample) {
            self.width.add_sample(&self.sample);
            self.sample = WorkSample::default();
            self.since = Instant::now();
        }
    }
}

impl Turn<'_> {
    /// Asks for a turn, which is required before each piece of work. If another thread is waiting, passes the place to
    /// that thread and waits for another place. Returns whether the session has ended.
    pub fn is_over(&self) -> bool {
        if self.stopping.load(Ordering::Relaxed) {
            return true;
        }
        let mut place = self.place.lock();
        if let Some((number, _)) = place.held {
            place.done += 1;
            let Some(pieces) = place.take_sample(self.threads.awake) else {
                return false;
            };
            if !self.threads.record_work(self.task, number, &pieces) {
                return false;
            }
            place.held = None;
            self.threads.leave(number);
        }
        let Some(number) = self.threads.enter(self.task, self.stopping) else {
            return true;
        };
        place.awake = place.awake.or_else(self.threads.awake);
        place.held = Some((number, Stopwatch::start()));
        false
    }

    /// Starts another thread for this work if that is useful. The caller must call this function between two pieces if
    /// more work remains than the next piece.
    pub fn start_helper(&self) {
        if self.threads.needs_thread[self.task as usize].load(Ordering::Relaxed)
            && let Some(start_another) = self.start_another
        {
            start_another();
        }
    }

    /// Records that this piece of work writes `bytes` bytes. Storage does not count as slow for the time that even a
    /// slow disk needs for this number of bytes.
    pub fn note_write(&self, bytes: usize) {
        let moving = PROMPT_PER_MEBIBYTE.mul_f64(bytes as f64 / f64::from(1 << 20));
        self.place.lock().prompt += PROMPT_MAX + moving;
    }

    /// Gives up the place until the next piece of work. The thread must call this function before it waits for the peer
    /// or for another thread of its key.
    pub fn pause(&self) {
        let mut place = self.place.lock();
        let Some((number, _)) = place.held else {
            return;
        };
        place.done += 1;
        if let Some(pieces) = place.take_sample(self.threads.awake) {
            self.threads.record_work(self.task, number, &pieces);
        }
        if let Some((_, since)) = place.held.take() {
            place.elapsed += since.elapsed();
        }
        self.threads.leave(number);
    }
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            began: Instant::now(),
            waited: waited_for_permits(),
        }
    }

    fn elapsed(&self) -> Duration {
        let waited = waited_for_permits().saturating_sub(self.waited);
        self.began.elapsed().saturating_sub(waited)
    }
}

impl ThreadPlace {
    /// Returns the work of the thread since its last report, or `None` if that time is too short to measure. If the
    /// awake time is unknown, the thread counts as always awake.
    fn take_sample(&mut self, awake: impl Fn() -> Option<Duration>) -> Option<WorkSample> {
        let since = self.held.as_mut().map(|(_, since)| since)?;
        let elapsed = self.elapsed + since.elapsed();
        if elapsed < MEASURED_MIN {
            return None;
        }
        *since = Stopwatch::start();
        self.elapsed = Duration::ZERO;
        let before = std::mem::replace(&mut self.awake, awake());
        let awake = before
            .zip(self.awake)
            .and_then(|(before, now)| now.checked_sub(before));
        // A kernel without these statistics reports only zeros.
        let awake = awake
            .filter(|awake| !awake.is_zero())
            .unwrap_or(elapsed)
            .min(elapsed);
        let done = std::mem::take(&mut self.done);
        let prompt = std::mem::take(&mut self.prompt);
        let is_prompt = !prompt.is_zero() && elapsed - awake <= prompt;
        Some(WorkSample {
            wall: elapsed,
            done,
            elapsed,
            awake,
            reports: 1,
            prompt: u32::from(is_prompt),
        })
    }
}

/// Returns the total time for which the calling thread has been running or runnable. Each call opens the file again,
/// because there may be hundreds of threads and descriptors are scarce.
fn awake() -> Option<Duration> {
    let mut text = [0; 64];
    let bytes = File::open("/proc/thread-self/schedstat")
        .ok()?
        .read(&mut text)
        .ok()?;
    parse_awake_time(std::str::from_utf8(&text[..bytes]).ok()?)
}

/// Parses the awake time from `schedstat`: the nanoseconds on a core plus the nanoseconds of waiting for a core.
fn parse_awake_time(schedstat: &str) -> Option<Duration> {
    let mut numbers = schedstat.split_ascii_whitespace();
    let mut next = || numbers.next()?.parse::<u64>().ok();
    Some(Duration::from_nanos(next()? + next()?))
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pause();
    }
}

#[cfg(test)]
mod tests;
