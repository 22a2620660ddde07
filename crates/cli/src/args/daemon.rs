//! The arguments of the commands that run, query and configure the daemon.

pub(crate) mod allow;
pub(crate) mod journal;
pub(crate) mod operate;
pub(crate) mod serve;
pub(crate) mod trust;
