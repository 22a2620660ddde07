//! Jobs and events as programs read them: the objects of `docs/schema/job.json`, which `zmove jobs --json` also prints.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;
use zmove_jobs::{
    AttemptProgress, Job, JobEvent, JobId, JobsDirectory, Nodes, State, TransferTotals, Watching,
    progress_of,
};

/// A job and its progress.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct JobView {
    /// The schema version of this object.
    schema: u32,
    /// The job.
    #[serde(flatten)]
    job: Job,
    /// The job's progress.
    #[serde(flatten)]
    pub figures: Figures,
    /// The state of the watch, if the job watches its source.
    watch: Option<Watching>,
}

/// Figures of a job that change while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Figures {
    /// Files moved by all attempts.
    pub files: Option<u64>,
    /// Bytes moved by all attempts.
    pub bytes: Option<u64>,
    /// Files at the target, out of those that the latest attempt has found. Files that were there before are included.
    /// Null once the job has ended, like the following fields up to `scan_ended`.
    pub files_done: Option<u64>,
    /// Bytes at the target, counted like `files_done`.
    pub bytes_done: Option<u64>,
    /// Files found by the latest attempt.
    files_found: Option<u64>,
    /// Bytes found by the latest attempt.
    pub bytes_found: Option<u64>,
    /// Whether the latest attempt has found all files.
    scan_ended: Option<bool>,
    /// Duration of the latest attempt. If the job has ended: total duration of all attempts.
    seconds: Option<f64>,
    /// The current rate. If the job has ended: the average rate of all attempts.
    pub bytes_per_second: Option<f64>,
    /// Estimated time left at the current rate.
    pub eta_seconds: Option<u64>,
    /// Connections that carry data.
    lanes: Option<u32>,
    /// The current or last bottleneck, as in `docs/schema/events.json`.
    pub limited_by: Option<String>,
    /// The nodes that share the work, while the job runs and if there are several.
    nodes: Option<Nodes>,
}

impl Figures {
    /// Returns the figures of a job. `moved` has the totals of its finished attempts, and `progress` is that of its
    /// latest attempt.
    fn new(
        moved: Option<&TransferTotals>,
        progress: Option<&AttemptProgress>,
        state: State,
    ) -> Self {
        let now = progress.filter(|_| state == State::Running);
        let at_the_end = moved.filter(|_| state.is_final());
        let all = TransferTotals::add(moved.cloned(), now.map(AttemptProgress::moved));
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
            eta_seconds: now.and_then(time_left).map(|left| left.as_secs()),
            lanes: now.map(|now| now.lanes),
            limited_by: now
                .map(|now| now.limited_by.clone())
                .or_else(|| at_the_end?.limited_by.clone()),
            nodes: now.and_then(|now| now.nodes.clone()),
        }
    }
}

impl JobView {
    /// Returns a job with its current progress.
    #[must_use]
    pub fn of(place: &JobsDirectory, job: &Job) -> Self {
        Self::new(job, current_progress(place, job).as_ref())
    }

    /// Returns a job with the progress of its latest attempt.
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

/// The progress of a running job: the fields of the job that change.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ProgressView {
    /// The job's number.
    id: JobId,
    /// The job's progress.
    #[serde(flatten)]
    figures: Figures,
}

impl ProgressView {
    /// Returns the progress of a job whose earlier attempts have moved `moved`.
    pub(crate) fn new(id: JobId, moved: &TransferTotals, progress: &AttemptProgress) -> Self {
        Self {
            id,
            figures: Figures::new(Some(moved), Some(progress), State::Running),
        }
    }
}

/// Returns the progress of a job's latest attempt, unless the job has ended. A job that is paused or waits for another
/// attempt has the progress that its latest attempt reached.
#[must_use]
pub fn current_progress(place: &JobsDirectory, job: &Job) -> Option<AttemptProgress> {
    let has_come = job.attempt > 0 && !job.state.is_final();
    has_come
        .then(|| progress_of(place, job.id, job.attempt))
        .flatten()
}

/// Returns the average rate of finished attempts, in bytes per second.
#[expect(
    clippy::cast_precision_loss,
    reason = "a rate is shown with three digits"
)]
fn rate(moved: &TransferTotals) -> Option<f64> {
    (moved.seconds > 0.0 && moved.bytes > 0).then(|| moved.bytes as f64 / moved.seconds)
}

/// Returns the estimated time left at the current rate.
#[expect(clippy::cast_precision_loss, reason = "a time that is left is a guess")]
fn time_left(progress: &AttemptProgress) -> Option<Duration> {
    // A watched source may change at any time, so there is no end to estimate.
    let rate = progress.bytes_per_second.filter(|rate| *rate >= 1.0)?;
    if !progress.scan_ended || progress.watch.is_some() {
        return None;
    }
    if !can_estimate_time_left(progress.bytes_moved, progress.bytes_found) {
        return None;
    }
    let left = progress.bytes_found.saturating_sub(progress.bytes_done) as f64;
    Duration::try_from_secs_f64(left / rate).ok()
}

/// Returns whether enough data was moved to estimate the remaining time. The bytes of a large file are counted by
/// group. On a slow path the first group takes a minute, and until then only a few small files determine the rate.
#[must_use]
pub fn can_estimate_time_left(bytes_moved: u64, bytes_found: u64) -> bool {
    bytes_moved > 0 && bytes_moved >= TELLING_BYTES.min(bytes_found / TELLING_SHARE)
}

/// The size of a group, in bytes.
const TELLING_BYTES: u64 = 4 << 20;
/// If the job is smaller than this many groups, this fraction of the job is enough.
const TELLING_SHARE: u64 = 20;

/// An event of a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EventView {
    /// The schema version of this object.
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

/// The schema version of the objects, which `docs/schema/job.json` describes.
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
            tells.map(|(moved, found)| can_estimate_time_left(moved, found)),
            [false, false, true, true, true]
        );
    }
}
