//! What broken transfers leave for later ones to resume from: the parts of large files, and the journals that record
//! them.

pub mod journal;
pub(crate) mod parts;
