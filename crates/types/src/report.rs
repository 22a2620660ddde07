//! What a transfer reports: its stages, its events, its counters, and what it has brought.

pub(crate) mod brought;
pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod stage;
