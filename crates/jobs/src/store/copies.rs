//! Copies between two other hosts, which go on without the process that has ordered them. A job has the id of its copy
//! from the moment when that begins until it is known to have ended.

use rusqlite::{Transaction, params};

use super::Store;
use super::rows::read_work;
use super::step::add_event;
use crate::error::StoreError;
use crate::job::{JobId, JobWork};
use crate::moment::Moment;

impl Store {
    /// Copies that may go on although their jobs are held or over.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn copies_left(&self) -> Result<Vec<(JobId, String)>, StoreError> {
        let sql = format!("SELECT id, copy FROM jobs WHERE {IS_LEFT}");
        self.rows(&sql, (), |row| Ok((JobId(row.get(0)?), row.get(1)?)))
    }

    /// The work of a job.
    ///
    /// # Errors
    /// There is no such job.
    pub fn work(&self, id: JobId) -> Result<JobWork, StoreError> {
        self.read(|connection| {
            let sql = "SELECT arguments, directory, environment FROM jobs WHERE id = ?1";
            connection.query_row(sql, [id.0], |row| read_work(row, 0))
        })
    }

    /// Notes by an event that a job's copy has ended, or is left to itself.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub fn let_copy_go(
        &mut self,
        id: JobId,
        copy: &str,
        kind: &str,
        now: Moment,
    ) -> Result<(), StoreError> {
        self.transact(|transaction| {
            // an attempt may have begun another one
            let sql = "UPDATE jobs SET copy = NULL WHERE id = ?1 AND copy = ?2";
            if transaction.execute(sql, params![id.0, copy])? == 1 {
                add_event(transaction, id, kind, Some(copy), now)?;
            }
            Ok(Ok(()))
        })
    }
}

/// Records an event of an attempt about its copy.
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

/// The event of a copy that has begun; its message is the copy's id.
const COPY_RUNS: &str = "copy_runs";
/// The event of a copy that has ended with its job.
pub(crate) const COPY_ENDED: &str = "copy_ended";
/// The event of a copy that could not be ended.
pub(crate) const COPY_LEFT: &str = "copy_left";

pub(super) const IS_LEFT: &str =
    "copy IS NOT NULL AND state IN ('paused', 'failed', 'cancelled', 'expired')";
