//! Watches a directory tree and reports the files that are ready to be moved. A file is ready if its writer has closed
//! it, or if it has not changed for some time. `zmove submit --watch` uses this crate and moves the files.
//!
//! The kernel reports changes through inotify. The tree is also walked at intervals, because the kernel can drop events
//! and does not report changes that other hosts make on a network file system.
//!
//! **Invariant:** a ready file is handed out again until it has been settled in the version that was handed out. A file
//! that changed after it was handed out is handed out again.

mod events;
mod ledger;
mod stamp;
mod watch;

pub use ledger::Batch;
pub use watch::{ChangeDetection, Watch, WatchConfig, WatchStatus};
