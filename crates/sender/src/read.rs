//! Reading: threads that take work from the plan, read it, hash it, and hand frames to the lanes.

mod entries;
pub(crate) mod extras;
pub(crate) mod group_values;
pub(crate) mod holes;
pub(crate) mod read_ahead;
pub(crate) mod reader;
pub(crate) mod reader_count;
pub(crate) mod source;
