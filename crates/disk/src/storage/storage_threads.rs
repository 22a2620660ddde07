//! Threads that wait for storage side by side, and their turns at the cores.
//!
//! How much a peer may have written, hashed and listed is without bounds, and the operating system shares the cores
//! among threads, not among keys. So the threads that work for one user of this have places, no more than there are
//! cores, however many transfers they serve; each asks before every piece of work, and gives its place to the next that
//! waits.
//!
//! Threads that wait for storage keep no core busy: where it answers late there are more places, as many as
//! [`Width`] finds to be of use. A piece is one request to storage or a few that belong together, such as all
//! that a small file takes. How long the pieces took, and how long their threads were awake in that time, is
//! measured (`/proc/thread-self/schedstat`). Where contents are written promptly there are no more threads: each would
//! hold a buffer, and only queue for the same storage. A thread that does not come back for [`LEASE`], because its
//! storage hangs or its peer does not read, does not count.
//!
//! Work of many pieces is done [side by side](StorageThreads::side_by_side): as long as there are places, more threads
//! join in.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, Thread};
use std::time::{Duration, Instant};

use zmove_types::Lock;

use self::width::{Width, WidthSample};
use crate::publishing::lease::waited_for_permits;

pub(crate) mod memory;
mod width;

/// The threads that work for one key, or for one push.
#[derive(Debug)]
pub struct StorageThreads {
    /// The number of threads that may be at work whatever the storage.
    places: usize,
    /// A thread with a place no longer counts as at work once it has not asked for this long.
    lease: Duration,
    /// For how long the calling thread has been awake; `None` where nobody knows.
    awake: fn() -> Option<Duration>,
    state: Lock<TurnState>,
    /// For each task, whether fewer threads are at work than would be of use.
    is_spare: [AtomicBool; 2],
}

/// The task of a thread: how many threads are of use is found for each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The threads look at entries, or read them.
    Look,
    /// The threads make, write and flush entries.
    Write,
}

#[derive(Debug)]
struct TurnState {
    crowds: [Crowd; 2],
    /// The threads at work: what each does, and when it last asked.
    at_work: HashMap<u64, (Task, Instant)>,
    /// The threads that wait, in order. The first of each task is woken when there may be room for it.
    waiting: VecDeque<WaitingThread>,
    next: u64,
}

#[derive(Debug)]
struct WaitingThread {
    number: u64,
    task: Task,
    thread: Thread,
}

/// The threads that do one task.
#[derive(Debug)]
struct Crowd {
    width: Width,
    at_work: usize,
    /// Threads that were started to help and have not asked yet.
    starting: usize,
    /// The begin of the sample, moved on by the time for which no thread was at work.
    since: Instant,
    idle_since: Instant,
    sample: WidthSample,
}

/// One thread's part in the work. The thread has a place from when it [asks](Self::is_over) until it
/// [pauses](Self::pause) or is dropped.
pub struct Turn<'a> {
    threads: &'a StorageThreads,
    task: Task,
    stopping: &'a AtomicBool,
    place: Lock<ThreadPlace>,
    /// Starts another thread with the same work, where the work can be shared.
    start_another: Option<&'a (dyn Fn() + Sync)>,
}

/// A thread's place, while it has one, and what it has done since it last reported.
#[derive(Debug, Default)]
struct ThreadPlace {
    /// The thread's number, and since when it has worked there without a report.
    held: Option<(u64, Stopwatch)>,
    elapsed: Duration,
    done: u64,
    /// For how long the thread sleeps at most in the contents that it has written if storage is prompt.
    prompt: Duration,
    /// How long the thread had been awake at its last report.
    awake: Option<Duration>,
}

/// Measures the time of the calling thread but for its waits for permits, since those are no fault of storage.
#[derive(Clone, Copy, Debug)]
struct Stopwatch {
    began: Instant,
    /// How long the thread had waited for permits then.
    waited: Duration,
}

/// The state that the threads which do one task in parallel share.
struct SideBySide<'a, Work, Admit, T> {
    threads: &'a StorageThreads,
    task: Task,
    stopping: &'a AtomicBool,
    name: &'a str,
    work: Work,
    admit: Admit,
    done: Lock<Vec<T>>,
}

/// The longest time until the first thread that waits notices that its session has ended, or that another's lease has.
const STOPPED_AFTER: Duration = Duration::from_millis(100);
/// For how many threads ahead of it a waiting one looks that much later: hundreds that wait must not keep the cores
/// busy with looking.
const LOOKS_LATER_MAX: usize = 9;
/// How long a thread may not ask and still count.
const LEASE: Duration = Duration::from_secs(1);
/// Pieces of work are measured together until they have taken this long.
const MEASURED_MIN: Duration = Duration::from_millis(2);
/// A thread that sleeps for no longer than this while it writes a file or a group, beside
/// [`PROMPT_PER_MEBIBYTE`], writes to prompt storage. A file takes a network file system several round trips.
const PROMPT_MAX: Duration = Duration::from_micros(500);
/// The time that a mebibyte takes a slow disk: 500 MB/s.
const PROMPT_PER_MEBIBYTE: Duration = Duration::from_millis(2);
/// Most threads: what the metadata servers of parallel file systems take from one client.
const THREADS_MAX: usize = 256;

impl Default for StorageThreads {
    /// Threads of which all may be at work at once.
    fn default() -> Self {
        Self::with_places(usize::MAX, LEASE)
    }
}

impl StorageThreads {
    /// Threads that take turns: no more than there are cores are at work, unless storage is late.
    #[must_use]
    pub fn in_turns() -> Self {
        Self::with_places(cores(), LEASE)
    }

    /// Threads of which one is at work at a time, even one that never asks for its turn: for tests that a thread which
    /// has the place does not wait for another that needs it.
    #[must_use]
    pub fn one_at_a_time() -> Self {
        Self::with_places(1, Duration::MAX)
    }

    fn with_places(places: usize, lease: Duration) -> Self {
        let state = TurnState {
            crowds: [Crowd::new(), Crowd::new()],
            at_work: HashMap::new(),
            waiting: VecDeque::new(),
            next: 0,
        };
        Self {
            places,
            lease,
            awake,
            state: Lock::new(state),
            is_spare: Default::default(),
        }
    }

    /// A turn for a thread of a session that ends when `stopping` is set.
    pub fn turn<'a>(&'a self, task: Task, stopping: &'a AtomicBool) -> Turn<'a> {
        Turn {
            threads: self,
            task,
            stopping,
            place: Lock::default(),
            start_another: None,
        }
    }

    /// Runs `work` on this thread, and beside it on as many others as are of use; returns all results. Between its
    /// pieces `work` [asks](Turn::is_over) for its turn and [gets help](Turn::get_help). `admit` is called for each
    /// other thread, and what it returns is kept until that ends.
    pub fn side_by_side<T: Send, Permit: Send + 'static>(
        &self,
        task: Task,
        name: &str,
        stopping: &AtomicBool,
        admit: impl Fn() -> Option<Permit> + Sync,
        work: impl Fn(&Turn<'_>) -> T + Sync,
    ) -> Vec<T> {
        let shared = SideBySide {
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

    /// Whether storage answers so late that more threads do a task than there are cores.
    #[must_use]
    pub fn is_late(&self, task: Task) -> bool {
        self.state.lock().crowd(task).width.threads() > cores()
    }

    /// Begins a task with so many threads, which were of use for it before, unless it has been begun.
    pub fn begin_with(&self, task: Task, threads: usize) {
        let mut state = self.state.lock();
        state.crowd(task).width.begin_with(threads);
        self.note_spare(&state, task);
    }

    fn note_spare(&self, state: &TurnState, task: Task) {
        self.is_spare[task as usize].store(state.is_spare(task), Ordering::Relaxed);
    }

    /// The number of threads that was found to be of use for a task, if there was enough to do.
    pub(crate) fn found(&self, task: Task) -> Option<usize> {
        self.state.lock().crowd(task).width.found()
    }

    /// Waits for a place behind all that wait; `None` when the session has ended.
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
                state.crowd(task).enter();
                state.wake_first();
                return Some(number);
            }
            let looks_after = state.looks_after(number);
            drop(state);
            thread::park_timeout(looks_after);
            state = self.state.lock();
        }
    }

    fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some((task, _)) = state.at_work.remove(&number) {
            state.crowd(task).leave();
        }
        state.wake_first();
    }

    /// Books pieces of work; returns whether the place is to be given up.
    fn worked(&self, task: Task, number: u64, pieces: &WidthSample) -> bool {
        let mut state = self.state.lock();
        state.crowd(task).measure(pieces);
        self.note_spare(&state, task);
        if let Some((_, asked)) = state.at_work.get_mut(&number) {
            *asked = Instant::now();
        }
        !state.waiting.is_empty() || state.is_over_full(task, self.places)
    }

    /// Whether one more thread would be of use, which then counts as being started.
    fn begin_start(&self, task: Task) -> bool {
        let mut state = self.state.lock();
        let is_spare = state.is_spare(task);
        state.crowd(task).starting += usize::from(is_spare);
        self.note_spare(&state, task);
        is_spare
    }

    fn end_start(&self, task: Task) {
        self.state.lock().crowd(task).starting -= 1;
    }
}

impl<
    Work: Fn(&Turn<'_>) -> T + Sync,
    Admit: Fn() -> Option<Permit> + Sync,
    Permit: Send + 'static,
    T: Send,
> SideBySide<'_, Work, Admit, T>
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

/// Number of cores that this process may use, as it was at the first call: the kernel takes a dozen system calls to
/// report it.
#[must_use]
pub fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

impl TurnState {
    fn wake_first(&self) {
        for task in [Task::Look, Task::Write] {
            if let Some(first) = self.first(task) {
                first.thread.unpark();
            }
        }
    }

    fn first(&self, task: Task) -> Option<&WaitingThread> {
        self.waiting.iter().find(|waiting| waiting.task == task)
    }

    /// After what time a waiting thread looks again whether it may begin, unless it is woken.
    fn looks_after(&self, number: u64) -> Duration {
        let waiting = self.waiting.iter().take(LOOKS_LATER_MAX);
        let ahead = waiting.take_while(|other| other.number != number);
        STOPPED_AFTER + ahead.map(|_| STOPPED_AFTER).sum()
    }

    /// Whether a waiting thread may begin. The first of all gets a place that there is whatever the storage; the first
    /// of its task need not wait behind the other task for places that its own is worth.
    fn may_enter(&self, number: u64, task: Task, threads: &StorageThreads) -> bool {
        let crowd = &self.crowds[task as usize];
        let is_first =
            |first: Option<&WaitingThread>| first.is_some_and(|first| first.number == number);
        is_first(self.waiting.front()) && self.has_room(task, threads)
            || is_first(self.first(task)) && crowd.at_work < crowd.width.threads()
    }

    /// Whether one more thread may do a task. How many the other task is worth does not count: it may be over, and have
    /// been about other storage.
    fn has_room(&self, task: Task, &StorageThreads { places, lease, .. }: &StorageThreads) -> bool {
        let width = self.crowds[task as usize].width.threads();
        if self.at_work.len() < places || self.crowds[task as usize].at_work < width {
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
        let crowd = &self.crowds[task as usize];
        self.at_work.len() > places && crowd.at_work > crowd.width.threads()
    }

    fn is_spare(&self, task: Task) -> bool {
        let crowd = &self.crowds[task as usize];
        self.first(task).is_none() && crowd.at_work + crowd.starting < crowd.width.threads()
    }

    fn crowd(&mut self, task: Task) -> &mut Crowd {
        &mut self.crowds[task as usize]
    }
}

impl Crowd {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            width: Width::new(cores(), THREADS_MAX),
            at_work: 0,
            starting: 0,
            since: now,
            idle_since: now,
            sample: WidthSample::default(),
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

    fn measure(&mut self, pieces: &WidthSample) {
        self.sample.done += pieces.done;
        self.sample.elapsed += pieces.elapsed;
        self.sample.awake += pieces.awake;
        self.sample.reports += pieces.reports;
        self.sample.prompt += pieces.prompt;
        self.sample.wall = self.since.elapsed();
        if self.width.is_ripe(&self.sample) {
            self.width.take(&self.sample);
            self.sample = WidthSample::default();
            self.since = Instant::now();
        }
    }
}

impl Turn<'_> {
    /// Asks for a turn before each piece: gives the place up if another thread waits, and waits for a new one. Returns
    /// whether the session has ended.
    pub fn is_over(&self) -> bool {
        if self.stopping.load(Ordering::Relaxed) {
            return true;
        }
        let mut place = self.place.lock();
        if let Some((number, _)) = place.held {
            place.done += 1;
            let Some(pieces) = place.measured(self.threads.awake) else {
                return false;
            };
            if !self.threads.worked(self.task, number, &pieces) {
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

    /// Has another thread join in this work if that is of use. To be called between pieces, as long as there are more
    /// than this thread is about to do.
    pub fn get_help(&self) {
        if self.threads.is_spare[self.task as usize].load(Ordering::Relaxed)
            && let Some(start_another) = self.start_another
        {
            start_another();
        }
    }

    /// Notes that this piece of work writes contents of so many bytes. Storage that takes a while to move them is not
    /// late for that.
    pub fn writes(&self, bytes: usize) {
        let moving = PROMPT_PER_MEBIBYTE.mul_f64(bytes as f64 / f64::from(1 << 20));
        self.place.lock().prompt += PROMPT_MAX + moving;
    }

    /// Gives the place up until the next piece. To be called before the thread waits for another one of its key, or for
    /// the peer.
    pub fn pause(&self) {
        let mut place = self.place.lock();
        let Some((number, _)) = place.held else {
            return;
        };
        place.done += 1;
        if let Some(pieces) = place.measured(self.threads.awake) {
            self.threads.worked(self.task, number, &pieces);
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
    /// What the thread has done since its last report; it counts as awake all the time where that cannot be measured.
    /// `None` when the time is too short to be measured.
    fn measured(&mut self, awake: impl Fn() -> Option<Duration>) -> Option<WidthSample> {
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
        // A kernel that does not count these times reports only zeros.
        let awake = awake
            .filter(|awake| !awake.is_zero())
            .unwrap_or(elapsed)
            .min(elapsed);
        let done = std::mem::take(&mut self.done);
        let prompt = std::mem::take(&mut self.prompt);
        let is_prompt = !prompt.is_zero() && elapsed - awake <= prompt;
        Some(WidthSample {
            wall: elapsed,
            done,
            elapsed,
            awake,
            reports: 1,
            prompt: u32::from(is_prompt),
        })
    }
}

/// For how long the calling thread has been running or runnable since it began. The file is opened each time, since
/// there may be hundreds of threads and descriptors are scarce.
fn awake() -> Option<Duration> {
    let mut text = [0; 64];
    let bytes = File::open("/proc/thread-self/schedstat")
        .ok()?
        .read(&mut text)
        .ok()?;
    awake_by(std::str::from_utf8(&text[..bytes]).ok()?)
}

/// The time awake by the text of `schedstat`: nanoseconds on a core, then those in which the thread waited for one.
fn awake_by(schedstat: &str) -> Option<Duration> {
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
