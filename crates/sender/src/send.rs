//! The sending stage: lanes, their threads, and the work in flight on them.

pub(crate) mod frames;
pub(crate) mod in_flight;
pub(crate) mod lane;
pub(crate) mod lane_set;
pub(crate) mod push_rate;
pub(crate) mod sent;
