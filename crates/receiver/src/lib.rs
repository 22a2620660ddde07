//! The receiving role: admit, check what arrives, store it, commit it, report it.
//!
//! [`run_session`] receives one transfer over any control connection and lanes; [`Daemon`] listens, admits by key and
//! runs sessions. **Invariant:** only bytes whose hash is the one that the sender has sent are stored
//! (`session/verify.rs` makes the proof, the writers demand it), and only a file with all its groups gets its name.

mod config;
mod daemon;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod meters;
mod mirror;
mod preview;
mod probe;
mod quota;
mod resume;
mod session;
mod store;
mod sync;

pub use config::ReceiverConfig;
pub use daemon::Daemon;
pub use daemon::authorizer::Authorizer;
pub use daemon::event::{DaemonEvent, Moved, Rejection, Who};
pub use error::SessionError;
pub use meters::{MeterReading, Meters, TransferMeter};
pub use quota::Quota;
pub use quota::limits::Limits;
pub use resume::journal;
pub use session::connections::SessionReport;
pub use session::run_leases::RunLeases;
pub use session::target_leases::TargetLeases;
pub use session::{Session, run_session};
pub use store::rules::{Owning, SetIds};
pub use store::target::WriteAccess;
