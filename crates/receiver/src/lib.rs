//! The receiving side of a transfer: verifies, stores and commits incoming data, and reports the results to the sender.
//!
//! [`run_session`] receives one transfer over any control connection and any lanes. **Invariant:** data is stored only
//! if its hash matches the sender's hash. Only `session/verify.rs` creates values of the types for verified data, and
//! writers accept only these types. A file is renamed into place only when all its groups have been stored.

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
pub use comparison::selection::{charge_rules, selection};
pub use config::{MeasureStorage, NamedFiles, ReceiverConfig, SweepTarget};
pub use error::SessionError;
pub use meters::{Failures, MeterReading, TransferMeter};
pub use resume::journal;
pub use rights::grant::{
    Allowance, Amount, Grants, LeaderPermission, OwnerPermission, RedeemedGrant, Rights, SetIds,
    Stored,
};
pub use rights::quota::limits::{Limits, Portion, files_of_process};
pub use rights::quota::{Charge, Quota, Quotas, ThreadCharge};
pub use rights::top_names::{ListedPaths, TopNames};
pub use session::connections::{InspectionKind, SessionReport, unless_stopped};
pub use session::leases::run_leases::{RunLease, RunLeases, RunLeasesByKey};
pub use session::leases::target_sessions::TargetSessions;
pub use session::{Opening, SenderLocation, Session, run_session};
pub use store::target::{WriteAccess, choose_root, without_dots};
