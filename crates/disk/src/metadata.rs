//! The metadata of entries: how it is read and set, which of it a file system stores, and which of it new entries
//! inherit.

pub(crate) mod attributes;
pub(crate) mod entry;
pub(crate) mod inheritance;
pub(crate) mod storable_times;
pub(crate) mod time_resolutions;
