//! The sending role: scan, plan, read, hash, send; and keep account until the receiver has said what became of it all.
//!
//! [`Push::start`] begins the scan at once; [`Push::run`] sends over whatever control connection and lanes it is given.
//! **Invariant:** a file counts as done only when the receiver says so, and the last group of a large file leaves only
//! after the source was seen unchanged, so that a file that changed under the copy never becomes whole at the target.

mod aboard;
mod ahead;
#[cfg(feature = "benching")]
#[doc(hidden)]
pub mod benching;
mod config;
mod control;
mod crew;
mod error;
mod flights;
mod lanes;
mod manifest;
mod mirror;
mod news;
mod offering;
mod pack;
mod path;
mod planner;
mod preview;
mod probe;
mod push;
mod reader;
mod run;
mod shared;
mod source;
mod steering;
mod summary;
mod survey;
mod tune;
mod verdict;

pub use config::{PushJob, SenderConfig};
pub use control::{LaneNumber, LaneSupply, Link, LossAnswer};
pub use error::SessionError;
pub use manifest::Manifest;
pub use mirror::{AfterErrors, Guard, Removals};
pub use path::{Finding, PathReport};
pub use probe::{
    Carried, ProbeConfig, ProbeEvent, ProbeReport, RAMP_MIN, RAMP_ROUND_TRIPS, Round, RoundTrips, probe,
};
pub use push::{Need, Push};
pub use run::Run;
pub use summary::{Learnt, Preview, Summary};
pub use verdict::{Limit, Verdict};
