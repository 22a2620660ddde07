//! Entries that have no final name yet, including those left by processes that have ended.

pub(crate) mod abandoned;
pub(crate) mod guarded;
pub(crate) mod hidden;
pub(crate) mod new_files;
pub(crate) mod staged;
pub(crate) mod staging_directory;
