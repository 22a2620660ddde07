//! What the store tells.

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rusqlite::Row;

use super::Store;
use super::copies::IS_LEFT;
use super::rows::{read_event, read_moved, read_wish, unsigned};
use crate::error::StoreError;
use crate::job::{AttemptEnd, Job, JobEvent, JobId, Moved, Wish, Words};
use crate::moment::Moment;
use crate::state::State;

/// A piece of the list of jobs, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Only jobs in these states; none: in any.
    pub states: Vec<State>,
    /// Only jobs that were submitted before this one.
    pub before: Option<JobId>,
    /// How many at most.
    pub length_max: u32,
}

/// The queued jobs that are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// All jobs.
    All,
    /// Jobs that watch their sources.
    ToWatch,
}

/// A job that may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    /// The job.
    pub id: JobId,
    /// The other host.
    pub host: String,
    /// What is moved.
    pub source: String,
    /// Where to.
    pub target: String,
    /// The user's name for it.
    pub label: String,
    /// Higher ones begin first.
    pub priority: i32,
    /// The home of the keys that it uses; empty: the runner's.
    pub home: OsString,
    /// Whether it goes on until it is cancelled, mostly without anything to do.
    pub watches: bool,
}

/// A job that is running, or was when its runner died.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningJob {
    /// The job, to be counted.
    pub job: QueuedJob,
    /// The attempt.
    pub attempt: u32,
    /// How far its events have been read.
    pub events_read: u64,
    /// What is asked of it.
    pub wish: Option<Wish>,
    /// The longest time in which nothing is moved before it is given up.
    pub deadline: Duration,
    /// The furthest that any attempt has come.
    pub furthest: u64,
    /// What attempts before this one have moved.
    pub moved: Moved,
}

impl Store {
    /// One job.
    ///
    /// # Errors
    /// There is no such job.
    pub fn job(&self, id: JobId) -> Result<Job, StoreError> {
        let found = self.rows(&format!("{JOBS} WHERE id = ?1"), [id.0], read_job)?;
        found.into_iter().next().ok_or(StoreError::NoJob(id))
    }

    /// The ends of a job's attempts, as far as they have ended.
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

    /// The run of a job's schedule that has not ended, if the job is an ended one of a schedule; else the job itself.
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

    /// The jobs that have not ended, and those that ended after `since` ([`Moment::FIRST`]: all), in the order in which
    /// they were submitted.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn jobs(&self, since: Moment) -> Result<Vec<Job>, StoreError> {
        let sql = format!("{JOBS} WHERE ended IS NULL OR ended > ?1 ORDER BY id");
        self.rows(&sql, [since.0], read_job)
    }

    /// A piece of the list of jobs, the newest first.
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

    /// How many jobs there are in each state that has some.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn counts(&self) -> Result<Vec<(State, u64)>, StoreError> {
        self.rows(COUNTS_SQL, (), |row| {
            let word: String = row.get(0)?;
            Ok((read_state(&word)?, unsigned(row.get(1)?)))
        })
    }

    /// What has happened to any job after the event with this number, so much of it at most.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn events_after(&self, number: i64, length_max: u32) -> Result<Vec<JobEvent>, StoreError> {
        let sql = "SELECT number, job, time, kind, attempt, message FROM events WHERE number > ?1
             ORDER BY number LIMIT ?2";
        self.rows(sql, (number, length_max), read_event)
    }

    /// The number of the last event; 0 before the first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn last_event(&self) -> Result<i64, StoreError> {
        self.value("SELECT coalesce(max(number), 0) FROM events", ())
    }

    /// A number that is another one once any other connection has changed the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn version_of_data(&self) -> Result<i64, StoreError> {
        self.value("PRAGMA data_version", ())
    }

    /// A pair that is another one once anybody has changed the store, this one too.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn changes(&self) -> Result<(i64, i64), StoreError> {
        let own = self.value("SELECT total_changes()", ())?;
        Ok((self.version_of_data()?, own))
    }

    /// What has happened to a job after the event with this number, so much of it at most.
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

    /// Visits the jobs that may begin, or only those that watch their sources, the most urgent first.
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
            // `--watch` and the NUL behind it
            Queued::ToWatch => "instr(arguments, x'2d2d776174636800') > 0",
        };
        let sql = format!(
            "SELECT {QUEUED} FROM jobs WHERE state = 'queued' AND {condition} ORDER BY priority DESC, id"
        );
        self.rows(&sql, (), |row| read_queued(row).map(&mut visit))
            .map(drop)
    }

    /// The jobs that are running.
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

    /// The first moment after this at which a waiting job has its time; none if none has. What was due before waits for
    /// something else.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn next_due(&self, now: Moment) -> Result<Option<Moment>, StoreError> {
        let sql = "SELECT min(not_before) FROM jobs WHERE state = 'waiting' AND not_before > ?1";
        let found: Option<i64> = self.value(sql, [now.0])?;
        Ok(found.map(Moment))
    }

    /// Whether a runner has anything to do, now or later by itself, or notifications to send: paused jobs are not
    /// its business.
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

/// All that a [`Job`] has.
const JOBS: &str = "SELECT id, submission, label, state, wish, source, target, host, priority, submitted, not_before, \
    started, ended, schedule, deadline, attempt, exit, message, files, bytes, seconds, limited_by, previous, notify FROM jobs";

/// The newest jobs: before ?1, at most ?2.
pub(super) fn newest_sql() -> String {
    format!("{JOBS} WHERE id < ?1 ORDER BY id DESC LIMIT ?2")
}

/// The newest jobs in state ?1: before ?2, at most ?3. The index has all that finds the numbers; only so many rows are
/// read.
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

/// All that a [`QueuedJob`] has.
const QUEUED: &str = "id, host, source, target, label, priority, environment, arguments";

fn read_queued(row: &Row<'_>) -> rusqlite::Result<QueuedJob> {
    let words = |column| -> rusqlite::Result<Words> {
        Ok(Words::from_bytes(row.get_ref(column)?.as_blob()?))
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
