//! What comes is written, flushed, and given its name.

pub(crate) mod compare;
pub(crate) mod context;
pub(crate) mod failure;
pub(crate) mod in_place;
pub(crate) mod large_files;
pub(crate) mod outcome;
pub(crate) mod placer;
pub(crate) mod publishing;
pub(crate) mod set_ids;
pub(crate) mod target;
pub(crate) mod writer;
