//! Reports of a transfer: stages, events, counters, and the data delivered by its sessions.

pub(crate) mod brought;
pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod stage;
