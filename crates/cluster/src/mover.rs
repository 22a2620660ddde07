//! A mover: takes work items from the queue, and does them in one session with a receiver.
//!
//! ```text
//!  take ──► walk, look up ──► announce what is left ──► send, wait until all has settled ──► settle ──► done
//! ```
//!
//! ```text
//!  taken ──► unsent ──► sent ──► done        (a large file: taken ──► waiting ──► done)
//! ```
//!
//! Several items are under way at once, so that neither the queue's answers nor the flush at an item's end is waited
//! for.
//!
//! **Invariant:** an item leaves the queue only after the receiver has named and flushed what belongs to it, and when
//! the queue has all that it announces, or that is done as well ([`assigned`]). So a mover that dies leaves nothing
//! undone that the queue does not have.

mod assigned;
mod item;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};
use zmove_sender::Feeder;
use zmove_types::{Event, Lock, Observer};
use zmove_wire::WorkCounts;

use crate::error::{PANICKED, Stop, WorkError};
use crate::job::SharedJob;
use crate::session::SessionEvents;
use crate::work::{Work, WorkItem};
use crate::work_queue::{LEASE, WorkQueue};

use self::assigned::{Assigned, LeaseShare};

/// A mover, in one session.
pub(crate) struct Mover<W: WorkQueue> {
    pub(crate) job: Arc<SharedJob>,
    pub(crate) queue: Arc<W>,
    pub(crate) feeder: Feeder,
    pub(crate) events: Arc<SessionEvents>,
    /// Items that the queue had no room for.
    overflow: Lock<Vec<Assigned<W::Delivery>>>,
    /// How many items are being walked, or have more than half of their bytes to be read.
    unsent: AtomicUsize,
    /// Notified when there is one less, or an item for which the queue has no room.
    has_sent: Notify,
    /// How many items have made no step for a lease.
    standing: AtomicUsize,
}

/// What has ended a mover's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoverEnd {
    /// All work of the job has ended.
    Over,
    /// The mover was called away.
    Left,
}

/// The items that are being done.
type Doing = JoinSet<Result<WorkItem, Stop>>;

/// An item that is being taken.
type Taking<W> = Pin<
    Box<dyn Future<Output = Result<Option<Assigned<<W as WorkQueue>::Delivery>>, Stop>> + Send>,
>;

impl<W: WorkQueue> Mover<W> {
    pub(crate) fn new(
        job: Arc<SharedJob>,
        queue: Arc<W>,
        feeder: Feeder,
        events: Arc<SessionEvents>,
    ) -> Self {
        Self {
            job,
            queue,
            feeder,
            events,
            overflow: Lock::default(),
            unsent: AtomicUsize::new(0),
            has_sent: Notify::new(),
            standing: AtomicUsize::new(0),
        }
    }

    /// Does items until the job is over, or the mover is called away; calls `ended` after each. What waits for others
    /// then goes back to the queue, and what does not end within [`LEAVES_WITHIN`] also. A mover that has nothing to do
    /// leaves when the next item comes.
    ///
    /// # Errors
    /// The session or the queue fails, or what is under way hangs.
    pub(crate) async fn run(
        self,
        mut called_away: watch::Receiver<bool>,
        mut ended: impl FnMut(),
    ) -> Result<MoverEnd, Stop> {
        let mover = Arc::new(self);
        let mut doing = Doing::new();
        let mut waiting = 0;
        // One that has begun is polled to its end: the item that it brings may be on its way.
        let mut taking: Option<Taking<W>> = None;
        let (mut over, mut leaves) = (false, false);
        let mut ends_by = Instant::now();
        let mut renewing = interval(RENEW_EVERY);
        while !over || !doing.is_empty() {
            if leaves && taking.is_none() && doing.len() == waiting {
                return Ok(MoverEnd::Left);
            }
            let has_room = doing.len() - waiting < ITEMS_AT_ONCE
                && mover.unsent.load(Ordering::Relaxed) < UNSENT_AT_ONCE
                && waiting < LARGE_AT_ONCE;
            if !over && !leaves && has_room {
                if let Some(refused) = mover.next_refused() {
                    waiting += mover.begin(refused, &mut doing);
                    continue;
                }
                taking.get_or_insert_with(|| Box::pin(Arc::clone(&mover).take()));
            }
            tokio::select! {
                assigned = taken(&mut taking) => match assigned? {
                    // it goes back to the queue: others are there for it
                    Some(assigned) if leaves || mover.stands() => drop(assigned),
                    Some(assigned) => waiting += mover.begin(assigned, &mut doing),
                    None => {
                        over = true;
                        ends_by = Instant::now() + ITEMS_END_WITHIN;
                    }
                },
                Some(done) = doing.join_next() => {
                    let item = done.map_err(|_panic| PANICKED)??;
                    waiting -= usize::from(waits(&item));
                    ended();
                }
                _ = renewing.tick(), if !mover.stands() => mover.renew_overflow().await?,
                () = mover.has_sent.notified() => {}
                true = is_set(&mut called_away), if !over && !leaves => {
                    leaves = true;
                    ends_by = Instant::now() + LEAVES_WITHIN;
                }
                // all has been done by others; what is under way here hangs
                () = sleep_until(ends_by), if over => return Err(Stop::Queue(WorkError::Over)),
                () = sleep_until(ends_by), if leaves && doing.len() > waiting => {
                    // what waits for its turn within a rate does not hang
                    if !mover.feeder.has_used_rate_within(RENEW_EVERY) {
                        return Err(Stop::StandsStill(LEAVES_WITHIN));
                    }
                    ends_by += RENEW_EVERY;
                }
            }
        }
        Ok(MoverEnd::Over)
    }

    /// Begins an item; returns how many more wait for others.
    fn begin(self: &Arc<Self>, assigned: Assigned<W::Delivery>, doing: &mut Doing) -> usize {
        let sends = !waits(&assigned.item);
        self.unsent.fetch_add(usize::from(sends), Ordering::Relaxed);
        doing.spawn(Arc::clone(self).do_item(assigned));
        usize::from(!sends)
    }

    /// The next item that the queue had no room for. The last first, so that a tree is gone through in depth, and
    /// little of it waits here.
    fn next_refused(&self) -> Option<Assigned<W::Delivery>> {
        self.overflow.lock().pop_if(|_| !self.stands())
    }

    /// Notes, once for each item, that so little of it is to be sent that the next may be taken.
    fn note_sent(&self, assigned: &Assigned<W::Delivery>) {
        if !waits(&assigned.item) && !assigned.is_sent.swap(true, Ordering::Relaxed) {
            self.unsent.fetch_sub(1, Ordering::Relaxed);
            self.has_sent.notify_one();
        }
    }

    /// Whether something stands still here. Where the storage hangs, so would all else; and what is handed out again
    /// for that reason would come here again.
    fn stands(&self) -> bool {
        self.standing.load(Ordering::Relaxed) > 0
    }

    async fn take(self: Arc<Self>) -> Result<Option<Assigned<W::Delivery>>, Stop> {
        if self.stands() {
            tokio::time::sleep(RENEW_EVERY).await;
        }
        Ok(self.queue.take().await?.map(Assigned::new))
    }

    /// Renews the leases of items that wait here until this mover does them.
    async fn renew_overflow(&self) -> Result<(), Stop> {
        let waiting = std::mem::take(&mut *self.overflow.lock());
        for of_one_lease in waiting.chunk_by(|one, next| one.share.is_of(&next.share)) {
            self.renew(&of_one_lease[0].share).await?;
        }
        let mut overflow = self.overflow.lock();
        let newer = std::mem::replace(&mut *overflow, waiting);
        overflow.extend(newer);
        Ok(())
    }

    async fn renew(&self, share: &LeaseShare<W::Delivery>) -> Result<(), Stop> {
        if let Some(taken) = share.taken() {
            self.queue.renew(taken).await?;
        }
        Ok(())
    }

    async fn do_item(self: Arc<Self>, assigned: Assigned<W::Delivery>) -> Result<WorkItem, Stop> {
        let counts = self.do_while_renewing(&assigned).await;
        self.note_sent(&assigned);
        let counts = counts?;
        let Assigned { item, share, .. } = assigned;
        if let Some((taken, counts)) = share.end_well(counts) {
            let pass = taken.item.pass;
            let done = self.queue.done(taken).await?;
            self.events.count(pass, counts, done);
        }
        Ok(item)
    }

    /// Does an item, whose lease is renewed as long as it makes steps.
    async fn do_while_renewing(
        &self,
        assigned: &Assigned<W::Delivery>,
    ) -> Result<WorkCounts, Stop> {
        let doing = self.end(assigned);
        tokio::pin!(doing);
        let mut before = u64::MAX;
        let mut stands_for = Duration::ZERO;
        loop {
            tokio::select! {
                done = &mut doing => {
                    if stands_for >= STANDS_AFTER {
                        self.standing.fetch_sub(1, Ordering::Relaxed);
                    }
                    return done;
                }
                () = tokio::time::sleep(RENEW_EVERY) => {}
            }
            let now = assigned.steps();
            // what waits for its turn within a rate does not stand still
            let has_moved = std::mem::replace(&mut before, now) != now
                || self.feeder.has_used_rate_within(RENEW_EVERY);
            if has_moved {
                if stands_for >= STANDS_AFTER {
                    self.standing.fetch_sub(1, Ordering::Relaxed);
                }
                stands_for = Duration::ZERO;
                self.renew(&assigned.share).await?;
                continue;
            }
            stands_for += RENEW_EVERY;
            if stands_for == STANDS_AFTER {
                self.standing.fetch_add(1, Ordering::Relaxed);
            }
            if stands_for == LEASE {
                self.events.warn_of_a_stop();
            }
        }
    }

    /// Puts in what an item announces. What the queue refuses is done here, the first before the last.
    async fn announce(&self, by: &Assigned<W::Delivery>, items: Vec<WorkItem>) -> Result<(), Stop> {
        if !items.is_empty() {
            let refused = self.queue.put(items).await?;
            let refused = refused.into_iter().rev().map(|item| by.refused(item));
            self.overflow.lock().extend(refused);
            self.has_sent.notify_one();
        }
        Ok(())
    }

    /// Tells the user of something that fails this side of the session.
    fn tell_failure(&self, message: String) {
        self.events.on(&Event::Failed { message });
    }
}

/// What is being taken, once it is there; the next time nothing is.
async fn taken<T>(taking: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match taking {
        Some(future) => {
            let taken = future.await;
            *taking = None;
            taken
        }
        None => std::future::pending().await,
    }
}

/// Resolves with `true` once it is set, and with `false` if it never will be.
async fn is_set(flag: &mut watch::Receiver<bool>) -> bool {
    flag.wait_for(|is_set| *is_set).await.is_ok()
}

/// Whether an item hardly does anything but wait for other items.
fn waits(item: &WorkItem) -> bool {
    matches!(item.work, Work::Large(_))
}

/// So many items are under way at once, beside those that wait for others: most of them are on a long path, or wait for
/// the flush at their end. Together they have 256 MiB, which is 10 Gbit/s for 0.2 s.
const ITEMS_AT_ONCE: usize = 16;
/// At most so many items are being walked or have most of their bytes unread: an item taken early would keep this node
/// at work after all others have ended.
const UNSENT_AT_ONCE: usize = 1;
/// So many large files a mover waits for at once.
const LARGE_AT_ONCE: usize = 32;
/// How long a mover may take to end what it has, when all work of the job has ended.
const ITEMS_END_WITHIN: Duration = Duration::from_secs(3);
/// How long what is under way may take to end where a mover is called away.
const LEAVES_WITHIN: Duration = Duration::from_secs(2 * LEASE.as_secs());
/// After how long without a step an item stands still here: before its lease is over, since it would come here again.
const STANDS_AFTER: Duration = LEASE.saturating_sub(RENEW_EVERY);
/// How often the lease of an item is renewed: one renewal may be lost.
const RENEW_EVERY: Duration = Duration::from_secs(LEASE.as_secs() / 3);
