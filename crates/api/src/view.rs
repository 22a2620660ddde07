//! Jobs and events as programs read them: the objects of `docs/schema/job.json`, which `zmove jobs --json` prints too.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;
use zmove_jobs::{Job, JobEvent, JobId, Moment, Place, Progress, State, Wish, progress_of};

/// A job, and how far it is if it runs. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct JobView {
    /// The version of this object.
    schema: u32,
    /// The job's number.
    pub id: i64,
    /// The user's name for it.
    label: String,
    /// One of `waiting`, `queued`, `running`, `paused`, `done`, `failed`, `cancelled`, `expired`.
    state: &'static str,
    /// What the runner has been asked to do with a running job: `pause` or `cancel`.
    asked: Option<&'static str>,
    /// What is moved.
    source: String,
    /// Where to.
    target: String,
    /// The other host; empty: none.
    host: String,
    /// Higher ones begin first.
    priority: i32,
    /// The submission's id.
    submission: Option<String>,
    /// The job that this one does again.
    previous: Option<i64>,
    /// The times at which it is done again, as in a crontab.
    schedule: Option<String>,
    /// When it was submitted.
    submitted: i64,
    /// When it begins, or tries again.
    not_before: Option<i64>,
    /// When its first attempt began.
    started: Option<i64>,
    /// When it ended.
    ended: Option<i64>,
    /// The longest time in which nothing is moved before it is given up.
    deadline_seconds: u64,
    /// The number of its last attempt.
    attempts: u32,
    /// The exit code of its last attempt, as of `zmove copy`.
    exit: Option<i32>,
    /// Why it is as it is.
    message: Option<String>,
    /// Of the running attempt at the target, of an ended one moved.
    files: Option<u64>,
    /// Bytes, counted as `files` are.
    bytes: Option<u64>,
    /// Files found by the running attempt.
    files_found: Option<u64>,
    /// Bytes found by the running attempt.
    bytes_found: Option<u64>,
    /// Whether the running attempt has found all.
    scan_ended: Option<bool>,
    /// How long the attempt has taken.
    seconds: Option<f64>,
    /// The present rate, or that of the whole attempt.
    bytes_per_second: Option<f64>,
    /// The time that is left at the present rate.
    eta_seconds: Option<u64>,
    /// Connections that carry data.
    lanes: Option<u32>,
    /// What limits it, or did: as in `docs/schema/events.json`.
    limited_by: Option<String>,
}

impl JobView {
    /// A job as it is now.
    #[must_use]
    pub fn of(place: &Place, job: &Job) -> Self {
        let runs = job.state == State::Running;
        let progress = runs.then(|| progress_of(place, job.id, job.attempt)).flatten();
        Self::new(job, progress.as_ref())
    }

    /// A job that is so far.
    #[must_use]
    pub fn new(job: &Job, progress: Option<&Progress>) -> Self {
        let seconds = |moment: Option<Moment>| moment.map(|moment| moment.0.div_euclid(1000));
        let (job, moved) = (job.clone(), job.moved.as_ref());
        Self {
            schema: SCHEMA,
            id: job.id.0,
            state: job.state.word(),
            asked: job.wish.map(wish_word),
            priority: job.priority,
            previous: job.previous.map(|previous| previous.0),
            submitted: job.submitted.0.div_euclid(1000),
            not_before: seconds(job.not_before),
            started: seconds(job.started),
            ended: seconds(job.ended),
            deadline_seconds: job.deadline.as_secs(),
            attempts: job.attempt,
            exit: job.exit,
            files: progress.map(|progress| progress.files_done).or(moved.map(|moved| moved.files)),
            bytes: progress.map(|progress| progress.bytes_done).or(moved.map(|moved| moved.bytes)),
            files_found: progress.map(|progress| progress.files_found),
            bytes_found: progress.map(|progress| progress.bytes_found),
            scan_ended: progress.map(|progress| progress.scan_ended),
            seconds: progress.map(|progress| progress.seconds).or(moved.map(|moved| moved.seconds)),
            bytes_per_second: progress.map(|progress| progress.bytes_per_second).or_else(|| rate(&job)),
            eta_seconds: progress.and_then(left).map(|left| left.as_secs()),
            lanes: progress.map(|progress| progress.lanes),
            limited_by: progress
                .map(|progress| progress.limited_by.clone())
                .or_else(|| moved?.limited_by.clone()),
            label: job.label,
            source: job.source,
            target: job.target,
            host: job.host,
            submission: job.submission,
            schedule: job.schedule,
            message: job.message,
        }
    }
}

/// How far a running job is: the fields of the job that change.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ProgressView {
    /// The job's number.
    id: i64,
    /// Files at the target.
    files: u64,
    /// Bytes at the target.
    bytes: u64,
    /// Files found.
    files_found: u64,
    /// Bytes found.
    bytes_found: u64,
    /// Whether all has been found.
    scan_ended: bool,
    /// How long the attempt has taken.
    seconds: f64,
    /// The present rate.
    bytes_per_second: f64,
    /// The time that is left at the present rate.
    eta_seconds: Option<u64>,
    /// Connections that carry data.
    lanes: u32,
    /// What limits it.
    limited_by: String,
}

impl ProgressView {
    pub(crate) fn new(id: JobId, progress: &Progress) -> Self {
        Self {
            id: id.0,
            files: progress.files_done,
            bytes: progress.bytes_done,
            files_found: progress.files_found,
            bytes_found: progress.bytes_found,
            scan_ended: progress.scan_ended,
            seconds: progress.seconds,
            bytes_per_second: progress.bytes_per_second,
            eta_seconds: left(progress).map(|left| left.as_secs()),
            lanes: progress.lanes,
            limited_by: progress.limited_by.clone(),
        }
    }
}

/// The rate of an ended attempt.
#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn rate(job: &Job) -> Option<f64> {
    let moved = job.moved.as_ref().filter(|moved| moved.seconds > 0.0)?;
    Some(moved.bytes as f64 / moved.seconds)
}

/// The time that is left at the present rate.
#[expect(clippy::cast_precision_loss, reason = "a time that is left is a guess")]
fn left(progress: &Progress) -> Option<Duration> {
    if !progress.scan_ended || progress.bytes_per_second < 1.0 {
        return None;
    }
    let left = progress.bytes_found.saturating_sub(progress.bytes_done) as f64;
    Duration::try_from_secs_f64(left / progress.bytes_per_second).ok()
}

fn wish_word(wish: Wish) -> &'static str {
    match wish {
        Wish::Pause => "pause",
        Wish::Cancel => "cancel",
    }
}

/// Something that has happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EventView {
    /// The version of this object.
    schema: u32,
    /// The event's number: later ones of any job have higher ones.
    pub number: i64,
    /// The job.
    job: i64,
    /// When, in seconds since 1970.
    time: i64,
    /// What: a state, or the name of an event of the transfer.
    event: String,
    /// The attempt under way.
    attempt: u32,
    /// More of it, for people.
    message: Option<String>,
}

impl From<JobEvent> for EventView {
    fn from(event: JobEvent) -> Self {
        Self {
            schema: SCHEMA,
            number: event.number,
            job: event.job.0,
            time: event.time.0.div_euclid(1000),
            event: event.kind,
            attempt: event.attempt,
            message: event.message,
        }
    }
}

/// The version of the objects, which `docs/schema/job.json` describes.
const SCHEMA: u32 = 1;
