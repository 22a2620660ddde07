//! Entry points for `crates/fuzz`. Each function accepts arbitrary bytes and panics if a decoder violates one of its
//! guarantees.
//!
//! The program never calls these functions, so its binary does not contain them.

pub use crate::resume::journal::fuzzing::{
    framed, job_journal, journal, journal_files, journal_records,
};
pub use crate::session::verify::fuzzing::sealed_frame;
