//! Work items, and the interface of their queues for movers and the head. One queue is in this process, and one at a
//! broker.

pub mod jetstream;
mod local_queue;
mod work;

use std::future::Future;
use std::time::Duration;

use crate::error::WorkError;

pub use local_queue::{LocalLease, LocalQueue};
pub use work::{ITEM_BYTES_MAX, ItemWork, SplitFile, WorkItem};

/// Default lease of an item. A queue may have its own setting, and may grant a longer lease to an item whose lease has
/// expired before.
pub const LEASE: Duration = Duration::from_secs(30);

/// A queue of work items, used by movers that take items and by the head that supervises the queue.
///
/// An item that has been taken is leased. Its mover must [`renew`](Self::renew) the lease in time, or the item is
/// handed out again. An item may therefore be processed twice, and nothing may rely on it being processed only once.
pub trait WorkQueue: Send + Sync + 'static {
    /// A handle to one delivery of an item. If it is dropped before the item is done, the item is handed out again
    /// immediately.
    type Delivery: Send + Sync;

    /// Takes an item, waiting for one if necessary. Returns `None` when the job is over.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn take(&self)
    -> impl Future<Output = Result<Option<Taken<Self::Delivery>>, WorkError>> + Send;

    /// Puts in announced items. The caller must process items that the queue refuses because it is full: if it waited
    /// for space instead, all movers might wait forever. Items that the queue remembers from earlier calls are skipped.
    ///
    /// # Errors
    /// The queue cannot be reached, or the job is over.
    fn put(
        &self,
        items: Vec<WorkItem>,
    ) -> impl Future<Output = Result<Announced, WorkError>> + Send;

    /// Renews the lease of an item that has made progress.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn renew(
        &self,
        taken: &Taken<Self::Delivery>,
    ) -> impl Future<Output = Result<(), WorkError>> + Send;

    /// Hands out an item again after it has made no progress for the duration of its lease. The current mover may
    /// continue to process the item. The default implementation does nothing. It suits queues that detect a missing
    /// renewal.
    fn lapse(&self, _taken: &Taken<Self::Delivery>) {}

    /// Removes an item from the queue. The item is done, and all items that it announced are done or in the queue.
    /// Returns `false` if the queue knows that the item was already completed and counted.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn done(
        &self,
        taken: Taken<Self::Delivery>,
    ) -> impl Future<Output = Result<bool, WorkError>> + Send;

    /// Returns the number of items that are not done.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn waiting(&self) -> impl Future<Output = Result<u64, WorkError>> + Send;

    /// Returns how often the queue has lost items or may have lost them.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn losses(&self) -> impl Future<Output = Result<u64, WorkError>> + Send;

    /// Closes the job. Calls of `take` that are waiting return `None`.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn close(&self) -> impl Future<Output = Result<(), WorkError>> + Send;
}

/// The result of putting items into a queue.
#[derive(Debug, Default)]
pub struct Announced {
    /// Number of items that will be completed because of this call. If the queue may count an item twice, items that it
    /// already had are excluded. If the queue counts each item once (see [`WorkQueue::done`]), they are included.
    pub put: u64,
    /// The items that the queue refused because it is full.
    pub refused: Vec<WorkItem>,
}

/// An item that a mover has taken.
#[derive(Debug)]
pub struct Taken<D> {
    /// The item.
    pub item: WorkItem,
    /// How long the item may make no progress.
    pub lease: Duration,
    /// Handle to this delivery.
    pub delivery: D,
}
