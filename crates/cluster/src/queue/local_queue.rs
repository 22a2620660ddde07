//! The queue of a job whose movers all run in the head's process.
//!
//! **Invariant:** an item is either waiting or taken until it is done. If its taker drops it or reports that it is
//! stalled, it waits again. No timer is needed, since all takers are in this process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::Notify;
use zmove_types::{Lock, WorkId};

use crate::error::WorkError;
use crate::queue::{Announced, LEASE, Taken, WorkItem, WorkQueue};

/// A queue in this process.
#[derive(Debug, Default)]
pub struct LocalQueue {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Lock<State>,
    /// Notified when an item can be taken or the job is over.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Waiting items, the next one first. The key has two parts: whether the item is a scan, so that data items come
    /// first, and the number of the queued item.
    waiting: BTreeMap<(bool, i64), QueuedItem>,
    /// Items that are taken, by the number of the delivery.
    taken: HashMap<i64, QueuedItem>,
    /// The last number that was assigned to a queued item or a delivery.
    number: i64,
    /// Ids of all items that were put in, done or not.
    known: HashSet<WorkId>,
    closed: bool,
}

#[derive(Clone, Debug)]
struct QueuedItem {
    item: WorkItem,
    /// Number of leases that expired without progress of the item. An item that was returned to the queue does not
    /// count, because its processing may not have started.
    expired_leases: u32,
}

/// A delivery. If this value is dropped before the item is done, the item waits again.
#[derive(Debug)]
pub struct LocalLease {
    number: i64,
    shared: Arc<Shared>,
}

impl Drop for LocalLease {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(queued) = state.taken.remove(&self.number) {
            state.requeue_front(queued);
            drop(state);
            self.shared.changed.notify_waiters();
        }
    }
}

impl State {
    fn next_number(&mut self) -> i64 {
        self.number += 1;
        self.number
    }

    fn wait(&mut self, queued: QueuedItem, number: i64) {
        self.waiting
            .insert((queued.item.work.is_walk(), number), queued);
    }

    /// Puts an item at the front of the queue, because other items may wait for it.
    fn requeue_front(&mut self, queued: QueuedItem) {
        let before_all = -self.next_number();
        self.wait(queued, before_all);
    }

    /// Takes the next item.
    fn take(&mut self) -> Option<(i64, QueuedItem)> {
        let (_turn, queued) = self.waiting.pop_first()?;
        let number = self.next_number();
        self.taken.insert(number, queued.clone());
        Some((number, queued))
    }

    /// Removes an item that is done, even if the lease has expired and the item is waiting or taken again. Otherwise,
    /// if each flush takes longer than a lease, some mover would always be processing the item again. Returns `false`
    /// if the item was done before.
    fn end(&mut self, done: &Taken<LocalLease>) -> bool {
        if self.taken.remove(&done.delivery.number).is_some() {
            return true;
        }
        let before = self.left();
        self.taken.retain(|_, queued| queued.item != done.item);
        self.waiting.retain(|_, queued| queued.item != done.item);
        self.left() < before
    }

    fn left(&self) -> usize {
        self.waiting.len() + self.taken.len()
    }
}

impl WorkQueue for LocalQueue {
    type Delivery = LocalLease;

    async fn take(&self) -> Result<Option<Taken<LocalLease>>, WorkError> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // A notification that is sent from here on is not missed.
            changed.as_mut().enable();
            let taken = {
                let mut state = self.shared.state.lock();
                if state.closed {
                    return Ok(None);
                }
                state.take()
            };
            if let Some((number, queued)) = taken {
                let shared = Arc::clone(&self.shared);
                return Ok(Some(Taken {
                    item: queued.item,
                    // Double the lease after each expiry. A flush may take longer than the first lease, and an item
                    // makes no progress during its flush.
                    lease: LEASE * (1 << queued.expired_leases.min(LEASES_DOUBLED_MAX)),
                    delivery: LocalLease { number, shared },
                }));
            }
            changed.await;
        }
    }

    async fn put(&self, items: Vec<WorkItem>) -> Result<Announced, WorkError> {
        let mut announced = Announced::default();
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(WorkError::Over);
        }
        for item in items {
            if state.waiting.len() >= ITEMS_MAX {
                announced.refused.push(item);
                continue;
            }
            announced.put += 1;
            if state.known.insert(item.id()) {
                let number = state.next_number();
                state.wait(
                    QueuedItem {
                        item,
                        expired_leases: 0,
                    },
                    number,
                );
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(announced)
    }

    async fn renew(&self, _taken: &Taken<LocalLease>) -> Result<(), WorkError> {
        Ok(())
    }

    fn lapse(&self, taken: &Taken<LocalLease>) {
        let mut state = self.shared.state.lock();
        if let Some(mut queued) = state.taken.remove(&taken.delivery.number) {
            queued.expired_leases += 1;
            state.requeue_front(queued);
            drop(state);
            self.shared.changed.notify_waiters();
        }
    }

    async fn done(&self, taken: Taken<LocalLease>) -> Result<bool, WorkError> {
        Ok(self.shared.state.lock().end(&taken))
    }

    async fn waiting(&self) -> Result<u64, WorkError> {
        Ok(self.shared.state.lock().left() as u64)
    }

    async fn losses(&self) -> Result<u64, WorkError> {
        Ok(0)
    }

    async fn close(&self) -> Result<(), WorkError> {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_waiters();
        Ok(())
    }
}

/// Maximum number of times that a lease is doubled. One hour is enough for any flush.
const LEASES_DOUBLED_MAX: u32 = 7;
/// Maximum number of waiting items. Each typically takes a hundred bytes, and at most 256 KiB (1000 names, 64 paths).
const ITEMS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{item_of, root};
    use crate::queue::ItemWork;
    use zmove_types::Name;

    fn walk(number: u32) -> WorkItem {
        item_of(number, ItemWork::Trees(vec![root()]))
    }

    fn data(number: u32) -> WorkItem {
        let names = vec![Name::from_bytes(b"n").unwrap()];
        let directory = root();
        item_of(number, ItemWork::Names { directory, names })
    }

    async fn next(queue: &LocalQueue) -> Taken<LocalLease> {
        queue.take().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn data_goes_before_walks_and_each_in_its_order() {
        let queue = LocalQueue::default();
        queue
            .put(vec![walk(1), data(1), walk(2), data(2)])
            .await
            .unwrap();
        let mut taken = Vec::new();
        for _ in 0..4 {
            let next = next(&queue).await;
            taken.push(next.item.clone());
            queue.done(next).await.unwrap();
        }
        assert_eq!(taken, [data(1), data(2), walk(1), walk(2)]);
        assert!(queue.waiting().await.unwrap() == 0);
    }

    #[tokio::test]
    async fn an_item_comes_once_in_a_pass_and_again_in_the_next() {
        let queue = LocalQueue::default();
        queue.put(vec![data(1), data(1)]).await.unwrap();
        let taken = next(&queue).await;
        queue.done(taken).await.unwrap();
        queue.put(vec![data(1)]).await.unwrap();
        assert!(queue.waiting().await.unwrap() == 0);
        queue
            .put(vec![WorkItem { pass: 2, ..data(1) }])
            .await
            .unwrap();
        assert_eq!(next(&queue).await.item.pass, 2);
    }

    #[tokio::test]
    async fn what_is_dropped_waits_again() {
        let queue = LocalQueue::default();
        queue.put(vec![data(1)]).await.unwrap();
        drop(next(&queue).await);
        assert_eq!(next(&queue).await.item, data(1));
        assert_eq!(queue.waiting().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn what_stands_still_comes_again_and_is_done_once_whoever_ends_first() {
        let queue = LocalQueue::default();
        queue.put(vec![data(1), data(2)]).await.unwrap();
        let [hangs, goes_on] = [next(&queue).await, next(&queue).await];
        queue.lapse(&hangs);
        let again = next(&queue).await;
        assert_eq!(again.item, hangs.item);
        assert_eq!(queue.waiting().await.unwrap(), 2);
        assert!(queue.done(hangs).await.unwrap());
        assert_eq!(queue.waiting().await.unwrap(), 1, "whoever does it again");
        assert!(!queue.done(again).await.unwrap());
        queue.done(goes_on).await.unwrap();
        assert_eq!(queue.waiting().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_lease_is_twice_as_long_when_the_item_has_stood_still_and_not_when_it_is_given_back()
    {
        let queue = LocalQueue::default();
        queue.put(vec![data(1)]).await.unwrap();
        for _ in 0..5 {
            drop(next(&queue).await);
        }
        for expired_leases in 0..3 {
            let taken = next(&queue).await;
            assert_eq!(taken.lease, LEASE * (1 << expired_leases));
            queue.lapse(&taken);
        }
    }

    #[tokio::test]
    async fn a_waiting_take_returns_on_an_item_and_on_the_end() {
        let queue = Arc::new(LocalQueue::default());
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move {
                (
                    next(&queue).await.item.clone(),
                    queue.take().await.unwrap().is_none(),
                )
            }
        });
        tokio::task::yield_now().await;
        queue.put(vec![data(1)]).await.unwrap();
        tokio::task::yield_now().await;
        queue.close().await.unwrap();
        assert_eq!(waiting.await.unwrap(), (data(1), true));
    }

    #[tokio::test]
    async fn nothing_is_put_into_a_job_that_is_over() {
        let queue = LocalQueue::default();
        queue.close().await.unwrap();
        assert!(matches!(
            queue.put(vec![data(1)]).await,
            Err(WorkError::Over)
        ));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_takes_the_same_item_later() {
        let queue = LocalQueue::default();
        let all = u32::try_from(ITEMS_MAX).unwrap() + 1;
        let announced = queue.put((0..all).map(data).collect()).await.unwrap();
        assert_eq!(announced.refused, [data(all - 1)]);
        assert_eq!(announced.put, u64::from(all) - 1);
        let taken = next(&queue).await;
        queue.done(taken).await.unwrap();
        let later = queue.put(announced.refused).await.unwrap();
        assert!(later.refused.is_empty());
    }
}
