//! The receiving role: check what arrives, store it, commit it, report it.
//!
//! [`run_session`] receives one transfer over any control connection and lanes. **Invariant:** only bytes whose hash is
//! the one that the sender has sent are stored (`session/verify.rs` makes the proof, the writers demand it), and only a
//! file with all its groups gets its name.

mod cleaning;
mod compare;
mod config;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod grant;
mod meters;
mod mirror;
mod other_jobs;
mod probe;
mod quota;
mod resume;
mod selection;
mod session;
mod shared_job;
mod store;
mod sync;
mod top_names;

pub use compare::listed::{ListError, ListedFiles, Unlisted};
pub use config::{MeasureStorage, NamedFiles, ReceiverConfig, SweepTarget};
pub use error::SessionError;
pub use grant::{Allowance, Amount, Grants, Leading, Owning, Rights, SetIds, Stored, TakenUp};
pub use meters::{Failures, MeterReading, TransferMeter};
pub use quota::limits::{Limits, Portion, files_of_process};
pub use quota::{Booking, Quota, Quotas, ThreadBooking};
pub use resume::journal;
pub use selection::{book_rules, selection};
pub use session::connections::{Looked, SessionReport, unless_stopped};
pub use session::run_leases::{RunLease, RunLeases, RunLeasesByKey};
pub use session::target_sessions::TargetSessions;
pub use session::{Opening, SenderPlace, Session, run_session};
pub use store::target::{WriteAccess, choose_root, without_dots};
pub use top_names::{ListedPaths, TopNames};
