//! What broken transfers leave, for others to go on from: the parts of large files, and the journals that tell of them.

pub mod journal;
pub(crate) mod parts;
