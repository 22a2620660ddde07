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
//! Items that a full queue refuses are done by the mover that announced them, under the lease of the item that it took.
//!
//! **Invariant:** an item leaves the queue only after the receiver has named and flushed what belongs to it, and when
//! the queue has all that it announces, or that is done as well. So a mover that dies leaves nothing undone that the
//! queue does not have.

mod cut;
mod item;
mod large;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use zmove_scan::DirectoryMark;
use zmove_sender::Feeder;
use zmove_types::{Event, Lock, Observer, RelPath};
use zmove_wire::WorkCounts;

use crate::error::{PANICKED, Stop, WorkError};
use crate::job::SharedJob;
use crate::queue::{Done, ItemWork, LEASE, Taken, WorkItem, WorkQueue};
use crate::session::SessionEvents;

/// A mover, in one session.
pub(crate) struct Mover<W> {
    pub(crate) job: Arc<SharedJob>,
    pub(crate) queue: Arc<W>,
    pub(crate) feeder: Feeder,
    pub(crate) events: Arc<SessionEvents>,
    /// Each item that is being walked, or has more than half of its bytes to be read, has one.
    turns: Arc<Semaphore>,
    /// Each large file that waits for others has a clone.
    waiting: Arc<()>,
    /// Each item that has made no step for a lease has a clone.
    standing: Arc<()>,
    /// Notified when a turn ends, or a large file begins to wait.
    changed: Notify,
}

/// What has ended a mover's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoverEnd {
    /// All work of the job has ended.
    Over,
    /// The mover was called away, or another pass has begun.
    Left,
}

/// What is counted while an item is leased.
#[derive(Default)]
struct Leased {
    /// The lease is renewed only while there are more of these.
    steps: AtomicU64,
    /// The items that were put into the queue.
    announced: AtomicU64,
}

/// An item that a mover does.
struct Assigned<'a> {
    item: WorkItem,
    under: &'a Leased,
    /// What it has announced, and the queue has refused.
    refused: Lock<Vec<WorkItem>>,
    /// Held until so little of the item is left to be sent that the next may be taken.
    turn: Lock<Option<OwnedSemaphorePermit>>,
}

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
            turns: Arc::new(Semaphore::new(TURNS)),
            waiting: Arc::default(),
            standing: Arc::default(),
            changed: Notify::new(),
        }
    }

    /// Does items until the job is over, a later pass than this has begun, or the mover is called away; calls `ended`
    /// after each. What waits for others then goes back to the queue, and what does not end within [`LEAVES_WITHIN`]
    /// also.
    ///
    /// # Errors
    /// The session or the queue fails, or what is under way hangs.
    pub(crate) async fn run(
        self,
        mut called_away: watch::Receiver<bool>,
        pass: &AtomicU32,
        mut ended: impl FnMut(),
    ) -> Result<MoverEnd, Stop> {
        let mover = Arc::new(self);
        let mut doing = JoinSet::new();
        // what takes the next item, if anything does
        let mut taking = FuturesUnordered::new();
        let mut end = None;
        let mut ends_by = Instant::now();
        let opened_in = pass.load(Ordering::Relaxed);
        while end != Some(MoverEnd::Over) || !doing.is_empty() {
            let waiting = holders(&mover.waiting);
            let is_idle = doing.len() <= waiting;
            let leaves = end == Some(MoverEnd::Left);
            if leaves && is_idle {
                return Ok(MoverEnd::Left);
            }
            let has_room = doing.len() < waiting + ITEMS_AT_ONCE
                && mover.turns.available_permits() > 0
                && waiting < LARGE_AT_ONCE;
            if end.is_none() && has_room && taking.is_empty() {
                taking.push(mover.take());
            }
            tokio::select! {
                Some(taken) = taking.next() => match taken? {
                    // it goes back to the queue: others are there for it
                    Some(taken) if mover.stands() => drop(taken),
                    // a session that has found the target empty would send again what an earlier pass has sent
                    Some(taken) if taken.item.pass > opened_in => {
                        pass.store(taken.item.pass, Ordering::Relaxed);
                        drop(taken);
                        end = Some(MoverEnd::Left);
                        ends_by = Instant::now() + LEAVES_WITHIN;
                    }
                    Some(taken) => {
                        let turn = mover.turn_for(&taken.item);
                        doing.spawn(Arc::clone(&mover).do_taken(taken, turn));
                    }
                    None => {
                        end = Some(MoverEnd::Over);
                        ends_by = Instant::now() + ITEMS_END_WITHIN;
                    }
                },
                Some(done) = doing.join_next() => {
                    done.map_err(|_panic| PANICKED)??;
                    ended();
                }
                () = mover.changed.notified() => {}
                true = is_set(&mut called_away), if end.is_none() => {
                    end = Some(MoverEnd::Left);
                    taking.clear();
                    ends_by = Instant::now() + LEAVES_WITHIN;
                }
                () = sleep_until(ends_by), if end.is_some() => match end {
                    // what waits for its turn within a rate does not hang
                    Some(MoverEnd::Left) if mover.feeder.has_used_rate_within(RENEW_EVERY) => {
                        ends_by += RENEW_EVERY;
                    }
                    Some(MoverEnd::Left) => return Err(Stop::StandsStill(LEAVES_WITHIN)),
                    // all has been done by others; what is under way here hangs
                    _ => return Err(Stop::Queue(WorkError::Over)),
                },
            }
        }
        Ok(MoverEnd::Over)
    }

    /// The turn of an item that has just been taken, if nothing else has got it meanwhile.
    fn turn_for(&self, item: &WorkItem) -> Option<OwnedSemaphorePermit> {
        let turn = || Arc::clone(&self.turns).try_acquire_owned().ok();
        (!waits(item)).then(turn)?
    }

    /// Notes that so little of an item is to be sent that the next may be taken.
    fn note_sent(&self, by: &Assigned<'_>) {
        if by.turn.lock().take().is_some() {
            self.changed.notify_one();
        }
    }

    /// Whether something stands still here. Where the storage hangs, so would all else; and what is handed out again
    /// for that reason would come here again.
    fn stands(&self) -> bool {
        holders(&self.standing) > 0
    }

    async fn take(&self) -> Result<Option<Taken<W::Delivery>>, Stop> {
        if self.stands() {
            tokio::time::sleep(RENEW_EVERY).await;
        }
        Ok(self.queue.take().await?)
    }

    /// Does an item, whose lease is renewed as long as it makes steps.
    async fn do_taken(
        self: Arc<Self>,
        taken: Taken<W::Delivery>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Stop> {
        let leased = Leased::default();
        let mut doing = Box::pin(self.do_all(taken.item.clone(), turn, &leased));
        let mut before = u64::MAX;
        let mut stands_for = Duration::ZERO;
        let mut standing = None;
        let counts = loop {
            tokio::select! {
                counts = &mut doing => break counts?,
                () = tokio::time::sleep(RENEW_EVERY) => {}
            }
            let now = leased.steps.load(Ordering::Relaxed);
            // what waits for its turn within a rate does not stand still
            let has_moved = std::mem::replace(&mut before, now) != now
                || self.feeder.has_used_rate_within(RENEW_EVERY);
            if has_moved {
                standing = None;
                stands_for = Duration::ZERO;
                self.queue.renew(&taken).await?;
                continue;
            }
            stands_for += RENEW_EVERY;
            // before the lease is over, since the item would come here again
            if stands_for + RENEW_EVERY == taken.lease {
                standing = Some(Arc::clone(&self.standing));
            }
            if stands_for == LEASE {
                self.events.warn_of_a_stop();
            }
            if stands_for == taken.lease {
                self.queue.lapse(&taken);
            }
        };
        drop(standing);
        let pass = taken.item.pass;
        if self.queue.done(taken).await? == Done::First {
            let announced = leased.announced.load(Ordering::Relaxed);
            self.events.count(pass, counts, announced);
        }
        Ok(())
    }

    /// Does an item, and what of its announcements the queue refuses: the last announced first, so that a tree is gone
    /// through in depth, and little of it waits here.
    async fn do_all(
        self: &Arc<Self>,
        first: WorkItem,
        turn: Option<OwnedSemaphorePermit>,
        under: &Leased,
    ) -> Result<WorkCounts, Stop> {
        let mut left = Vec::new();
        let mut counts = WorkCounts::default();
        let mut doing = FuturesUnordered::new();
        doing.push(self.do_one(first, turn, under));
        while let Some((refused, of_one)) = doing.try_next().await? {
            counts = counts.and(of_one);
            left.extend(refused);
            let at_once = left.len().min(ITEMS_AT_ONCE.saturating_sub(doing.len()));
            for item in left.drain(left.len() - at_once..).rev() {
                doing.push(self.do_one(item, None, under));
            }
        }
        Ok(counts)
    }

    /// Does one item when it is its turn. Returns what the queue has refused.
    async fn do_one(
        self: &Arc<Self>,
        item: WorkItem,
        mut turn: Option<OwnedSemaphorePermit>,
        under: &Leased,
    ) -> Result<(Vec<WorkItem>, WorkCounts), Stop> {
        if turn.is_none() && !waits(&item) {
            turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        }
        let by = Assigned {
            item,
            under,
            refused: Lock::default(),
            turn: Lock::new(turn),
        };
        let counts = self.end(&by).await;
        self.note_sent(&by);
        Ok((by.refused.into_inner(), counts?))
    }

    /// Puts in what an item announces. What the queue refuses is done here, the first before the last.
    async fn announce(&self, by: &Assigned<'_>, items: Vec<WorkItem>) -> Result<(), Stop> {
        if !items.is_empty() {
            let announced = self.queue.put(items).await?;
            by.under
                .announced
                .fetch_add(announced.put, Ordering::Relaxed);
            by.refused
                .lock()
                .extend(announced.refused.into_iter().rev());
        }
        Ok(())
    }

    /// Tells why something has failed, which counts once.
    fn fail(&self, why: String) -> WorkCounts {
        self.events.on(&Event::Failed { message: why });
        one_failure()
    }
}

impl Assigned<'_> {
    /// Notes a step. The lease is renewed only while there are some.
    fn made_step(&self) {
        self.under.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a portion comes from: `by` is the item that it is of, and `marks` are of its directories.
#[derive(Clone, Copy)]
struct PortionOrigin<'a> {
    by: &'a Assigned<'a>,
    marks: &'a HashMap<RelPath, DirectoryMark>,
}

fn one_failure() -> WorkCounts {
    WorkCounts {
        failed: 1,
        ..WorkCounts::default()
    }
}

/// How many have a clone of a mark.
fn holders(mark: &Arc<()>) -> usize {
    Arc::strong_count(mark) - 1
}

/// Resolves with `true` once it is set, and with `false` if it never will be.
pub(crate) async fn is_set(flag: &mut watch::Receiver<bool>) -> bool {
    flag.wait_for(|is_set| *is_set).await.is_ok()
}

/// Whether an item hardly does anything but wait for other items.
fn waits(item: &WorkItem) -> bool {
    matches!(item.work, ItemWork::Large(_))
}

/// So many items are under way at once, beside those that wait for others: most of them are on a long path, or wait for
/// the flush at their end. Together they have 256 MiB, which is 10 Gbit/s for 0.2 s.
const ITEMS_AT_ONCE: usize = 16;
/// At most so many items are being walked or have most of their bytes unread: an item taken early would keep this node
/// at work after all others have ended.
const TURNS: usize = 1;
/// So many large files a mover waits for at once.
const LARGE_AT_ONCE: usize = 32;
/// How long a mover may take to end what it has, when all work of the job has ended.
const ITEMS_END_WITHIN: Duration = Duration::from_secs(3);
/// How long what is under way may take to end where a mover is called away.
const LEAVES_WITHIN: Duration = Duration::from_secs(2 * LEASE.as_secs());
/// How often the lease of an item is renewed: one renewal may be lost.
const RENEW_EVERY: Duration = Duration::from_secs(LEASE.as_secs() / 3);
/// How often it is asked whether all groups of a large file are there, where nothing else is to be sent and some come.
const LOOK_EVERY: Duration = Duration::from_millis(200);
