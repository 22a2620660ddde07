//! Commands that measure a host, a path or a tree.

pub(crate) mod doctor;
pub(crate) mod probe;
pub(crate) mod scan;
pub(crate) mod sweep;
pub(crate) mod trace;
