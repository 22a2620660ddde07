//! What is copied, where it comes to lie, and whether it has arrived.

pub(crate) mod again;
pub(crate) mod datasets;
pub(crate) mod first_byte;
pub(crate) mod trees;
pub(crate) mod volume;
