//! A mover: takes work items from the queue, and does them in one session with a receiver.
//!
//! ```text
//!  take ──► walk, look up ──► announce what is left ──► send, wait until all has settled ──► end ──► done
//! ```
//!
//! Several items are under way at once, so that neither the queue's answers nor the flush at an item's end is waited
//! for.
//!
//! **Invariant:** an item leaves the queue only after the receiver has recorded the item's end, and that is asked for
//! only when all that it announces has been put in, or is this mover's own to do. So a mover that dies leaves nothing
//! undone that nobody knows of.

mod item;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use zmove_scan::ScanError;
use zmove_sender::{Feeder, SessionOver};
use zmove_types::{Event, Lock, Observer};

use crate::error::Stop;
use crate::job::SharedJob;
use crate::source::{Taken, WorkSource};
use crate::work::{Work, WorkItem};

/// A mover, in one session.
pub(crate) struct Mover<W: WorkSource> {
    pub(crate) job: Arc<SharedJob>,
    pub(crate) source: Arc<W>,
    pub(crate) feeder: Feeder,
    pub(crate) observer: Arc<dyn Observer>,
    /// Items that the queue had no room for.
    own: Lock<VecDeque<WorkItem>>,
}

/// An item that this mover does.
#[derive(Debug)]
enum Had<D> {
    Taken(Taken<D>),
    Own(WorkItem),
}

impl<D> Had<D> {
    fn item(&self) -> &WorkItem {
        match self {
            Self::Taken(taken) => &taken.item,
            Self::Own(item) => item,
        }
    }
}

/// How often something of an item has been done: it is kept only as long as that goes on.
#[derive(Debug, Default)]
struct Progress(AtomicU64);

impl Progress {
    fn made(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<W: WorkSource> Mover<W> {
    pub(crate) fn new(
        job: Arc<SharedJob>,
        source: Arc<W>,
        feeder: Feeder,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { job, source, feeder, observer, own: Lock::default() }
    }

    /// Does items until the job is over; calls `ended` after each.
    pub(crate) async fn run(self, mut ended: impl FnMut()) -> Result<(), Stop> {
        let mover = Arc::new(self);
        let mut doing = JoinSet::new();
        let mut waiting = 0;
        let mut taking = Box::pin(Arc::clone(&mover).take());
        let mut over = false;
        while !over || !doing.is_empty() {
            let has_room = doing.len() - waiting < ITEMS_AT_ONCE && waiting < LARGE_AT_ONCE;
            tokio::select! {
                had = &mut taking, if !over && has_room => match had? {
                    Some(had) => {
                        waiting += usize::from(waits(had.item()));
                        doing.spawn(Arc::clone(&mover).do_item(had));
                        taking = Box::pin(Arc::clone(&mover).take());
                    }
                    None => over = true,
                },
                Some(done) = doing.join_next() => {
                    let item = done.map_err(|_panic| SessionOver)??;
                    waiting -= usize::from(waits(&item));
                    ended();
                }
            }
        }
        Ok(())
    }

    async fn take(self: Arc<Self>) -> Result<Option<Had<W::Delivery>>, Stop> {
        let own = self.own.lock().pop_front();
        if let Some(item) = own {
            return Ok(Some(Had::Own(item)));
        }
        Ok(self.source.take().await?.map(Had::Taken))
    }

    async fn do_item(self: Arc<Self>, had: Had<W::Delivery>) -> Result<WorkItem, Stop> {
        let item = had.item().clone();
        let done = {
            let progress = Progress::default();
            let doing = self.end(&item, &progress);
            tokio::pin!(doing);
            let mut before = u64::MAX;
            loop {
                tokio::select! {
                    done = &mut doing => break done,
                    () = tokio::time::sleep(KEEP_EVERY) => {
                        let now = progress.0.load(Ordering::Relaxed);
                        let has_moved = std::mem::replace(&mut before, now) != now;
                        if let Had::Taken(taken) = &had && has_moved {
                            self.source.keep(taken).await?;
                        }
                    }
                }
            }
        };
        match (done, had) {
            (Ok(()), Had::Taken(taken)) => {
                self.source.done(taken).await?;
                Ok(item)
            }
            (Ok(()), Had::Own(_)) => Ok(item),
            (Err(stop), Had::Taken(taken)) => {
                let _leased_for_a_while_then = self.source.give_back(taken, Duration::ZERO).await;
                Err(stop)
            }
            // the journals will say that it is missing
            (Err(stop), Had::Own(_)) => Err(stop),
        }
    }

    /// Puts in what an item announces.
    async fn announce(&self, items: Vec<WorkItem>) -> Result<(), Stop> {
        if !items.is_empty() {
            let refused = self.source.put(items).await?;
            self.own.lock().extend(refused);
        }
        Ok(())
    }

    /// Tells the user of something that fails this side of the session.
    fn tell_failure(&self, message: String) {
        self.observer.on(&Event::Failed { message });
    }

    fn tell_changed(&self, path: std::path::PathBuf) {
        self.tell_failure(ScanError::Vanished { path }.to_string());
    }
}

/// Whether an item hardly does anything but wait for other items.
fn waits(item: &WorkItem) -> bool {
    matches!(item.work, Work::Large(_))
}

/// So many items are under way at once, beside those that wait for others: one is sent while another is flushed and a
/// third is walked.
const ITEMS_AT_ONCE: usize = 4;
/// So many large files a mover waits for at once.
const LARGE_AT_ONCE: usize = 32;
/// A third of the time after which an item that nobody keeps is handed out again.
const KEEP_EVERY: Duration = Duration::from_secs(10);
