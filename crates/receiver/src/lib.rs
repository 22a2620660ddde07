//! The receiving role: check what arrives, store it, commit it, report it.
//!
//! [`run_session`] receives one transfer over any control connection and lanes. **Invariant:** only bytes whose hash is
//! the one that the sender has sent are stored (`session/verify.rs` makes the proof, the writers demand it), and only a
//! file with all its groups gets its name.

mod cleaning;
mod comparison;
mod config;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod meters;
mod probe;
mod resume;
mod rights;
mod session;
mod shared_job;
mod store;
mod sync;

pub use comparison::entries::listed::{ListError, ListedFiles, Unlisted};
pub use comparison::selection::{book_rules, selection};
pub use config::{MeasureStorage, NamedFiles, ReceiverConfig, SweepTarget};
pub use error::SessionError;
pub use meters::{Failures, MeterReading, TransferMeter};
pub use resume::journal;
pub use rights::grant::{
    Allowance, Amount, Grants, Leading, Owning, Rights, SetIds, Stored, TakenUp,
};
pub use rights::quota::limits::{Limits, Portion, files_of_process};
pub use rights::quota::{Booking, Quota, Quotas, ThreadBooking};
pub use rights::top_names::{ListedPaths, TopNames};
pub use session::connections::{Looked, SessionReport, unless_stopped};
pub use session::leases::run_leases::{RunLease, RunLeases, RunLeasesByKey};
pub use session::leases::target_sessions::TargetSessions;
pub use session::{Opening, SenderPlace, Session, run_session};
pub use store::target::{WriteAccess, choose_root, without_dots};
