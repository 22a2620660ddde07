//! A job of many nodes: senders that take work from one queue, and receivers that write into one shared file system.
//!
//! ```text
//!  head ──► queue ──► mover ──► receiver ──┐
//!   ▲         ▲ └───► mover ──► receiver ──┼──► one directory
//!   │         └─ children ─┘ │             ┘
//!   └─────── tallies ────────┘
//! ```
//!
//! **Invariant:** an item leaves the queue when its files are at the target and flushed, and what it announced is in
//! the queue or done. So the job has ended when the queue is empty and has lost nothing. What a queue has lost is found
//! again by another pass over the sources, which skips what is at the target.

mod cut;
mod error;
mod finish;
mod head;
mod head_lease;
pub mod jetstream;
mod job;
mod job_phase;
#[cfg(test)]
mod lab;
mod local_queue;
mod mover;
mod node;
mod one_target;
mod orders;
mod others;
mod seen_messages;
mod session;
mod tally;
mod work;
mod work_queue;

pub use error::{Hindrance, SessionEnd, Stop, WorkError};
pub use head::{Head, JobEnd, JobError};
pub use head_lease::HeadLease;
pub use job::{HeldGrant, Receiver, SharedJob, View};
pub use job_phase::JobPhase;
pub use local_queue::{LocalLease, LocalQueue};
pub use node::Node;
pub use others::Others;
pub use seen_messages::SeenMessages;
pub use session::Served;
pub use tally::Tally;
pub use work::{ITEM_BYTES_MAX, ItemWork, SplitFile, WorkItem};
pub use work_queue::{Announced, Done, LEASE, Taken, WorkQueue};
