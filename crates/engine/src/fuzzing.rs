//! The fuzz targets of this crate, which `crates/fuzz` runs: each function takes any bytes and panics when a decoder
//! breaks a promise.
//!
//! The program never calls these functions, so they are not in its binary.

pub use crate::connecting::location::fuzzing::location;
pub use crate::connecting::path_memory::fuzzing::paths;
pub use crate::connecting::ssh::ssh_messages_fuzzing::ssh_words;
