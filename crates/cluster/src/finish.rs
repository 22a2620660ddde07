//! The last that is done in a job: directories get mode and time, when nothing more is put into them.
//!
//! ```text
//!  walk of the sources ──► those found get what they have now ──► those that came and have gone, what they came with
//! ```
//!
//! The head does so in its own session: so much is little beside the files, and what it does itself the queue need not
//! bring to an end. What came is in the journals of the receivers.
//!
//! **Invariant:** a directory is set after all below it where its mode takes away the right to enter it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use futures_util::future::try_join_all;
use rustix::io::Errno;
use tokio::task::JoinSet;
use zmove_scan::{MarkedPath, Portion, PortionSize, ScanItem, Wanted, walk_portion};
use zmove_sender::{Feeder, SessionOver};
use zmove_types::{Event, Observer, RelPath};
use zmove_wire::{
    Batch, BatchEntry, DirectoryGroup, EntryFault, Fault, FaultCode, SharedJobOrder, SharedJobResult,
    directory_heads,
};

use crate::error::{Stop, refused};
use crate::job::{ITEM, SharedJob};
use crate::receiver::SessionEvents;

/// How far the directories of a job are finished: a session that breaks takes nothing of it back.
#[derive(Debug)]
pub(crate) struct Finishing {
    /// What is to be done, the next last.
    steps: Vec<Step>,
    found: Found,
    /// The orders that close directories, as they were given.
    closing: Vec<Order>,
    failed: u64,
}

#[derive(Debug)]
enum Step {
    /// To look for directories below this one.
    Walk(Unwalked),
    /// To have directories set.
    Set(Order),
    /// To look among those that came for directories which have gone since.
    Gone,
}

/// A directory of a source, by the number of the source, that has not been walked.
#[derive(Debug)]
struct Unwalked {
    source: u32,
    directory: MarkedPath,
}

/// Directories that are to be set.
#[derive(Clone, Debug)]
struct Order {
    head: Vec<u8>,
    /// Whether one of them may not be entered by its owner when it has its mode.
    closes: bool,
}

impl Order {
    fn new(groups: &[DirectoryGroup], head: Vec<u8>) -> Self {
        let closes = |entry: &BatchEntry| entry.metadata().mode & MAY_ENTER != MAY_ENTER;
        Self { head, closes: groups.iter().flat_map(|group| &group.entries).any(closes) }
    }
}

/// The directories that a walk has found, by the hashes of their paths at the target.
#[derive(Debug, Default)]
struct Found {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Found {
    fn add(&mut self, path: &RelPath) {
        self.hashes.insert(self.hasher.hash_one(path));
    }

    fn has(&self, path: &RelPath) -> bool {
        self.hashes.contains(&self.hasher.hash_one(path))
    }
}

/// An order that was given, and what has become of it.
type Ordered = (Order, Result<SharedJobResult, SessionOver>);

impl Finishing {
    pub(crate) fn of(job: &SharedJob) -> Self {
        let mark = |source: u32| *job.source_marks.get(usize::try_from(source).ok()?)?;
        let root = |source| {
            let directory = MarkedPath { path: RelPath::root(), mark: mark(source) };
            Step::Walk(Unwalked { source, directory })
        };
        let steps = std::iter::once(Step::Gone).chain((0..job.source_count()).map(root)).collect();
        Self { steps, found: Found::default(), closing: Vec::new(), failed: 0 }
    }

    /// Sets mode and time of all directories; returns how many did not get them. Failures are told.
    pub(crate) async fn run(
        &mut self,
        job: &SharedJob,
        feeder: &Feeder,
        events: &SessionEvents,
    ) -> Result<u64, Stop> {
        let mut ordered = JoinSet::new();
        while let Some(step) = self.steps.pop() {
            let done = match step {
                Step::Walk(first) => self.walk(job, first, feeder, events).await,
                Step::Set(order) => self.order(order, feeder, &mut ordered, events).await,
                Step::Gone => self.look_for_gone(feeder).await,
            };
            if let Err(stop) = done {
                self.take_back(ordered).await;
                return Err(stop);
            }
        }
        self.answered(&mut ordered, events, 0).await?;
        Ok(self.failed)
    }

    /// Walks directories, and notes what is to be done for them.
    async fn walk(
        &mut self,
        job: &SharedJob,
        first: Unwalked,
        feeder: &Feeder,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let source = first.source;
        let places = self.with_next(first);
        let mut below = Vec::new();
        for portion in walk(job, source, &places).await? {
            for item in &portion.items {
                // what could not be walked before has been told, and counted
                if let ScanItem::Error(error) = item
                    && !events.has_told(&format!("sender: {error}"))
                {
                    self.failed += 1;
                    tell(events, format!("sender: {error}: {AS_THEY_CAME}"));
                }
            }
            for head in feeder.directory_heads(portion.items).await? {
                let groups = Batch::decode(&head, 0).map_err(|_own| OWN_HEAD)?.groups;
                groups.iter().for_each(|group| self.found.add(&group.directory));
                self.steps.push(Step::Set(Order::new(&groups, head)));
            }
            below.extend(portion.directories);
        }
        let below = below.into_iter().rev();
        self.steps.extend(below.map(|directory| Step::Walk(Unwalked { source, directory })));
        Ok(())
    }

    /// Takes the directories of this source that are to be walked next.
    fn with_next(&mut self, Unwalked { source, directory }: Unwalked) -> Vec<MarkedPath> {
        let mut places = vec![directory];
        while places.len() < PLACES_AT_ONCE
            && let Some(Step::Walk(next)) =
                self.steps.pop_if(|next| matches!(next, Step::Walk(next) if next.source == source))
        {
            places.push(next.directory);
        }
        places
    }

    /// Notes the directories that came and were not found at the end. What closes others is set once more, since it is
    /// opened for those below.
    async fn look_for_gone(&mut self, feeder: &Feeder) -> Result<(), Stop> {
        let gone = match self.gone(feeder).await {
            Ok(gone) => gone,
            Err(stop) => {
                self.steps.push(Step::Gone);
                return Err(stop);
            }
        };
        if gone.is_empty() {
            return Ok(());
        }
        let again = std::mem::take(&mut self.closing).into_iter();
        let gone = directory_heads(gone).map(|head| {
            let groups = Batch::decode(&head, 0).map_err(|_own| OWN_HEAD)?.groups;
            Ok(Order::new(&groups, head))
        });
        let mut orders = gone.collect::<Result<Vec<_>, Stop>>()?;
        orders.extend(again);
        self.steps.extend(orders.into_iter().rev().map(Step::Set));
        Ok(())
    }

    /// The directories that came and were not found at the end, the deepest first.
    async fn gone(&self, feeder: &Feeder) -> Result<Vec<DirectoryGroup>, Stop> {
        let mut gone = BTreeMap::new();
        let mut has_more = true;
        while has_more {
            let orders = (0..ORDERS_AT_ONCE).map(|_| feeder.order(SharedJobOrder::ListDirectories, None));
            for result in try_join_all(orders).await? {
                let SharedJobResult::Directories { head } = result else { return Err(refused(result)) };
                has_more = !head.is_empty();
                if has_more {
                    let groups = Batch::decode(&head, 0).map_err(|_malformed| OTHER_HEAD)?.groups;
                    let unfound = groups.into_iter().filter(|group| !self.found.has(&group.directory));
                    gone.extend(
                        unfound.map(|group| {
                            ((Reverse(group.directory.depth()), group.directory.clone()), group)
                        }),
                    );
                }
            }
        }
        Ok(gone.into_values().collect())
    }

    /// Gives an order, after the answers to all before where it closes a directory.
    async fn order(
        &mut self,
        order: Order,
        feeder: &Feeder,
        ordered: &mut JoinSet<Ordered>,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let most = if order.closes { 0 } else { ORDERS_AT_ONCE - 1 };
        if let Err(stop) = self.answered(ordered, events, most).await {
            self.steps.push(Step::Set(order));
            return Err(stop);
        }
        if order.closes {
            self.closing.push(order.clone());
        }
        let feeder = feeder.clone();
        ordered.spawn(async move {
            let head = order.head.clone();
            let result = feeder.order(SharedJobOrder::SetDirectories { head }, None).await;
            (order, result)
        });
        Ok(())
    }

    /// Waits until no more orders than these are without an answer.
    async fn answered(
        &mut self,
        ordered: &mut JoinSet<Ordered>,
        events: &SessionEvents,
        most: usize,
    ) -> Result<(), Stop> {
        while ordered.len() > most
            && let Some(done) = ordered.join_next().await
        {
            let (order, result) = done.map_err(|_panic| Stop::Panicked("an order panicked"))?;
            let heard = match result {
                Ok(result) => self.hear(&order, result, events),
                Err(over) => Err(over.into()),
            };
            if let Err(stop) = heard {
                self.steps.push(Step::Set(order));
                return Err(stop);
            }
        }
        Ok(())
    }

    /// Notes what has not been answered as still to be done.
    async fn take_back(&mut self, mut ordered: JoinSet<Ordered>) {
        while let Some(done) = ordered.join_next().await {
            self.steps.extend(done.ok().map(|(order, _)| Step::Set(order)));
        }
    }

    /// Counts and tells the directories that did not get mode and time.
    fn hear(&mut self, order: &Order, result: SharedJobResult, events: &SessionEvents) -> Result<(), Stop> {
        let SharedJobResult::DirectoriesSet(faults) = result else { return Err(refused(result)) };
        if faults.is_empty() {
            return Ok(());
        }
        // each group is one directory itself
        let directories = Batch::decode(&order.head, 0).map_err(|_own| OWN_HEAD)?.groups;
        for EntryFault { entry, operation, code } in &faults {
            let number = usize::try_from(*entry).unwrap_or(usize::MAX);
            let path = directories.get(number).ok_or(NO_ENTRY)?.directory.clone();
            let fault = Fault { path, operation: *operation, code: *code };
            let came_later = match code {
                // one that was found before has been made, or that it was not has been told
                FaultCode::Os(NO_SUCH_FILE) => CAME_LATER,
                _ => "",
            };
            tell(events, format!("receiver: {fault}{came_later}"));
        }
        self.failed += faults.len() as u64;
        Ok(())
    }
}

/// Walks several portions at once: storage on other hosts takes its time for each directory.
async fn walk(job: &SharedJob, source: u32, places: &[MarkedPath]) -> Result<Vec<Portion>, Stop> {
    let size = PortionSize { wanted: Wanted::Directories, ..ITEM };
    let walks = places.chunks(places.len().div_ceil(WALKS_AT_ONCE)).map(|places| {
        let places = places.to_vec();
        job.scan(source, move |root, config| walk_portion(root, &places, size, config))
    });
    try_join_all(walks).await
}

fn tell(events: &SessionEvents, message: String) {
    events.on(&Event::Failed { message });
}

const OWN_HEAD: Stop = Stop::PeerMisbehaved("the head of an order cannot be read that was made here");
const OTHER_HEAD: Stop = Stop::PeerMisbehaved("the receiver tells of directories what cannot be read");
const NO_ENTRY: Stop =
    Stop::PeerMisbehaved("the receiver tells the fault of a directory that it was not sent");
const NO_SUCH_FILE: i32 = Errno::NOENT.raw_os_error();
const CAME_LATER: &str = ": it came while the push ran, or was removed; the same command sends what is there";
const AS_THEY_CAME: &str = "the copies of the directories there have the modes and times that they came with";
/// What an owner needs of a directory to do something below it.
const MAY_ENTER: u32 = 0o300;
/// How many directories are taken at once: all that wait may be very many.
const PLACES_AT_ONCE: usize = 1000;
const WALKS_AT_ONCE: usize = 8;
/// How many orders are on their way at once: as many as do for a long path, of 256 directories each.
const ORDERS_AT_ONCE: usize = 16;
