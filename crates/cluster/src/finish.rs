//! The last that is done in a job: directories get mode and time, when nothing more is put into them.
//!
//! The head walks the sources, and does so in its own session: so much is little beside the files. Directories that
//! have gone from the sources meanwhile stay closed, as they were made.
//!
//! **Invariant:** a directory is set after all below it where its mode takes away the right to enter it.

use std::path::Path;

use futures_util::future::try_join_all;
use rustix::io::Errno;
use tokio::task::JoinSet;
use zmove_scan::{MarkedPath, Portion, PortionSize, ScanItem, ScanRoot, Wanted, walk_portion};
use zmove_types::{Escaped, Event, Observer, RelPath};
use zmove_wire::{
    Batch, BatchEntry, EntryFault, Fault, FaultCode, SharedJobOrder, SharedJobResult,
};

use crate::error::{Stop, refused};
use crate::job::{ITEM, SharedJob};
use crate::orders::Orders;
use crate::session::SessionEvents;

/// How far the directories of a job are finished: a session that breaks takes nothing of it back.
#[derive(Debug)]
pub(crate) struct Finishing {
    /// What is to be done, the next last.
    steps: Vec<Step>,
    failed: u64,
}

#[derive(Debug)]
enum Step {
    /// To look for directories below this one.
    Walk(Unwalked),
    /// To have directories set.
    Set(DirectoryOrder),
}

impl Step {
    /// How many orders may be without an answer when this is done: none where it closes a directory, or begins a
    /// source, which may be the target itself as the one before.
    fn unanswered_max(&self) -> usize {
        match self {
            Self::Set(order) if order.closes => 0,
            Self::Set(_) => ORDERS_AT_ONCE - 1,
            Self::Walk(unwalked) if unwalked.directory.path.is_root() => 0,
            Self::Walk(_) => usize::MAX,
        }
    }
}

/// A directory of a source, by the number of the source, that has not been walked.
#[derive(Debug)]
struct Unwalked {
    source: u32,
    directory: MarkedPath,
}

/// Directories that are to be set.
#[derive(Clone, Debug)]
struct DirectoryOrder {
    head: Vec<u8>,
    /// Whether one of them may not be entered by its owner when it has its mode.
    closes: bool,
}

impl DirectoryOrder {
    fn new(batch: &Batch) -> Self {
        let closes = |entry: &BatchEntry| entry.metadata().mode & MAY_ENTER != MAY_ENTER;
        let closes = batch
            .groups
            .iter()
            .flat_map(|group| &group.entries)
            .any(closes);
        Self {
            head: batch.encode(),
            closes,
        }
    }
}

/// An order that was given, and what has become of it.
type DirectoryOrdered = (DirectoryOrder, Result<SharedJobResult, Stop>);

impl Finishing {
    pub(crate) fn of(job: &SharedJob) -> Self {
        let mark = |source: u32| *job.source_marks.get(usize::try_from(source).ok()?)?;
        let root = |source| {
            let directory = MarkedPath {
                path: RelPath::root(),
                mark: mark(source),
            };
            Step::Walk(Unwalked { source, directory })
        };
        let steps = (0..job.source_count()).rev().map(root).collect();
        Self { steps, failed: 0 }
    }

    /// Sets mode and time of all directories; returns how many did not get them. Failures are told.
    pub(crate) async fn run(
        &mut self,
        job: &SharedJob,
        orders: &Orders,
        events: &SessionEvents,
    ) -> Result<u64, Stop> {
        let mut ordered = JoinSet::new();
        let done = self.run_steps(job, orders, events, &mut ordered).await;
        self.take_back(ordered).await;
        done.map(|()| self.failed)
    }

    async fn run_steps(
        &mut self,
        job: &SharedJob,
        orders: &Orders,
        events: &SessionEvents,
        ordered: &mut JoinSet<DirectoryOrdered>,
    ) -> Result<(), Stop> {
        while let Some(step) = self.steps.pop() {
            let waiting = self.steps.len();
            if let Err(stop) = self
                .answered(job, ordered, events, step.unanswered_max())
                .await
            {
                // what has not been answered is done again before
                self.steps.insert(waiting, step);
                return Err(stop);
            }
            match step {
                Step::Walk(first) => self.walk(job, first, orders, events).await?,
                Step::Set(order) => self.order(order, orders, ordered),
            }
        }
        self.answered(job, ordered, events, 0).await
    }

    /// Walks directories, and notes what is to be done for them.
    async fn walk(
        &mut self,
        job: &SharedJob,
        first: Unwalked,
        orders: &Orders,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let source = first.source;
        let places = self.with_next(first);
        let waiting = self.steps.len();
        let walked = self
            .walk_places(job, (source, &places), orders, events)
            .await;
        if walked.is_err() {
            self.steps.truncate(waiting);
            let places = places.into_iter().rev();
            self.steps
                .extend(places.map(|directory| Step::Walk(Unwalked { source, directory })));
        }
        walked
    }

    async fn walk_places(
        &mut self,
        job: &SharedJob,
        (source, places): (u32, &[MarkedPath]),
        orders: &Orders,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let mut below = Vec::new();
        for portion in walk(job, source, places).await? {
            for item in &portion.items {
                // what could not be walked before has been told, and counted
                let ScanItem::Error(error) = item else {
                    continue;
                };
                let message = format!("sender: {error}: {AS_THEY_CAME}");
                if !events.has_told(&format!("sender: {error}")) && !events.has_told(&message) {
                    self.failed += 1;
                    events.on(&Event::Failed { message });
                }
            }
            for batch in orders.feeder.directory_batches(portion.items).await? {
                self.steps.push(Step::Set(DirectoryOrder::new(&batch)));
            }
            below.extend(portion.directories);
        }
        let below = below.into_iter().rev();
        self.steps
            .extend(below.map(|directory| Step::Walk(Unwalked { source, directory })));
        Ok(())
    }

    /// Takes the directories of this source that are to be walked next.
    fn with_next(&mut self, Unwalked { source, directory }: Unwalked) -> Vec<MarkedPath> {
        let mut places = vec![directory];
        while places.len() < PLACES_AT_ONCE
            && let Some(Step::Walk(next)) = self
                .steps
                .pop_if(|next| matches!(next, Step::Walk(next) if next.source == source))
        {
            places.push(next.directory);
        }
        places
    }

    fn order(
        &self,
        order: DirectoryOrder,
        orders: &Orders,
        ordered: &mut JoinSet<DirectoryOrdered>,
    ) {
        let orders = orders.clone();
        ordered.spawn(async move {
            let head = order.head.clone();
            let result = orders.answer(SharedJobOrder::SetDirectories { head }).await;
            (order, result)
        });
    }

    /// Waits until no more orders than these are without an answer.
    async fn answered(
        &mut self,
        job: &SharedJob,
        ordered: &mut JoinSet<DirectoryOrdered>,
        events: &SessionEvents,
        most: usize,
    ) -> Result<(), Stop> {
        while ordered.len() > most
            && let Some(done) = ordered.join_next().await
        {
            let (order, result) = done.map_err(|_panic| Stop::Panicked("an order panicked"))?;
            let heard = match result {
                Ok(result) => self.hear(job, &order, result, events),
                Err(stop) => Err(stop),
            };
            if let Err(stop) = heard {
                self.steps.push(Step::Set(order));
                return Err(stop);
            }
        }
        Ok(())
    }

    /// Notes what has not been answered as still to be done.
    async fn take_back(&mut self, mut ordered: JoinSet<DirectoryOrdered>) {
        while let Some(done) = ordered.join_next().await {
            self.steps
                .extend(done.ok().map(|(order, _)| Step::Set(order)));
        }
    }

    /// Counts and tells the directories that did not get mode and time.
    fn hear(
        &mut self,
        job: &SharedJob,
        order: &DirectoryOrder,
        result: SharedJobResult,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let SharedJobResult::DirectoriesSet(faults) = result else {
            return Err(refused(result));
        };
        if faults.is_empty() {
            return Ok(());
        }
        // each group is one directory itself
        let directories = Batch::decode(&order.head, 0)
            .map_err(|_own| OWN_HEAD)?
            .groups;
        for EntryFault {
            entry,
            operation,
            code,
        } in &faults
        {
            let number = usize::try_from(*entry).unwrap_or(usize::MAX);
            let path = directories.get(number).ok_or(NO_ENTRY)?.directory.clone();
            let fault = Fault {
                path,
                operation: *operation,
                code: *code,
            };
            let came_later = match code {
                // it is not there for the same reason
                FaultCode::Os(NO_SUCH_FILE) if has_failed_above(job, &fault.path, events) => {
                    continue;
                }
                // one that was found before has been made
                FaultCode::Os(NO_SUCH_FILE) => CAME_LATER,
                _ => "",
            };
            self.failed += 1;
            events.on(&Event::Failed {
                message: format!("receiver: {fault}{came_later}"),
            });
        }
        Ok(())
    }
}

/// Walks several portions at once: storage on other hosts takes its time for each directory.
async fn walk(job: &SharedJob, source: u32, places: &[MarkedPath]) -> Result<Vec<Portion>, Stop> {
    let size = PortionSize {
        wanted: Wanted::Directories,
        ..ITEM
    };
    let walks = places
        .chunks(places.len().div_ceil(WALKS_AT_ONCE))
        .map(|places| {
            let places = places.to_vec();
            job.scan(source, move |root, config| {
                walk_portion(root, &places, size, config)
            })
        });
    try_join_all(walks).await
}

/// Whether it has been told that this directory, or one above, has failed: at the target, or at a source.
fn has_failed_above(job: &SharedJob, path: &RelPath, events: &SessionEvents) -> bool {
    let has_failed = |path: &Path| events.has_failed(&Escaped::path(path).to_string());
    let in_source = |source: &ScanRoot| {
        let below = path.as_path().strip_prefix(source.prefix.as_path());
        below.is_ok_and(|below| {
            has_failed(&source.source)
                || below
                    .ancestors()
                    .any(|above| has_failed(&source.source.join(above)))
        })
    };
    path.as_path().ancestors().any(has_failed) || job.sources.iter().any(in_source)
}

const OWN_HEAD: Stop =
    Stop::PeerMisbehaved("the head of an order cannot be read that was made here");
const NO_ENTRY: Stop =
    Stop::PeerMisbehaved("the receiver tells the fault of a directory that it was not sent");
const NO_SUCH_FILE: i32 = Errno::NOENT.raw_os_error();
const CAME_LATER: &str =
    ": it came while the push ran, or was removed; the same command sends what is there";
const AS_THEY_CAME: &str =
    "the copies of the directories there keep the modes with which they were made";
/// What an owner needs of a directory to do something below it.
const MAY_ENTER: u32 = 0o300;
/// How many directories are taken at once: all that wait may be very many.
const PLACES_AT_ONCE: usize = 1000;
const WALKS_AT_ONCE: usize = 8;
/// How many orders are on their way at once: as many as do for a long path, of 256 directories each.
const ORDERS_AT_ONCE: usize = 16;
#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::path::PathBuf;
    use std::time::Duration;

    use tokio::time::timeout;
    use zmove_sender::SessionOver;
    use zmove_types::Metadata;
    use zmove_wire::{DirectoryGroup, Operation};

    use super::*;
    use crate::lab::{self, feeder, session_events};

    fn path(path: &str) -> RelPath {
        if path.is_empty() {
            RelPath::root()
        } else {
            RelPath::from_bytes(path.as_bytes()).unwrap()
        }
    }

    fn batch_of(directories: &[&str], mode: u32) -> Batch {
        let metadata = || Metadata {
            mode,
            ..Metadata::default()
        };
        let group = |directory: &&str| DirectoryGroup {
            directory: path(directory),
            entries: vec![BatchEntry::Itself(metadata())],
        };
        Batch {
            groups: directories.iter().map(group).collect(),
        }
    }

    fn order_of(directory: &str, mode: u32) -> DirectoryOrder {
        DirectoryOrder::new(&batch_of(&[directory], mode))
    }

    fn job() -> SharedJob {
        let source = ScanRoot::new(PathBuf::from("/nowhere"), RelPath::root());
        SharedJob {
            sources: vec![source],
            ..lab::job()
        }
    }

    fn finishing(steps: Vec<Step>) -> Finishing {
        Finishing { steps, failed: 0 }
    }

    /// The directories that are to be set, or `walk`, the next first.
    fn next_of(finishing: &Finishing) -> Vec<String> {
        let name = |step: &Step| match step {
            Step::Set(order) => Batch::decode(&order.head, 0).unwrap().groups[0]
                .directory
                .to_string(),
            Step::Walk(unwalked) => format!("walk {}", unwalked.directory.path),
        };
        finishing.steps.iter().rev().map(name).collect()
    }

    fn orders_of_no_session() -> Orders {
        Orders {
            feeder: feeder(),
            answers_within: Duration::MAX,
        }
    }

    /// Runs the steps in a session that is over, in which orders of these directories have not been answered.
    async fn run_without_session(finishing: &mut Finishing, unanswered: &[&str]) {
        let orders = orders_of_no_session();
        let events = session_events();
        let mut ordered = JoinSet::new();
        for directory in unanswered {
            let order = order_of(directory, 0o755);
            ordered.spawn(async { (order, Err(SessionOver.into())) });
        }
        let done = finishing
            .run_steps(&job(), &orders, &events, &mut ordered)
            .await;
        assert!(matches!(done, Err(Stop::Session(SessionOver))), "{done:?}");
        finishing.take_back(ordered).await;
    }

    #[tokio::test]
    async fn a_directory_is_closed_after_those_below_that_a_broken_session_has_left() {
        let mut finishing = finishing(vec![Step::Set(order_of("closed", 0o044))]);
        run_without_session(&mut finishing, &["closed/1", "closed/2"]).await;
        let mut next = next_of(&finishing);
        assert_eq!(next.pop().as_deref(), Some("closed"));
        next.sort();
        assert_eq!(next, ["closed/1", "closed/2"]);
    }

    #[tokio::test]
    async fn the_last_orders_of_all_that_a_broken_session_has_left_are_given_again() {
        let mut finishing = finishing(Vec::new());
        run_without_session(&mut finishing, &["a", "b", "c"]).await;
        let mut next = next_of(&finishing);
        next.sort();
        assert_eq!(next, ["a", "b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_source_is_begun_before_all_orders_of_the_one_before_have_been_answered() {
        let source = ScanRoot::new(PathBuf::from("/nowhere"), RelPath::root());
        let mut finishing = Finishing::of(&SharedJob {
            sources: vec![source.clone(), source],
            ..job()
        });
        let next = finishing.steps.last().unwrap();
        assert!(
            matches!(next, Step::Walk(Unwalked { source: 0, .. })),
            "the last source wins: {next:?}"
        );
        let orders = orders_of_no_session();
        let mut ordered = JoinSet::new();
        ordered.spawn(pending());
        let (job, events) = (job(), session_events());
        let waiting = finishing.run_steps(&job, &orders, &events, &mut ordered);
        assert!(
            timeout(Duration::from_secs(1), waiting).await.is_err(),
            "for the answer"
        );
        let mut finishing = Finishing::of(&job);
        run_without_session(&mut finishing, &["d"]).await;
        assert_eq!(next_of(&finishing), ["d", "walk ."]);
    }

    #[tokio::test]
    async fn what_was_being_walked_when_the_session_broke_is_walked_again() {
        let directory = MarkedPath {
            path: path("d"),
            mark: None,
        };
        let mut finishing = finishing(vec![Step::Walk(Unwalked {
            source: 0,
            directory,
        })]);
        run_without_session(&mut finishing, &[]).await;
        assert_eq!(next_of(&finishing), ["walk d"]);
    }

    #[test]
    fn only_directories_of_one_source_are_walked_at_once() {
        let walk = |source, name| {
            Step::Walk(Unwalked {
                source,
                directory: MarkedPath {
                    path: path(name),
                    mark: None,
                },
            })
        };
        let mut finishing = finishing(vec![walk(1, "b"), walk(0, "a"), walk(0, "c")]);
        let first = Unwalked {
            source: 0,
            directory: MarkedPath {
                path: path("d"),
                mark: None,
            },
        };
        let places: Vec<_> = finishing
            .with_next(first)
            .into_iter()
            .map(|place| place.path.to_string())
            .collect();
        assert_eq!(
            (places, next_of(&finishing)),
            (
                vec!["d".into(), "c".into(), "a".into()],
                vec!["walk b".into()]
            )
        );
    }

    /// Once by this node, and not at all where another has told it when it did that work.
    #[tokio::test]
    async fn what_cannot_be_walked_counts_once() {
        let source = || Unwalked {
            source: 0,
            directory: MarkedPath {
                path: path(""),
                mark: None,
            },
        };
        let orders = orders_of_no_session();
        let portions = walk(&job(), 0, &[source().directory]).await.unwrap();
        let ScanItem::Error(error) = &portions[0].items[0] else {
            panic!("there is no such source")
        };
        let events = session_events();
        let mut finishing = finishing(Vec::new());
        for _ in 0..2 {
            finishing
                .walk(&job(), source(), &orders, &events)
                .await
                .unwrap_err();
            assert_eq!(finishing.failed, 1);
        }
        let others_have_told = session_events();
        others_have_told.on(&Event::Failed {
            message: format!("sender: {error}"),
        });
        finishing
            .walk(&job(), source(), &orders, &others_have_told)
            .await
            .unwrap_err();
        assert_eq!(finishing.failed, 1);
    }

    #[test]
    fn directories_below_one_that_has_failed_are_neither_told_nor_counted() {
        let events = session_events();
        for failed in [
            "sender: list directory '/nowhere/closed': no",
            "receiver: make directory 'there': no",
        ] {
            events.on(&Event::Failed {
                message: failed.into(),
            });
        }
        let has_failed = |directory| has_failed_above(&job(), &path(directory), &events);
        assert!(
            ["closed/a/b", "closed/a", "there", "there/a"]
                .into_iter()
                .all(has_failed)
        );
        assert!(
            !["closed2", "a/closed", "a/there", ""]
                .into_iter()
                .any(has_failed)
        );
        let of_source = session_events();
        of_source.on(&Event::Failed {
            message: "sender: open directory '/nowhere': no".into(),
        });
        assert!(has_failed_above(&job(), &path("a"), &of_source));
        let mut finishing = finishing(Vec::new());
        let order = DirectoryOrder::new(&batch_of(&["closed/a", "later", "closed/a/b"], 0o755));
        let code = FaultCode::Os(NO_SUCH_FILE);
        let fault = |entry| EntryFault {
            entry,
            operation: Operation::SetMetadata,
            code,
        };
        let result = SharedJobResult::DirectoriesSet((0..3).map(fault).collect());
        finishing.hear(&job(), &order, result, &events).unwrap();
        assert_eq!(
            (
                finishing.failed,
                events.has_failed("later"),
                events.has_failed("closed/a")
            ),
            (1, true, false)
        );
    }
}
