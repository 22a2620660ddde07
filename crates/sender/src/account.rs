//! The account of a push: what was found, moved and refused, where its time went, and what is told of it at the end.

pub(crate) mod bottleneck;
pub(crate) mod manifest;
pub(crate) mod summary;
