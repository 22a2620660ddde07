//! Where work comes from: what a mover and the head ask of a queue.

use std::future::Future;
use std::time::Duration;

use crate::error::WorkError;
use crate::queue::WorkItem;

/// How long an item is leased, unless a queue is told otherwise, or it has been leased in vain.
pub const LEASE: Duration = Duration::from_secs(30);

/// A queue of work items, for movers that take and the head that looks after it.
///
/// An item that has been taken is leased: whoever has it tells in time that it goes on ([`renew`](Self::renew)), or the
/// item is handed out again. So an item may be done twice, and nothing may depend on that it is not.
pub trait WorkQueue: Send + Sync + 'static {
    /// What names one delivery of an item, which is handed out again at once when this is dropped before it is done.
    type Delivery: Send + Sync;

    /// Takes an item, waiting for one; data goes before walks, which bring more. `None` when the job is over.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn take(&self)
    -> impl Future<Output = Result<Option<Taken<Self::Delivery>>, WorkError>> + Send;

    /// Puts in items that another has announced. Those for which there is no room are the caller's to do: if it waited
    /// for room, all might wait. An item that the queue has had already is passed over, as far as it remembers.
    ///
    /// # Errors
    /// The queue cannot be reached, or the job is over.
    fn put(
        &self,
        items: Vec<WorkItem>,
    ) -> impl Future<Output = Result<Announced, WorkError>> + Send;

    /// Renews the lease of an item, which has made progress.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn renew(
        &self,
        taken: &Taken<Self::Delivery>,
    ) -> impl Future<Output = Result<(), WorkError>> + Send;

    /// Hands an item out again that has made no step for its lease. Whoever has it may go on. Default: nothing, where
    /// the queue sees itself that it is not renewed.
    fn lapse(&self, _taken: &Taken<Self::Delivery>) {}

    /// Takes an item out of the queue: it is done, and so is all that it announced, or the queue has it.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn done(
        &self,
        taken: Taken<Self::Delivery>,
    ) -> impl Future<Output = Result<Done, WorkError>> + Send;

    /// The number of items that are not done.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn waiting(&self) -> impl Future<Output = Result<u64, WorkError>> + Send;

    /// How often the queue has lost items, or may have.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn losses(&self) -> impl Future<Output = Result<u64, WorkError>> + Send;

    /// Ends the job: whoever waits for an item gets none.
    ///
    /// # Errors
    /// The queue cannot be reached.
    fn close(&self) -> impl Future<Output = Result<(), WorkError>> + Send;
}

/// What has become of items that were put in.
#[derive(Debug, Default)]
pub struct Announced {
    /// How many will be done as items of their own because of this call. A queue that may count an item twice leaves
    /// out those that it had before; one that does not (see [`Done::Again`]) counts them.
    pub put: u64,
    /// The items for which there was no room.
    pub refused: Vec<WorkItem>,
}

/// An item that has been handed out.
#[derive(Debug)]
pub struct Taken<D> {
    /// The item.
    pub item: WorkItem,
    /// For how long it may make no step.
    pub lease: Duration,
    /// What names this delivery.
    pub delivery: D,
}

/// Whether an item that is done had been done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Not before, as far as the queue knows.
    First,
    /// Before as well, so it has been counted.
    Again,
}
