//! The arguments of the commands that move, compare or clean trees.

pub(crate) mod clean;
pub(crate) mod copy;
pub(crate) mod push;
pub(crate) mod verify;
