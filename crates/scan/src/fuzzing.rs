//! The fuzz targets of this crate, run by `crates/fuzz`. Each function accepts any bytes and panics if a decoder
//! violates an invariant.
//!
//! The program never calls these functions, so its binary does not contain them.

pub use crate::sources::path_list::fuzzing::path_list;
