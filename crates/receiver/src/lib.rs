//! The receiving role: admit, check what arrives, store it, commit it, say so.
//!
//! [`run_session`] receives one transfer over any control connection and lanes; [`Daemon`] listens, admits by key and
//! runs sessions. **Invariant:** only bytes that hashed to what the sender said are stored ([`check`](self) makes the
//! proof, the writers demand it), and only a file with all its groups gets its name.

mod account;
mod admission;
mod booked;
mod check;
mod compare;
mod config;
mod cores;
mod daemon;
mod delta;
mod directories;
mod ending;
mod error;
mod event;
mod file_systems;
mod files;
mod finish;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guests;
mod in_place;
mod inquire;
pub mod journal;
mod judging;
mod lanes;
mod limits;
mod line;
mod lost;
mod meters;
mod mirror;
mod old;
mod parts;
mod place;
mod preview;
mod probe;
mod publisher;
mod rates;
mod refusals;
mod registry;
mod seen;
mod session;
mod set_ids;
mod store;
mod target;
mod tasks;
mod turns;
mod unproven;
mod windows;

pub use account::Account;
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
