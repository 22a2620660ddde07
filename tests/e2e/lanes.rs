//! Lanes over TCP and QUIC: their number, their speed, and their data.

pub(crate) mod black_hole;
pub(crate) mod clear;
pub(crate) mod limit;
pub(crate) mod many_lanes;
pub(crate) mod more_lanes;
pub(crate) mod paths;
pub(crate) mod quic;
pub(crate) mod straggler;
pub(crate) mod verdict;
pub(crate) mod zones;
