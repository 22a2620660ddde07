//! Conversions between rows of the database and types.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rusqlite::Row;

use crate::job::{ArgumentList, JobEvent, JobId, JobWork, TransferTotals, Wish};
use crate::moment::Moment;

/// Reads a command from the columns `arguments`, `directory` and `environment`, which start at column `first`.
pub(super) fn read_work(row: &Row<'_>, first: usize) -> rusqlite::Result<JobWork> {
    let words = |bytes: Vec<u8>| ArgumentList::decode_nul_terminated(&bytes);
    Ok(JobWork {
        arguments: words(row.get(first)?),
        directory: OsString::from_vec(row.get(first + 1)?).into(),
        environment: words(row.get(first + 2)?),
    })
}

pub(super) fn read_wish(word: Option<String>) -> Option<Wish> {
    word?.parse().ok()
}

/// Reads the totals of finished attempts from four columns that start at column `first`. Returns `None` if they are
/// unknown.
pub(super) fn read_moved(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<TransferTotals>> {
    let Some(files) = row.get::<_, Option<i64>>(first)? else {
        return Ok(None);
    };
    Ok(Some(TransferTotals {
        files: unsigned(files),
        bytes: unsigned(row.get(first + 1)?),
        seconds: row.get(first + 2)?,
        limited_by: row.get(first + 3)?,
    }))
}

/// Reads an event from the first six columns.
pub(super) fn read_event(row: &Row<'_>) -> rusqlite::Result<JobEvent> {
    Ok(JobEvent {
        number: row.get(0)?,
        job: JobId(row.get(1)?),
        time: Moment(row.get(2)?),
        kind: row.get(3)?,
        attempt: row.get(4)?,
        message: row.get(5)?,
    })
}

/// Converts a count to `i64`, the integer type of the database.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    number.unsigned_abs()
}
