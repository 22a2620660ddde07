//! The commands, one module each: from the arguments to an exit code.

pub(crate) mod allow;
pub(crate) mod clean;
pub(crate) mod cluster;
pub(crate) mod cluster_push;
pub(crate) mod copy;
pub(crate) mod derived;
pub(crate) mod doctor;
pub(crate) mod follow;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod journal;
pub(crate) mod key;
pub(crate) mod mount;
pub(crate) mod operate;
pub(crate) mod participants;
pub(crate) mod probe;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod receive;
pub(crate) mod runner;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod shared_job;
pub(crate) mod spread;
pub(crate) mod submit;
pub(crate) mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod trace;
pub(crate) mod transfer;
pub(crate) mod trust;
pub(crate) mod verify;
