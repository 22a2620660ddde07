//! What is copied, where it comes to lie, and whether both are the same.

pub(crate) mod datasets;
pub(crate) mod trees;
pub(crate) mod volume;
