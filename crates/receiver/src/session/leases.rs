//! Leases: mutual exclusion between the sessions of a run, and checks whether a sender is alive.

pub(crate) mod earlier;
pub(crate) mod keeping;
pub(crate) mod run_leases;
pub(crate) mod target_sessions;
