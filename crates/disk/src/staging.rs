//! Entries that have no final name yet, including those of processes that have ended.

pub(crate) mod abandoned;
pub(crate) mod guarded;
pub(crate) mod hidden;
pub(crate) mod name_check;
pub(crate) mod new_files;
pub(crate) mod staged;
pub(crate) mod staging_directory;
