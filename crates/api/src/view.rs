//! Jobs and events as programs read them: the objects of `docs/schema/job.json`, which `zmove jobs --json` prints too.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;
use zmove_jobs::{Job, JobEvent, JobId, Moment, Moved, Place, Progress, State, Watching, Wish, progress_of};

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
    /// Files at the target, of the last attempt before the job's end; then those that it has moved.
    pub files: Option<u64>,
    /// Bytes, counted as `files` are.
    pub bytes: Option<u64>,
    /// Files found by that attempt.
    files_found: Option<u64>,
    /// Bytes found by that attempt.
    pub bytes_found: Option<u64>,
    /// Whether that attempt has found all.
    scan_ended: Option<bool>,
    /// How long the attempt has taken.
    seconds: Option<f64>,
    /// The present rate, or that of the whole attempt.
    pub bytes_per_second: Option<f64>,
    /// The time that is left at the present rate.
    pub eta_seconds: Option<u64>,
    /// Connections that carry data.
    lanes: Option<u32>,
    /// What limits it, or did: as in `docs/schema/events.json`.
    pub limited_by: Option<String>,
    /// How it watches its source, if it does.
    watch: Option<WatchView>,
}

/// How a job watches its source.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
struct WatchView {
    /// `events` of the kernel, or `walks` alone.
    by: String,
    /// The reason for walks alone.
    why: Option<String>,
    /// Directories that the kernel watches.
    directories: u64,
    /// Files that are to be moved now.
    ready: u64,
    /// Files that change, or rest.
    changing: u64,
    /// Whether there is nothing to be moved.
    idle: bool,
}

impl From<&Watching> for WatchView {
    fn from(watching: &Watching) -> Self {
        let Watching { by, why, directories, ready, changing, idle } = watching.clone();
        Self { by, why, directories, ready, changing, idle }
    }
}

impl JobView {
    /// A job as it is now.
    #[must_use]
    pub fn of(place: &Place, job: &Job) -> Self {
        Self::new(job, reached(place, job).as_ref())
    }

    /// A job whose last attempt is, or was, so far.
    #[must_use]
    pub fn new(job: &Job, progress: Option<&Progress>) -> Self {
        let seconds = |moment: Option<Moment>| moment.map(|moment| moment.0.div_euclid(1000));
        let now = progress.filter(|_| job.state == State::Running);
        let (job, moved) = (job.clone(), job.moved.as_ref());
        let at_the_end = moved.filter(|_| job.state.is_final());
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
            bytes_per_second: now.map(|now| now.bytes_per_second).or_else(|| at_the_end.and_then(rate)),
            eta_seconds: now.and_then(left).map(|left| left.as_secs()),
            lanes: now.map(|now| now.lanes),
            limited_by: now.map(|now| now.limited_by.clone()).or_else(|| at_the_end?.limited_by.clone()),
            watch: progress.and_then(|progress| progress.watch.as_ref()).map(WatchView::from),
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

/// How far the last attempt of a job is, or was, that has not ended: one that is held or tried again shows what it has
/// come to.
#[must_use]
pub fn reached(place: &Place, job: &Job) -> Option<Progress> {
    let has_come = job.attempt > 0 && !job.state.is_final();
    has_come.then(|| progress_of(place, job.id, job.attempt)).flatten()
}

/// The rate of an ended attempt.
#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn rate(moved: &Moved) -> Option<f64> {
    (moved.seconds > 0.0).then(|| moved.bytes as f64 / moved.seconds)
}

/// The time that is left at the present rate.
#[expect(clippy::cast_precision_loss, reason = "a time that is left is a guess")]
fn left(progress: &Progress) -> Option<Duration> {
    // More may come where it is watched for.
    if !progress.scan_ended || progress.bytes_per_second < 1.0 || progress.watch.is_some() {
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
