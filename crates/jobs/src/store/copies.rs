//! Copies between two other hosts, which continue without the process that started them. The row of a job contains the
//! id of the job's copy from its start until it is known to have ended.

use rusqlite::{Transaction, params};

use super::Store;
use super::rows::read_work;
use super::step::add_event;
use crate::error::StoreError;
use crate::job::{JobId, JobWork};
use crate::moment::Moment;

impl Store {
    /// Returns copies that may still be running although their jobs are paused or have ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn copies_left(&self) -> Result<Vec<(JobId, String)>, StoreError> {
        let sql = format!("SELECT id, copy FROM jobs WHERE {IS_LEFT}");
        self.rows(&sql, (), |row| Ok((JobId(row.get(0)?), row.get(1)?)))
    }

    /// Returns the command of a job.
    ///
    /// # Errors
    /// The job does not exist, or the store cannot be read.
    pub fn work(&self, id: JobId) -> Result<JobWork, StoreError> {
        self.read(|connection| {
            let sql = "SELECT arguments, directory, environment FROM jobs WHERE id = ?1";
            connection.query_row(sql, [id.0], |row| read_work(row, 0))
        })
    }

    /// Removes the id of a copy from its job and records an event, because the copy has ended or is given up.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn forget_copy(
        &mut self,
        id: JobId,
        copy: &str,
        kind: &str,
        now: Moment,
    ) -> Result<(), StoreError> {
        self.transact(|transaction| {
            // Another attempt may have started a new copy in the meantime.
            let sql = "UPDATE jobs SET copy = NULL WHERE id = ?1 AND copy = ?2";
            if transaction.execute(sql, params![id.0, copy])? == 1 {
                add_event(transaction, id, kind, Some(copy), now)?;
            }
            Ok(Ok(()))
        })
    }
}

/// Updates the copy id of a job if an event of its attempt reports the start or the end of a copy.
pub(super) fn note_copy(
    transaction: &Transaction<'_>,
    id: JobId,
    kind: &str,
    message: Option<&str>,
) -> rusqlite::Result<()> {
    let copy = match kind {
        COPY_RUNS => message,
        COPY_ENDED => None,
        _ => return Ok(()),
    };
    transaction.execute(
        "UPDATE jobs SET copy = ?2 WHERE id = ?1",
        params![id.0, copy],
    )?;
    Ok(())
}

/// The kind of event that reports the start of a copy. Its message is the copy's id.
const COPY_RUNS: &str = "copy_runs";
/// The kind of event that reports the end of a copy.
pub(crate) const COPY_ENDED: &str = "copy_ended";
/// The kind of event that reports a copy which could not be ended.
pub(crate) const COPY_LEFT: &str = "copy_left";

pub(super) const IS_LEFT: &str =
    "copy IS NOT NULL AND state IN ('paused', 'failed', 'cancelled', 'expired')";
