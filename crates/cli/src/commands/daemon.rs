//! The commands for the daemon of a host: its service, operation, grants and journals.

pub(crate) mod allow;
pub(crate) mod journal;
pub(crate) mod operate;
pub(crate) mod serve;
