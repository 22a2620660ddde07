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
pub use job::{AttemptEnd, Job, JobEvent, JobId, JobWork, Moved, NewJob, Wish, Words, variable};
pub use moment::Moment;
pub use nodes::{Node, Nodes, Pace, Party};
pub use notify::{NotifyConfig, NotifyError};
pub use place::{Place, bind_socket, end_of, is_shared};
pub use program::{Program, THIS_PROGRAM, host_name, this_program};
pub use runner::{
    AttemptProgress, COPY_TO_END, Follower, Limits, OF_THE_SUBMITTER, RunEnd, Runner, RunnerConfig,
    RunnerError, Stay, Watching, progress_of, samples_of, wake,
};
pub use schedule::{Schedule, StartTime, first_time, shown};
pub use state::{IllegalStep, State, Step};
pub use store::{
    Answer, AttemptEvent, AttemptVerdict, Ending, Notification, NotificationState, NotifyMethod,
    Page, Queued, QueuedJob, RunningJob, Started, Store, Submitted,
};
