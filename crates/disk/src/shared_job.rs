//! Jobs in which receivers on several hosts write into one directory.

pub(crate) mod directory;
pub(crate) mod names;
