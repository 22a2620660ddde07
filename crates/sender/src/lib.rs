//! The sending role. It scans, plans, reads, hashes and sends, and keeps account of every entry until the receiver has
//! reported its result.
//!
//! [`Push::start`] begins the scan immediately. [`Push::run`] sends over a given control connection and its lanes.
//!
//! **Invariant:** a file counts as done only when the receiver confirms it. The last group of a large file is sent only
//! after the source was found unchanged, so that a file that changed during the copy is never completed at the target.

mod account;
#[doc(hidden)]
pub mod benching;
mod cleaning;
mod control;
mod error;
mod inspect;
mod mirror;
mod plan;
mod probe;
mod push;
mod read;
mod send;
mod tune;

pub use account::failure::file_changed;
pub use account::manifest::{Manifest, ProofMethod, Prover};
pub use cleaning::{CleanEvent, clean};
pub use control::admission::ask_admission;
pub use control::link::{LaneCount, LaneSupply, Link, LossReaction};
pub use control::relay::{
    NoQuota, PeerQuota, Relay, RelayMessage, Reservation, SessionEndCallback,
};
pub use error::SessionError;
pub use mirror::{RemovalGuard, Removals};
pub use plan::pack::PackSizes;
pub use probe::{
    Carried, ProbeConfig, ProbeEvent, ProbeReport, RAMP_MIN, RAMP_ROUND_TRIPS, Round, RoundTrips,
    probe,
};
pub use push::config::{FallbackAttributes, OwnerMapping, SenderConfig};
pub use push::feed::{Feeder, PieceHandle, SessionEnded};
pub use push::job::{LaneDemand, Push, PushJob};
pub use push::piece::{PieceProgress, Settled, SharedLargeFile};
pub use push::run::{Run, RunState, SessionProgress};

pub use tune::congestion_controls::LOSS_TOLERANT;
pub use zmove_wire::{
    BestRate, Bottleneck, LearnedSettings, Limit, PathAdvice, PathReport, Summary,
};
