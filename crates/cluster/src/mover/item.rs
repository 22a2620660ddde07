//! What a mover does with one work item.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use zmove_scan::{
    Directory, DirectoryMark, Entry, MarkedPath, Portion, PortionSize, ScanItem, look_up_portion,
    walk_portion,
};
use zmove_sender::{self as sender, AtTarget, LargeFound, Sending, Settled, Unnamed};
use zmove_types::{Event, GroupSpan, Name, Observer, RelPath};
use zmove_wire::limits::MISSING_RANGES_MAX;
use zmove_wire::{
    FaultCode, FileHead, GroupRange, Operation, SharedJobOrder, SharedJobResult, WorkCounts,
};

use super::{Assigned, Mover};
use crate::cut::{rest_of, work_of};
use crate::error::{Stop, refused};
use crate::job::ITEM;
use crate::work::{LargeFile, Marks, Place, Work, WorkItem};
use crate::work_queue::{LEASE, WorkQueue};

impl<W: WorkQueue> Mover<W> {
    /// Does an item, and has the receiver name and flush what belongs to it. Nothing of *begin* goes there.
    pub(super) async fn end(&self, by: &Assigned<'_>) -> Result<WorkCounts, Stop> {
        let counts = self.act(by).await?;
        by.made_step();
        if !matches!(by.item.work, Work::Begin(_)) {
            match self.feeder.order(SharedJobOrder::Settle, None).await? {
                SharedJobResult::Settled(not_kept) => self.events.lack(not_kept),
                other => return Err(refused(other)),
            }
        }
        Ok(counts)
    }

    async fn act(&self, by: &Assigned<'_>) -> Result<WorkCounts, Stop> {
        let item = &by.item;
        match &item.work {
            Work::Begin(sources) => {
                let marks = (0..).map(|number| item.mark(number));
                let trees = Place::roots(*sources)
                    .zip(marks)
                    .map(|(root, mark)| (Work::Trees(vec![root]), vec![mark]));
                self.announce_work(by, trees).await?;
                Ok(WorkCounts::default())
            }
            Work::Trees(places) => self.walk(by, places).await,
            Work::Names { directory, names } => {
                let place = marked(directory, item.mark(0));
                let portion = self
                    .look_up(directory.source, place, names.clone(), ITEM)
                    .await?;
                let is_gone = portion.is_unopened;
                let mut counts = self.send_portion(by, portion, directory.source).await?;
                // Each item of a directory that is gone fails with the same message: the missing names count.
                if is_gone {
                    counts.failed = counts.failed.max(names.len() as u64);
                }
                Ok(counts)
            }
            // A range that fails counts for nothing and is not told: whoever gives the file its name sends what is
            // missing, and tells what fails then.
            Work::Range { file, range } => {
                if let Ok(found) = self.find(file, item.mark(0)).await?
                    && self.send_range(by, found, *range).await?.counts.failed > 0
                {
                    let large = item.child(Work::Large(file.clone()), Marks::new());
                    self.events.note_failed_range(large.id(self.job.id));
                }
                Ok(WorkCounts::default())
            }
            Work::Large(file) => self.commit_large(by, file).await,
        }
    }

    async fn announce_work(
        &self,
        by: &Assigned<'_>,
        work: impl IntoIterator<Item = (Work, Marks)>,
    ) -> Result<(), Stop> {
        let children = work
            .into_iter()
            .map(|(work, marks)| by.item.child(work, marks));
        self.announce(by, children.collect()).await
    }

    async fn walk(&self, by: &Assigned<'_>, places: &[Place]) -> Result<WorkCounts, Stop> {
        let source = places.first().map_or(0, |place| place.source);
        let marks = by.item.marks.iter().copied().chain(std::iter::repeat(None));
        let paths: Vec<_> = places
            .iter()
            .zip(marks)
            .map(|(place, mark)| marked(place, mark))
            .collect();
        let portion = self
            .job
            .scan(source, move |root, config| {
                walk_portion(root, &paths, ITEM, config)
            })
            .await?;
        self.send_portion(by, portion, source).await
    }

    async fn look_up(
        &self,
        source: u32,
        directory: MarkedPath,
        names: Vec<Name>,
        size: PortionSize,
    ) -> Result<Portion, Stop> {
        let look =
            move |root: &_, config: &_| look_up_portion(root, (&directory, &names), size, config);
        self.job.scan(source, look).await
    }

    /// Announces what a portion leaves, sends the portion, and has its large files get their names.
    async fn send_portion(
        &self,
        by: &Assigned<'_>,
        portion: Portion,
        source: u32,
    ) -> Result<WorkCounts, Stop> {
        self.announce_work(by, rest_of(&portion, source)).await?;
        let left_out = WorkCounts {
            left_out: portion.left_out,
            ..WorkCounts::default()
        };
        self.tell_parts(&portion);
        if portion.items.is_empty() {
            return Ok(left_out);
        }
        let sending = self.feeder.send(portion.items, ITEM.large_bytes)?;
        let found = Found {
            by,
            source,
            marks: &portion.marks,
        };
        let Settled {
            counts, unnamed, ..
        } = self.settle(sending, found).await?;
        let mut counts = counts.and(left_out);
        for file in unnamed {
            counts = counts.and(self.commit_now(&file).await?);
        }
        Ok(counts)
    }

    /// Waits until all of a piece of an item has settled, and notes the progress meanwhile. Large files that are left
    /// to several are announced at once; those that are at the target count as skipped.
    async fn settle(&self, mut sending: Sending, found: Found<'_>) -> Result<Settled, Stop> {
        let mut before = 0;
        let mut skipped = WorkCounts::default();
        loop {
            tokio::select! {
                next = sending.next() => match next? {
                    sender::Progress::Settled(mut settled) => {
                        self.note_sent(found.by);
                        settled.counts = settled.counts.and(skipped);
                        return Ok(settled);
                    }
                    sender::Progress::HalfRead => self.note_sent(found.by),
                    sender::Progress::Large(large) => {
                        skipped = skipped.and(self.take_large(found, large).await?);
                    }
                },
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let now = sending.progress();
                    if std::mem::replace(&mut before, now) != now {
                        found.by.made_step();
                    }
                }
            }
        }
    }

    /// Leaves a large file to several, unless it is at the target already.
    async fn take_large(
        &self,
        Found { by, source, marks }: Found<'_>,
        large: LargeFound,
    ) -> Result<WorkCounts, Stop> {
        if large.at_target == AtTarget::There {
            let bytes = large.entry.size;
            return Ok(WorkCounts {
                files: 1,
                bytes,
                skipped: 1,
                skipped_bytes: bytes,
                ..WorkCounts::default()
            });
        }
        let mark = marks.get(&large.directory).copied();
        let file = large_file(source, large);
        let (missing, resumed_bytes) = self.missing(&file, mark).await?;
        let work = work_of(&file, &missing).map(|work| (work, vec![mark]));
        self.announce_work(by, work).await?;
        Ok(WorkCounts {
            resumed_bytes,
            ..WorkCounts::default()
        })
    }

    /// The groups of a large file that are not at the target, and how many bytes are there: another job may have left
    /// some.
    async fn missing(
        &self,
        file: &LargeFile,
        mark: Option<DirectoryMark>,
    ) -> Result<(Vec<GroupRange>, u64), Stop> {
        let groups = GroupSpan::count(file.bytes).unwrap_or(0);
        let all = || vec![GroupRange::new(0, groups)];
        let Ok(FoundFile { directory, entry }) = self.find(file, mark).await? else {
            return Ok((all(), 0));
        };
        let Ok(Unnamed { head, .. }) = self.feeder.declaration(directory, entry).await? else {
            return Ok((all(), 0));
        };
        let has_holes = FileHead::decode(&head).is_ok_and(|head| head.data.is_some());
        let order = SharedJobOrder::Commit { head, root: None };
        let mut missing = match self.feeder.order(order, None).await? {
            SharedJobResult::Missing(missing) if are_groups_of(file.bytes, &missing) => missing,
            SharedJobResult::Committed { .. } => Vec::new(),
            // its own item tells why
            _ => return Ok((all(), 0)),
        };
        if missing.len() >= MISSING_RANGES_MAX {
            let end = missing.last().map_or(0, |last| last.end());
            missing.push(GroupRange::new(end, groups.saturating_sub(end)));
        }
        let bytes = |range: &GroupRange| {
            let spans =
                (range.first..range.end()).filter_map(|index| GroupSpan::of(file.bytes, index));
            spans.map(|span| u64::from(span.len)).sum::<u64>()
        };
        let there = file.bytes.saturating_sub(missing.iter().map(bytes).sum());
        Ok((missing, if has_holes { 0 } else { there }))
    }

    fn tell_parts(&self, portion: &Portion) {
        if let Some(message) = portion.parts.warning() {
            self.events.on(&Event::Warned { message });
        }
    }

    /// Has a file get its name, all groups of which this session has sent.
    async fn commit_now(&self, file: &Unnamed) -> Result<WorkCounts, Stop> {
        match self.commit(file).await? {
            Committed::Named(counts) => Ok(counts),
            Committed::Missing(_) => Err(Stop::PeerMisbehaved(
                "the receiver lacks groups that it has stored",
            )),
        }
    }

    async fn commit(&self, file: &Unnamed) -> Result<Committed, Stop> {
        let order = SharedJobOrder::Commit {
            head: file.head.clone(),
            root: None,
        };
        let answer = self.feeder.order(order, Some(file.bytes)).await?;
        self.committed(file, answer)
    }

    /// What the answer to the order says that has become of it.
    fn committed(&self, file: &Unnamed, answer: SharedJobResult) -> Result<Committed, Stop> {
        let path = &file.path;
        Ok(match answer {
            SharedJobResult::Committed { .. } => Committed::Named(WorkCounts {
                files: 1,
                bytes: file.bytes,
                ..WorkCounts::default()
            }),
            SharedJobResult::Missing(ranges) if are_groups_of(file.bytes, &ranges) => {
                Committed::Missing(ranges)
            }
            SharedJobResult::Missing(_) => return Err(NO_GROUPS),
            // what is newer there stays
            SharedJobResult::Failed(_, FaultCode::AlreadyThere) => {
                Committed::Named(WorkCounts::default())
            }
            SharedJobResult::Failed(operation, code)
                if operation != Operation::Flush && code != FaultCode::JobEnded =>
            {
                Committed::Named(self.fail(format!(
                    "receiver: {operation} '{}': {code}",
                    path.display()
                )))
            }
            other => return Err(refused(other)),
        })
    }

    /// Sends groups of a large file; only the file's own item gives it its name.
    async fn send_range(
        &self,
        by: &Assigned<'_>,
        FoundFile { directory, entry }: FoundFile,
        range: GroupRange,
    ) -> Result<Settled, Stop> {
        let sending = self
            .feeder
            .send_range(directory, entry, range.first..range.end())?;
        let found = Found {
            by,
            source: 0,
            marks: &HashMap::new(),
        };
        self.settle(sending, found).await
    }

    /// A large file as it was when it was found; the inner error is why it is not there as it was.
    async fn find(
        &self,
        file: &LargeFile,
        mark: Option<DirectoryMark>,
    ) -> Result<Result<FoundFile, String>, Stop> {
        let size = PortionSize {
            large_bytes: u64::MAX,
            ..ITEM
        };
        let Place { source, .. } = file.directory;
        let directory = marked(&file.directory, mark);
        let portion = self
            .look_up(source, directory, vec![file.name.clone()], size)
            .await?;
        let is_it = |entry: &Entry| {
            entry.name == file.name
                && entry.size == file.bytes
                && entry.metadata.mtime == file.mtime
        };
        for item in portion.items {
            match item {
                ScanItem::Batch(batch) => {
                    if let Some(entry) = batch.entries.into_iter().find(is_it) {
                        return Ok(Ok(FoundFile {
                            directory: batch.directory,
                            entry,
                        }));
                    }
                }
                ScanItem::Error(error) => return Ok(Err(format!("sender: {error}"))),
                ScanItem::Root { .. } => {}
            }
        }
        Ok(Err(sender::file_changed(self.path_of(file))))
    }

    fn path_of(&self, file: &LargeFile) -> PathBuf {
        let root = self
            .job
            .root_of(file.directory.source)
            .map(|root| root.source.clone())
            .unwrap_or_default();
        root.join(file.directory.path.as_path())
            .join(file.name.as_os_str())
    }

    /// Has a large file get its name once all of its groups are there, which others send. What they seem not to send
    /// goes from here, once.
    async fn commit_large(&self, by: &Assigned<'_>, file: &LargeFile) -> Result<WorkCounts, Stop> {
        let mark = by.item.mark(0);
        let found = match self.find(file, mark).await? {
            Ok(found) => found,
            Err(why) => return Ok(self.fail(why)),
        };
        let FoundFile { directory, entry } = found.clone();
        let unnamed = match self.feeder.declaration(directory, entry).await? {
            Ok(unnamed) => unnamed,
            Err(why) => return Ok(self.fail(why)),
        };
        let _waiting = Arc::clone(&self.waiting);
        self.changed.notify_one();
        let mut awaited = Awaited::new(file.bytes);
        let mut looked = Instant::now();
        loop {
            let missing = match self.commit(&unnamed).await? {
                Committed::Named(counts) => {
                    // only now: of one that fails nothing is told in this session's account
                    self.feeder.find()?;
                    return Ok(counts);
                }
                Committed::Missing(missing) => missing,
            };
            // an answer shows that the receiver's storage does not hang
            by.made_step();
            match awaited.look(&missing, self.stuck_after(&by.item)) {
                Look::Fewer | Look::AsMany => {}
                Look::Stuck => {
                    let sent = self.send_ranges(by, &found, &missing).await?;
                    if sent.failed > 0 {
                        return Ok(sent);
                    }
                    awaited.have_resent(missing);
                    continue;
                }
                Look::Lost => {
                    return Ok(self.fail(format!(
                        "receiver: write '{}': {LOST}",
                        unnamed.path.display()
                    )));
                }
            }
            self.until_next_look(awaited.pause).await;
            awaited.pause = (2 * awaited.pause).min(LOOK_AT_LEAST_EVERY);
            if looked.elapsed() >= LOOK_AT_LEAST_EVERY {
                looked = Instant::now();
                if let Err(why) = self.find(file, mark).await? {
                    // nobody can send the rest of what it was
                    return Ok(self.fail(why));
                }
            }
        }
    }

    /// Sends groups of a large file, as far as none fails; tells why one has.
    async fn send_ranges(
        &self,
        by: &Assigned<'_>,
        found: &FoundFile,
        ranges: &[GroupRange],
    ) -> Result<WorkCounts, Stop> {
        for &range in ranges {
            let Settled { counts, why, .. } = self.send_range(by, found.clone(), range).await?;
            if counts.failed > 0 {
                why.into_iter().for_each(|why| self.tell_failure(why));
                return Ok(FAILED);
            }
        }
        Ok(WorkCounts::default())
    }

    /// Waits until it is worth while to ask again for the groups of a large file: the receiver flushes for each answer,
    /// and nobody waits for it as long as there is something else to send. Where there is not, it takes as long as
    /// `idle`.
    async fn until_next_look(&self, idle: Duration) {
        let since = Instant::now();
        while since.elapsed() < LOOK_AT_LEAST_EVERY {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.turns.available_permits() > 0 && since.elapsed() >= idle {
                return;
            }
        }
    }

    /// After how long without another group of a file nobody seems to send what is missing.
    fn stuck_after(&self, large: &WorkItem) -> Duration {
        if self.events.has_failed_range(large.id(self.job.id)) {
            FAILED_RANGE_AFTER
        } else {
            STUCK_AFTER
        }
    }

    /// Tells why something has failed, which counts once.
    fn fail(&self, why: String) -> WorkCounts {
        self.tell_failure(why);
        FAILED
    }
}

/// A large file that is as it was found.
#[derive(Clone)]
struct FoundFile {
    directory: Arc<Directory>,
    entry: Entry,
}

/// Groups of a large file that are waited for.
///
/// Only that fewer are missing than ever before is progress: a receiver that tells of others each time would else be
/// waited for without end.
struct Awaited {
    /// How many groups the file has.
    groups: u32,
    /// The fewest that have been missing.
    fewest: u64,
    /// Since when it is so few, or these have been sent from here.
    since: Instant,
    /// How long to wait before the next look.
    pause: Duration,
    /// The ranges that have been sent from here since.
    resent: Option<Vec<GroupRange>>,
}

/// What is to be done about the groups that are missing.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// Some have come.
    Fewer,
    /// Nothing yet.
    AsMany,
    /// Nobody seems to send them.
    Stuck,
    /// Groups that were sent from here are missing all the same.
    Lost,
}

impl Awaited {
    fn new(bytes: u64) -> Self {
        let groups = GroupSpan::count(bytes).unwrap_or(0);
        Self {
            groups,
            fewest: u64::MAX,
            since: Instant::now(),
            pause: LOOK_EVERY,
            resent: None,
        }
    }

    fn look(&mut self, missing: &[GroupRange], stuck_after: Duration) -> Look {
        let many = self.count(missing);
        let is_stuck = self.since.elapsed() >= stuck_after;
        match &self.resent {
            _ if many < self.fewest => {
                self.fewest = many;
                self.since = Instant::now();
                self.pause = LOOK_EVERY;
                self.resent = None;
                Look::Fewer
            }
            Some(resent) if is_stuck || resent == missing => Look::Lost,
            None if is_stuck => Look::Stuck,
            // what another sends again meanwhile is missing until that has been flushed
            Some(_) | None => Look::AsMany,
        }
    }

    fn have_resent(&mut self, missing: Vec<GroupRange>) {
        self.since = Instant::now();
        self.resent = Some(missing);
    }

    /// How many groups are missing, at most: of those behind the last range of a full answer nothing is known.
    fn count(&self, missing: &[GroupRange]) -> u64 {
        let told: u64 = missing.iter().map(|range| u64::from(range.count)).sum();
        match missing.last() {
            Some(last) if missing.len() >= MISSING_RANGES_MAX => {
                told + u64::from(self.groups.saturating_sub(last.end()))
            }
            _ => told,
        }
    }
}

/// Whether these are ranges of groups of a file of so many bytes: one after the other, and at least one.
fn are_groups_of(bytes: u64, ranges: &[GroupRange]) -> bool {
    let count = GroupSpan::count(bytes).unwrap_or(0);
    let end = ranges.iter().try_fold(0, |end, range| {
        let next = range.first.checked_add(range.count)?;
        (range.first >= end && range.count > 0 && next <= count).then_some(next)
    });
    !ranges.is_empty() && end.is_some()
}

/// Where a portion comes from: `by` is the item that it is of, `source` is its number, and `marks` are of its
/// directories.
#[derive(Clone, Copy)]
struct Found<'a> {
    by: &'a Assigned<'a>,
    source: u32,
    marks: &'a HashMap<RelPath, DirectoryMark>,
}

fn marked(place: &Place, mark: Option<DirectoryMark>) -> MarkedPath {
    MarkedPath {
        path: place.path.clone(),
        mark,
    }
}

fn large_file(
    source: u32,
    LargeFound {
        directory, entry, ..
    }: LargeFound,
) -> LargeFile {
    let directory = Place {
        source,
        path: directory,
    };
    LargeFile {
        directory,
        name: entry.name,
        bytes: entry.size,
        mtime: entry.metadata.mtime,
    }
}

/// What has become of the order to give a file its name.
#[derive(Debug)]
enum Committed {
    Named(WorkCounts),
    /// These groups are missing.
    Missing(Vec<GroupRange>),
}

/// One failure.
const FAILED: WorkCounts = WorkCounts {
    files: 0,
    bytes: 0,
    failed: 1,
    skipped: 0,
    skipped_bytes: 0,
    specials: 0,
    left_out: 0,
    resumed_bytes: 0,
};
const NO_GROUPS: Stop =
    Stop::PeerMisbehaved("the receiver lacks groups that the file does not have");
const LOST: &str = "groups that the receiver has stored are missing";
/// How often it is asked whether all groups of a large file are there, where nothing else is to be sent and some come.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The longest time between two looks at whether all groups are there and the file is unchanged.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// After so long without another group nobody seems to send what is missing: somewhat longer than an item is leased.
const STUCK_AFTER: Duration = LEASE.saturating_add(Duration::from_secs(10));
/// The same where a range has failed here: what others are sending comes.
const FAILED_RANGE_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tokio::time::{advance, sleep};
    use zmove_scan::ScanRoot;
    use zmove_types::GROUP_BYTES;

    use super::super::{MoverEnd, RENEW_EVERY};
    use super::*;
    use crate::job::SharedJob;
    use crate::lab::{JOB, feeder, job, pushed, session_events};
    use crate::local_queue::LocalQueue;

    /// A mover whose session has not begun.
    fn mover() -> Mover<LocalQueue> {
        Mover::new(
            Arc::new(job()),
            Arc::new(LocalQueue::new(JOB)),
            feeder(),
            session_events(),
        )
    }

    fn item() -> WorkItem {
        WorkItem::first(1, Marks::new(), Work::Begin(1))
    }

    /// An item that it begins ends it, since its session is over.
    #[tokio::test(start_paused = true)]
    async fn a_mover_at_which_something_stands_still_leaves_the_rest_to_others() {
        let mover = mover();
        let _stands = Arc::clone(&mover.standing);
        let queue = Arc::clone(&mover.queue);
        queue.put(vec![item()]).await.unwrap();
        let (_call, called_away) = watch::channel(false);
        let running = tokio::spawn(mover.run(called_away, || ()));
        sleep(2 * RENEW_EVERY).await;
        let taken = queue.take().await.unwrap().expect("it is there for others");
        assert!(taken.deliveries > 1 && !running.is_finished(), "{taken:?}");
        queue.close().await.unwrap();
        assert_eq!(running.await.unwrap().unwrap(), MoverEnd::Over);
    }

    /// Whoever waits for work may be the first to hear that a lease is over, also that of what stands still there.
    #[tokio::test(start_paused = true)]
    async fn something_stands_still_before_its_lease_is_over() {
        // it never runs, and answers no order
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
        mover
            .queue
            .put(vec![WorkItem::first(
                1,
                Marks::new(),
                Work::Trees(Vec::new()),
            )])
            .await
            .unwrap();
        let taken = mover.queue.take().await.unwrap().unwrap();
        let doing = tokio::spawn(Arc::clone(&mover).do_taken(taken, None));
        // that it has begun counts as a step
        let over_after = RENEW_EVERY + LEASE;
        sleep(over_after.saturating_sub(Duration::from_secs(1))).await;
        assert!(mover.stands() && !doing.is_finished());
    }

    #[tokio::test]
    async fn an_item_comes_again_where_one_that_the_queue_refused_was_not_done() {
        let mover = Arc::new(mover());
        let queue = Arc::clone(&mover.queue);
        queue.put(vec![item()]).await.unwrap();
        let taken = queue.take().await.unwrap().unwrap();
        let others = (1..).map(|sources| WorkItem::first(2, Marks::new(), Work::Begin(sources)));
        let refused = queue.put(others.take(100_000).collect()).await.unwrap();
        assert!(!refused.is_empty(), "it is full");
        let done = Arc::clone(&mover).do_taken(taken, None).await;
        assert!(done.is_err(), "the tree of a source that is not there");
        let again = queue.take().await.unwrap().unwrap();
        assert_eq!((again.item, again.deliveries), (item(), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_that_is_called_away_leaves_what_it_has_not_begun() {
        let mover = mover();
        let queue = Arc::clone(&mover.queue);
        let (call, called_away) = watch::channel(true);
        let running = tokio::spawn(mover.run(called_away, || ()));
        sleep(RENEW_EVERY).await;
        queue.put(vec![item()]).await.unwrap();
        assert_eq!(running.await.unwrap().unwrap(), MoverEnd::Left);
        assert!(queue.take().await.unwrap().is_some());
        drop(call);
    }

    #[test]
    fn a_receiver_that_lacks_groups_that_the_file_does_not_have_is_not_heeded() {
        let file = Unnamed {
            head: Vec::new(),
            path: PathBuf::from("f"),
            bytes: 2 * GROUP_BYTES,
        };
        let answer = |ranges: &[(u32, u32)]| {
            mover().committed(&file, SharedJobResult::Missing(ranges_of(ranges)))
        };
        assert!(
            matches!(answer(&[(1, 1)]).unwrap(), Committed::Missing(missing) if missing.len() == 1)
        );
        assert!(matches!(
            answer(&[(1, 2)]).unwrap_err(),
            Stop::PeerMisbehaved(_)
        ));
    }

    #[test]
    fn a_file_of_which_a_range_has_failed_here_is_not_waited_for_as_long() {
        let mover = mover();
        let place = Place {
            source: 0,
            path: RelPath::root(),
        };
        let [failed, other] = [b"failed", b"other."].map(|name| {
            let name = Name::from_bytes(name).unwrap();
            let mtime = zmove_types::Timestamp::default();
            let file = LargeFile {
                directory: place.clone(),
                name,
                bytes: GROUP_BYTES,
                mtime,
            };
            WorkItem::first(1, Marks::new(), Work::Large(file))
        });
        mover.events.note_failed_range(failed.id(mover.job.id));
        assert_eq!(
            [failed, other].map(|file| mover.stuck_after(&file)),
            [FAILED_RANGE_AFTER, STUCK_AFTER]
        );
    }

    fn ranges_of(ranges: &[(u32, u32)]) -> Vec<GroupRange> {
        ranges
            .iter()
            .map(|&(first, count)| GroupRange::new(first, count))
            .collect()
    }

    #[test]
    fn what_is_said_to_be_missing_has_to_be_of_the_file() {
        let bytes = 9 * GROUP_BYTES + 1;
        let are = |ranges: &[(u32, u32)]| are_groups_of(bytes, &ranges_of(ranges));
        assert!(are(&[(0, 10)]) && are(&[(0, 1), (1, 1), (9, 1)]));
        let others: [&[(u32, u32)]; 8] = [
            &[],
            &[(3, 0)],
            &[(9, 2)],
            &[(10, 1)],
            &[(u32::MAX - 2, u32::MAX)],
            &[(1, 1), (0, 1)],
            &[(0, 2), (1, 1)],
            &[(1, 1), (1, 1)],
        ];
        for ranges in others {
            assert!(!are(ranges), "{ranges:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_tells_of_other_groups_each_time_is_not_waited_for_without_end() {
        let mut awaited = Awaited::new(100 * GROUP_BYTES);
        let mut told = Vec::new();
        for number in 0..100 {
            let missing = [GroupRange::new(number, 2)];
            match awaited.look(&missing, STUCK_AFTER) {
                Look::Stuck => awaited.have_resent(missing.to_vec()),
                Look::Lost => break,
                Look::Fewer | Look::AsMany => {}
            }
            told.push(number);
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told.len(), 80);
        assert_eq!(
            awaited.look(&ranges_of(&[(7, 1)]), STUCK_AFTER),
            Look::Fewer
        );
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_are_missing_as_before_although_they_were_sent_again_are_lost() {
        let mut awaited = Awaited::new(100 * GROUP_BYTES);
        assert_eq!(
            awaited.look(&ranges_of(&[(0, 2)]), STUCK_AFTER),
            Look::Fewer
        );
        advance(STUCK_AFTER).await;
        assert_eq!(
            awaited.look(&ranges_of(&[(0, 2)]), STUCK_AFTER),
            Look::Stuck
        );
        awaited.have_resent(ranges_of(&[(0, 2)]));
        assert_eq!(
            awaited.look(&ranges_of(&[(0, 2), (5, 7)]), STUCK_AFTER),
            Look::AsMany,
            "of others"
        );
        assert_eq!(awaited.look(&ranges_of(&[(0, 2)]), STUCK_AFTER), Look::Lost);
    }

    #[test]
    fn of_a_full_answer_all_counts_that_may_be_missing() {
        let mut awaited = Awaited::new(10_000 * GROUP_BYTES);
        let every_other = |from: u32| {
            (0..1024_u32)
                .map(|number| GroupRange::new(from + 2 * number, 1))
                .collect::<Vec<_>>()
        };
        assert_eq!(awaited.look(&every_other(0), STUCK_AFTER), Look::Fewer);
        assert_eq!(awaited.look(&every_other(0), STUCK_AFTER), Look::AsMany);
        assert_eq!(awaited.look(&every_other(2), STUCK_AFTER), Look::Fewer);
    }
}
