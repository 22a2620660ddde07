//! What `crates/fuzz` runs of this crate: each function takes any bytes and panics when a decoder breaks a promise.
//!
//! The program never calls these functions, so they are not in its binary.

pub use crate::resume::journal::fuzzing::{
    framed, job_journal, journal, journal_files, journal_records,
};
pub use crate::session::verify::fuzzing::sealed_frame;
