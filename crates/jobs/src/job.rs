//! What a job is: its words, its terms, and what has become of it.

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

/// The number of a job, which no other job ever has in the same store.
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
            .map_err(|_| "a job is named by its number, which 'zmove jobs' shows")
    }
}

/// Words of a command line, or of its environment: none holds a NUL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<OsString>);

impl Words {
    /// The words, each with a NUL behind it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|word| word.as_bytes().iter().copied().chain([0]))
            .collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
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

/// The process that does a job: the words behind the program's name, and where and with what they mean what they did
/// when they were typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobWork {
    /// The words behind the program's name.
    pub arguments: Words,
    /// The directory that relative paths begin at.
    pub directory: PathBuf,
    /// `NAME=VALUE`, over what the runner has.
    pub environment: Words,
}

/// A job to be.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The submission's id: a second job with the same is the first one.
    pub submission: Option<String>,
    /// The user's name for it.
    pub label: String,
    /// The work.
    pub work: JobWork,
    /// What is moved, to be shown.
    pub source: String,
    /// Where to, to be shown and counted.
    pub target: String,
    /// The other host, to be counted; empty: none.
    pub host: String,
    /// Higher ones begin first.
    pub priority: i32,
    /// The moment before which it does not begin.
    pub not_before: Option<Moment>,
    /// The start time as it was typed, from which `not_before` is computed anew after the clock was corrected.
    pub at: Option<StartTime>,
    /// The times at which it is done again.
    pub schedule: Option<Schedule>,
    /// The jobs that have to be done before.
    pub after: Vec<JobId>,
    /// The longest time in which nothing is moved before it is given up.
    pub deadline: Duration,
    /// A text of the user for the hook and the webhook.
    pub notify: Option<String>,
}

/// What a user asks of a job that is running, until the runner has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, AsRefStr, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Wish {
    /// To be held.
    Pause,
    /// To be ended.
    Cancel,
}

/// What attempts have moved that have ended, by their own word: what was there already is no part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moved {
    /// Files moved.
    pub files: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// The time that took.
    pub seconds: f64,
    /// What limited the last one, in the words of `limited_by`.
    pub limited_by: Option<String>,
}

impl Moved {
    /// The sum of the attempts before and a later one.
    #[must_use]
    pub fn sum(before: Option<Self>, later: Option<Self>) -> Option<Self> {
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
    /// The attempt's number, from 1 on.
    pub number: u32,
    /// When it ended.
    pub ended: Moment,
    /// What the job was then.
    pub state: State,
    /// The exit code, if it is known.
    pub exit: Option<i32>,
    /// Why it ended so.
    pub message: Option<String>,
    /// Files that it has moved.
    pub files: u64,
    /// Bytes that it has moved.
    pub bytes: u64,
    /// The time it took.
    pub seconds: f64,
}

/// A job as the store has it, and as programs read it (`docs/schema/job.json`).
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Job {
    /// The job's number.
    pub id: JobId,
    /// The submission's id.
    pub submission: Option<String>,
    /// The user's name for it.
    pub label: String,
    /// A text of the user for the hook and the webhook.
    #[serde(skip)]
    pub notify: Option<String>,
    /// What has become of it.
    pub state: State,
    /// What the runner has been asked to do with a running job.
    #[serde(rename = "asked")]
    pub wish: Option<Wish>,
    /// What is moved.
    pub source: String,
    /// Where to.
    pub target: String,
    /// The other host; empty: none.
    pub host: String,
    /// Higher ones begin first.
    pub priority: i32,
    /// When it was submitted.
    pub submitted: Moment,
    /// When it begins, or tries again.
    pub not_before: Option<Moment>,
    /// When its first attempt began.
    pub started: Option<Moment>,
    /// When it ended.
    pub ended: Option<Moment>,
    /// The times at which it is done again, as in a crontab.
    pub schedule: Option<String>,
    /// The longest time in which nothing is moved before it is given up.
    #[serde(rename = "deadline_seconds", serialize_with = "in_seconds")]
    #[schema(value_type = u64)]
    pub deadline: Duration,
    /// The number of its last attempt.
    #[serde(rename = "attempts")]
    pub attempt: u32,
    /// The exit code of its last attempt, as of `zmove copy`.
    pub exit: Option<i32>,
    /// Why it is as it is, where there is something to say.
    pub message: Option<String>,
    /// What all of its attempts have moved that have ended.
    #[serde(skip)]
    pub moved: Option<Moved>,
    /// The job that this one does again.
    pub previous: Option<JobId>,
}

fn in_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_secs())
}

/// Something that has happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct JobEvent {
    /// The event's number: later ones of any job have higher ones.
    pub number: i64,
    /// The job.
    pub job: JobId,
    /// When.
    pub time: Moment,
    /// What: a state, or the name of an event of the transfer.
    #[serde(rename = "event")]
    pub kind: String,
    /// The attempt under way.
    pub attempt: u32,
    /// More of it, for people.
    pub message: Option<String>,
}

/// A word of the environment, as `NAME=VALUE`.
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
            let words = Words(words);
            assert_eq!(Words::from_bytes(&words.to_bytes()), words);
        }
    }
}
