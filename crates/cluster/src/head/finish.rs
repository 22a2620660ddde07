//! The last step of a job: directories get their modes and times after all entries have been written.
//!
//! The head scans the sources for this and uses its own session, because the work is small compared to that for the
//! files. Directories that have disappeared from the sources keep the restrictive modes with which they were created.
//!
//! **Invariant:** a directory whose mode prevents its owner from entering it is set after all other directories of its
//! source, and after the directories below it. If a session fails before that, no directory is closed yet and the next
//! session can start over.

use std::path::Path;

use futures_util::future::{FutureExt, try_join_all};
use futures_util::stream::{self, TryStreamExt};
use rustix::io::Errno;
use zmove_scan::{MarkedPath, PortionEntries, PortionSize, ScanItem, ScanRoot, walk_portion};
use zmove_types::{Escaped, Lock, RelPath};
use zmove_wire::{
    Batch, BatchEntry, EntryFault, Fault, FaultCode, SharedJobOrder, SharedJobResult,
};

use crate::error::{SessionEnd, refused};
use crate::job::{ITEM, SharedJob};
use crate::session::{Orders, SessionEvents};

/// The progress of setting the directories of a job.
#[derive(Debug, Default)]
pub(crate) struct FinishProgress {
    /// Number of sources whose directories have been set.
    sources: u32,
    /// Directories of the next source that must be set last, in reverse order. `None` until every other directory of
    /// that source has been set.
    closing: Option<Vec<Batch>>,
}

/// Sets the directories of a job in one session.
pub(crate) struct DirectoryFinisher<'a> {
    pub(crate) job: &'a SharedJob,
    pub(crate) orders: &'a Orders,
    pub(crate) events: &'a SessionEvents,
}

impl DirectoryFinisher<'_> {
    /// Sets the mode and time of all directories. Failures are reported and counted.
    pub(crate) async fn run(&self, finished: &mut FinishProgress) -> Result<(), SessionEnd> {
        // Process sources one after the other: several may be merged into the target itself, and the last one
        // determines its mode and time.
        for (source, root) in (0..).zip(self.job.tops_of_sources()) {
            if source < finished.sources {
                continue;
            }
            let closing = match &mut finished.closing {
                Some(closing) => closing,
                none => none.insert(self.set_open(source, root).await?),
            };
            while let Some(directories) = closing.last() {
                self.set(directories).await?;
                closing.pop();
            }
            finished.closing = None;
            finished.sources += 1;
        }
        Ok(())
    }

    /// Sets the directories of a source whose final modes still allow entering them. Returns the remaining directories,
    /// each before the directories below it.
    async fn set_open(&self, source: u32, root: MarkedPath) -> Result<Vec<Batch>, SessionEnd> {
        let closing = Lock::new(Vec::new());
        let found = stream::try_unfold(vec![root], |mut unwalked| async move {
            if unwalked.is_empty() {
                return Ok::<_, SessionEnd>(None);
            }
            let found = self.walk(source, &mut unwalked).await?;
            Ok(Some((stream::iter(found.into_iter().map(Ok)), unwalked)))
        });
        let closing_later = &closing;
        let set = |batch: Batch| async move {
            let mut entries = batch.groups.iter().flat_map(|group| &group.entries);
            if entries.any(blocks_entry) {
                closing_later.lock().push(batch);
                Ok(())
            } else {
                self.set(&batch).await
            }
        };
        let found = found.try_flatten();
        let setting = found.try_for_each_concurrent(ORDERS_AT_ONCE, set);
        setting.boxed().await?;
        Ok(closing.into_inner())
    }

    /// Scans the directories at the end of `unwalked`. Several portions are scanned concurrently, because network
    /// storage takes time for each directory. Returns the directories that were found. Replaces the scanned directories
    /// in `unwalked` with the subdirectories that still need a scan.
    async fn walk(
        &self,
        source: u32,
        unwalked: &mut Vec<MarkedPath>,
    ) -> Result<Vec<Batch>, SessionEnd> {
        let size = PortionSize {
            wanted: PortionEntries::Directories,
            ..ITEM
        };
        let places = unwalked.split_off(unwalked.len().saturating_sub(DIRECTORIES_PER_SCAN));
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
                // An entry that could not be scanned earlier has already been reported and counted.
                if let ScanItem::Error(error) = item
                    && !self.events.has_reported(&format!("sender: {error}"))
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

    /// Sets the modes and times of a batch of directories. Each group of the batch is one directory.
    async fn set(&self, directories: &Batch) -> Result<(), SessionEnd> {
        let head = directories.encode();
        let order = SharedJobOrder::SetDirectories { head };
        match self.orders.answer(order).await? {
            SharedJobResult::DirectoriesSet(faults) => self.report_faults(directories, &faults),
            other => Err(refused(other)),
        }
    }

    /// Reports the directories whose mode and time could not be set.
    fn report_faults(&self, directories: &Batch, faults: &[EntryFault]) -> Result<(), SessionEnd> {
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
                // The directory is missing because of the failure that was already reported.
                FaultCode::Os(NO_SUCH_FILE)
                    if has_failed_above(self.job, &fault.path, self.events) =>
                {
                    continue;
                }
                // A directory that an earlier pass found in the source would exist at the target.
                FaultCode::Os(NO_SUCH_FILE) => CREATED_LATER,
                _ => "",
            };
            self.events
                .fail_directory(format!("receiver: {fault}{came_later}"));
        }
        Ok(())
    }
}

/// Returns whether no entries can be created below a directory once its mode is set.
fn blocks_entry(directory: &BatchEntry) -> bool {
    directory.metadata().mode & MAY_ENTER != MAY_ENTER
}

/// Returns whether a failure of this directory or of a parent directory was reported, at the target or at a source.
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

const NO_ENTRY: SessionEnd =
    SessionEnd::PeerMisbehaved("the receiver reported a failure of a directory that was not sent");
const NO_SUCH_FILE: i32 = Errno::NOENT.raw_os_error();
const CREATED_LATER: &str = ": the directory was created or removed during the push; run the same command again to send \
     the current state";
const AS_THEY_CAME: &str = "the copies of the directories at the target keep their initial modes";
/// Permissions that an owner needs to work inside a directory.
const MAY_ENTER: u32 = 0o300;
/// Maximum number of directories that are scanned concurrently. The total number of waiting directories may be very
/// large.
const DIRECTORIES_PER_SCAN: usize = 1000;
const WALKS_AT_ONCE: usize = 8;
/// Maximum number of orders in flight, each for 256 directories. It is sufficient for a long path.
const ORDERS_AT_ONCE: usize = 16;
#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use zmove_sender::{Feeder, SessionEnded};
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
            source_marks: vec![None],
            ..lab::job()
        }
    }

    /// Returns the orders of a session that is over.
    fn orders(feeder: Feeder) -> Orders {
        Orders {
            feeder,
            answers_within: Duration::MAX,
        }
    }

    /// Runs the finisher in a session that is over, and asserts that it fails.
    async fn run_in_vain(finished: &mut FinishProgress, events: &SessionEvents) {
        let finishing = DirectoryFinisher {
            job: &job(),
            orders: &orders(feeder()),
            events,
        };
        let done = finishing.run(finished).await;
        assert!(
            matches!(done, Err(SessionEnd::SessionOver(SessionEnded))),
            "{done:?}"
        );
    }

    #[tokio::test]
    async fn nothing_is_closed_before_all_else_has_been_set() {
        let mut finished = FinishProgress::default();
        run_in_vain(&mut finished, &session_events()).await;
        assert!(finished.sources == 0 && finished.closing.is_none());
    }

    #[tokio::test]
    async fn what_a_broken_session_has_not_closed_is_closed_by_the_next() {
        let closing = vec![batch_of(&["a"]), batch_of(&["a/b"])];
        let mut finished = FinishProgress {
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
        let closing = [0o755, 0o300, 0o555, 0o644, 0].map(|mode| blocks_entry(&of_mode(mode)));
        assert_eq!(closing, [false, false, true, true, true]);
    }

    /// The failure counts once on this node, and not at all if another node reported it during its own work.
    #[tokio::test]
    async fn what_cannot_be_walked_counts_once() {
        let events = lab::job_events(Arc::new(NoObserver));
        let mut finished = FinishProgress::default();
        for number in 0..2 {
            let session = events.within(number, &lab::receiver());
            run_in_vain(&mut finished, &session).await;
            assert_eq!(events.served.tally().failed_directories, 1);
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
        assert_eq!(events.served.tally().failed_directories, 0);
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
        let directories = batch_of(&["closed/a", "later", "closed/a/b"]);
        let code = FaultCode::Os(NO_SUCH_FILE);
        let fault = |entry| EntryFault {
            entry,
            operation: Operation::SetMetadata,
            code,
        };
        let faults: Vec<_> = (0..3).map(fault).collect();
        let finishing = DirectoryFinisher {
            job: &job(),
            orders: &orders(feeder()),
            events: &events,
        };
        for _again_after_a_broken_session in 0..2 {
            finishing.report_faults(&directories, &faults).unwrap();
        }
        assert_eq!(
            (
                of_job.served.tally().failed_directories,
                events.has_failed("later"),
                events.has_failed("closed/a")
            ),
            (1, true, false)
        );
    }
}
