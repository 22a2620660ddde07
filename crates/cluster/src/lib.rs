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

mod error;
mod head;
mod job;
#[cfg(test)]
mod lab;
mod mover;
mod node;
mod queue;
mod session;

pub use error::{Hindrance, SessionEnd, Stop, WorkError};
pub use head::{Head, JobEnd, JobError, JobPhase, Others};
pub use job::{HeadLease, HeldGrant, Receiver, SharedJob, Tally, View};
pub use node::Node;
pub use queue::{
    Announced, Done, ITEM_BYTES_MAX, ItemWork, LEASE, LocalLease, LocalQueue, SplitFile, Taken,
    WorkItem, WorkQueue, jetstream,
};
pub use session::{SeenMessages, Served};
