//! The metadata of entries: how it is read and set, which kinds of metadata a file system stores, and which kinds new
//! entries inherit.

pub(crate) mod attributes;
pub(crate) mod entry;
pub(crate) mod inheritance;
pub(crate) mod storable_times;
pub(crate) mod time_resolutions;
