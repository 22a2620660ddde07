//! Multi-node jobs: senders take work from a common queue, and receivers write into a shared file system.
//!
//! ```text
//!  head ──► queue ──► mover ──► receiver ──┐
//!   ▲         ▲ └───► mover ──► receiver ──┼──► one directory
//!   │         └─ children ─┘ │             ┘
//!   └─────── tallies ────────┘
//! ```
//!
//! **Invariant:** an item leaves the queue when its files are flushed at the target and all items that it announced are
//! in the queue or done. The job is therefore complete when the queue is empty and has lost nothing. Another pass over
//! the sources finds lost work again and skips files that are already at the target.

mod error;
mod head;
mod job;
#[cfg(test)]
mod lab;
mod mover;
mod node;
mod queue;
mod session;

pub use error::{BrokerMismatch, SessionEnd, WorkError};
pub use head::{Head, JobEnd, JobError, JobPhase, Others};
pub use job::{CurrentGrant, HeadLease, NodeRole, Receiver, SharedJob, Tally};
pub use node::Node;
pub use queue::{
    Announced, ITEM_BYTES_MAX, ItemWork, LEASE, LocalLease, LocalQueue, SplitFile, Taken, WorkItem,
    WorkQueue, jetstream,
};
pub use session::{SeenMessages, SessionResults};
