//! An item that a mover does, and the lease under which it does it.
//!
//! Items that a full queue refuses are done by the mover that announced them. They share the lease of the item that was
//! taken from the queue. **Invariant:** that item leaves the queue when the last of those that share its lease has
//! ended well. If one of them does not, the item goes back to the queue when nobody holds its lease any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zmove_types::Lock;
use zmove_wire::WorkCounts;

use crate::work::WorkItem;
use crate::work_queue::Taken;

/// An item that a mover does.
#[derive(Debug)]
pub(super) struct Assigned<D> {
    pub(super) item: WorkItem,
    pub(super) share: LeaseShare<D>,
    steps: AtomicU64,
    pub(super) is_sent: AtomicBool,
}

/// A share in the lease of an item.
#[derive(Debug)]
pub(super) struct LeaseShare<D> {
    /// `None` once the item that has this share has ended well.
    held: Option<Arc<HeldLease<D>>>,
}

#[derive(Debug)]
struct HeldLease<D> {
    taken: Taken<D>,
    /// The counts of all items of the lease that have ended well.
    counts: Lock<WorkCounts>,
    is_broken: AtomicBool,
}

impl<D> Assigned<D> {
    /// An item that was taken from the queue.
    pub(super) fn new(taken: Taken<D>) -> Self {
        let item = taken.item.clone();
        let held = HeldLease {
            taken,
            counts: Lock::default(),
            is_broken: AtomicBool::new(false),
        };
        let held = Some(Arc::new(held));
        Self::sharing(item, LeaseShare { held })
    }

    /// An item that this one has announced, and that the queue has refused.
    pub(super) fn refused(&self, item: WorkItem) -> Self {
        let held = self.share.held.clone();
        Self::sharing(item, LeaseShare { held })
    }

    fn sharing(item: WorkItem, share: LeaseShare<D>) -> Self {
        Self {
            item,
            share,
            steps: AtomicU64::new(0),
            is_sent: AtomicBool::new(false),
        }
    }

    /// Notes a step. The lease is renewed only while there are some.
    pub(super) fn made_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

impl<D> LeaseShare<D> {
    /// The item of the lease.
    pub(super) fn taken(&self) -> Option<&Taken<D>> {
        self.held.as_ref().map(|held| &held.taken)
    }

    /// Whether both have a share in one lease.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        let lease = |share: &Self| share.held.as_ref().map(Arc::as_ptr);
        lease(self) == lease(other)
    }

    /// The item that has this share has ended well. Returns the item of the lease if all that share it have, with the
    /// counts of all of them.
    pub(super) fn end_well(mut self, counts: WorkCounts) -> Option<(Taken<D>, WorkCounts)> {
        let held = self.held.take()?;
        {
            let mut all = held.counts.lock();
            *all = all.and(counts);
        }
        let held = Arc::into_inner(held).filter(|held| !held.is_broken.load(Ordering::Relaxed))?;
        let counts = *held.counts.lock();
        Some((held.taken, counts))
    }
}

impl<D> Drop for LeaseShare<D> {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::JOB;
    use crate::local_queue::{Lease, LocalQueue};
    use crate::work::{Marks, Work};
    use crate::work_queue::{Done, WorkQueue};

    fn item(sources: u32) -> WorkItem {
        WorkItem::first(1, Marks::new(), Work::Begin(sources))
    }

    fn failed(failed: u64) -> WorkCounts {
        WorkCounts {
            failed,
            ..WorkCounts::default()
        }
    }

    async fn taken(queue: &LocalQueue) -> Assigned<Lease> {
        Assigned::new(queue.take().await.unwrap().unwrap())
    }

    #[tokio::test]
    async fn an_item_is_done_when_the_last_that_the_queue_refused_has_ended() {
        let queue = LocalQueue::new(JOB);
        queue.put(vec![item(1)]).await.unwrap();
        let first = taken(&queue).await;
        let child = first.refused(item(2));
        let grandchild = child.refused(item(3));
        assert!(child.share.end_well(failed(1)).is_none());
        assert!(first.share.end_well(failed(2)).is_none());
        let (done, counts) = grandchild.share.end_well(failed(4)).unwrap();
        assert_eq!(counts, failed(7));
        assert_eq!(queue.done(done).await.unwrap(), Done::First);
        assert!(queue.waiting().await.unwrap().is_idle());
    }

    #[tokio::test]
    async fn an_item_comes_again_where_one_that_the_queue_refused_was_not_done() {
        let queue = LocalQueue::new(JOB);
        queue.put(vec![item(1)]).await.unwrap();
        let first = taken(&queue).await;
        let [one, other] = [2, 3].map(|sources| first.refused(item(sources)));
        assert!(first.share.end_well(failed(0)).is_none());
        drop(one);
        assert!(other.share.end_well(failed(0)).is_none(), "the last");
        let again = queue.take().await.unwrap().unwrap();
        assert_eq!((again.item, again.deliveries), (item(1), 2));
    }
}
