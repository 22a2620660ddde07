//! Comparison of the source with the target.

pub(crate) mod entries;
pub(crate) mod mirror;
pub(crate) mod selection;
