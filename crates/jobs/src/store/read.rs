//! Queries of the store.

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rusqlite::Row;

use super::Store;
use super::copies::IS_LEFT;
use super::rows::{read_event, read_moved, read_wish, unsigned};
use crate::error::StoreError;
use crate::job::{ArgumentList, AttemptEnd, Job, JobEvent, JobId, TransferTotals, Wish};
use crate::moment::Moment;
use crate::state::State;

/// A request for one page of the list of jobs, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Only jobs in these states. Empty: jobs in any state.
    pub states: Vec<State>,
    /// Only jobs that were submitted before this one.
    pub before: Option<JobId>,
    /// Maximum number of jobs.
    pub length_max: u32,
}

/// Which queued jobs to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// All queued jobs.
    All,
    /// Jobs that watch their sources.
    ToWatch,
}

/// A queued job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    /// The job.
    pub id: JobId,
    /// The other host. Empty if there is none.
    pub host: String,
    /// The source.
    pub source: String,
    /// The target.
    pub target: String,
    /// The user's name for the job.
    pub label: String,
    /// The priority. Jobs with a higher priority start first.
    pub priority: i32,
    /// The directory of the keys that the job uses. If it is empty, the job uses the directory of the runner.
    pub home: OsString,
    /// Whether the job watches its source: it runs until it is cancelled and is idle most of the time.
    pub watches: bool,
}

/// A job in the state running. Its runner may have died.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningJob {
    /// The job, with the properties that the limits apply to.
    pub job: QueuedJob,
    /// The number of the current attempt.
    pub attempt: u32,
    /// The position up to which the attempt's events were read, in bytes.
    pub events_read: u64,
    /// A pending request of the user.
    pub wish: Option<Wish>,
    /// The maximum time without progress before the job is given up.
    pub deadline: Duration,
    /// The best progress of any attempt so far: files plus bytes at the target.
    pub furthest: u64,
    /// Data that the earlier attempts moved.
    pub moved: TransferTotals,
}

impl Store {
    /// Returns a job.
    ///
    /// # Errors
    /// The job does not exist, or the store cannot be read.
    pub fn job(&self, id: JobId) -> Result<Job, StoreError> {
        let found = self.rows(&format!("{JOBS} WHERE id = ?1"), [id.0], read_job)?;
        found.into_iter().next().ok_or(StoreError::NoJob(id))
    }

    /// Returns the ends of a job's finished attempts.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn attempts(&self, id: JobId) -> Result<Vec<AttemptEnd>, StoreError> {
        let read = |row: &Row<'_>| {
            let word: String = row.get(2)?;
            Ok(AttemptEnd {
                number: row.get(0)?,
                ended: Moment(row.get(1)?),
                state: read_state(&word)?,
                exit: row.get(3)?,
                message: row.get(4)?,
                files: unsigned(row.get(5)?),
                bytes: unsigned(row.get(6)?),
                seconds: row.get(7)?,
            })
        };
        let sql = "SELECT number, ended, state, exit, message, files, bytes, seconds FROM attempts
             WHERE job = ?1 ORDER BY number";
        self.rows(sql, [id.0], read)
    }

    /// Returns the unfinished run of the schedule to which a job belongs. If there is none, returns the job itself.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn live_run(&self, id: JobId) -> Result<JobId, StoreError> {
        let sql = "WITH RECURSIVE runs (id) AS (
                 VALUES (?1) UNION
                 SELECT j.id FROM jobs j JOIN runs ON j.previous = runs.id WHERE j.schedule IS NOT NULL)
             SELECT max(jobs.id) FROM runs JOIN jobs ON jobs.id = runs.id WHERE ended IS NULL";
        let live: Option<i64> = self.value(sql, [id.0])?;
        Ok(live.map_or(id, JobId))
    }

    /// Returns the jobs that have not ended and those that ended after `since`, in the order of their submission.
    /// [`Moment::FIRST`] selects all jobs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn jobs(&self, since: Moment) -> Result<Vec<Job>, StoreError> {
        let sql = format!("{JOBS} WHERE ended IS NULL OR ended > ?1 ORDER BY id");
        self.rows(&sql, [since.0], read_job)
    }

    /// Returns one page of the list of jobs, newest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn page(
        &self,
        Page {
            states,
            before,
            length_max,
        }: &Page,
    ) -> Result<Vec<Job>, StoreError> {
        let before = before.map_or(i64::MAX, |before| before.0);
        let mut newest = Vec::new();
        if states.is_empty() {
            newest = self.rows(&newest_sql(), (before, length_max), read_job)?;
        }
        for state in states {
            let parameters = (state.as_ref(), before, length_max);
            newest.extend(self.rows(&newest_in_state_sql(), parameters, read_job)?);
        }
        newest.sort_unstable_by_key(|job| Reverse(job.id));
        newest.truncate(usize::try_from(*length_max).unwrap_or(usize::MAX));
        Ok(newest)
    }

    /// Returns the number of jobs in each state that occurs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn counts(&self) -> Result<Vec<(State, u64)>, StoreError> {
        self.rows(COUNTS_SQL, (), |row| {
            let word: String = row.get(0)?;
            Ok((read_state(&word)?, unsigned(row.get(1)?)))
        })
    }

    /// Returns at most `length_max` events of all jobs with numbers above `number`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn events_after(&self, number: i64, length_max: u32) -> Result<Vec<JobEvent>, StoreError> {
        let sql = "SELECT number, job, time, kind, attempt, message FROM events WHERE number > ?1
             ORDER BY number LIMIT ?2";
        self.rows(sql, (number, length_max), read_event)
    }

    /// Returns the number of the latest event, or 0 if there is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn last_event(&self) -> Result<i64, StoreError> {
        self.value("SELECT coalesce(max(number), 0) FROM events", ())
    }

    /// Returns a number that changes whenever another connection has changed the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn version_of_data(&self) -> Result<i64, StoreError> {
        self.value("PRAGMA data_version", ())
    }

    /// Returns a pair of numbers that changes whenever any connection, including this one, has changed the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn changes(&self) -> Result<(i64, i64), StoreError> {
        let own = self.value("SELECT total_changes()", ())?;
        Ok((self.version_of_data()?, own))
    }

    /// Returns at most `length_max` events of one job with numbers above `after`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn events(
        &self,
        id: JobId,
        after: i64,
        length_max: u32,
    ) -> Result<Vec<JobEvent>, StoreError> {
        let sql = "SELECT number, job, time, kind, attempt, message FROM events WHERE job = ?1 AND number > ?2
             ORDER BY number LIMIT ?3";
        self.rows(sql, (id.0, after, length_max), read_event)
    }

    /// Visits the queued jobs, or only those that watch their sources, in the order of urgency.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn queued(
        &self,
        which: Queued,
        mut visit: impl FnMut(QueuedJob),
    ) -> Result<(), StoreError> {
        let condition = match which {
            Queued::All => "1",
            // `--watch` and the NUL byte after it.
            Queued::ToWatch => "instr(arguments, x'2d2d776174636800') > 0",
        };
        let sql = format!(
            "SELECT {QUEUED} FROM jobs WHERE state = 'queued' AND {condition} ORDER BY priority DESC, id"
        );
        self.rows(&sql, (), |row| read_queued(row).map(&mut visit))
            .map(drop)
    }

    /// Returns the running jobs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn running(&self) -> Result<Vec<RunningJob>, StoreError> {
        let sql = format!(
            "SELECT {QUEUED}, attempt, events_read, wish, deadline, furthest, files, bytes, seconds, limited_by
             FROM jobs WHERE state = 'running' ORDER BY id",
        );
        self.rows(&sql, (), |row| {
            Ok(RunningJob {
                job: read_queued(row)?,
                attempt: row.get(8)?,
                events_read: unsigned(row.get(9)?),
                wish: read_wish(row.get(10)?),
                deadline: Duration::from_millis(unsigned(row.get(11)?)),
                furthest: unsigned(row.get(12)?),
                moved: read_moved(row, 13)?.unwrap_or_default(),
            })
        })
    }

    /// Returns the earliest future start time of a waiting job, or `None` if there is none. If the start time of a
    /// waiting job has passed, the job waits for another job and is not considered.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn next_due(&self, now: Moment) -> Result<Option<Moment>, StoreError> {
        let sql = "SELECT min(not_before) FROM jobs WHERE state = 'waiting' AND not_before > ?1";
        let found: Option<i64> = self.value(sql, [now.0])?;
        Ok(found.map(Moment))
    }

    /// Returns whether a runner has work: jobs that start now or later without a request of the user, copies to end, or
    /// notifications to send. Paused jobs do not count.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn has_work(&self) -> Result<bool, StoreError> {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM jobs WHERE state IN ('waiting', 'queued', 'running'))
                 OR EXISTS (SELECT 1 FROM jobs WHERE {IS_LEFT})
                 OR EXISTS (SELECT 1 FROM notifications WHERE state = 'waiting')",
        );
        self.value(&sql, ())
    }
}

/// Selects the columns of a [`Job`].
const JOBS: &str = "SELECT id, submission, label, state, wish, source, target, host, priority, submitted, not_before, \
    started, ended, schedule, deadline, attempt, exit, message, files, bytes, seconds, limited_by, previous, notify FROM jobs";

/// Returns the SQL that selects at most ?2 jobs with ids below ?1, newest first.
pub(super) fn newest_sql() -> String {
    format!("{JOBS} WHERE id < ?1 ORDER BY id DESC LIMIT ?2")
}

/// Returns the SQL that selects at most ?3 jobs in state ?1 with ids below ?2, newest first. The ids come from the
/// index alone, so at most ?3 rows are read.
pub(super) fn newest_in_state_sql() -> String {
    format!(
        "{JOBS} WHERE id IN (SELECT id FROM jobs WHERE state = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3)"
    )
}

pub(super) const COUNTS_SQL: &str = "SELECT state, count(*) FROM jobs GROUP BY state";

fn read_job(row: &Row<'_>) -> rusqlite::Result<Job> {
    let moment = |column| -> rusqlite::Result<Option<Moment>> {
        Ok(row.get::<_, Option<i64>>(column)?.map(Moment))
    };
    let word: String = row.get(3)?;
    Ok(Job {
        id: JobId(row.get(0)?),
        submission: row.get(1)?,
        label: row.get(2)?,
        state: read_state(&word)?,
        wish: read_wish(row.get(4)?),
        source: row.get(5)?,
        target: row.get(6)?,
        host: row.get(7)?,
        priority: row.get(8)?,
        submitted: Moment(row.get(9)?),
        not_before: moment(10)?,
        started: moment(11)?,
        ended: moment(12)?,
        schedule: row.get(13)?,
        deadline: Duration::from_millis(unsigned(row.get(14)?)),
        attempt: row.get(15)?,
        exit: row.get(16)?,
        message: row.get(17)?,
        moved: read_moved(row, 18)?,
        previous: row.get::<_, Option<i64>>(22)?.map(JobId),
        notify: row.get(23)?,
    })
}

fn read_state(word: &str) -> rusqlite::Result<State> {
    let fail = |error: String| {
        rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, error.into())
    };
    word.parse().map_err(fail)
}

/// The columns of a [`QueuedJob`].
const QUEUED: &str = "id, host, source, target, label, priority, environment, arguments";

fn read_queued(row: &Row<'_>) -> rusqlite::Result<QueuedJob> {
    let words = |column| -> rusqlite::Result<ArgumentList> {
        Ok(ArgumentList::decode_nul_terminated(
            row.get_ref(column)?.as_blob()?,
        ))
    };
    let home = words(6)?.0.into_iter().find_map(|word| {
        Some(OsStr::from_bytes(word.as_bytes().strip_prefix(b"ZMOVE_HOME=")?).to_owned())
    });
    Ok(QueuedJob {
        id: JobId(row.get(0)?),
        host: row.get(1)?,
        source: row.get(2)?,
        target: row.get(3)?,
        label: row.get(4)?,
        priority: row.get(5)?,
        home: home.unwrap_or_default(),
        watches: words(7)?.0.iter().any(|word| word == "--watch"),
    })
}
