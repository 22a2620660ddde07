//! Opens entries below a root or by name, and finds the mounts that contain them.

pub(crate) mod by_name;
pub(crate) mod dead_mount;
pub(crate) mod proc;
pub(crate) mod region;
pub(crate) mod tree;
pub(crate) mod unanswered;
