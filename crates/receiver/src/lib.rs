//! The receiving role: admit, check what arrives, store it, commit it, say so.
//!
//! [`run_session`] receives one transfer over any control connection and lanes; [`Daemon`] listens, admits by key and
//! runs sessions. **Invariant:** only bytes that hashed to what the sender said are stored ([`check`](self) makes the
//! proof, the writers demand it), and only a file with all its groups gets its name.

mod admission;
mod check;
mod compare;
mod config;
mod daemon;
mod delta;
mod ending;
mod error;
mod event;
mod files;
mod finish;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guests;
mod in_place;
mod inquire;
pub mod journal;
mod lanes;
mod limits;
mod lost;
mod meters;
mod mirror;
mod nurseries;
mod old;
mod parts;
mod place;
mod preview;
mod probe;
mod rates;
mod registry;
mod seen;
mod session;
mod set_ids;
mod store;
mod target;
mod tasks;
mod turns;
mod unproven;
mod untouched;

pub use config::ReceiverConfig;
pub use daemon::Daemon;
pub use ending::EndingSessions;
pub use error::SessionError;
pub use event::{DaemonEvent, Moved, Rejection, Who};
pub use guests::Guests;
pub use limits::Limits;
pub use meters::{Meters, Reading, TransferMeter};
pub use session::{Session, SessionReport, run_session};
pub use set_ids::SetIds;
pub use target::Access;
pub use turns::Turns;
