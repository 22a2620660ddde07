//! Submission of jobs.

use std::os::unix::ffi::OsStrExt;

use rusqlite::{OptionalExtension, Transaction, params};

use super::Store;
use super::step::{add_event, state_of};
use crate::error::StoreError;
use crate::job::{JobId, JobWork, NewJob};
use crate::moment::{Moment, millis};
use crate::schedule::StartTime;
use crate::state::State;

/// A job that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The job.
    pub id: JobId,
    /// Whether the job already existed because the submission was repeated.
    pub repeated: bool,
}

impl Store {
    /// Adds a job to the store. When this returns, the job has been flushed to disk.
    ///
    /// # Errors
    /// The id of the submission belongs to a different job, or a job in `after` does not exist.
    pub fn submit(&mut self, job: &NewJob, now: Moment) -> Result<Submitted, StoreError> {
        self.transact(|transaction| {
            if let Some(submission) = &job.submission
                && let Some((id, is_same)) = find_submission(transaction, submission, &job.work)?
            {
                if !is_same {
                    return Ok(Err(StoreError::OtherSubmission {
                        submission: submission.clone(),
                        id,
                    }));
                }
                return Ok(Ok(Submitted { id, repeated: true }));
            }
            for needed in &job.after {
                if !job_exists(transaction, *needed)? {
                    return Ok(Err(StoreError::NoJob(*needed)));
                }
            }
            let id = insert(transaction, job, now)?;
            Ok(Ok(Submitted {
                id,
                repeated: false,
            }))
        })
    }

    /// Submits a job that repeats the work of an ended job.
    ///
    /// # Errors
    /// The job does not exist, or has not ended.
    pub fn rerun(&mut self, id: JobId, now: Moment) -> Result<JobId, StoreError> {
        self.transact(|transaction| {
            if !job_exists(transaction, id)? {
                return Ok(Err(StoreError::NoJob(id)));
            }
            if !state_of(transaction, id)?.is_some_and(State::is_final) {
                return Ok(Err(StoreError::NotEnded(id)));
            }
            Ok(Ok(insert_repetition(transaction, id, None, now)?))
        })
    }
}

/// Returns the job of a submission, and whether the job has the same arguments and directory as the new job.
fn find_submission(
    transaction: &Transaction<'_>,
    submission: &str,
    JobWork {
        arguments,
        directory,
        ..
    }: &JobWork,
) -> rusqlite::Result<Option<(JobId, bool)>> {
    let sql = "SELECT id, arguments = ?2 AND directory = ?3 FROM jobs WHERE submission = ?1";
    let work = params![
        submission,
        arguments.encode_nul_terminated(),
        directory.as_os_str().as_bytes()
    ];
    transaction
        .query_row(sql, work, |row| Ok((JobId(row.get(0)?), row.get(1)?)))
        .optional()
}

fn job_exists(transaction: &Transaction<'_>, id: JobId) -> rusqlite::Result<bool> {
    transaction
        .prepare("SELECT 1 FROM jobs WHERE id = ?1")?
        .exists([id.0])
}

fn insert(transaction: &Transaction<'_>, job: &NewJob, now: Moment) -> rusqlite::Result<JobId> {
    let state = if job.after.is_empty() && job.not_before.is_none() {
        State::Queued
    } else {
        State::Waiting
    };
    transaction.execute(
        "INSERT INTO jobs (submission, label, state, arguments, directory, environment, source, target, host,
             priority, submitted, not_before, schedule, deadline, notify, message, at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
        params![
            job.submission,
            job.label,
            state.as_ref(),
            job.work.arguments.encode_nul_terminated(),
            job.work.directory.as_os_str().as_bytes(),
            job.work.environment.encode_nul_terminated(),
            job.source,
            job.target,
            job.host,
            job.priority,
            now.0,
            job.not_before.map(|moment| moment.0),
            job.schedule.as_ref().map(ToString::to_string),
            millis(job.deadline),
            job.notify,
            waits_for(&job.after),
            job.at.as_ref().map(StartTime::typed),
        ],
    )?;
    let id = JobId(transaction.last_insert_rowid());
    for needed in &job.after {
        let sql = "INSERT OR IGNORE INTO dependencies (job, needs) VALUES (?1, ?2)";
        transaction.execute(sql, [id.0, needed.0])?;
    }
    add_event(transaction, id, "submitted", None, now)?;
    Ok(id)
}

/// Returns a message for the user that names the jobs for which a new job waits.
fn waits_for(after: &[JobId]) -> Option<String> {
    let numbers = after
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    (!after.is_empty()).then(|| format!("after job {numbers}"))
}

/// The next run of a schedule.
pub(super) struct NextRun {
    pub(super) schedule: String,
    pub(super) time: Moment,
}

/// Submits a job that repeats the work of another job, either immediately or as the next run of its schedule.
pub(super) fn insert_repetition(
    transaction: &Transaction<'_>,
    id: JobId,
    next: Option<&NextRun>,
    now: Moment,
) -> rusqlite::Result<JobId> {
    let state = if next.is_none() {
        State::Queued
    } else {
        State::Waiting
    };
    transaction.execute(
        "INSERT INTO jobs (label, state, arguments, directory, environment, source, target, host, priority,
             submitted, not_before, schedule, deadline, notify, previous)
         SELECT label, ?2, arguments, directory, environment, source, target, host, priority, ?3, ?4, ?5, deadline,
             notify, id
         FROM jobs WHERE id = ?1",
        params![id.0, state.as_ref(), now.0, next.map(|next| next.time.0), next.map(|next| &next.schedule)],
    )?;
    let new = JobId(transaction.last_insert_rowid());
    add_event(transaction, new, "submitted", None, now)?;
    Ok(new)
}
