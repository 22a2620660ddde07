//! The runner: queues jobs when they are due, starts a process for each, reads the events that the process prints, and
//! records the end of each attempt.
//!
//! One thread runs a loop. Each iteration checks all processes and then the store. The thread then sleeps until a
//! process ends, another process writes to the FIFO, or a timeout expires. All state is kept outside the runner: job
//! states are in the store, processes hold the locks of their jobs, and events are in files. The runner therefore needs
//! no orderly shutdown and may be killed at any time.
//!
//! **Invariants:** a directory of jobs has at most one runner. A process is started only by a runner that holds the
//! job's lock and has recorded the attempt. The end of an attempt is recorded once, after its process has ended.

mod child;
mod choice;
mod copies;
mod samples;
mod tail;
mod wake;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use crate::error::StoreError;
use crate::job::JobId;
use crate::moment::Moment;
use crate::notify::Notifier;
use crate::place::{JobsDirectory, is_at, lock, read_tail};
use crate::program::Program;
use crate::state::State;
use crate::store::{AttemptVerdict, Ending, Queued, QueuedJob, RunningJob, Started, Store};

use child::{Process, ProcessStatus, take_lock};
use choice::JobSelection;
use copies::PendingCopies;
use tail::{EventReader, FinalEvent};
use wake::WakeFifo;

pub use child::{COPY_TO_END, JOB_RUN, SUBMITTER_VARIABLES};
pub use choice::Limits;
pub use samples::samples_of;
pub use tail::{AttemptProgress, Follower, Watching, progress_of};
pub use wake::wake;

/// The settings of a runner.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// The program that executes jobs, and arguments that precede the job's own arguments.
    pub words: Vec<OsString>,
    /// Interprets an exit code of the program.
    pub judge: fn(i32) -> AttemptVerdict,
    /// Limits of concurrent jobs.
    pub limits: Limits,
    /// Whether the runner ends when it is idle.
    pub stay: IdlePolicy,
    /// The executable file of the runner. The runner ends after this file was replaced. `None` disables the check.
    pub program: Option<Program>,
    /// The file that configures notifications.
    pub notify: PathBuf,
}

/// Whether a runner ends when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// The runner never ends because of idleness.
    Always,
    /// Ends after it has been idle for this time.
    UntilIdle(Duration),
}

/// The reason why a runner ends without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// There was nothing to do for the configured time.
    Idle,
    /// The runner's program was replaced, and no job needs the runner at the moment.
    Replaced,
}

/// The reason why a runner fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// Another runner is active.
    #[error("a runner is already running{}", pid.map_or_else(String::new, |pid| format!(", process {pid}")))]
    Up {
        /// The runner's process.
        pid: Option<i32>,
    },
    /// The directory of jobs, or the runner's lock in it, was removed or replaced.
    #[error("'{}' was removed or replaced while the runner was running", path.display())]
    Replaced {
        /// The lock.
        path: PathBuf,
    },
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The runner of a directory of jobs.
#[derive(Debug)]
pub struct Runner {
    place: JobsDirectory,
    store: Store,
    config: RunnerConfig,
    /// Held while the runner runs.
    lock: File,
    wake_fifo: WakeFifo,
    attempts: BTreeMap<JobId, RunningAttempt>,
    copies: PendingCopies,
    /// The state of the store when no queued job could start. While the store is unchanged, the queue is not read
    /// again, because it may contain thousands of jobs.
    nothing_begins: Option<(i64, i64)>,
    notifier: Notifier,
    /// The last error. It is kept so that each error is reported once.
    trouble: Option<String>,
    idle_since: Option<Instant>,
}

/// An attempt whose process is running, or has ended and is not recorded yet.
#[derive(Debug)]
struct RunningAttempt {
    job: QueuedJob,
    number: u32,
    process: Process,
    tail: EventReader,
    deadline: Duration,
    /// When the process received the signal to end.
    asked: Option<Instant>,
    /// Whether the process received the signal because the user wants to hold or cancel the job.
    is_stopped: bool,
    /// Set once the process has ended. Contains the exit code if it is known.
    ended: Option<Option<i32>>,
    /// Whether a stall was recorded for this attempt.
    stalled: bool,
}

impl RunningAttempt {
    fn new(
        job: QueuedJob,
        number: u32,
        process: Process,
        tail: EventReader,
        deadline: Duration,
    ) -> Self {
        Self {
            job,
            number,
            process,
            tail,
            deadline,
            asked: None,
            is_stopped: false,
            ended: None,
            stalled: false,
        }
    }
}

impl Runner {
    /// Becomes the runner of a directory of jobs. Checks the whole database first.
    ///
    /// # Errors
    /// Another runner is active, or the store cannot be used.
    pub fn begin(place: &JobsDirectory, config: RunnerConfig) -> Result<Self, RunnerError> {
        let lock = lock_as_runner(&place.runner_lock())?;
        let store = Store::open(place)?;
        store.check()?;
        let wake_fifo = open_wake_fifo(place)?;
        Ok(Self {
            place: place.clone(),
            store,
            notifier: Notifier::begin(place, config.notify.clone())?,
            config,
            lock,
            wake_fifo,
            attempts: BTreeMap::new(),
            copies: PendingCopies::default(),
            nothing_begins: None,
            trouble: None,
            idle_since: None,
        })
    }

    /// Runs jobs and reports problems by `warn`. Returns when the runner is idle or replaced, if its settings allow
    /// that.
    ///
    /// # Errors
    /// The store is no longer usable, or the lock was removed or replaced.
    pub fn run(mut self, warn: impl Fn(&str)) -> Result<RunEnd, RunnerError> {
        loop {
            self.check_lock()?;
            self.wake_fifo.clear();
            let pause = match self.work(Moment::now(), &warn) {
                Ok(None) => return Ok(RunEnd::Idle),
                Ok(Some(_)) if self.has_successor() => return Ok(RunEnd::Replaced),
                Ok(Some(pause)) => {
                    self.trouble = None;
                    pause
                }
                Err(error) if error.is_passing() => {
                    let text = error.to_string();
                    if self.trouble.as_ref() != Some(&text) {
                        warn(&format!("{text}; retrying"));
                        self.trouble = Some(text);
                    }
                    // The work that failed is still due, so `sleep_until_event` would return immediately.
                    std::thread::sleep(TURN);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.sleep_until_event(pause);
        }
    }

    /// Returns whether the runner can end so that a new program version can take over. That is possible if the program
    /// was replaced and only jobs that watch their sources are running. Such a job may never end, and its process does
    /// not need this runner.
    fn has_successor(&self) -> bool {
        let is_idle =
            || self.copies.is_empty() && self.attempts.values().all(|attempt| attempt.job.watches);
        let is_replaced = self.config.program.as_ref().map(Program::is_replaced);
        is_replaced == Some(true) && is_idle()
    }

    /// Fails if the lock file was removed or replaced, because another runner could then start.
    fn check_lock(&self) -> Result<(), RunnerError> {
        let path = self.place.runner_lock();
        let is_lost = match is_at(&self.lock, &path) {
            Ok(is_ours) => !is_ours,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if is_lost {
            Err(RunnerError::Replaced { path })
        } else {
            Ok(())
        }
    }

    /// Becomes the runner of a directory of jobs, or returns `None` if a runner is active. If another runner holds the
    /// lock but cannot be woken, it has just started or is about to end. A runner that is about to end may not check
    /// for work again. This call therefore waits for the other runner, so that no job is left without a runner.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn begin_unless_running(
        place: &JobsDirectory,
        config: RunnerConfig,
    ) -> Result<Option<Self>, RunnerError> {
        loop {
            match Self::begin(place, config.clone()) {
                Err(RunnerError::Up { .. }) => {}
                begun => return begun.map(Some),
            }
            if wake(place).map_err(StoreError::io("write to", &place.wake()))? {
                return Ok(None);
            }
            std::thread::sleep(LEAVE_INTERVAL);
        }
    }

    /// Runs one iteration of the runner's loop. Returns how long the runner may sleep, or `None` if it may end.
    fn work(&mut self, now: Moment, warn: &impl Fn(&str)) -> Result<Option<Duration>, StoreError> {
        if !self.wake_fifo.is_at(&self.place.wake()) {
            self.wake_fifo = open_wake_fifo(&self.place)?;
        }
        for running in self.store.running()? {
            self.adopt_or_signal(running);
        }
        let mut trouble = Ok(());
        // An error at the end of one job may concern only that job, so the other jobs are still handled.
        for id in self.attempts.keys().copied().collect::<Vec<_>>() {
            let attended = self.poll_attempt(id, now);
            trouble = trouble.and(attended);
        }
        let ended = self
            .copies
            .end(&self.place, &mut self.store, &self.config.words, now);
        trouble = trouble.and(ended);
        self.reap_orphans();
        self.store.stall_waiting(self.notifier.stalled_after, now)?;
        self.store.release(now)?;
        self.start_queued(now)?;
        if let Some(error) = self.notifier.reload_config(&mut self.store)? {
            warn(&error);
        }
        trouble?;
        if self.may_exit()? {
            Ok(None)
        } else {
            self.pause(now).map(Some)
        }
    }

    /// Adopts a job whose process an earlier runner has started. Sends the process a signal to end if the user wants to
    /// hold or cancel the job, or if the deadline has passed without progress. Kills a process that does not end in
    /// time.
    fn adopt_or_signal(&mut self, running: RunningJob) {
        let RunningJob {
            job,
            attempt: number,
            events_read,
            wish,
            deadline,
            furthest,
            ..
        } = running;
        let id = job.id;
        let attempt = self.attempts.entry(id).or_insert_with(|| {
            let process = Process::adopt(&self.place, id);
            let tail = EventReader::new(events_read, furthest);
            RunningAttempt::new(job, number, process, tail, deadline)
        });
        let tail = &attempt.tail;
        let is_stalled = !tail.is_idle && tail.moved_at.elapsed() >= attempt.deadline;
        match attempt.asked {
            None if wish.is_some() || is_stalled => {
                // If the process was not found, the next iteration sends the signal.
                let found = attempt.process.signal(&self.place, id, Signal::TERM);
                attempt.asked = found.then(Instant::now);
                attempt.is_stopped = found && wish.is_some();
            }
            Some(asked) if asked.elapsed() > KILL_AFTER => {
                let _found = attempt.process.signal(&self.place, id, Signal::KILL);
            }
            _ => {}
        }
    }

    /// Reads the events of an attempt, and records its end if its process has ended.
    fn poll_attempt(&mut self, id: JobId, now: Moment) -> Result<(), StoreError> {
        let Self {
            place,
            store,
            attempts,
            config,
            notifier,
            ..
        } = self;
        let Some(attempt) = attempts.get_mut(&id) else {
            return Ok(());
        };
        if attempt.ended.is_none() {
            let life = attempt
                .process
                .check_status(place, id)
                .map_err(StoreError::io("lock", &place.lock(id)))?;
            if let ProcessStatus::Ended(exit) = life {
                attempt.ended = Some(exit);
            }
        }
        let events = place.events(id, attempt.number);
        attempt
            .tail
            .read_new_events(&events)
            .map_err(StoreError::io("read", &events))?;
        let Some(exit) = attempt.ended else {
            // Record events only before the final event was read. The runner that records the end of the attempt must
            // read the final event, and that may be a later runner.
            if !attempt.tail.unrecorded.is_empty() && attempt.tail.last.is_none() {
                store.record(
                    id,
                    attempt.number,
                    &attempt.tail.unrecorded,
                    attempt.tail.read,
                    now,
                )?;
                attempt.tail.unrecorded.clear();
            }
            let idle = attempt.tail.moved_at.elapsed();
            if !attempt.stalled && !attempt.tail.is_idle && idle >= notifier.stalled_after {
                store.stall(
                    id,
                    attempt.number,
                    &format!("no progress for {} s", idle.as_secs()),
                    now,
                )?;
                attempt.stalled = true;
            }
            return Ok(());
        };
        let ending = ending(attempt, exit, config.judge, &place.log(id));
        let state = store.record_end(id, attempt.number, &ending, now)?;
        let number = attempt.number;
        attempts.remove(&id);
        if state.is_some() {
            samples::keep(place, id, number);
        }
        // The events of the last attempt are kept until the next attempt starts, because they show the progress. Older
        // events, and all events of a job that has ended, are removed. The store then contains all necessary data.
        let over = if state.is_some_and(State::is_final) {
            number
        } else {
            number.saturating_sub(1)
        };
        let _best_effort = std::fs::remove_file(place.events(id, over));
        Ok(())
    }

    /// Reaps child processes that do not belong to a job. As the first process of a container, the runner inherits
    /// orphans of its jobs, such as an ssh process. They would otherwise remain zombies.
    fn reap_orphans(&self) {
        let Ok(children) = std::fs::read_to_string("/proc/thread-self/children") else {
            return;
        };
        let pids = children
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        // A process that belongs to a job is reaped by the code that handles the job.
        let is_ours = |pid: &Pid| {
            self.copies.has_child(*pid)
                || self
                    .attempts
                    .values()
                    .any(|attempt| attempt.process.is_child(*pid))
        };
        for pid in pids.filter(|pid| !is_ours(pid)) {
            let _lives = waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
            );
        }
    }

    fn start_queued(&mut self, now: Moment) -> Result<(), StoreError> {
        let changes = self.store.changes()?;
        if self.nothing_begins == Some(changes) {
            return Ok(());
        }
        let running = self.attempts.values().map(|attempt| &attempt.job);
        let mut choice = JobSelection::new(self.config.limits, running);
        let which = if choice.has_room() {
            Queued::All
        } else {
            Queued::ToWatch
        };
        self.store.queued(which, |job| choice.offer(job))?;
        let chosen = choice.chosen();
        self.nothing_begins = chosen.is_empty().then_some(changes);
        let mut trouble = Ok(());
        for job in chosen {
            // An error at the start of one job may concern only that job, so the other jobs are still started.
            trouble = trouble.and(self.start(job, now));
        }
        trouble
    }

    fn start(&mut self, job: QueuedJob, now: Moment) -> Result<(), StoreError> {
        let id = job.id;
        let lock =
            take_lock(&self.place, id).map_err(StoreError::io("lock", &self.place.lock(id)))?;
        // An adopted process has almost ended but still holds the lock.
        let Some(lock) = lock else { return Ok(()) };
        let started = match self.store.start(id, now) {
            // A user has held or cancelled the job after it was chosen.
            Err(StoreError::Illegal { .. }) => return Ok(()),
            started => started?,
        };
        match child::start(&self.place, id, lock, &started, &self.config.words) {
            Ok(process) => {
                let Started {
                    attempt: number,
                    deadline,
                    furthest,
                    ..
                } = started;
                let tail = EventReader::new(0, furthest);
                let attempt = RunningAttempt::new(job, number, process, tail, deadline);
                self.attempts.insert(id, attempt);
            }
            Err(error) => {
                let directory = started.work.directory.display();
                let ending = Ending {
                    verdict: if PERMANENT_START_ERRORS.contains(&error.kind()) {
                        AttemptVerdict::Fatal
                    } else {
                        AttemptVerdict::Passing
                    },
                    exit: None,
                    message: Some(format!("start a process in '{directory}': {error}")),
                    moved: None,
                    furthest: 0,
                    events: Vec::new(),
                };
                self.store.record_end(id, started.attempt, &ending, now)?;
            }
        }
        Ok(())
    }

    /// Returns whether the runner may end because it was idle for the configured time. Removes the FIFO before the last
    /// check for work. A process that submits a job has therefore either committed the job before that check, or finds
    /// no FIFO and starts a new runner.
    fn may_exit(&mut self) -> Result<bool, StoreError> {
        let IdlePolicy::UntilIdle(idle) = self.config.stay else {
            return Ok(false);
        };
        if self.store.has_work()? {
            self.idle_since = None;
            return Ok(false);
        }
        if self.idle_since.get_or_insert_with(Instant::now).elapsed() < idle {
            return Ok(false);
        }
        let path = self.place.wake();
        match std::fs::remove_file(&path) {
            // The whole directory was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(StoreError::io("remove", &path))?,
        }
        if self.store.has_work()? {
            self.wake_fifo = open_wake_fifo(&self.place)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns how long the runner may sleep if no event wakes it.
    fn pause(&self, now: Moment) -> Result<Duration, StoreError> {
        if !self.attempts.is_empty() || !self.copies.is_empty() {
            return Ok(TURN);
        }
        let due = self.store.next_due(now)?.map(|due| due.since(now));
        Ok(due.map_or(PAUSE_MAX, |due| due.clamp(PAUSE_MIN, PAUSE_MAX)))
    }

    /// Waits until a process ends, the runner is woken, or `pause` has passed.
    fn sleep_until_event(&self, pause: Duration) {
        // Wait only for processes that are running. A process that has ended but could not be recorded would end the
        // wait immediately.
        let alive = self
            .attempts
            .values()
            .filter(|attempt| attempt.ended.is_none());
        let pidfds = alive
            .filter_map(|attempt| attempt.process.pidfd())
            .chain(self.copies.pidfds());
        let wake_fifo = PollFd::new(self.wake_fifo.file(), PollFlags::IN);
        let pidfds = pidfds.map(|pidfd| PollFd::from_borrowed_fd(pidfd, PollFlags::IN));
        let mut sources: Vec<_> = std::iter::once(wake_fifo).chain(pidfds).collect();
        let pause = Timespec::try_from(pause).ok();
        // The cause of the wakeup does not matter, because the next iteration checks everything.
        let _woken = poll(&mut sources, pause.as_ref());
    }
}

fn open_wake_fifo(place: &JobsDirectory) -> Result<WakeFifo, StoreError> {
    let path = place.wake();
    WakeFifo::open(&path).map_err(StoreError::io("open", &path))
}

/// Returns the end of an attempt whose process has ended. If the exit code was not observed, it is taken from the final
/// event of the process. If there is no final event either, the process died early.
fn ending(
    attempt: &mut RunningAttempt,
    exit: Option<i32>,
    judge: fn(i32) -> AttemptVerdict,
    log: &Path,
) -> Ending {
    let moved = attempt.tail.moved();
    let FinalEvent {
        exit: printed,
        message,
        ..
    } = attempt.tail.last.take().unwrap_or(FinalEvent {
        exit: -1,
        message: None,
        moved: None,
    });
    let exit = exit.or((printed >= 0).then_some(printed));
    let verdict = match exit.map_or(AttemptVerdict::Vanished, judge) {
        AttemptVerdict::Passing if attempt.is_stopped => AttemptVerdict::Stopped,
        verdict => verdict,
    };
    let message = match verdict {
        AttemptVerdict::Done | AttemptVerdict::Stopped => None,
        AttemptVerdict::Vanished => Some("its process was killed".to_owned()),
        AttemptVerdict::Fatal | AttemptVerdict::Passing => message.or_else(|| last_line(log)),
    };
    let events = std::mem::take(&mut attempt.tail.unrecorded);
    Ending {
        verdict,
        exit,
        message,
        moved,
        furthest: attempt.tail.furthest,
        events,
    }
}

/// Returns the last line of a log.
fn last_line(log: &Path) -> Option<String> {
    let end = read_tail(log, 4096).ok()?;
    let end = String::from_utf8_lossy(&end);
    end.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(|line| line.strip_prefix("zmove: ").unwrap_or(line).to_owned())
}

/// Takes the lock that only one runner can hold, and writes the id of this process into the lock file.
fn lock_as_runner(path: &Path) -> Result<File, RunnerError> {
    let Some(mut file) = lock(path).map_err(StoreError::io("lock", path))? else {
        return Err(RunnerError::Up {
            pid: read_pid(path),
        });
    };
    let write = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    write.map_err(StoreError::io("write", path))?;
    Ok(file)
}

fn read_pid(path: &Path) -> Option<i32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Errors at the start of a process that a retry does not resolve: the directory or the program does not exist, or is
/// not accessible.
const PERMANENT_START_ERRORS: [ErrorKind; 3] = [
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::NotADirectory,
];
/// Interval at which the runner checks running processes, and the wait after an error.
const TURN: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The maximum sleep if nothing is due. The clock may be set during the sleep.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The wait between two attempts to become the runner while another runner ends.
const LEAVE_INTERVAL: Duration = Duration::from_millis(10);
/// How long a process may take to end after it was asked to.
const KILL_AFTER: Duration = Duration::from_secs(30);
