//! File contents: reading, writing, finding holes, and the threads that wait for storage.

pub(crate) mod file_io;
pub(crate) mod holes;
pub(crate) mod storage_threads;
