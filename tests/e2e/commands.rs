//! All commands except the push, and their output.

pub(crate) mod api;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod dry_run;
pub(crate) mod exit_codes;
pub(crate) mod habits;
pub(crate) mod jobs;
pub(crate) mod mistakes;
pub(crate) mod output;
pub(crate) mod pull;
pub(crate) mod python;
pub(crate) mod schema;
pub(crate) mod ssh;
pub(crate) mod verify;
