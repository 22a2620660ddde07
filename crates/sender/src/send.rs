//! Sending: the lanes with their threads, and what is in flight on them.

pub(crate) mod aboard;
pub(crate) mod flights;
pub(crate) mod lane;
pub(crate) mod lane_set;
