//! Turns at the cores, for all threads of one key that look at what lies at the target.
//!
//! What a peer may have hashed and listed is without bounds, and cores are shared by all. So no more threads of one key
//! do so at a time than there are cores, and each gives its place to the next that waits after every piece.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use crate::sharing::Lock;

/// The cores that one key may keep busy.
#[derive(Debug)]
pub(crate) struct Cores {
    state: Lock<State>,
    /// Notified when a place is given to one of those that wait.
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Who waits, in order, and who of them has got a place.
    waiting: VecDeque<u64>,
    next: u64,
}

/// One thread's part in that. It has a place from its first [turn](Self::is_over) on until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    cores: &'a Cores,
    stopping: &'a AtomicBool,
    has_place: AtomicBool,
}

/// How long who waits does not notice that its session has ended.
const STOPPED_AFTER: Duration = Duration::from_millis(100);

impl Default for Cores {
    fn default() -> Self {
        let free = std::thread::available_parallelism().map_or(1, usize::from);
        Self { state: Lock::new(State { free, waiting: VecDeque::new(), next: 0 }), moved: Condvar::new() }
    }
}

impl Cores {
    /// For a thread of a session that ends when `stopping` is set.
    pub(crate) fn turn<'a>(&'a self, stopping: &'a AtomicBool) -> Turn<'a> {
        Turn { cores: self, stopping, has_place: AtomicBool::new(false) }
    }

    /// Waits for a place behind all that wait; `false` when the session has ended.
    fn enter(&self, stopping: &AtomicBool) -> bool {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        loop {
            if stopping.load(Ordering::Relaxed) {
                state.waiting.retain(|other| *other != number);
                self.moved.notify_all();
                return false;
            }
            if state.free > 0 && state.waiting.front() == Some(&number) {
                state.free -= 1;
                state.waiting.pop_front();
                self.moved.notify_all();
                return true;
            }
            let waited = self.moved.wait_timeout(state, STOPPED_AFTER);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn leave(&self) {
        self.state.lock().free += 1;
        self.moved.notify_all();
    }
}

impl Turn<'_> {
    /// To be asked before each piece: gives the place away if somebody waits, and waits for another. Whether the session has
    /// ended.
    pub(crate) fn is_over(&self) -> bool {
        if self.stopping.load(Ordering::Relaxed) {
            return true;
        }
        if self.has_place.load(Ordering::Relaxed) {
            if self.cores.state.lock().waiting.is_empty() {
                return false;
            }
            self.has_place.store(false, Ordering::Relaxed);
            self.cores.leave();
        }
        let entered = self.cores.enter(self.stopping);
        self.has_place.store(entered, Ordering::Relaxed);
        !entered
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if *self.has_place.get_mut() {
            self.cores.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn no_more_work_at_a_time_than_there_are_cores_and_each_gets_on() {
        let (cores, stopping) = (Cores::default(), AtomicBool::new(false));
        let most = cores.state.lock().free;
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
        assert_eq!((done.into_inner(), cores.state.lock().free), (4 * most, most));
    }

    #[test]
    fn who_waits_leaves_when_its_session_ends() {
        let cores = Cores::default();
        let (running, ending) = (AtomicBool::new(false), AtomicBool::new(false));
        let all: Vec<_> = (0..cores.state.lock().free).map(|_| cores.turn(&running)).collect();
        assert!(all.iter().all(|turn| !turn.is_over()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cores.turn(&ending).is_over());
            while cores.state.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            ending.store(true, Ordering::Relaxed);
            assert!(waiting.join().unwrap());
        });
        drop(all);
        assert!(cores.state.lock().waiting.is_empty());
    }
}
