//! Storing received data: writing, flushing, and renaming into place.

pub(crate) mod failure;
pub(crate) mod in_place;
pub(crate) mod large_files;
pub(crate) mod placer;
pub(crate) mod proving;
pub(crate) mod publishing;
pub(crate) mod reports;
pub(crate) mod room;
pub(crate) mod rules;
pub(crate) mod spare_parts;
pub(crate) mod target;
pub(crate) mod transfer;
pub(crate) mod writer;
