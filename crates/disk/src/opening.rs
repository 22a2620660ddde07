//! How entries are reached: beneath a root, by name, and on which mount.

pub(crate) mod by_name;
pub(crate) mod dead_mount;
pub(crate) mod proc;
pub(crate) mod region;
pub(crate) mod tree;
