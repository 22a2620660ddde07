//! The daemon of a host: its service, its operator, its grants and its journals.

pub(crate) mod allow;
pub(crate) mod journal;
pub(crate) mod operate;
pub(crate) mod serve;
