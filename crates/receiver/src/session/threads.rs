//! The threads of one session: one for each lane, and those that answer requests about the target. Also handles their
//! panics.
//!
//! These threads belong to the session and not to the runtime, because work on a huge target or on unresponsive storage
//! must not delay other sessions. Before a thread hashes or lists, it waits for a turn, which is a permission to run
//! ([`Turn`](zmove_disk::Turn)).
//!
//! **Invariant:** a session waits for its threads before it ends, and no work starts after that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use zmove_transport::{LaneBreaker, LaneSource, blocking};

use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::meters::TransferMeter;
use crate::rights::quota::Quota;
use crate::rights::quota::windows::open_window;
use crate::store::reports::{Reports, ThreadReport};

/// The state of a session that its threads share and through which they report.
pub(crate) trait Reporter: Send + Sync + 'static {
    /// The channel for the outcomes of work.
    fn reports(&self) -> &Reports;
}

/// Reports a panic of the current thread to its session.
pub(crate) struct PanicGuard<'a>(pub(crate) &'a Reports);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.report(ThreadReport::Panicked);
        }
    }
}

/// Wraps work of a session so that a panic is reported.
pub(crate) fn guarded<T: Reporter>(
    session: &Arc<T>,
    work: impl FnOnce(&T) + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let session = Arc::clone(session);
    move || {
        let _guard = PanicGuard(session.reports());
        work(&session);
    }
}

/// A pool of threads that grows with the amount of queued work.
#[derive(Debug)]
pub(crate) struct Workers {
    quota: Quota,
    /// Queued work. Its length is bounded by the limits on outstanding requests of the peer.
    queue: Sender<QueuedWork>,
    waiting: Receiver<QueuedWork>,
    /// Number of tasks that are queued or running.
    under_way: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// A queued task.
type QueuedWork = Box<dyn FnOnce() + Send>;

/// Maximum number of threads. It equals the maximum number of outstanding requests, so that all of them can wait for
/// slow storage at the same time.
const THREADS_MAX: usize = 32;

impl Workers {
    pub(crate) fn new(quota: &Quota) -> Self {
        let (queue, waiting) = unbounded();
        Self {
            quota: quota.clone(),
            queue,
            waiting,
            under_way: Arc::default(),
            ended: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Queues work for one of the threads.
    ///
    /// # Errors
    /// The pool has no thread, and no thread can be started.
    pub(crate) fn start(
        &mut self,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), SessionError> {
        let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        if under_way > self.threads.len() && self.threads.len() < THREADS_MAX {
            self.add_thread().inspect_err(|_error| {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
            })?;
        }
        self.queue
            .send(Box::new(work))
            .expect("this holds the other end too");
        Ok(())
    }

    /// Queues work that uses the state of a session.
    ///
    /// # Errors
    /// Same as [`start`](Self::start).
    pub(crate) fn start_for<T: Reporter>(
        &mut self,
        session: &Arc<T>,
        work: impl FnOnce(&T) + Send + 'static,
    ) -> Result<(), SessionError> {
        self.start(guarded(session, work))
    }

    /// Waits until running work has ended. Drops work that has not started.
    pub(crate) async fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.complete().await;
    }

    /// Waits until all work has been done.
    pub(crate) async fn complete(self) {
        drop((self.queue, self.waiting));
        if !self.threads.is_empty() {
            blocking(|| join(self.threads)).await;
        }
    }

    /// Adds a thread. The first thread is always allowed. The key's quota limits further threads.
    fn add_thread(&mut self) -> Result<(), SessionError> {
        let held = self.quota.charge_thread();
        if held.is_none() && !self.threads.is_empty() {
            return Ok(());
        }
        let waiting = self.waiting.clone();
        let under_way = Arc::clone(&self.under_way);
        let ended = Arc::clone(&self.ended);
        let run = move || {
            let _booked = held;
            for work in &waiting {
                if !ended.load(Ordering::Relaxed) {
                    work();
                }
                under_way.fetch_sub(1, Ordering::Relaxed);
            }
        };
        match spawn(format!("zmove-look-{}", self.threads.len()), run) {
            Ok(thread) => self.threads.push(thread),
            Err(error) if self.threads.is_empty() => return Err(error),
            Err(_others_do_it) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    /// Returns work that signals its start and waits until it may end.
    fn wait_for(may_end: &Receiver<()>, begun: &Sender<()>) -> impl FnOnce() + Send + 'static {
        let (may_end, begun) = (may_end.clone(), begun.clone());
        move || {
            begun.send(()).unwrap();
            let _ended = may_end.recv();
        }
    }

    #[tokio::test]
    async fn work_waits_for_its_own_session_and_for_no_other() {
        let (one, other) = (Quota::default(), Quota::default());
        let (mut busy, mut free) = (Workers::new(&one), Workers::new(&other));
        let ((end, may_end), (begun_in, begun)) = (bounded(0), unbounded());
        for _ in 0..2 * THREADS_MAX {
            busy.start(wait_for(&may_end, &begun_in)).unwrap();
        }
        for _ in 0..THREADS_MAX {
            begun.recv().unwrap();
        }
        let (done_in, done) = bounded(1);
        free.start(move || done_in.send(()).unwrap()).unwrap();
        done.recv().unwrap();
        assert!(begun.is_empty(), "the others wait");
        drop(end);
        busy.end().await;
        free.end().await;
    }

    #[tokio::test]
    async fn what_has_not_begun_when_the_session_ends_is_left_undone() {
        let quota = Quota::default();
        let mut workers = Workers::new(&quota);
        let ((end, may_end), (begun_in, begun)) = (bounded(0), unbounded());
        for _ in 0..THREADS_MAX {
            workers.start(wait_for(&may_end, &begun_in)).unwrap();
            begun.recv().unwrap();
        }
        let has_run = Arc::new(AtomicBool::new(false));
        let run = Arc::clone(&has_run);
        workers
            .start(move || run.store(true, Ordering::Relaxed))
            .unwrap();
        let ended = Arc::clone(&workers.ended);
        let ending = tokio::spawn(workers.end());
        while !ended.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        drop(end);
        ending.await.unwrap();
        assert!(!has_run.load(Ordering::Relaxed));
    }
}

/// The threads of a session's lanes, one for each lane.
#[derive(Debug)]
pub(crate) struct LaneThreads {
    quota: Quota,
    meter: Arc<TransferMeter>,
    threads: Vec<JoinHandle<()>>,
    /// The breakers of the active lanes, by lane number.
    up: HashMap<u32, LaneBreaker>,
    begun: u32,
}

impl LaneThreads {
    pub(crate) fn new(config: &ReceiverConfig) -> Self {
        Self {
            quota: config.quota.clone(),
            meter: Arc::clone(&config.meter),
            threads: Vec::new(),
            up: HashMap::new(),
            begun: 0,
        }
    }

    /// Number of active lanes.
    pub(crate) fn count(&self) -> usize {
        self.up.len()
    }

    /// Starts a thread that calls `run` with a lane and its number. `run` must report when the lane has
    /// [ended](Self::ended). If no thread can be started, closes the lane, and the peer continues with the other lanes.
    ///
    /// # Errors
    /// No thread can be started, and no other lane is active.
    pub(crate) fn add(
        &mut self,
        mut source: Box<dyn LaneSource>,
        run: impl FnOnce(u32, Box<dyn LaneSource>) + Send + 'static,
    ) -> Result<(), SessionError> {
        let window = open_window(source.as_mut(), self.count(), &self.quota);
        let number = self.begun;
        self.begun = number.wrapping_add(1);
        self.up.insert(number, source.breaker());
        self.meter.set_lane_count(self.count());
        // Threads that have ended are removed, because a session may open and close any number of lanes.
        self.threads.retain(|thread| !thread.is_finished());
        let started = spawn(format!("zmove-lane-{number}"), move || {
            let _until_it_ends = window;
            run(number, source);
        });
        match started {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.ended(number);
                if self.count() == 0 {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn ended(&mut self, number: u32) {
        self.up.remove(&number);
        self.meter.set_lane_count(self.count());
    }

    /// Breaks all active lanes.
    pub(crate) fn trip(&self) {
        self.up.values().for_each(LaneBreaker::trip);
    }

    pub(crate) fn join(self) {
        join(self.threads);
    }
}

/// Starts a thread of a session. The session waits for the thread before it ends.
pub(crate) fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, SessionError> {
    thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(SessionError::Thread)
}

pub(crate) fn join(threads: Vec<JoinHandle<()>>) {
    // A thread that has panicked has already reported the panic.
    threads.into_iter().for_each(|thread| drop(thread.join()));
}
