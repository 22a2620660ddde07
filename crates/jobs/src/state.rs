//! The states of a job and the steps between them.
//!
//! ```text
//!            ┌────────── Hold ──────────┐
//!            │    ┌───── Hold ───┐      ▼
//! waiting ─Release─► queued ─Start─► running ─┬─Finish─► done
//!    ▲  ▲              ▲  ▲            │  │   ├─Fail───► failed
//!    │  └─ Resume ─ paused │  Requeue ─┘  │   ├─Cancel─► cancelled
//!    └───────── Retry ─────┴──────────────┘   └─Expire─► expired
//! ```
//!
//! A job that has not ended can be cancelled. **Invariant:** no step leaves a final state, so a job ends exactly once.

use std::fmt;

use serde::Serialize;
use strum::{AsRefStr, Display, EnumString, VariantArray};
use utoipa::ToSchema;

/// The state of a job.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Display,
    EnumString,
    AsRefStr,
    VariantArray,
    Serialize,
    ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown)]
pub enum State {
    /// The start time has not been reached, or another job must be done first.
    Waiting,
    /// The job starts as soon as the limits of the runner allow it.
    Queued,
    /// A process is executing the job.
    Running,
    /// Held by the user.
    Paused,
    /// Everything is at the target.
    Done,
    /// Ended by an error that would also stop another attempt.
    Failed,
    /// Cancelled by the user.
    Cancelled,
    /// No progress was made for the time of the job's deadline.
    Expired,
}

/// A transition between two states of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The start time was reached, and the jobs that had to be done first are done.
    Release,
    /// A process is about to be started.
    Start,
    /// The process died without reporting a result, and the job is to continue.
    Requeue,
    /// The attempt failed, but another attempt may succeed.
    Retry,
    /// Everything is at the target.
    Finish,
    /// The job failed permanently.
    Fail,
    /// The user holds the job.
    Hold,
    /// The user resumes the job.
    Resume,
    /// The user cancels the job.
    Cancel,
    /// The deadline passed without progress.
    Expire,
}

/// A step that is not possible in the job's current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that {} cannot {step}", .state.phrase())]
pub struct IllegalStep {
    /// The job's state.
    pub state: State,
    /// The rejected step.
    pub step: Step,
}

impl State {
    /// Returns whether the job has ended.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(
            self,
            Self::Done | Self::Failed | Self::Cancelled | Self::Expired
        )
    }

    /// Returns the state that follows a step.
    ///
    /// # Errors
    /// The step is not possible in this state.
    pub fn after(self, step: Step) -> Result<Self, IllegalStep> {
        let next = match (self, step) {
            (Self::Waiting, Step::Release) | (Self::Running, Step::Requeue) => Self::Queued,
            (Self::Queued, Step::Start) => Self::Running,
            (Self::Running, Step::Retry) | (Self::Paused, Step::Resume) => Self::Waiting,
            (Self::Running, Step::Finish) => Self::Done,
            // A waiting job also fails if a job that it depends on has ended without being done.
            (Self::Running | Self::Waiting, Step::Fail) => Self::Failed,
            (Self::Waiting | Self::Queued | Self::Running, Step::Hold) => Self::Paused,
            (Self::Waiting | Self::Queued | Self::Running | Self::Paused, Step::Cancel) => {
                Self::Cancelled
            }
            (Self::Running, Step::Expire) => Self::Expired,
            _ => return Err(IllegalStep { state: self, step }),
        };
        Ok(next)
    }

    /// Returns the predicate of a sentence about a job in this state, as in "job 7 has failed".
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Waiting => "is waiting",
            Self::Queued => "is queued",
            Self::Running => "is running",
            Self::Paused => "is paused",
            Self::Done => "is done",
            Self::Failed => "has failed",
            Self::Cancelled => "was cancelled",
            Self::Expired => "has expired",
        }
    }
}

fn unknown(word: &str) -> String {
    format!(
        "'{word}' is not a job state: write waiting, queued, running, paused, done, failed, cancelled or expired"
    )
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Release => "be released",
            Self::Start => "start",
            Self::Requeue => "be queued again",
            Self::Retry => "be tried again",
            Self::Finish => "be done",
            Self::Fail => "fail",
            Self::Hold => "be paused",
            Self::Resume => "be resumed",
            Self::Cancel => "be cancelled",
            Self::Expire => "expire",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 10] = [
        Step::Release,
        Step::Start,
        Step::Requeue,
        Step::Retry,
        Step::Finish,
        Step::Fail,
        Step::Hold,
        Step::Resume,
        Step::Cancel,
        Step::Expire,
    ];

    /// Returns the index of a step in [`STEPS`]. The match does not compile if a step is missing, so the test can check
    /// that [`STEPS`] contains all of them.
    fn place(step: Step) -> usize {
        match step {
            Step::Release => 0,
            Step::Start => 1,
            Step::Requeue => 2,
            Step::Retry => 3,
            Step::Finish => 4,
            Step::Fail => 5,
            Step::Hold => 6,
            Step::Resume => 7,
            Step::Cancel => 8,
            Step::Expire => 9,
        }
    }

    #[test]
    fn each_state_takes_these_steps_and_no_others() {
        assert!(STEPS.into_iter().map(place).eq(0..STEPS.len()));
        let mut table = String::new();
        for &state in State::VARIANTS {
            let legal = STEPS.into_iter().filter_map(|step| {
                let next = state.after(step).ok()?;
                Some(format!("{step:?}={next}"))
            });
            table += &format!("{state}: {}\n", legal.collect::<Vec<_>>().join(" "));
        }
        let expected = "\
waiting: Release=queued Fail=failed Hold=paused Cancel=cancelled
queued: Start=running Hold=paused Cancel=cancelled
running: Requeue=queued Retry=waiting Finish=done Fail=failed Hold=paused Cancel=cancelled Expire=expired
paused: Resume=waiting Cancel=cancelled
done: \nfailed: \ncancelled: \nexpired: \n";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_word_is_read_as_its_state() {
        assert!(
            State::VARIANTS
                .iter()
                .all(|state| state.as_ref().parse() == Ok(*state))
        );
        assert!("gone".parse::<State>().is_err());
    }
}
