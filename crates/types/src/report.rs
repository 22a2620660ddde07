//! Reports of a transfer: stages, events, counters, and the data delivered by its sessions.

pub(crate) mod counters;
pub(crate) mod delivery_log;
pub(crate) mod event;
pub(crate) mod stage;
