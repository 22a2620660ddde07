//! Jobs and events as programs read them: the objects of `docs/schema/job.json`, which `zmove jobs --json` prints too.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;
use zmove_jobs::{
    AttemptProgress, Job, JobEvent, JobId, Moved, Nodes, Place, State, Watching, progress_of,
};

/// A job, and how far it is if it runs.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct JobView {
    /// The version of this object.
    schema: u32,
    /// The job.
    #[serde(flatten)]
    job: Job,
    /// How far it is.
    #[serde(flatten)]
    pub figures: Figures,
    /// How it watches its source, if it does.
    watch: Option<Watching>,
}

/// How far a job is: what changes while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Figures {
    /// Files that all of its attempts have moved.
    pub files: Option<u64>,
    /// Bytes that all of its attempts have moved.
    pub bytes: Option<u64>,
    /// Files at the target of those that its last attempt has found, also those that were there before; null once the
    /// job has ended, as is what follows to `scan_ended`.
    pub files_done: Option<u64>,
    /// Bytes at the target, counted as `files_done` are.
    pub bytes_done: Option<u64>,
    /// Files found by that attempt.
    files_found: Option<u64>,
    /// Bytes found by that attempt.
    pub bytes_found: Option<u64>,
    /// Whether that attempt has found all.
    scan_ended: Option<bool>,
    /// How long that attempt has taken; of an ended job, all of them together.
    seconds: Option<f64>,
    /// The present rate of what moves; of an ended job, that of all its attempts.
    pub bytes_per_second: Option<f64>,
    /// The time that is left at the present rate.
    pub eta_seconds: Option<u64>,
    /// Connections that carry data.
    lanes: Option<u32>,
    /// What limits it, or did: as in `docs/schema/events.json`.
    pub limited_by: Option<String>,
    /// The nodes that take part, while it runs and where there are several.
    nodes: Option<Nodes>,
}

impl Figures {
    /// The figures of a job of which ended attempts have moved this, and whose last one is, or was, so far.
    fn new(moved: Option<&Moved>, progress: Option<&AttemptProgress>, state: State) -> Self {
        let now = progress.filter(|_| state == State::Running);
        let at_the_end = moved.filter(|_| state.is_final());
        let all = Moved::sum(moved.cloned(), now.map(AttemptProgress::moved));
        Self {
            files: all.as_ref().map(|all| all.files),
            bytes: all.map(|all| all.bytes),
            files_done: progress.map(|progress| progress.files_done),
            bytes_done: progress.map(|progress| progress.bytes_done),
            files_found: progress.map(|progress| progress.files_found),
            bytes_found: progress.map(|progress| progress.bytes_found),
            scan_ended: progress.map(|progress| progress.scan_ended),
            seconds: progress
                .map(|progress| progress.seconds)
                .or(at_the_end.map(|moved| moved.seconds)),
            bytes_per_second: now
                .and_then(|now| now.bytes_per_second)
                .or_else(|| at_the_end.and_then(rate)),
            eta_seconds: now.and_then(left).map(|left| left.as_secs()),
            lanes: now.map(|now| now.lanes),
            limited_by: now
                .map(|now| now.limited_by.clone())
                .or_else(|| at_the_end?.limited_by.clone()),
            nodes: now.and_then(|now| now.nodes.clone()),
        }
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
    pub fn new(job: &Job, progress: Option<&AttemptProgress>) -> Self {
        Self {
            schema: SCHEMA,
            job: job.clone(),
            figures: Figures::new(job.moved.as_ref(), progress, job.state),
            watch: progress.and_then(|progress| progress.watch.clone()),
        }
    }
}

/// How far a running job is: the fields of the job that change.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ProgressView {
    /// The job's number.
    id: JobId,
    /// How far it is.
    #[serde(flatten)]
    figures: Figures,
}

impl ProgressView {
    /// That of a job whose attempts before this one have moved so much.
    pub(crate) fn new(id: JobId, moved: &Moved, progress: &AttemptProgress) -> Self {
        Self {
            id,
            figures: Figures::new(Some(moved), Some(progress), State::Running),
        }
    }
}

/// How far the last attempt of a job is, or was, that has not ended: one that is held or tried again shows what it has
/// come to.
#[must_use]
pub fn reached(place: &Place, job: &Job) -> Option<AttemptProgress> {
    let has_come = job.attempt > 0 && !job.state.is_final();
    has_come
        .then(|| progress_of(place, job.id, job.attempt))
        .flatten()
}

/// The rate of an ended attempt.
#[expect(
    clippy::cast_precision_loss,
    reason = "a rate is shown with three digits"
)]
fn rate(moved: &Moved) -> Option<f64> {
    (moved.seconds > 0.0 && moved.bytes > 0).then(|| moved.bytes as f64 / moved.seconds)
}

/// The time that is left at the present rate.
#[expect(clippy::cast_precision_loss, reason = "a time that is left is a guess")]
fn left(progress: &AttemptProgress) -> Option<Duration> {
    // More may come where it is watched for.
    let rate = progress.bytes_per_second.filter(|rate| *rate >= 1.0)?;
    if !progress.scan_ended || progress.watch.is_some() {
        return None;
    }
    if !tells_time_left(progress.bytes_moved, progress.bytes_found) {
        return None;
    }
    let left = progress.bytes_found.saturating_sub(progress.bytes_done) as f64;
    Duration::try_from_secs_f64(left / rate).ok()
}

/// Whether what has been moved tells how long the rest takes. A large file counts by groups: on a slow path the first
/// takes a minute, and until then the rate is that of a few small files.
#[must_use]
pub fn tells_time_left(bytes_moved: u64, bytes_found: u64) -> bool {
    bytes_moved > 0 && bytes_moved >= TELLING_BYTES.min(bytes_found / TELLING_SHARE)
}

/// The size of a group.
const TELLING_BYTES: u64 = 4 << 20;
/// Of what is smaller than many groups, one part in so many tells.
const TELLING_SHARE: u64 = 20;

/// Something that has happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EventView {
    /// The version of this object.
    schema: u32,
    /// The event.
    #[serde(flatten)]
    event: JobEvent,
}

impl From<JobEvent> for EventView {
    fn from(event: JobEvent) -> Self {
        Self {
            schema: SCHEMA,
            event,
        }
    }
}

/// The version of the objects, which `docs/schema/job.json` describes.
const SCHEMA: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_small_files_do_not_tell_how_long_a_large_one_takes() {
        let tells = [
            (0, 0),
            (141, 30 << 20),
            (4 << 20, 1 << 40),
            (1 << 20, 20 << 20),
            (50, 1000),
        ];
        assert_eq!(
            tells.map(|(moved, found)| tells_time_left(moved, found)),
            [false, false, true, true, true]
        );
    }
}
