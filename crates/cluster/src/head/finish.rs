//! The last that is done in a job: directories get mode and time, when nothing more is put into them.
//!
//! The head walks the sources, and does so in its own session: so much is little beside the files. Directories that
//! have gone from the sources meanwhile stay closed, as they were made.
//!
//! **Invariant:** a directory whose mode takes away the right to enter it is set after all others of its source, and
//! after those below it. So a session that breaks before has closed nothing, and the next one may begin again.

use std::path::Path;

use futures_util::future::{FutureExt, try_join_all};
use futures_util::stream::{self, TryStreamExt};
use rustix::io::Errno;
use zmove_scan::{MarkedPath, PortionSize, PortionWanted, ScanItem, ScanRoot, walk_portion};
use zmove_types::{Escaped, Lock, RelPath};
use zmove_wire::{
    Batch, BatchEntry, EntryFault, Fault, FaultCode, SharedJobOrder, SharedJobResult,
};

use crate::error::{Stop, refused};
use crate::job::{ITEM, SharedJob};
use crate::session::{Orders, SessionEvents};

/// How far the directories of a job are finished.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    /// The number of sources whose directories have been set.
    sources: u32,
    /// The directories of the next source that are to be closed, the next last; `None` until all others of it are set.
    closing: Option<Vec<Directories>>,
}

/// Directories that are set by one order, as the head of a batch.
type Directories = Vec<u8>;

/// What finishes the directories of a job in one session.
pub(crate) struct Finishing<'a> {
    pub(crate) job: &'a SharedJob,
    pub(crate) orders: &'a Orders,
    pub(crate) events: &'a SessionEvents,
}

impl Finishing<'_> {
    /// Sets mode and time of all directories. Those that do not get them are told and counted.
    pub(crate) async fn run(&self, finished: &mut Finished) -> Result<(), Stop> {
        // one source after the other: several may be the target itself, and the last one counts
        for (source, root) in (0..).zip(self.job.tops_of_sources()) {
            if source < finished.sources {
                continue;
            }
            let closing = match &mut finished.closing {
                Some(closing) => closing,
                none => none.insert(self.set_open(source, root).await?),
            };
            while let Some(directories) = closing.last() {
                self.set(directories.clone()).await?;
                closing.pop();
            }
            finished.closing = None;
            finished.sources += 1;
        }
        Ok(())
    }

    /// Sets the directories of a source that may be entered when they are set. Returns the others, those above before
    /// those below.
    async fn set_open(&self, source: u32, root: MarkedPath) -> Result<Vec<Directories>, Stop> {
        let closing = Lock::new(Vec::new());
        let found = stream::try_unfold(vec![root], |mut unwalked| async move {
            if unwalked.is_empty() {
                return Ok::<_, Stop>(None);
            }
            let found = self.walk(source, &mut unwalked).await?;
            Ok(Some((stream::iter(found.into_iter().map(Ok)), unwalked)))
        });
        let closing_later = &closing;
        let set = |batch: Batch| async move {
            let directories = batch.encode();
            let mut entries = batch.groups.iter().flat_map(|group| &group.entries);
            if entries.any(closes) {
                closing_later.lock().push(directories);
                Ok(())
            } else {
                self.set(directories).await
            }
        };
        let found = found.try_flatten();
        let setting = found.try_for_each_concurrent(ORDERS_AT_ONCE, set);
        setting.boxed().await?;
        Ok(closing.into_inner())
    }

    /// Walks the last of these directories, several portions at once, since storage on other hosts takes its time for
    /// each directory. Returns the directories that were found, and puts those that are to be walked in their place.
    async fn walk(&self, source: u32, unwalked: &mut Vec<MarkedPath>) -> Result<Vec<Batch>, Stop> {
        let size = PortionSize {
            wanted: PortionWanted::Directories,
            ..ITEM
        };
        let places = unwalked.split_off(unwalked.len().saturating_sub(PLACES_AT_ONCE));
        let walks = places
            .chunks(places.len().div_ceil(WALKS_AT_ONCE))
            .map(|places| {
                let places = places.to_vec();
                self.job.scan(source, move |root, config| {
                    walk_portion(root, &places, size, config)
                })
            });
        let mut found = Vec::new();
        for portion in try_join_all(walks).await? {
            for item in &portion.items {
                // what could not be walked before has been told, and counted
                if let ScanItem::Error(error) = item
                    && !self.events.has_told(&format!("sender: {error}"))
                {
                    self.events
                        .fail_directory(format!("sender: {error}: {AS_THEY_CAME}"));
                }
            }
            found.extend(self.orders.feeder.directory_batches(portion.items).await?);
            unwalked.extend(portion.directories);
        }
        Ok(found)
    }

    async fn set(&self, directories: Directories) -> Result<(), Stop> {
        let head = directories.clone();
        let order = SharedJobOrder::SetDirectories { head };
        match self.orders.answer(order).await? {
            SharedJobResult::DirectoriesSet(faults) => self.tell(&directories, &faults),
            other => Err(refused(other)),
        }
    }

    /// Tells of the directories that did not get mode and time.
    fn tell(&self, directories: &[u8], faults: &[EntryFault]) -> Result<(), Stop> {
        if faults.is_empty() {
            return Ok(());
        }
        // each group is one directory itself
        let directories = Batch::decode(directories, 0).map_err(|_own| OWN_HEAD)?;
        for &EntryFault {
            entry,
            operation,
            code,
        } in faults
        {
            let number = usize::try_from(entry).unwrap_or(usize::MAX);
            let group = directories.groups.get(number).ok_or(NO_ENTRY)?;
            let fault = Fault {
                path: group.directory.clone(),
                operation,
                code,
            };
            let came_later = match code {
                // it is not there for the same reason
                FaultCode::Os(NO_SUCH_FILE)
                    if has_failed_above(self.job, &fault.path, self.events) =>
                {
                    continue;
                }
                // one that was found before has been made
                FaultCode::Os(NO_SUCH_FILE) => CAME_LATER,
                _ => "",
            };
            self.events
                .fail_directory(format!("receiver: {fault}{came_later}"));
        }
        Ok(())
    }
}

/// Whether nobody may put something below a directory when it is set.
fn closes(directory: &BatchEntry) -> bool {
    directory.metadata().mode & MAY_ENTER != MAY_ENTER
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
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use zmove_sender::{Feeder, SessionOver};
    use zmove_types::{Event, Metadata, NoObserver, Observer};
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

    fn batch_of(directories: &[&str]) -> Batch {
        let group = |directory: &&str| DirectoryGroup {
            directory: path(directory),
            entries: vec![BatchEntry::Itself(Metadata::default())],
        };
        Batch {
            groups: directories.iter().map(group).collect(),
        }
    }

    fn job() -> SharedJob {
        let source = ScanRoot::new(PathBuf::from("/nowhere"), RelPath::root());
        SharedJob {
            sources: vec![source],
            ..lab::job()
        }
    }

    /// The orders of a session that is over.
    fn orders(feeder: Feeder) -> Orders {
        Orders {
            feeder,
            answers_within: Duration::MAX,
        }
    }

    /// Runs in a session that is over.
    async fn run_in_vain(finished: &mut Finished, events: &SessionEvents) {
        let finishing = Finishing {
            job: &job(),
            orders: &orders(feeder()),
            events,
        };
        let done = finishing.run(finished).await;
        assert!(matches!(done, Err(Stop::Session(SessionOver))), "{done:?}");
    }

    #[tokio::test]
    async fn nothing_is_closed_before_all_else_has_been_set() {
        let mut finished = Finished::default();
        run_in_vain(&mut finished, &session_events()).await;
        assert!(finished.sources == 0 && finished.closing.is_none());
    }

    #[tokio::test]
    async fn what_a_broken_session_has_not_closed_is_closed_by_the_next() {
        let closing = vec![batch_of(&["a"]).encode(), batch_of(&["a/b"]).encode()];
        let mut finished = Finished {
            sources: 0,
            closing: Some(closing.clone()),
        };
        run_in_vain(&mut finished, &session_events()).await;
        assert_eq!(finished.closing, Some(closing));
    }

    #[test]
    fn a_directory_closes_where_its_owner_may_not_put_something_into_it() {
        let of_mode = |mode| {
            BatchEntry::Itself(Metadata {
                mode,
                ..Metadata::default()
            })
        };
        let closing = [0o755, 0o300, 0o555, 0o644, 0].map(|mode| closes(&of_mode(mode)));
        assert_eq!(closing, [false, false, true, true, true]);
    }

    /// Once by this node, and not at all where another has told it when it did that work.
    #[tokio::test]
    async fn what_cannot_be_walked_counts_once() {
        let events = lab::job_events(Arc::new(NoObserver));
        let mut finished = Finished::default();
        for number in 0..2 {
            let session = events.within(number, &lab::receiver());
            run_in_vain(&mut finished, &session).await;
            assert_eq!(events.served.failed_directories(), 1);
        }
        let root = MarkedPath {
            path: path(""),
            mark: None,
        };
        let walk = move |root_of: &_, config: &_| walk_portion(root_of, &[root], ITEM, config);
        let portion = job().scan(0, walk).await.unwrap();
        let ScanItem::Error(error) = &portion.items[0] else {
            panic!("there is no such source")
        };
        let events = lab::job_events(Arc::new(NoObserver));
        let others_have_told = events.within(0, &lab::receiver());
        others_have_told.on(&Event::Failed {
            message: format!("sender: {error}"),
        });
        run_in_vain(&mut finished, &others_have_told).await;
        assert_eq!(events.served.failed_directories(), 0);
    }

    #[test]
    fn directories_below_one_that_has_failed_are_neither_told_nor_counted() {
        let of_job = lab::job_events(Arc::new(NoObserver));
        let events = of_job.within(0, &lab::receiver());
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
        let directories = batch_of(&["closed/a", "later", "closed/a/b"]).encode();
        let code = FaultCode::Os(NO_SUCH_FILE);
        let fault = |entry| EntryFault {
            entry,
            operation: Operation::SetMetadata,
            code,
        };
        let faults: Vec<_> = (0..3).map(fault).collect();
        let finishing = Finishing {
            job: &job(),
            orders: &orders(feeder()),
            events: &events,
        };
        for _again_after_a_broken_session in 0..2 {
            finishing.tell(&directories, &faults).unwrap();
        }
        assert_eq!(
            (
                of_job.served.failed_directories(),
                events.has_failed("later"),
                events.has_failed("closed/a")
            ),
            (1, true, false)
        );
    }
}
