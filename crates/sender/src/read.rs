//! The reading stage: threads that take work from the plan, read and hash it, and pass frames to the lanes.

mod entries;
pub(crate) mod extras;
pub(crate) mod group_values;
pub(crate) mod holes;
pub(crate) mod read_ahead;
pub(crate) mod reader;
pub(crate) mod reader_count;
pub(crate) mod source;
