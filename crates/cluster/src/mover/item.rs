//! Processes a single work item.

use std::collections::HashMap;

use zmove_scan::{DirectoryMark, MarkedPath, Portion, PortionSize, look_up_portion, walk_portion};
use zmove_sender::{self as sender, PieceHandle, Settled, SharedLargeFile};
use zmove_types::{Counters, Event, Name, Observer, RelPath};
use zmove_wire::SharedJobOrder;

use super::{AssignedItem, CHECK_INTERVAL, Mover};
use crate::error::SessionEnd;
use crate::job::ITEM;
use crate::mover::cut::{rest_of, work_of};
use crate::queue::{ItemWork, SplitFile, WorkItem, WorkQueue};
use crate::session::settled;

/// The marks of directories, by their paths.
type Marks = HashMap<RelPath, DirectoryMark>;

impl<W: WorkQueue> Mover<W> {
    /// Processes an item and makes the receiver publish and flush the item's files. *Begin* has no files.
    pub(super) async fn end(&self, assigned: &AssignedItem<'_>) -> Result<Counters, SessionEnd> {
        let counts = self.act(assigned).await?;
        assigned.made_step();
        if !matches!(assigned.item.work, ItemWork::Begin(_)) {
            let result = self.feeder.order(SharedJobOrder::Settle, None).await?;
            self.events.add_not_preserved(settled(result)?);
        }
        Ok(counts)
    }

    async fn act(&self, assigned: &AssignedItem<'_>) -> Result<Counters, SessionEnd> {
        match &assigned.item.work {
            ItemWork::Begin(roots) => {
                let trees = (0..).zip(roots).map(|(source, root)| WorkItem {
                    pass: assigned.item.pass,
                    source,
                    work: ItemWork::Trees(vec![root.clone()]),
                });
                self.announce(assigned, trees.collect()).await?;
                Ok(Counters::default())
            }
            ItemWork::Trees(directories) => {
                let paths = directories.clone();
                let walk = move |root: &_, config: &_| walk_portion(root, &paths, ITEM, config);
                let portion = self.job.scan(assigned.item.source, walk).await?;
                self.send_portion(assigned, portion).await
            }
            ItemWork::Names { directory, names } => {
                let asked = names.clone();
                let portion = self.look_up(assigned, directory, asked, ITEM).await?;
                let is_gone = portion.is_unopened;
                let mut counts = self.send_portion(assigned, portion).await?;
                // All items of a removed directory fail with the same message, so this counts the names instead of the
                // messages.
                if is_gone {
                    counts.failed = counts.failed.max(names.len() as u64);
                }
                Ok(counts)
            }
            // A failed range is neither counted nor reported. The item that commits the file sends the missing groups,
            // and reports the failure if it occurs again.
            ItemWork::Range { file, range } => {
                if let Ok(found) = self.find(assigned, file).await?
                    && self
                        .send_range(assigned, found, *range)
                        .await?
                        .counts
                        .failed
                        > 0
                {
                    let large = assigned.item.child(ItemWork::Large(file.clone()));
                    self.events.note_failed_range(large.id());
                }
                Ok(Counters::default())
            }
            ItemWork::Large(file) => self.commit_large(assigned, file).await,
        }
    }

    async fn announce_work(
        &self,
        assigned: &AssignedItem<'_>,
        work: impl Iterator<Item = ItemWork>,
    ) -> Result<(), SessionEnd> {
        let children = work.map(|work| assigned.item.child(work));
        self.announce(assigned, children.collect()).await
    }

    pub(super) async fn look_up(
        &self,
        assigned: &AssignedItem<'_>,
        directory: &MarkedPath,
        names: Vec<Name>,
        size: PortionSize,
    ) -> Result<Portion, SessionEnd> {
        let directory = directory.clone();
        let look =
            move |root: &_, config: &_| look_up_portion(root, &directory, &names, size, config);
        self.job.scan(assigned.item.source, look).await
    }

    /// Announces the rest of a portion, sends the portion, and commits its large files.
    async fn send_portion(
        &self,
        assigned: &AssignedItem<'_>,
        portion: Portion,
    ) -> Result<Counters, SessionEnd> {
        self.announce_work(assigned, rest_of(&portion)).await?;
        let left_out = Counters {
            left_out: portion.left_out,
            ..Counters::default()
        };
        if let Some(message) = portion.parts.warning() {
            self.events.on(&Event::Warned { message });
        }
        if portion.items.is_empty() {
            return Ok(left_out);
        }
        let sending = self.feeder.send(portion.items, ITEM.large_bytes)?;
        let Settled {
            counts, unnamed, ..
        } = self.settle(assigned, sending, &portion.marks).await?;
        let mut counts = counts.plus(&left_out);
        for file in unnamed {
            // This session has sent all groups of the file, so it also commits the file.
            let committed = self.commit(&file).await?;
            counts = counts.plus(&committed.map_err(|_missing| STORED_GROUPS_MISSING)?);
        }
        Ok(counts)
    }

    /// Waits until all data of an item has settled, and records progress. A large file that is split between movers is
    /// announced immediately, with the mark of its directory.
    pub(super) async fn settle(
        &self,
        assigned: &AssignedItem<'_>,
        mut sending: PieceHandle,
        marks: &Marks,
    ) -> Result<Settled, SessionEnd> {
        let mut before = 0;
        let mut resumed = Counters::default();
        loop {
            tokio::select! {
                next = sending.next() => match next? {
                    sender::PieceProgress::Settled(mut settled) => {
                        self.release_turn(assigned);
                        settled.counts = settled.counts.plus(&resumed);
                        return Ok(settled);
                    }
                    sender::PieceProgress::HalfRead => self.release_turn(assigned),
                    sender::PieceProgress::Large(large) => {
                        resumed = resumed.plus(&self.take_large(assigned, large, marks).await?);
                    }
                },
                () = tokio::time::sleep(CHECK_INTERVAL) => {
                    let now = sending.progress();
                    if std::mem::replace(&mut before, now) != now {
                        assigned.made_step();
                    }
                }
            }
        }
    }

    /// Splits a large file between movers.
    async fn take_large(
        &self,
        assigned: &AssignedItem<'_>,
        SharedLargeFile { directory, entry }: SharedLargeFile,
        marks: &Marks,
    ) -> Result<Counters, SessionEnd> {
        let file = SplitFile {
            directory: MarkedPath {
                mark: marks.get(&directory).copied(),
                path: directory,
            },
            name: entry.name,
            bytes: entry.size,
            mtime: entry.metadata.mtime,
        };
        let (missing, bytes_resumed) = self.missing(assigned, &file).await?;
        self.announce_work(assigned, work_of(&file, &missing))
            .await?;
        Ok(Counters {
            bytes_resumed,
            ..Counters::default()
        })
    }
}

const STORED_GROUPS_MISSING: SessionEnd =
    SessionEnd::PeerMisbehaved("the receiver is missing groups that it had stored");

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use tokio::time::sleep;
    use zmove_scan::ScanRoot;
    use zmove_types::RelPath;

    use super::super::{MoverEnd, RENEW_EVERY};
    use super::*;
    use crate::job::SharedJob;
    use crate::lab::{item_of, job, mover, pushed, root};
    use crate::queue::{LEASE, Taken};

    static PASS: AtomicU32 = AtomicU32::new(1);

    fn item() -> WorkItem {
        item_of(0, ItemWork::Begin(vec![root()]))
    }

    #[tokio::test]
    async fn a_mover_leaves_its_session_when_another_pass_has_begun() {
        let mover = mover();
        let queue = Arc::clone(&mover.queue);
        let of_second = WorkItem { pass: 2, ..item() };
        queue.put(vec![of_second.clone()]).await.unwrap();
        let pass = AtomicU32::new(1);
        let end = mover.run(pending(), &pass).await;
        assert!(matches!(end, Ok(MoverEnd::Left)), "{end:?}");
        assert_eq!(pass.into_inner(), 2);
        let again = queue.take().await.unwrap().unwrap();
        assert_eq!(again.item, of_second);
    }

    /// The mover's session is over, so the mover would fail with its first item.
    #[tokio::test(start_paused = true)]
    async fn a_mover_at_which_something_stands_still_leaves_the_rest_to_others() {
        let mover = mover();
        let _stands = Arc::clone(&mover.stalled);
        let queue = Arc::clone(&mover.queue);
        queue.put(vec![item()]).await.unwrap();
        let running = tokio::spawn(mover.run(pending(), &PASS));
        sleep(2 * RENEW_EVERY).await;
        let taken = queue.take().await.unwrap().expect("it is there for others");
        assert!(taken.item == item() && !running.is_finished(), "{taken:?}");
        queue.close().await.unwrap();
        assert_eq!(running.await.unwrap().unwrap(), MoverEnd::Over);
    }

    /// A task that waits for work may be the first to be notified of an expired lease, even of an item that is stalled
    /// on the same mover.
    #[tokio::test(start_paused = true)]
    async fn something_stands_still_before_its_lease_is_over() {
        for lease in [LEASE, LEASE * 2, LEASE / 5] {
            // The session never runs and answers no order.
            let (_push, feeder) = pushed();
            let job = SharedJob {
                sources: vec![ScanRoot::new(PathBuf::from("/nowhere"), RelPath::root())],
                ..job()
            };
            let mover = Arc::new(Mover {
                job: Arc::new(job),
                feeder,
                ..mover()
            });
            let trees = item_of(0, ItemWork::Trees(Vec::new()));
            mover.queue.put(vec![trees.clone()]).await.unwrap();
            let taken = mover.queue.take().await.unwrap().unwrap();
            let taken = Taken { lease, ..taken };
            let doing = tokio::spawn(Arc::clone(&mover).process_taken(taken, None));
            // The start of the item counts as a step.
            let over_after = RENEW_EVERY.min(lease / 3) + lease;
            sleep(over_after.saturating_sub(Duration::from_secs(1))).await;
            assert!(mover.has_stalled_item() && !doing.is_finished());
            let again = mover.queue.take().await.unwrap().unwrap();
            assert!(again.item == trees && !doing.is_finished(), "{again:?}");
        }
    }

    #[tokio::test]
    async fn what_an_item_has_announced_is_counted_with_it() {
        let mover = Arc::new(mover());
        mover.queue.put(vec![item()]).await.unwrap();
        let taken = mover.queue.take().await.unwrap().unwrap();
        Arc::clone(&mover).process_taken(taken, None).await.unwrap();
        let tally = mover.events.events.served.tally();
        assert_eq!((tally.items, tally.announced), (1, 1));
    }

    #[tokio::test]
    async fn an_item_comes_again_where_one_that_the_queue_refused_was_not_done() {
        let mover = Arc::new(mover());
        let queue = Arc::clone(&mover.queue);
        queue.put(vec![item()]).await.unwrap();
        let taken = queue.take().await.unwrap().unwrap();
        let others = (1..).map(|source| item_of(source, ItemWork::Trees(vec![root()])));
        let announced = queue.put(others.take(100_000).collect()).await.unwrap();
        assert!(!announced.refused.is_empty(), "it is full");
        let done = Arc::clone(&mover).process_taken(taken, None).await;
        assert!(done.is_err(), "the tree of a source that is not there");
        let again = queue.take().await.unwrap().unwrap();
        assert_eq!(again.item, item());
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_that_is_called_away_leaves_what_it_has_not_begun() {
        let mover = mover();
        let queue = Arc::clone(&mover.queue);
        let running = tokio::spawn(mover.run(ready(()), &PASS));
        sleep(RENEW_EVERY).await;
        queue.put(vec![item()]).await.unwrap();
        assert_eq!(running.await.unwrap().unwrap(), MoverEnd::Left);
        assert!(queue.take().await.unwrap().is_some());
    }
}
