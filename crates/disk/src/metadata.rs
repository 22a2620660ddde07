//! The attributes of entries: what they are, what a file system keeps of them, and what a directory passes on.

pub(crate) mod attributes;
pub(crate) mod entry;
pub(crate) mod inheritance;
pub(crate) mod kept_times;
pub(crate) mod storable_times;
