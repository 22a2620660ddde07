//! What rows of the database hold.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rusqlite::Row;

use crate::job::{JobEvent, JobId, JobWork, Moved, Wish, Words};
use crate::moment::Moment;

/// The work, by the columns `arguments`, `directory` and `environment` from this one on.
pub(super) fn read_work(row: &Row<'_>, first: usize) -> rusqlite::Result<JobWork> {
    let words = |bytes: Vec<u8>| Words::from_bytes(&bytes);
    Ok(JobWork {
        arguments: words(row.get(first)?),
        directory: OsString::from_vec(row.get(first + 1)?).into(),
        environment: words(row.get(first + 2)?),
    })
}

pub(super) fn read_wish(word: Option<String>) -> Option<Wish> {
    word?.parse().ok()
}

/// What has been moved, by the columns from this one on; `None` if it is not known.
pub(super) fn read_moved(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Moved>> {
    let Some(files) = row.get::<_, Option<i64>>(first)? else {
        return Ok(None);
    };
    Ok(Some(Moved {
        files: unsigned(files),
        bytes: unsigned(row.get(first + 1)?),
        seconds: row.get(first + 2)?,
        limited_by: row.get(first + 3)?,
    }))
}

/// A number that was not negative when it was written.
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

/// A count in the form that the database takes.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    number.unsigned_abs()
}
