//! The entries of a directory tree: paths, attributes and contents.

pub(crate) mod data_ranges;
pub(crate) mod digest;
pub(crate) mod kinds;
pub(crate) mod metadata;
pub(crate) mod rel_path;
