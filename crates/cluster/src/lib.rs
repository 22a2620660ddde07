//! A job of many nodes: senders that take work from one queue, and receivers that write into one shared file system.
//!
//! ```text
//!  head ──► queue ──► mover ──► receiver ──┐
//!   ▲         ▲ └───► mover ──► receiver ──┼──► one directory, one journal for each session
//!   │         └─ children ─┘               │
//!   └──────────── counts of the journals ◄─┘
//! ```
//!
//! **Invariant:** the queue is a cache. It may lose, repeat and reorder work: the job has ended when the receivers'
//! journals say that all work has, and what the queue has lost is found again by walking the sources once more.

mod cut;
mod error;
mod finish;
mod head;
mod head_lease;
pub mod jetstream;
mod job;
#[cfg(test)]
mod lab;
mod local_queue;
mod mover;
mod node;
mod one_target;
mod orders;
mod session;
mod told;
mod work;
mod work_queue;

pub use error::{Hindrance, SessionEnd, Stop, WorkError};
pub use head::{Head, JobEnd, JobError, Others};
pub use head_lease::HeadLease;
pub use job::{HeldGrant, SharedJob, View};
pub use local_queue::{Lease, LocalQueue};
pub use node::Node;
pub use session::{Receiver, Served};
pub use told::Told;
pub use work::{ITEM_BYTES_MAX, LargeFile, Marks, Place, Work, WorkItem};
pub use work_queue::{LEASE, Taken, Waiting, WorkQueue};
