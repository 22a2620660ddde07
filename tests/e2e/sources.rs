//! Kinds of sources and the entries that arrive from them.

pub(crate) mod bad_sources;
pub(crate) mod changing;
pub(crate) mod dead_mount;
pub(crate) mod generated;
pub(crate) mod holes;
pub(crate) mod links;
pub(crate) mod merged;
pub(crate) mod metadata;
pub(crate) mod renames;
pub(crate) mod selection;
pub(crate) mod slashes;
pub(crate) mod subvolumes;
pub(crate) mod times;
pub(crate) mod trees;
