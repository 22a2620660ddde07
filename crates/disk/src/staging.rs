//! Entries that have no final name yet, and what ended processes have left of them.

pub(crate) mod abandoned;
pub(crate) mod guarded;
pub(crate) mod hidden;
pub(crate) mod new_files;
pub(crate) mod staged;
pub(crate) mod staging_directory;
