//! The data to copy, the file systems of the targets, and the comparison of both trees.

pub(crate) mod datasets;
pub(crate) mod trees;
pub(crate) mod volume;
