//! What `crates/fuzz` runs of this crate: each function takes any bytes and panics when a decoder breaks a promise.
//!
//! Only with the feature `fuzzing`, which the program is not built with.

pub use crate::location::fuzzing::location;
pub use crate::path_memory::fuzzing::paths;
pub use crate::ssh::order_fuzzing::ssh_words;
