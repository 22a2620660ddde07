//! Changes of jobs. One transaction contains the [`Step`], its event and, at the end of a job, its notifications.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::Store;
use super::copies::note_copy;
use super::notifications::notify;
use super::rows::{read_moved, read_wish, read_work, signed, unsigned};
use super::step::{add_event, apply_step, state_of};
use super::waiting::{RETRY_WAIT_MAX_MILLIS, submit_next_run};
use crate::error::StoreError;
use crate::job::{JobId, JobWork, TransferTotals, Wish};
use crate::moment::Moment;
use crate::program::machine_hash;
use crate::state::{State, Step};

/// The result of a user's request to hold, resume or cancel a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// The request was carried out. The job is now in this state.
    Now(State),
    /// The job is running, and the request was recorded for the runner.
    Asked,
}

/// An attempt that is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The attempt's number, starting at 1.
    pub attempt: u32,
    /// ID of the job's run, as 32 hexadecimal digits. All attempts on this machine share it. An attempt on another
    /// machine, which has a copy of the store, is another run: it must not end this one.
    pub run: String,
    /// The command to execute.
    pub work: JobWork,
    /// The maximum time without progress before the job is given up.
    pub deadline: Duration,
    /// The best progress of any attempt so far: files plus bytes at the target.
    pub furthest: u64,
}

/// An event that the process of an attempt has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptEvent {
    /// The name of the event.
    pub kind: String,
    /// Details of the event.
    pub message: Option<String>,
}

/// How the end of an attempt affects the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptVerdict {
    /// Everything is at the target.
    Done,
    /// Another attempt would fail in the same way.
    Fatal,
    /// Another attempt may succeed.
    Passing,
    /// The process died without reporting a result.
    Vanished,
    /// The process ended because the user asked to hold or cancel the job.
    Stopped,
}

/// The end of an attempt, for the store to record.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// How the end of the attempt affects the job.
    pub verdict: AttemptVerdict,
    /// The exit code, if it is known.
    pub exit: Option<i32>,
    /// The reason for the result.
    pub message: Option<String>,
    /// Data that the attempt moved, as its process reported it.
    pub moved: Option<TransferTotals>,
    /// The progress of the attempt: files plus bytes at the target.
    pub furthest: u64,
    /// Events that are not recorded yet.
    pub events: Vec<AttemptEvent>,
}

impl Store {
    /// Starts an attempt. From then on, the job counts as running. If a runner later finds that the job's lock is free
    /// and that there is no final event, the attempt's process has died.
    ///
    /// # Errors
    /// The job is no longer queued.
    pub fn start(&mut self, id: JobId, now: Moment) -> Result<Started, StoreError> {
        self.transact(|transaction| {
            transaction.execute(
                "UPDATE jobs SET attempt = attempt + 1, events_read = 0, started = coalesce(started, ?2),
                     run = coalesce(run, lower(hex(randomblob(8)))), retry_until = coalesce(retry_until, ?2 + deadline)
                 WHERE id = ?1",
                [id.0, now.0],
            )?;
            if let Err(illegal) = apply_step(transaction, id, Step::Start, None, now)? {
                return Ok(Err(StoreError::Illegal { id, source: illegal }));
            }
            let sql = "SELECT attempt, arguments, directory, environment, deadline, furthest, run
                       FROM jobs WHERE id = ?1";
            let started = transaction.query_row(sql, [id.0], |row| {
                let work = read_work(row, 1)?;
                let deadline = Duration::from_millis(unsigned(row.get(4)?));
                let run = format!("{}{:016x}", row.get::<_, String>(6)?, machine_hash());
                Ok(Started { attempt: row.get(0)?, run, work, deadline, furthest: unsigned(row.get(5)?) })
            });
            Ok(Ok(started?))
        })
    }

    /// Records events of a running attempt, together with the file position up to which the events were read. Both are
    /// written in one transaction, so that no event is recorded twice.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn record(
        &mut self,
        id: JobId,
        attempt: u32,
        events: &[AttemptEvent],
        events_read: u64,
        now: Moment,
    ) -> Result<(), StoreError> {
        self.transact(|transaction| {
            let changed = transaction.execute(
                "UPDATE jobs SET events_read = ?3 WHERE id = ?1 AND attempt = ?2 AND state = 'running'
                     AND events_read < ?3",
                params![id.0, attempt, signed(events_read)],
            )?;
            if changed == 1 {
                add_events(transaction, id, events, now)?;
            }
            Ok(Ok(()))
        })
    }

    /// Records the end of an attempt. Returns `None` if it was recorded before.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn record_end(
        &mut self,
        id: JobId,
        attempt: u32,
        ending: &Ending,
        now: Moment,
    ) -> Result<Option<State>, StoreError> {
        self.transact(|transaction| {
            let sql = "SELECT wish, failures, retry_until, deadline, furthest, files, bytes, seconds, limited_by
                 FROM jobs WHERE id = ?1 AND attempt = ?2 AND state = 'running'";
            let retry_state = transaction.query_row(sql, params![id.0, attempt], RetryState::read).optional()?;
            let Some(retry_state) = retry_state else { return Ok(Ok(None)) };
            add_events(transaction, id, &ending.events, now)?;
            let NextStep { step, not_before, failures, retry_until } = retry_state.after(ending, now);
            let furthest = signed(ending.furthest).max(retry_state.furthest);
            let moved = TransferTotals::add(retry_state.moved, ending.moved.clone());
            transaction.execute(
                "UPDATE jobs SET wish = NULL, not_before = ?2, failures = ?3, retry_until = ?4, exit = ?5,
                     files = ?6, bytes = ?7, seconds = ?8, limited_by = ?9, furthest = ?10,
                     copy = iif(?11, NULL, copy)
                 WHERE id = ?1",
                params![
                    id.0,
                    not_before.map(|moment| moment.0),
                    failures,
                    retry_until.0,
                    ending.exit,
                    moved.as_ref().map(|moved| signed(moved.files)),
                    moved.as_ref().map(|moved| signed(moved.bytes)),
                    moved.as_ref().map(|moved| moved.seconds),
                    moved.and_then(|moved| moved.limited_by),
                    furthest,
                    step == Step::Finish,
                ],
            )?;
            // Do not store the message of a process that received the signal to end. The message contains nothing new,
            // and its advice does not apply to a job.
            let message = match step {
                Step::Hold | Step::Cancel => None,
                Step::Expire => Some(expired(retry_state.deadline, ending)),
                _ => ending.message.clone(),
            };
            let message = message.as_deref();
            match apply_step(transaction, id, step, message, now)? {
                Ok(state) => {
                    add_attempt(transaction, id, attempt, state, message, ending, now)?;
                    // A request to cancel the job also ends its schedule, even if the attempt ended before the request
                    // was carried out.
                    if state.is_final() && retry_state.wish != Some(Wish::Cancel) {
                        submit_next_run(transaction, id, now)?;
                    }
                    Ok(Ok(Some(state)))
                }
                Err(source) => Ok(Err(StoreError::Illegal { id, source })),
            }
        })
    }

    /// Holds a job, or asks the runner to hold it if it is running.
    ///
    /// # Errors
    /// The job has ended.
    pub fn pause(&mut self, id: JobId, now: Moment) -> Result<RequestResult, StoreError> {
        self.order(id, Step::Hold, Some(Wish::Pause), now)
    }

    /// Cancels a job and its schedule, or asks the runner to do so if the job is running.
    ///
    /// # Errors
    /// The job has ended.
    pub fn cancel(&mut self, id: JobId, now: Moment) -> Result<RequestResult, StoreError> {
        self.order(id, Step::Cancel, Some(Wish::Cancel), now)
    }

    /// Resumes a held job. If the runner was asked to hold the job and the process has not ended yet, the request is
    /// withdrawn. The job then starts again after that process has ended.
    ///
    /// # Errors
    /// The job is neither held nor about to be held.
    pub fn resume(&mut self, id: JobId, now: Moment) -> Result<RequestResult, StoreError> {
        self.order(id, Step::Resume, None, now)
    }

    fn order(
        &mut self,
        id: JobId,
        step: Step,
        wish: Option<Wish>,
        now: Moment,
    ) -> Result<RequestResult, StoreError> {
        self.transact(|transaction| {
            let Some(state) = state_of(transaction, id)? else {
                return Ok(Err(StoreError::NoJob(id)));
            };
            if state == State::Running
                && let Some(wish) = wish
            {
                transaction.execute(
                    "UPDATE jobs SET wish = ?2 WHERE id = ?1 AND wish IS NOT 'cancel'",
                    params![id.0, wish.as_ref()],
                )?;
                return Ok(Ok(RequestResult::Asked));
            }
            if step == Step::Resume {
                let held_no_more = transaction.execute(
                    "UPDATE jobs SET wish = NULL WHERE id = ?1 AND wish = 'pause'",
                    [id.0],
                )?;
                if held_no_more == 1 {
                    return Ok(Ok(RequestResult::Asked));
                }
                transaction.execute(
                    "UPDATE jobs SET retry_until = ?2 + deadline, failures = 0,
                         not_before = CASE WHEN failures > 0 THEN NULL ELSE not_before END
                     WHERE id = ?1 AND state = 'paused' AND started IS NOT NULL",
                    [id.0, now.0],
                )?;
            }
            let taken = apply_step(transaction, id, step, None, now)?;
            Ok(taken
                .map(RequestResult::Now)
                .map_err(|source| StoreError::Illegal { id, source }))
        })
    }

    /// Records that a running attempt has made no progress for a long time, at most once per attempt.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn stall(
        &mut self,
        id: JobId,
        attempt: u32,
        message: &str,
        now: Moment,
    ) -> Result<(), StoreError> {
        self.transact(|transaction| {
            let is_news: bool = transaction.query_row(
                "SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND attempt = ?2 AND state = 'running')
                 AND NOT EXISTS (SELECT 1 FROM events WHERE job = ?1 AND attempt = ?2 AND kind = 'stalled')",
                params![id.0, attempt],
                |row| row.get(0),
            )?;
            if is_news {
                let number = add_event(transaction, id, "stalled", Some(message), now)?;
                notify(transaction, number, now)?;
            }
            Ok(Ok(()))
        })
    }

    /// Deletes jobs that ended before `before` and returns their ids. A job is kept if an unfinished job depends on it,
    /// or if one of its notifications is pending.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn forget(&mut self, before: Moment) -> Result<Vec<JobId>, StoreError> {
        self.transact(|transaction| {
            let mut found = transaction.prepare(
                "SELECT id FROM jobs WHERE ended < ?1 AND id NOT IN
                     (SELECT needs FROM dependencies d JOIN jobs j ON j.id = d.job WHERE j.ended IS NULL)
                     AND id NOT IN (SELECT e.job FROM notifications n JOIN events e ON e.number = n.number
                         WHERE n.state = 'waiting')",
            )?;
            let ids: Vec<i64> = found.query_map([before.0], |row| row.get(0))?.collect::<Result<_, _>>()?;
            for id in &ids {
                transaction.execute("DELETE FROM dependencies WHERE needs = ?1", [id])?;
                transaction.execute("DELETE FROM jobs WHERE id = ?1", [id])?;
            }
            Ok(Ok(ids.into_iter().map(JobId).collect()))
        })
    }
}

/// The settings and the history of a job that determine the step after an attempt.
struct RetryState {
    wish: Option<Wish>,
    failures: u32,
    retry_until: Moment,
    deadline: Duration,
    furthest: i64,
    /// Data that earlier attempts moved.
    moved: Option<TransferTotals>,
}

/// The step that follows the end of an attempt, and the values to store with it.
struct NextStep {
    step: Step,
    not_before: Option<Moment>,
    failures: u32,
    retry_until: Moment,
}

impl RetryState {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            wish: read_wish(row.get(0)?),
            failures: row.get(1)?,
            retry_until: Moment(row.get::<_, Option<i64>>(2)?.unwrap_or(i64::MAX)),
            deadline: Duration::from_millis(unsigned(row.get(3)?)),
            furthest: row.get(4)?,
            moved: read_moved(row, 5)?,
        })
    }

    fn after(&self, ending: &Ending, now: Moment) -> NextStep {
        // `retry_until` can be later than one deadline from now only if the clock was set back.
        let left = self.retry_until.min(now.after(self.deadline));
        let (failures, retry_until) = if signed(ending.furthest) > self.furthest {
            (1, now.after(self.deadline))
        } else {
            (self.failures.saturating_add(1), left)
        };
        let simple = |step| NextStep {
            step,
            not_before: None,
            failures: 0,
            retry_until,
        };
        match (ending.verdict, self.wish) {
            (AttemptVerdict::Done, _) => simple(Step::Finish),
            (_, Some(Wish::Cancel)) => simple(Step::Cancel),
            (AttemptVerdict::Fatal, _) => simple(Step::Fail),
            (_, Some(Wish::Pause)) => simple(Step::Hold),
            // The user asked to hold the job and resumed it before its process had ended, so nothing has failed.
            (AttemptVerdict::Stopped, None) => NextStep {
                step: Step::Requeue,
                not_before: None,
                failures: self.failures,
                retry_until,
            },
            // Check this before the deadline, which may have passed while no runner was running.
            (AttemptVerdict::Vanished, None) if failures <= VANISHED_AT_ONCE => NextStep {
                step: Step::Requeue,
                not_before: None,
                failures,
                retry_until,
            },
            _ if now >= retry_until => simple(Step::Expire),
            (AttemptVerdict::Passing | AttemptVerdict::Vanished, None) => {
                let next = now.after(retry_wait(failures)).min(retry_until);
                NextStep {
                    step: Step::Retry,
                    not_before: Some(next),
                    failures,
                    retry_until,
                }
            }
        }
    }
}

/// Returns the reason why a job has expired. If the process was still running, it received the signal to end, so its
/// own message is not the reason.
fn expired(deadline: Duration, ending: &Ending) -> String {
    let within = format!(
        "no attempt made progress within the deadline of {} s",
        deadline.as_secs_f64()
    );
    match (ending.exit, &ending.message) {
        (Some(INTERRUPTED), _) | (_, None) => within,
        (_, Some(last)) => format!("{within}; the last error: {last}"),
    }
}

/// The exit code of a transfer that received the signal to end.
const INTERRUPTED: i32 = 20;

/// Returns the wait before the next attempt, after `failures` consecutive attempts without progress.
fn retry_wait(failures: u32) -> Duration {
    let wait = RETRY_WAIT_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16));
    wait.min(Duration::from_millis(RETRY_WAIT_MAX_MILLIS.unsigned_abs()))
}

/// Records the end of an attempt. `state` is the state of the job after the attempt.
fn add_attempt(
    transaction: &Transaction<'_>,
    id: JobId,
    attempt: u32,
    state: State,
    message: Option<&str>,
    ending: &Ending,
    now: Moment,
) -> rusqlite::Result<()> {
    let TransferTotals {
        files,
        bytes,
        seconds,
        ..
    } = ending.moved.clone().unwrap_or_default();
    transaction.execute(
        "INSERT OR REPLACE INTO attempts (job, number, ended, state, exit, message, files, bytes, seconds)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            id.0,
            attempt,
            now.0,
            state.as_ref(),
            ending.exit,
            message,
            signed(files),
            signed(bytes),
            seconds,
        ],
    )?;
    Ok(())
}

fn add_events(
    transaction: &Transaction<'_>,
    id: JobId,
    events: &[AttemptEvent],
    now: Moment,
) -> rusqlite::Result<()> {
    for event in events {
        add_event(transaction, id, &event.kind, event.message.as_deref(), now)?;
        note_copy(transaction, id, &event.kind, event.message.as_deref())?;
    }
    Ok(())
}

const RETRY_WAIT_MIN: Duration = Duration::from_secs(1);
/// The number of consecutive processes that may die without reporting a result before the job waits as after an error.
/// A wait is needed because the job itself may cause the deaths, for example by its use of memory.
const VANISHED_AT_ONCE: u32 = 3;
