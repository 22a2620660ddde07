//! A mover takes work items from the queue and carries them out in one session with a receiver.
//!
//! ```text
//!  take ──► walk, look up ──► announce what is left ──► send, wait until all has settled ──► settle ──► done
//! ```
//!
//! ```text
//!  taken ──► unsent ──► sent ──► done        (a large file: taken ──► waiting ──► done)
//! ```
//!
//! Several items are processed concurrently, so that the mover waits neither for the queue's answers nor for the flush
//! at the end of an item.
//!
//! Items that a full queue refuses are processed by the mover that announced them, under the lease of the item that it
//! took.
//!
//! **Invariant:** an item leaves the queue only after the receiver has published and flushed its files, and after all
//! items that it announces are in the queue or done. If a mover dies, all unfinished work is therefore still in the
//! queue.

mod cut;
mod item;
mod large;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use zmove_sender::Feeder;
use zmove_types::{Counters, Event, Lock, Observer};

use crate::error::{PANICKED, SessionEnd, WorkError};
use crate::job::SharedJob;
use crate::queue::{ItemWork, LEASE, Taken, WorkItem, WorkQueue};
use crate::session::SessionEvents;

/// A mover in a session.
pub(crate) struct Mover<W> {
    pub(crate) job: Arc<SharedJob>,
    pub(crate) queue: Arc<W>,
    pub(crate) feeder: Feeder,
    pub(crate) events: Arc<SessionEvents>,
    /// Permits for items that are being scanned or have more than half of their bytes still to be read.
    turns: Arc<Semaphore>,
    /// Each large file holds a clone while it waits for items of other movers, so the number of clones is the number of
    /// waiting files.
    waiting: Arc<()>,
    /// Each item that has made no progress for the duration of its lease holds a clone.
    stalled: Arc<()>,
    /// Notified when an item releases its permit or a large file starts to wait.
    changed: Notify,
}

/// The reason for the regular end of a mover's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoverEnd {
    /// All work of the job is done.
    Over,
    /// The mover was asked to leave the job, or another pass has begun.
    Left,
}

/// Counters of a leased item.
#[derive(Default)]
struct LeaseProgress {
    /// Number of steps. The lease is renewed only while this number increases.
    steps: AtomicU64,
    /// Number of items that were put into the queue.
    announced: AtomicU64,
}

/// An item that a mover is processing.
struct AssignedItem<'a> {
    item: WorkItem,
    lease_progress: &'a LeaseProgress,
    /// Announced items that the queue refused.
    refused: Lock<Vec<WorkItem>>,
    /// The item's permit. The item releases the permit when little of its data remains to be sent, so that the mover
    /// can take the next item.
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
            stalled: Arc::default(),
            changed: Notify::new(),
        }
    }

    /// Processes items until the job is over, a newer pass begins, or `should_leave` resolves. When the mover leaves,
    /// an item returns to the queue if it waits for other items or does not end within [`LEAVES_WITHIN`].
    ///
    /// # Errors
    /// The session or the queue fails, or an item makes no progress.
    pub(crate) async fn run(
        self,
        should_leave: impl Future<Output = ()>,
        pass: &AtomicU32,
    ) -> Result<MoverEnd, SessionEnd> {
        let mover = Arc::new(self);
        let mut should_leave = pin!(should_leave);
        let mut doing = JoinSet::new();
        // The future that takes the next item, if there is one.
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
                    // Return the item to the queue, where other movers can take it.
                    Some(taken) if mover.has_stalled_item() => drop(taken),
                    // Do not take an item of a newer pass in this session. If the session found the target empty, it
                    // would send again all data that an earlier pass has sent.
                    Some(taken) if taken.item.pass > opened_in => {
                        pass.store(taken.item.pass, Ordering::Relaxed);
                        drop(taken);
                        end = Some(MoverEnd::Left);
                        ends_by = Instant::now() + LEAVES_WITHIN;
                    }
                    Some(taken) => {
                        let turn = mover.turn_for(&taken.item);
                        doing.spawn(Arc::clone(&mover).process_taken(taken, turn));
                    }
                    None => {
                        end = Some(MoverEnd::Over);
                        ends_by = Instant::now() + ITEMS_END_WITHIN;
                    }
                },
                Some(done) = doing.join_next() => {
                    done.map_err(|_panic| PANICKED)??;
                    mover.events.record_progress();
                }
                () = mover.changed.notified() => {}
                () = &mut should_leave, if end.is_none() => {
                    end = Some(MoverEnd::Left);
                    taking.clear();
                    ends_by = Instant::now() + LEAVES_WITHIN;
                }
                () = sleep_until(ends_by), if end.is_some() => match end {
                    // An item that waits because of the rate limit is not stalled.
                    Some(MoverEnd::Left) if mover.feeder.has_used_rate_within(RENEW_EVERY) => {
                        ends_by += RENEW_EVERY;
                    }
                    Some(MoverEnd::Left) => return Err(SessionEnd::Stalled(LEAVES_WITHIN)),
                    // All other work of the job is done, so the items that are still running here are stalled.
                    _ => return Err(SessionEnd::Queue(WorkError::Over)),
                },
            }
        }
        Ok(MoverEnd::Over)
    }

    /// Returns a permit for an item that was just taken, or `None` if no permit is free or the item mostly waits for
    /// other items.
    fn turn_for(&self, item: &WorkItem) -> Option<OwnedSemaphorePermit> {
        let turn = || Arc::clone(&self.turns).try_acquire_owned().ok();
        (!is_mostly_waiting(item)).then(turn)?
    }

    /// Releases the item's permit, because so little of the item remains to be sent that the next item may be taken.
    fn release_turn(&self, assigned: &AssignedItem<'_>) {
        if assigned.turn.lock().take().is_some() {
            self.changed.notify_one();
        }
    }

    /// Returns whether an item is stalled in this mover. If the storage does not respond, every other item would stall
    /// too, including the same item if this mover takes it again.
    fn has_stalled_item(&self) -> bool {
        holders(&self.stalled) > 0
    }

    async fn take(&self) -> Result<Option<Taken<W::Delivery>>, SessionEnd> {
        if self.has_stalled_item() {
            tokio::time::sleep(RENEW_EVERY).await;
        }
        Ok(self.queue.take().await?)
    }

    /// Processes an item and renews its lease while it makes progress.
    async fn process_taken(
        self: Arc<Self>,
        taken: Taken<W::Delivery>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<(), SessionEnd> {
        let leased = LeaseProgress::default();
        let renew_every = RENEW_EVERY.min(taken.lease / 3);
        // Returns whether the lease of an item that has made no progress for `stood_for` expires before the next check.
        let expires_after = |stood_for: Duration| stood_for + renew_every > taken.lease;
        let mut doing = Box::pin(self.process_with_refused(taken.item.clone(), turn, &leased));
        let mut before = u64::MAX;
        let mut stands_for = Duration::ZERO;
        let mut stalled = None;
        let counts = loop {
            tokio::select! {
                counts = &mut doing => break counts?,
                () = tokio::time::sleep(renew_every) => {}
            }
            let now = leased.steps.load(Ordering::Relaxed);
            // An item that waits because of the rate limit is not stalled.
            let has_moved = std::mem::replace(&mut before, now) != now
                || self.feeder.has_used_rate_within(renew_every);
            if has_moved {
                stalled = None;
                stands_for = Duration::ZERO;
                self.queue.renew(&taken).await?;
                continue;
            }
            let stood_for = stands_for;
            stands_for += renew_every;
            // Mark the mover as stalled before the lease expires. Otherwise the mover would take the same item again.
            if expires_after(stands_for + renew_every) {
                stalled.get_or_insert_with(|| Arc::clone(&self.stalled));
            }
            if stood_for < LEASE && stands_for >= LEASE {
                self.events.warn_of_a_stop();
            }
            if expires_after(stands_for) && !expires_after(stood_for) {
                self.queue.lapse(&taken);
            }
        };
        drop(stalled);
        let pass = taken.item.pass;
        if self.queue.done(taken).await? {
            let announced = leased.announced.load(Ordering::Relaxed);
            self.events.count(pass, &counts, announced);
        }
        Ok(())
    }

    /// Processes an item, and then the items that it announced but the queue refused. The last announced item is
    /// processed first. The tree is therefore processed depth-first, and few items are kept in memory.
    async fn process_with_refused(
        self: &Arc<Self>,
        first: WorkItem,
        turn: Option<OwnedSemaphorePermit>,
        lease_progress: &LeaseProgress,
    ) -> Result<Counters, SessionEnd> {
        let mut left = Vec::new();
        let mut counts = Counters::default();
        let mut doing = FuturesUnordered::new();
        doing.push(self.process_item(first, turn, lease_progress));
        while let Some((refused, of_one)) = doing.try_next().await? {
            counts = counts.plus(&of_one);
            left.extend(refused);
            let at_once = left.len().min(ITEMS_AT_ONCE.saturating_sub(doing.len()));
            for item in left.drain(left.len() - at_once..).rev() {
                doing.push(self.process_item(item, None, lease_progress));
            }
        }
        Ok(counts)
    }

    /// Waits for a permit and processes an item. Returns the announced items that the queue refused.
    async fn process_item(
        self: &Arc<Self>,
        item: WorkItem,
        mut turn: Option<OwnedSemaphorePermit>,
        lease_progress: &LeaseProgress,
    ) -> Result<(Vec<WorkItem>, Counters), SessionEnd> {
        if turn.is_none() && !is_mostly_waiting(&item) {
            turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        }
        let assigned = AssignedItem {
            item,
            lease_progress,
            refused: Lock::default(),
            turn: Lock::new(turn),
        };
        let counts = self.end(&assigned).await;
        self.release_turn(&assigned);
        Ok((assigned.refused.into_inner(), counts?))
    }

    /// Puts announced items into the queue. Keeps the items that the queue refuses, so that this mover processes them
    /// in order.
    async fn announce(
        &self,
        assigned: &AssignedItem<'_>,
        items: Vec<WorkItem>,
    ) -> Result<(), SessionEnd> {
        if !items.is_empty() {
            let announced = self.queue.put(items).await?;
            assigned
                .lease_progress
                .announced
                .fetch_add(announced.put, Ordering::Relaxed);
            assigned
                .refused
                .lock()
                .extend(announced.refused.into_iter().rev());
        }
        Ok(())
    }

    /// Reports a failure and returns the counts for it.
    fn fail(&self, why: String) -> Counters {
        self.events.on(&Event::Failed { message: why });
        one_failure()
    }
}

impl AssignedItem<'_> {
    /// Records progress of the item. The lease is renewed only if there was progress.
    fn made_step(&self) {
        self.lease_progress.steps.fetch_add(1, Ordering::Relaxed);
    }
}

fn one_failure() -> Counters {
    Counters {
        failed: 1,
        ..Counters::default()
    }
}

/// Returns the number of clones of `mark`.
fn holders(mark: &Arc<()>) -> usize {
    Arc::strong_count(mark) - 1
}

/// Returns whether an item mostly waits for other items.
fn is_mostly_waiting(item: &WorkItem) -> bool {
    matches!(item.work, ItemWork::Large(_))
}

/// Maximum number of concurrent items, not counting items that wait for other items. Most of them are in flight on a
/// long path or wait for the final flush. Together they have up to 256 MiB, which is 10 Gbit/s for 0.2 s.
const ITEMS_AT_ONCE: usize = 16;
/// Maximum number of items that are being scanned or have most of their bytes unread. If a mover takes more items than
/// it can send, it is still busy with them after all other nodes have finished.
const TURNS: usize = 1;
/// Maximum number of large files for which a mover waits concurrently.
const LARGE_AT_ONCE: usize = 32;
/// Time limit for a mover to finish its items after all other work of the job is done.
const ITEMS_END_WITHIN: Duration = Duration::from_secs(3);
/// Time limit for running items after the mover was asked to leave.
const LEAVES_WITHIN: Duration = Duration::from_secs(2 * LEASE.as_secs());
/// Maximum interval between renewals of an item's lease. A lease is renewed at least three times, so one renewal may be
/// lost.
const RENEW_EVERY: Duration = Duration::from_secs(LEASE.as_secs() / 3);
/// Interval between checks whether all groups of a large file have arrived. Used while groups arrive and there is
/// nothing else to send.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
