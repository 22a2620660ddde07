//! The queue of a job inside one process, with hooks on its items.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use zmove_cluster::{
    Announced, LEASE, LocalLease, LocalQueue, Taken, WorkError, WorkItem, WorkQueue,
};
use zmove_types::SharedJobId;

pub(crate) const JOB: SharedJobId = SharedJobId([5; 16]);

/// Hooks of a queue.
pub(crate) trait Hooks: Send + Sync + 'static {
    /// Returns the items that are handed out again from now on, as if their previous owner had died.
    fn again(&self, _now: Now<'_>) -> Vec<WorkItem> {
        Vec::new()
    }

    fn put(
        &self,
        queue: &LocalQueue,
        items: Vec<WorkItem>,
    ) -> impl Future<Output = Result<Announced, WorkError>> + Send {
        queue.put(items)
    }

    fn waiting(&self, waiting: u64) -> u64 {
        waiting
    }

    /// Number of times that the queue has lost items.
    fn losses(&self) -> u64 {
        0
    }
}

/// An event of the queue.
pub(crate) enum Now<'a> {
    Taken(&'a WorkItem),
    Done(&'a WorkItem),
    Closed,
}

/// A queue with hooks.
pub(crate) struct HookedQueue<H> {
    queue: LocalQueue,
    pub(crate) hooks: H,
    again: Mutex<VecDeque<WorkItem>>,
    /// Number of items that were handed out again and are not done.
    taken_again: AtomicU64,
    /// Number of items that were done again after they had been handed out again.
    repeated: AtomicU64,
}

impl<H: Hooks> HookedQueue<H> {
    pub(crate) fn new(hooks: H) -> Arc<Self> {
        let [taken_again, repeated] = [0, 0].map(AtomicU64::new);
        Arc::new(Self {
            queue: LocalQueue::default(),
            hooks,
            again: Mutex::default(),
            taken_again,
            repeated,
        })
    }

    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    fn take_again(&self) -> Option<Taken<Option<LocalLease>>> {
        let mut again = self.again.lock().unwrap();
        let item = again.pop_front()?;
        self.taken_again.fetch_add(1, Ordering::Relaxed);
        Some(Taken {
            item,
            lease: LEASE,
            delivery: None,
        })
    }

    fn note(&self, now: Now<'_>) {
        self.again.lock().unwrap().extend(self.hooks.again(now));
    }
}

impl<H: Hooks> WorkQueue for HookedQueue<H> {
    /// `None` for an item that was handed out again.
    type Delivery = Option<LocalLease>;

    async fn take(&self) -> Result<Option<Taken<Self::Delivery>>, WorkError> {
        loop {
            if let Some(taken) = self.take_again() {
                return Ok(Some(taken));
            }
            let Ok(taken) = timeout(Duration::from_millis(20), self.queue.take()).await else {
                continue;
            };
            let Some(Taken {
                item,
                lease,
                delivery,
            }) = taken?
            else {
                return Ok(self.take_again());
            };
            self.note(Now::Taken(&item));
            return Ok(Some(Taken {
                item,
                lease,
                delivery: Some(delivery),
            }));
        }
    }

    async fn put(&self, items: Vec<WorkItem>) -> Result<Announced, WorkError> {
        self.hooks.put(&self.queue, items).await
    }

    async fn renew(&self, _taken: &Taken<Self::Delivery>) -> Result<(), WorkError> {
        Ok(())
    }

    async fn done(&self, taken: Taken<Self::Delivery>) -> Result<bool, WorkError> {
        let Taken {
            item,
            lease,
            delivery,
        } = taken;
        let Some(delivery) = delivery else {
            self.repeated.fetch_add(1, Ordering::Relaxed);
            self.taken_again.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        };
        self.note(Now::Done(&item));
        self.queue
            .done(Taken {
                item,
                lease,
                delivery,
            })
            .await
    }

    async fn waiting(&self) -> Result<u64, WorkError> {
        let left = self.queue.waiting().await?;
        let again = self.again.lock().unwrap().len() as u64;
        let left = left + again + self.taken_again.load(Ordering::Relaxed);
        Ok(self.hooks.waiting(left))
    }

    async fn losses(&self) -> Result<u64, WorkError> {
        Ok(self.hooks.losses())
    }

    async fn close(&self) -> Result<(), WorkError> {
        self.note(Now::Closed);
        self.queue.close().await
    }
}
