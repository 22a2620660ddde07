//! The fuzz targets of this crate, which `crates/fuzz` runs: each function takes any bytes and panics when a decoder
//! breaks a promise.
//!
//! The program never calls these functions, so they are not in its binary.

pub use crate::sources::path_list::fuzzing::path_list;
