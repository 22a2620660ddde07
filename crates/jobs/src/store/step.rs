//! Steps of jobs in the store. No other module changes the state of a job.

use rusqlite::{OptionalExtension, Transaction, params};

use super::notifications::notify;
use crate::job::JobId;
use crate::moment::Moment;
use crate::state::{IllegalStep, State, Step};

/// Applies a step to a job. It writes the new state, an event and, if the job ends, notifications.
pub(super) fn apply_step(
    transaction: &Transaction<'_>,
    id: JobId,
    step: Step,
    message: Option<&str>,
    now: Moment,
) -> rusqlite::Result<Result<State, IllegalStep>> {
    let Some(state) = state_of(transaction, id)? else {
        return Err(rusqlite::Error::QueryReturnedNoRows);
    };
    let next = match state.after(step) {
        Ok(next) => next,
        Err(illegal) => return Ok(Err(illegal)),
    };
    let ended = next.is_final().then_some(now.0);
    transaction.execute(
        "UPDATE jobs SET state = ?2, wish = NULL, ended = ?3, message = ?4 WHERE id = ?1",
        params![id.0, next.as_ref(), ended, message],
    )?;
    let number = add_event(transaction, id, next.as_ref(), message, now)?;
    if next.is_final() {
        notify(transaction, number, now)?;
    }
    Ok(Ok(next))
}

/// Adds an event and returns its number.
pub(super) fn add_event(
    transaction: &Transaction<'_>,
    id: JobId,
    kind: &str,
    message: Option<&str>,
    now: Moment,
) -> rusqlite::Result<i64> {
    transaction.execute(
        "INSERT INTO events (job, time, kind, attempt, message)
         SELECT id, ?2, ?3, attempt, ?4 FROM jobs WHERE id = ?1",
        params![id.0, now.0, kind, message],
    )?;
    Ok(transaction.last_insert_rowid())
}

/// Returns the state of a job, or `None` if the job does not exist.
pub(super) fn state_of(
    transaction: &Transaction<'_>,
    id: JobId,
) -> rusqlite::Result<Option<State>> {
    let sql = "SELECT state FROM jobs WHERE id = ?1";
    let word: Option<String> = transaction
        .query_row(sql, [id.0], |row| row.get(0))
        .optional()?;
    Ok(word.and_then(|word| word.parse().ok()))
}
