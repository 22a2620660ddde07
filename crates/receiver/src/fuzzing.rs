//! What `crates/fuzz` runs of this crate: each function takes any bytes and panics when a decoder breaks a promise.
//!
//! Only with the feature `fuzzing`, which the program is not built with.

pub use crate::resume::journal::fuzzing::{
    framed, job_journal, journal, journal_files, journal_records,
};
pub use crate::session::verify::fuzzing::sealed_frame;
