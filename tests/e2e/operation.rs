//! Daemons as a service, and the tools of operators.

pub(crate) mod busy;
pub(crate) mod doctor;
pub(crate) mod journal;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod operator;
pub(crate) mod probe;
pub(crate) mod process_limits;
pub(crate) mod scan;
pub(crate) mod service;
pub(crate) mod sweep;
