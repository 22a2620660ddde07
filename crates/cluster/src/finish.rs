//! The last that is done in a job: directories get mode and time, when nothing more is put into them.
//!
//! The head does so in its own session: so much is little beside the files, and what it does itself the queue need not
//! bring to an end.
//!
//! **Invariant:** a directory is set after all below it where its mode takes away the right to enter it.

use futures_util::future::try_join_all;
use rustix::io::Errno;
use tokio::task::JoinSet;
use zmove_scan::{MarkedPath, Portion, PortionSize, ScanItem, Wanted, walk_portion};
use zmove_sender::{Feeder, SessionOver};
use zmove_types::{Event, Observer, RelPath};
use zmove_wire::{Batch, BatchEntry, EntryFault, Fault, FaultCode, SharedJobOrder, SharedJobResult};

use crate::error::{Stop, refused};
use crate::job::{ITEM, SharedJob};
use crate::receiver::SessionEvents;

/// How far the directories of a job are finished: a session that breaks takes nothing of it back.
#[derive(Debug)]
pub(crate) struct Finishing {
    /// What is to be done, the next last.
    steps: Vec<Step>,
    failed: u64,
}

#[derive(Debug)]
enum Step {
    /// To look for directories below this one of a source.
    Walk(u32, MarkedPath),
    /// To send this head of an order.
    Set(Vec<u8>),
}

/// An order that is under way: what it was, and what has become of it.
type Ordered = (Vec<u8>, Result<SharedJobResult, SessionOver>);

impl Finishing {
    pub(crate) fn of(job: &SharedJob) -> Self {
        let mark = |source: u32| *job.source_marks.get(usize::try_from(source).ok()?)?;
        let root = |source| Step::Walk(source, MarkedPath { path: RelPath::root(), mark: mark(source) });
        Self { steps: (0..job.source_count()).map(root).collect(), failed: 0 }
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
                Step::Walk(source, first) => self.walk(job, (source, first), feeder, events).await,
                Step::Set(head) => self.order(head, feeder, &mut ordered, events).await,
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
        (source, first): (u32, MarkedPath),
        feeder: &Feeder,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let places = self.with_next(source, first);
        let mut below = Vec::new();
        for portion in walk(job, source, &places).await? {
            for item in &portion.items {
                // what could not be walked before has been told, and counted
                if let ScanItem::Error(error) = item
                    && !events.has_told(&format!("sender: {error}"))
                {
                    self.failed += 1;
                    tell(events, format!("sender: {error}: {UNSET}"));
                }
            }
            let heads = feeder.directory_heads(portion.items).await?;
            self.steps.extend(heads.into_iter().map(Step::Set));
            below.extend(portion.directories);
        }
        self.steps.extend(below.into_iter().rev().map(|found| Step::Walk(source, found)));
        Ok(())
    }

    /// Takes the places of this source that are to be walked next.
    fn with_next(&mut self, source: u32, first: MarkedPath) -> Vec<MarkedPath> {
        let mut places = vec![first];
        while places.len() < PLACES_AT_ONCE
            && let Some(Step::Walk(_, next)) =
                self.steps.pop_if(|next| matches!(next, Step::Walk(of, _) if *of == source))
        {
            places.push(next);
        }
        places
    }

    /// Sends an order, after the answers to all before where it closes a directory.
    async fn order(
        &mut self,
        head: Vec<u8>,
        feeder: &Feeder,
        ordered: &mut JoinSet<Ordered>,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        let most = if closes(&head)? { 0 } else { ORDERS_AT_ONCE - 1 };
        if let Err(stop) = self.answered(ordered, events, most).await {
            self.steps.push(Step::Set(head));
            return Err(stop);
        }
        let feeder = feeder.clone();
        ordered.spawn(async move {
            let order = SharedJobOrder::SetDirectories { head: head.clone() };
            let result = feeder.order(order, None).await;
            (head, result)
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
            let (head, result) = done.map_err(|_panic| Stop::Nonsense("an order panicked"))?;
            let told = match result {
                Ok(result) => self.hear(&head, result, events),
                Err(over) => Err(over.into()),
            };
            if let Err(stop) = told {
                self.steps.push(Step::Set(head));
                return Err(stop);
            }
        }
        Ok(())
    }

    /// Notes what has not been answered as still to be done.
    async fn take_back(&mut self, mut ordered: JoinSet<Ordered>) {
        while let Some(done) = ordered.join_next().await {
            self.steps.extend(done.ok().map(|(head, _)| Step::Set(head)));
        }
    }

    /// Counts and tells the directories that did not get mode and time.
    fn hear(&mut self, head: &[u8], result: SharedJobResult, events: &SessionEvents) -> Result<(), Stop> {
        let SharedJobResult::DirectoriesSet(faults) = result else { return Err(refused(result)) };
        // each group is one directory itself
        let directories = Batch::decode(head, 0).map_err(|_own| OWN_HEAD)?.groups;
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

/// Whether one of the directories may not be entered by its owner when it has its mode.
fn closes(head: &[u8]) -> Result<bool, Stop> {
    let groups = Batch::decode(head, 0).map_err(|_own| OWN_HEAD)?.groups;
    let closes = |entry: &BatchEntry| match entry {
        BatchEntry::Itself(metadata) => metadata.mode & MAY_ENTER != MAY_ENTER,
        _ => false,
    };
    Ok(groups.iter().flat_map(|group| &group.entries).any(closes))
}

const OWN_HEAD: Stop = Stop::Nonsense("the head of an order cannot be read that was made here");
const NO_ENTRY: Stop = Stop::Nonsense("the receiver tells the fault of a directory that it was not sent");
const NO_SUCH_FILE: i32 = Errno::NOENT.raw_os_error();
const CAME_LATER: &str = ": it came while the push ran, or was removed; the same command sends what is there";
const UNSET: &str = "the copies of the directories there have not got their modes and times";
/// What an owner needs of a directory to do something below it.
const MAY_ENTER: u32 = 0o300;
/// How many directories are taken at once: all that wait may be very many.
const PLACES_AT_ONCE: usize = 1000;
const WALKS_AT_ONCE: usize = 8;
/// How many orders are on their way at once: as many as do for a long path, of 256 directories each.
const ORDERS_AT_ONCE: usize = 16;
