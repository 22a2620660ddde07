//! Work items and their queues: one in this process, and one at a broker.

pub mod jetstream;
mod local_queue;
mod work;
mod work_queue;

pub use local_queue::{LocalLease, LocalQueue};
pub use work::{ITEM_BYTES_MAX, ItemWork, SplitFile, WorkItem};
pub use work_queue::{Announced, LEASE, Taken, WorkQueue};
