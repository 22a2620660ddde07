//! Jobs that wait for a start time, for other jobs or for another attempt, and the repetition of scheduled jobs.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::Store;
use super::notifications::notify;
use super::step::{add_event, apply_step, state_of};
use super::submit::{NextRun, insert_repetition};
use crate::error::StoreError;
use crate::job::JobId;
use crate::moment::Moment;
use crate::schedule::{Schedule, StartTime, first_time, format_local};
use crate::state::{State, Step};

impl Store {
    /// Queues the jobs whose start time has been reached and whose dependencies are done. Fails the jobs whose
    /// dependencies can no longer be done.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn release(&mut self, now: Moment) -> Result<(), StoreError> {
        self.recompute_start_times(now)?;
        let read = |row: &Row<'_>| row.get(0).map(JobId);
        let due = self.rows(DUE, [now.0, RETRY_WAIT_MAX_MILLIS], read)?;
        let unsatisfiable = self.rows(UNSATISFIABLE, (), read)?;
        if due.is_empty() && unsatisfiable.is_empty() {
            return Ok(());
        }
        self.transact(|transaction| {
            for id in unsatisfiable {
                if let Some((needed, state)) = failed_need(transaction, id)?
                    && state_of(transaction, id)? == Some(State::Waiting)
                {
                    let why = format!("job {needed}, which must be done first, {}", state.phrase());
                    if apply_step(transaction, id, Step::Fail, Some(&why), now)?.is_ok() {
                        submit_next_run(transaction, id, now)?;
                    }
                }
            }
            for id in due {
                // A user may have changed the job after the query.
                if state_of(transaction, id)? != Some(State::Waiting) {
                    continue;
                }
                report_missed(transaction, id, now)?;
                let _is_waiting = apply_step(transaction, id, Step::Release, None, now)?;
            }
            Ok(Ok(()))
        })
    }

    /// Computes the start times of waiting jobs again if the clock was set back after their submission. This affects
    /// scheduled jobs and jobs with a typed start time.
    fn recompute_start_times(&mut self, now: Moment) -> Result<(), StoreError> {
        let sql = "SELECT id FROM jobs WHERE state = 'waiting' AND attempt = 0 AND submitted > ?1
                 AND (schedule IS NOT NULL OR at IS NOT NULL)";
        let made_later: Vec<i64> = self.rows(sql, [now.0], |row| row.get(0))?;
        if made_later.is_empty() {
            return Ok(());
        }
        self.transact(|transaction| {
            for id in made_later {
                let not_before = time_of(transaction, JobId(id), now)?;
                transaction.execute(
                    "UPDATE jobs SET submitted = ?2, not_before = ?3 WHERE id = ?1 AND state = 'waiting'",
                    params![id, now.0, not_before.map(|moment| moment.0)],
                )?;
            }
            Ok(Ok(()))
        })
    }

    /// Records each job that waits for another attempt and has made no progress for at least `after`. A job is recorded
    /// once per period without progress.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn stall_waiting(&mut self, after: Duration, now: Moment) -> Result<(), StoreError> {
        let stalled = self.rows(STALLED, [now.before(after).0], |row| {
            let message: Option<String> = row.get(1)?;
            Ok((
                JobId(row.get(0)?),
                message.unwrap_or_default(),
                Moment(row.get(2)?),
            ))
        })?;
        if stalled.is_empty() {
            return Ok(());
        }
        self.transact(|transaction| {
            for (id, why, further) in stalled {
                // A user may have changed the job after the query.
                if state_of(transaction, id)? == Some(State::Waiting) {
                    let message =
                        format!("no progress for {} s: {why}", now.since(further).as_secs());
                    let number = add_event(transaction, id, "stalled", Some(&message), now)?;
                    notify(transaction, number, now)?;
                }
            }
            Ok(Ok(()))
        })
    }
}

/// Records that a scheduled job starts late. The job runs once, now. Runs that were missed are not made up for.
fn report_missed(transaction: &Transaction<'_>, id: JobId, now: Moment) -> rusqlite::Result<()> {
    let sql = "SELECT not_before FROM jobs WHERE id = ?1 AND attempt = 0 AND schedule IS NOT NULL";
    let due: Option<Option<i64>> = transaction
        .query_row(sql, [id.0], |row| row.get(0))
        .optional()?;
    if let Some(due) = due.flatten().map(Moment)
        && now.since(due) > MISSED_AFTER
    {
        let why = format!("due at {}, starting now", format_local(due));
        let number = add_event(transaction, id, "missed", Some(&why), now)?;
        notify(transaction, number, now)?;
    }
    Ok(())
}

/// Submits the next run of the job's schedule, if the job has a schedule. Start times that have passed since the last
/// run are skipped, so that no two runs overlap.
pub(super) fn submit_next_run(
    transaction: &Transaction<'_>,
    id: JobId,
    now: Moment,
) -> rusqlite::Result<()> {
    if let Some(next) = next_run(transaction, id, now)? {
        insert_repetition(transaction, id, Some(&next), now)?;
    }
    Ok(())
}

/// Returns the start time of a job according to its schedule and its typed start time.
fn time_of(
    transaction: &Transaction<'_>,
    id: JobId,
    now: Moment,
) -> rusqlite::Result<Option<Moment>> {
    let sql = "SELECT at, schedule FROM jobs WHERE id = ?1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (at, schedule): (Option<String>, Option<String>) =
        transaction.query_row(sql, [id.0], read)?;
    let at = at.and_then(|at| StartTime::parse(&at, now).ok());
    let schedule = schedule.and_then(|schedule| schedule.parse().ok());
    Ok(first_time(at.as_ref(), schedule.as_ref(), now))
}

/// Returns a job's schedule and the time of the next run after `now`. Returns `None` if the job has no schedule or the
/// schedule has no further run.
fn next_run(
    transaction: &Transaction<'_>,
    id: JobId,
    now: Moment,
) -> rusqlite::Result<Option<NextRun>> {
    let sql = "SELECT schedule FROM jobs WHERE id = ?1";
    let Some(schedule): Option<String> = transaction.query_row(sql, [id.0], |row| row.get(0))?
    else {
        return Ok(None);
    };
    let parsed = schedule.parse::<Schedule>().ok();
    let time = parsed.and_then(|schedule| schedule.next(now));
    Ok(time.map(|time| NextRun { schedule, time }))
}

/// Returns a dependency of this job that has ended without being done, if there is one.
fn failed_need(transaction: &Transaction<'_>, id: JobId) -> rusqlite::Result<Option<(i64, State)>> {
    let sql = "SELECT b.id, b.state FROM dependencies d JOIN jobs b ON b.id = d.needs
         WHERE d.job = ?1 AND b.state IN ('failed', 'cancelled', 'expired') LIMIT 1";
    let failed = transaction
        .query_row(sql, [id.0], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    Ok(failed.and_then(|(needed, word)| Some((needed, word.parse().ok()?))))
}

/// Selects waiting jobs that may be queued. If a retry is due later than the maximum wait allows, the clock was set
/// back after the retry was scheduled. Such a retry counts as due.
const DUE: &str = "SELECT id FROM jobs j WHERE state = 'waiting'
    AND (not_before IS NULL OR not_before <= ?1 OR failures > 0 AND not_before > ?1 + ?2)
    AND NOT EXISTS (SELECT 1 FROM dependencies d JOIN jobs b ON b.id = d.needs WHERE d.job = j.id AND b.state <> 'done')
    ORDER BY id";
/// Selects jobs that wait for another attempt, made their last progress before ?1 and have no event about that stall.
/// Each progress sets `retry_until` to one deadline later, so the time of the last progress is `retry_until` minus the
/// deadline.
const STALLED: &str = "SELECT id, message, retry_until - deadline FROM jobs j
    WHERE state = 'waiting' AND failures > 0 AND retry_until - deadline <= ?1
    AND NOT EXISTS (SELECT 1 FROM events e WHERE e.job = j.id AND kind = 'stalled' AND time >= retry_until - deadline)";
/// Selects waiting jobs that depend on a job which has ended without being done.
const UNSATISFIABLE: &str =
    "SELECT DISTINCT j.id FROM jobs j JOIN dependencies d ON d.job = j.id JOIN jobs b ON b.id = d.needs
    WHERE j.state = 'waiting' AND b.state IN ('failed', 'cancelled', 'expired')";

/// The maximum wait before another attempt.
pub(super) const RETRY_WAIT_MAX_MILLIS: i64 = 10 * 60 * 1000;
/// A scheduled job that starts later than this is recorded as late.
const MISSED_AFTER: Duration = Duration::from_secs(60);
