//! Leases. They ensure that only one session of a run is active, and only while its sender is alive.

pub(crate) mod earlier;
pub(crate) mod keeping;
pub(crate) mod run_leases;
pub(crate) mod target_sessions;
