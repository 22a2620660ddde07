//! Jobs that run in the background: they are submitted, shown and run.

pub(crate) mod follow;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod runner;
pub(crate) mod submit;
