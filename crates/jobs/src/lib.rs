//! Transfers as jobs: a [`Store`] that keeps jobs and a [`Runner`] that executes them. The runner starts a process for
//! each job and retries the job until it is done, fails permanently or expires. `zmove submit`, `jobs`, `job` and
//! `runner` use this crate.
//!
//! **Invariants:** an accepted job stays in the store until it has ended and is deleted. A job ends exactly once.

mod environment;
mod error;
mod job;
mod moment;
mod nodes;
mod notify;
mod place;
mod program;
mod runner;
mod schedule;
mod state;
mod store;

pub use error::StoreError;
pub use job::{
    ArgumentList, AttemptEnd, Job, JobEvent, JobId, JobWork, NewJob, TransferTotals, Wish, variable,
};
pub use moment::Moment;
pub use nodes::{Node, Nodes, Pace, Party};
pub use notify::{NotifyConfig, NotifyError};
pub use place::{JobsDirectory, bind_socket, is_shared, read_tail};
pub use program::{Program, THIS_PROGRAM, host_name, this_program};
pub use runner::{
    AttemptProgress, COPY_TO_END, Follower, IdlePolicy, JOB_RUN, Limits, RunEnd, Runner,
    RunnerConfig, RunnerError, SUBMITTER_VARIABLES, Watching, progress_of, samples_of, wake,
};
pub use schedule::{Schedule, StartTime, first_time, format_local};
pub use state::{IllegalStep, State, Step};
pub use store::{
    AttemptEvent, AttemptVerdict, Ending, Notification, NotificationState, NotifyMethod, Page,
    Queued, QueuedJob, RequestResult, RunningJob, Started, Store, Submitted,
};
