//! Types that describe a job: its command line, its settings and its current state.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use strum::{AsRefStr, EnumString};
use utoipa::ToSchema;

use crate::moment::Moment;
use crate::schedule::{Schedule, StartTime};
use crate::state::State;

/// The number of a job. A store never reuses a number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for JobId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        text.parse()
            .map(Self)
            .map_err(|_| "write the number of a job, as 'zmove jobs' shows it")
    }
}

/// Words of a command line or variables of its environment. No word contains a NUL byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArgumentList(pub Vec<OsString>);

impl ArgumentList {
    /// Encodes the words. A NUL byte terminates each word.
    pub(crate) fn encode_nul_terminated(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|word| word.as_bytes().iter().copied().chain([0]))
            .collect()
    }

    pub(crate) fn decode_nul_terminated(bytes: &[u8]) -> Self {
        let words = bytes
            .strip_suffix(&[0])
            .map(|bytes| bytes.split(|&byte| byte == 0));
        Self(
            words
                .into_iter()
                .flatten()
                .map(|word| OsStr::from_bytes(word).to_owned())
                .collect(),
        )
    }
}

/// The command that executes a job: the arguments after the program's name, and the directory and environment in which
/// they were typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobWork {
    /// Arguments after the program's name.
    pub arguments: ArgumentList,
    /// The working directory, to which relative paths refer.
    pub directory: PathBuf,
    /// Variables as `NAME=VALUE`, which override those of the runner.
    pub environment: ArgumentList,
}

/// A job to submit.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The id of the submission. A second submission with the same id returns the existing job.
    pub submission: Option<String>,
    /// The user's name for the job.
    pub label: String,
    /// The command to execute.
    pub work: JobWork,
    /// The source, for display.
    pub source: String,
    /// The target, for display and for the limit of jobs per target.
    pub target: String,
    /// The other host, for the limit of jobs per host. Empty if there is none.
    pub host: String,
    /// The priority. Jobs with a higher priority start first.
    pub priority: i32,
    /// The earliest start time.
    pub not_before: Option<Moment>,
    /// The start time as typed. If the clock is corrected after the submission, `not_before` is computed again from
    /// this text.
    pub at: Option<StartTime>,
    /// The schedule on which the job is repeated.
    pub schedule: Option<Schedule>,
    /// Jobs that must be done before this job starts.
    pub after: Vec<JobId>,
    /// The maximum time without progress before the job is given up.
    pub deadline: Duration,
    /// User text that is included in notifications.
    pub notify: Option<String>,
}

/// A pending request of the user for a running job. It is cleared when the runner has carried it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, AsRefStr, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Wish {
    /// Hold the job.
    Pause,
    /// End the job.
    Cancel,
}

/// Totals of finished attempts, as the processes of the attempts reported them. Data that was already at the target is
/// not included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransferTotals {
    /// Files moved.
    pub files: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Time spent, in seconds.
    pub seconds: f64,
    /// The bottleneck of the latest attempt, as in `limited_by` of its events.
    pub limited_by: Option<String>,
}

impl TransferTotals {
    /// Returns the totals of the earlier attempts plus those of a later attempt.
    #[must_use]
    pub fn add(before: Option<Self>, later: Option<Self>) -> Option<Self> {
        match (before, later) {
            (Some(before), Some(later)) => Some(Self {
                files: before.files.saturating_add(later.files),
                bytes: before.bytes.saturating_add(later.bytes),
                seconds: before.seconds + later.seconds,
                limited_by: later.limited_by.or(before.limited_by),
            }),
            (before, later) => before.or(later),
        }
    }
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttemptEnd {
    /// The attempt's number, starting at 1.
    pub number: u32,
    /// When the attempt ended.
    pub ended: Moment,
    /// The job's state after the attempt.
    pub state: State,
    /// The exit code, if it is known.
    pub exit: Option<i32>,
    /// The reason for the result.
    pub message: Option<String>,
    /// Files moved by the attempt.
    pub files: u64,
    /// Bytes moved by the attempt.
    pub bytes: u64,
    /// Duration of the attempt, in seconds.
    pub seconds: f64,
}

/// A job as stored, and as programs read it (`docs/schema/job.json`).
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Job {
    /// The job's number.
    pub id: JobId,
    /// The id of the submission.
    pub submission: Option<String>,
    /// The user's name for the job.
    pub label: String,
    /// User text that is included in notifications.
    #[serde(skip)]
    pub notify: Option<String>,
    /// The current state.
    pub state: State,
    /// A pending request of the user for a running job.
    #[serde(rename = "asked")]
    pub wish: Option<Wish>,
    /// The source.
    pub source: String,
    /// The target.
    pub target: String,
    /// The other host. Empty if there is none.
    pub host: String,
    /// The priority. Jobs with a higher priority start first.
    pub priority: i32,
    /// When the job was submitted.
    pub submitted: Moment,
    /// When the job starts, or when its next attempt starts.
    pub not_before: Option<Moment>,
    /// When the first attempt started.
    pub started: Option<Moment>,
    /// When the job ended.
    pub ended: Option<Moment>,
    /// The schedule on which the job is repeated, in crontab syntax.
    pub schedule: Option<String>,
    /// The maximum time without progress before the job is given up.
    #[serde(rename = "deadline_seconds", serialize_with = "in_seconds")]
    #[schema(value_type = u64)]
    pub deadline: Duration,
    /// The number of the latest attempt.
    #[serde(rename = "attempts")]
    pub attempt: u32,
    /// The exit code of the latest attempt, as documented for `zmove copy`.
    pub exit: Option<i32>,
    /// The reason for the current state, if there is one.
    pub message: Option<String>,
    /// Totals of all finished attempts.
    #[serde(skip)]
    pub moved: Option<TransferTotals>,
    /// The job that this job repeats.
    pub previous: Option<JobId>,
}

fn in_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_secs())
}

/// An event of a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct JobEvent {
    /// The event's number. Numbers increase over the events of all jobs.
    pub number: i64,
    /// The job.
    pub job: JobId,
    /// When the event occurred.
    pub time: Moment,
    /// The kind: a state of the job, or the name of an event of the transfer.
    #[serde(rename = "event")]
    pub kind: String,
    /// The number of the attempt during which the event occurred.
    pub attempt: u32,
    /// Details for people.
    pub message: Option<String>,
}

/// Returns an environment variable as `NAME=VALUE`.
#[must_use]
pub fn variable(name: &str, value: &OsStr) -> OsString {
    OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were() {
        let raw = OsString::from_vec(vec![0xff, b' ']);
        for words in [
            vec![],
            vec![OsString::new()],
            vec!["a b".into(), raw, OsString::new(), "x".into()],
        ] {
            let words = ArgumentList(words);
            assert_eq!(
                ArgumentList::decode_nul_terminated(&words.encode_nul_terminated()),
                words
            );
        }
    }
}
