//! Turns at the cores, for all threads of one key that store, or look at what lies at the target.
//!
//! What a peer may have written, hashed and listed is without bounds, and the operating system shares the cores among
//! threads, not among keys. So no more threads of one key are awake at a time than there are cores, however many
//! transfers it has; each asks before every piece of work, and gives its place to the next that waits.
//!
//! Threads that wait for storage keep no core busy. How long the pieces took and how long their threads were awake in
//! that time (`/proc/thread-self/schedstat`) tells how many more may be at work: on storage that answers late, some
//! hundreds. A thread that does not come back for [`LEASE`], because its storage hangs or its peer does not read,
//! does not count.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The cores that one key may keep busy.
#[derive(Debug)]
pub(crate) struct Cores {
    cores: usize,
    state: Mutex<State>,
    /// Notified when a place may be free, or the next one waits in front.
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    /// How many threads may be at work.
    places: usize,
    /// The threads at work, and when each last asked.
    at_work: HashMap<u64, Instant>,
    /// The threads that wait, in order.
    waiting: VecDeque<u64>,
    next: u64,
    /// How long recent pieces of work took, and how long their threads were awake.
    elapsed: Duration,
    awake: Duration,
}

/// One thread's part in that. It has a place from when it [asks](Self::is_over) until it [pauses](Self::pause) or is
/// dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    cores: &'a Cores,
    stopping: &'a AtomicBool,
    place: Mutex<Option<Place>>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    since: Instant,
    clock: Option<AwakeClock>,
}

/// How long the calling thread has been awake: it ran, or could have.
#[derive(Debug)]
struct AwakeClock {
    file: File,
    last: Duration,
}

/// The longest time until a waiting thread notices that its session has ended.
const STOPPED_AFTER: Duration = Duration::from_millis(100);
/// A thread with a place no longer counts as at work once it has not asked for this long.
const LEASE: Duration = Duration::from_secs(1);
/// Most threads of one key at work, for each core.
const PLACES_PER_CORE_MAX: usize = 64;
/// Pieces of work are measured together until they have taken this long.
const MEASURED_MIN: Duration = Duration::from_millis(2);
/// The span of remembered times: half of them are forgotten when their sum reaches it.
const REMEMBERED: Duration = Duration::from_millis(200);

impl Default for Cores {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let state = State {
            places: cores,
            at_work: HashMap::new(),
            waiting: VecDeque::new(),
            next: 0,
            elapsed: Duration::ZERO,
            awake: Duration::ZERO,
        };
        Self { cores, state: Mutex::new(state), moved: Condvar::new() }
    }
}

impl Cores {
    /// A turn for a thread of a session that ends when `stopping` is set.
    pub(crate) fn turn<'a>(&'a self, stopping: &'a AtomicBool) -> Turn<'a> {
        Turn { cores: self, stopping, place: Mutex::new(None) }
    }

    /// Waits for a place behind all that wait; `None` when the session has ended.
    fn enter(&self, stopping: &AtomicBool) -> Option<u64> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        loop {
            if stopping.load(Ordering::Relaxed) {
                state.waiting.retain(|other| *other != number);
                self.moved.notify_all();
                return None;
            }
            if state.waiting.front() == Some(&number) && state.has_room() {
                state.waiting.pop_front();
                state.at_work.insert(number, Instant::now());
                self.moved.notify_all();
                return Some(number);
            }
            let waited = self.moved.wait_timeout(state, STOPPED_AFTER);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn leave(&self, number: u64) {
        self.lock().at_work.remove(&number);
        self.moved.notify_all();
    }

    /// Books a piece, and whether another thread waits.
    fn worked(&self, number: u64, elapsed: Duration, awake: Duration) -> bool {
        let mut state = self.lock();
        state.measure(self.cores, elapsed, awake);
        if let Some(asked) = state.at_work.get_mut(&number) {
            *asked = Instant::now();
        }
        !state.waiting.is_empty()
    }

    fn somebody_waits(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.at_work.len() < self.places
            || self.at_work.values().filter(|asked| asked.elapsed() < LEASE).count() < self.places
    }

    /// So many threads keep the cores busy: one of them is awake for `awake` of `elapsed`.
    fn measure(&mut self, cores: usize, elapsed: Duration, awake: Duration) {
        self.elapsed += elapsed;
        self.awake += awake.min(elapsed);
        if self.elapsed < REMEMBERED {
            return;
        }
        let asleep_too = self.elapsed.as_nanos() / self.awake.as_nanos().max(1);
        let per_core = usize::try_from(asleep_too).unwrap_or(usize::MAX).clamp(1, PLACES_PER_CORE_MAX);
        self.places = cores * per_core;
        self.elapsed /= 2;
        self.awake /= 2;
    }
}

impl Turn<'_> {
    /// To be asked before each piece: gives the place away if another thread waits, and waits for another. Whether the
    /// session has ended.
    pub(crate) fn is_over(&self) -> bool {
        if self.stopping.load(Ordering::Relaxed) {
            return true;
        }
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = place.as_mut() {
            let others_wait = match held.piece() {
                Some((elapsed, awake)) => self.cores.worked(held.number, elapsed, awake),
                None => self.cores.somebody_waits(),
            };
            if !others_wait {
                return false;
            }
            self.cores.leave(held.number);
        }
        let clock = place.take().and_then(|held| held.clock);
        let Some(number) = self.cores.enter(self.stopping) else { return true };
        *place = Some(Place::new(number, clock));
        false
    }

    /// Gives the place away until the next piece: before the thread waits for another one of its key, or for the peer.
    pub(crate) fn pause(&self) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut held) = place.take() {
            if let Some((elapsed, awake)) = held.piece() {
                self.cores.worked(held.number, elapsed, awake);
            }
            self.cores.leave(held.number);
        }
    }
}

impl Place {
    fn new(number: u64, clock: Option<AwakeClock>) -> Self {
        let clock = clock.or_else(AwakeClock::open).and_then(AwakeClock::restarted);
        Self { number, since: Instant::now(), clock }
    }

    /// How long the thread has worked since this was last asked, and how long it was awake: all the time where that
    /// cannot be measured. `None` when it is too short to be measured.
    fn piece(&mut self) -> Option<(Duration, Duration)> {
        let elapsed = self.since.elapsed();
        if elapsed < MEASURED_MIN {
            return None;
        }
        self.since = Instant::now();
        let awake = self.clock.as_mut().and_then(AwakeClock::lap);
        Some((elapsed, awake.unwrap_or(elapsed)))
    }
}

impl AwakeClock {
    fn open() -> Option<Self> {
        let file = File::open("/proc/thread-self/schedstat").ok()?;
        Some(Self { file, last: Duration::ZERO })
    }

    fn restarted(mut self) -> Option<Self> {
        self.last = self.read()?;
        Some(self)
    }

    /// How long the thread has been awake since the last call.
    fn lap(&mut self) -> Option<Duration> {
        let now = self.read()?;
        let awake = now.checked_sub(self.last)?;
        self.last = now;
        // a kernel that does not count these times reports only zeros
        (!awake.is_zero()).then_some(awake)
    }

    /// Nanoseconds on a core, then those in which it waited for one.
    fn read(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let bytes = self.file.read_at(&mut text, 0).ok()?;
        let mut numbers = std::str::from_utf8(&text[..bytes]).ok()?.split_ascii_whitespace();
        let mut next = || numbers.next()?.parse::<u64>().ok();
        Some(Duration::from_nanos(next()? + next()?))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn no_more_work_at_a_time_than_there_are_cores_and_each_gets_on() {
        let (cores, stopping) = (Cores::default(), AtomicBool::new(false));
        let most = cores.cores;
        let (at_work, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 * most {
                scope.spawn(|| {
                    let turn = cores.turn(&stopping);
                    for _ in 0..50 {
                        assert!(!turn.is_over());
                        assert!(at_work.fetch_add(1, Ordering::SeqCst) < most);
                        std::thread::yield_now();
                        at_work.fetch_sub(1, Ordering::SeqCst);
                    }
                    drop(turn);
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!((done.into_inner(), cores.lock().at_work.len()), (4 * most, 0));
    }

    #[test]
    fn who_waits_leaves_when_its_session_ends() {
        let cores = Cores::default();
        let (running, ending) = (AtomicBool::new(false), AtomicBool::new(false));
        let all: Vec<_> = (0..cores.cores).map(|_| cores.turn(&running)).collect();
        assert!(all.iter().all(|turn| !turn.is_over()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cores.turn(&ending).is_over());
            while cores.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            ending.store(true, Ordering::Relaxed);
            assert!(waiting.join().unwrap());
        });
        drop(all);
        assert!(cores.lock().waiting.is_empty());
    }

    #[test]
    fn the_more_threads_sleep_the_more_may_be_at_work() {
        let cores = Cores::default();
        let piece = Duration::from_millis(300);
        cores.lock().measure(cores.cores, piece, piece / 20);
        assert_eq!(cores.lock().places, 20 * cores.cores);
        (0..20).for_each(|_| cores.lock().measure(cores.cores, piece, piece));
        assert_eq!(cores.lock().places, cores.cores);
        cores.lock().measure(cores.cores, Duration::from_secs(60), Duration::ZERO);
        assert!(cores.lock().places <= PLACES_PER_CORE_MAX * cores.cores);
    }

    #[test]
    fn a_thread_that_waits_for_storage_is_not_awake() {
        let (cores, stopping) = (Cores::default(), AtomicBool::new(false));
        let turn = cores.turn(&stopping);
        assert!(!turn.is_over());
        let (reader, writer) = std::io::pipe().unwrap();
        let answer = std::thread::spawn(move || {
            std::thread::sleep(2 * REMEMBERED);
            drop(writer);
        });
        std::io::read_to_string(reader).unwrap();
        turn.pause();
        answer.join().unwrap();
        assert!(cores.lock().places > cores.cores);
    }
}
