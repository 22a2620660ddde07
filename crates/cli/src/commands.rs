//! The commands, with one module for each. A command turns its arguments into an exit code.

mod background;
pub(crate) mod clean;
mod daemon;
pub(crate) mod derived;
pub(crate) mod key;
mod measure;
mod several;
#[cfg(test)]
mod tests;
mod transfers;
pub(crate) mod trust;

pub(crate) use self::background::{follow, job, jobs, runner, submit};
pub(crate) use self::daemon::{allow, journal, operate, serve};
pub(crate) use self::measure::{doctor, probe, scan, sweep, trace};
pub(crate) use self::several::{cluster, cluster_push, participants, shared_job, spread};
pub(crate) use self::transfers::{copy, mount, pull, push, receive, transfer, verify};
