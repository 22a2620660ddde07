//! The fuzz targets of this crate, run by `crates/fuzz`. Each function accepts arbitrary bytes and panics if a decoder
//! violates one of its guarantees.
//!
//! The program never calls these functions, so they are not part of its binary.

pub use crate::connecting::location::fuzzing::location;
pub use crate::connecting::path_memory::fuzzing::paths;
pub use crate::connecting::ssh::ssh_messages_fuzzing::ssh_words;
