//! The state of each file: changing, ready, in a batch, or sent in its current version.
//!
//! ```text
//!             changed                      taken               settled
//! (nothing) ──────────► changing ─► ready ───────► (in batch) ───────► sent
//!                          ▲  rest,   │              │  changed since, or failed
//!                          │  closed  │ changed      │
//!                          └──────────┴──────────────┘
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::stamp::Stamp;

/// Files to be moved together.
#[derive(Debug)]
pub struct Batch {
    files: Vec<(PathBuf, Stamp)>,
    by_contents: bool,
}

impl Batch {
    /// Returns the paths of the files, relative to the root.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Returns whether the target may hold another version of one of the files with the same size and modification
    /// time. A comparison by size and time would mistake that version for the present one.
    #[must_use]
    pub fn is_by_contents(&self) -> bool {
        self.by_contents
    }
}

/// The state of all files.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rest: Duration,
    changing: HashMap<PathBuf, Changing>,
    ready: BTreeMap<PathBuf, ()>,
    /// The files that were handed out in a batch, by the hash of their path, which takes less memory than the path.
    known: HashMap<u64, Known>,
    /// The files of `known` that the current walk has found. `None` if no walk is in progress.
    met: Option<HashSet<u64>>,
    /// Number of consecutive failures per file.
    failures: HashMap<PathBuf, u32>,
    state: RandomState,
}

/// The state of a file that was handed out in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The file is in a batch and had this version when the batch was handed out.
    InBatch { version: u64 },
    /// The target has this version. `look` identifies its size, modification time and other metadata that a transfer
    /// compares.
    AtTarget { version: u64, look: u64 },
    /// The version at the target is unknown: the file changed while its batch ran, or the batch failed.
    InDoubt,
}

#[derive(Debug)]
struct Changing {
    /// The version that was seen last. `None` if an event reported the change.
    stamp: Option<Stamp>,
    /// The time of the last change. The file must stay unchanged for a while after this time.
    since: Instant,
    rest: Duration,
}

impl Ledger {
    pub(crate) fn new(rest: Duration) -> Self {
        Self {
            rest,
            ..Self::default()
        }
    }

    /// Records that a file was written to.
    pub(crate) fn changed(&mut self, path: PathBuf, now: Instant) {
        self.ready.remove(&path);
        self.changing.insert(
            path,
            Changing {
                stamp: None,
                since: now,
                rest: self.rest,
            },
        );
    }

    /// Records that a file was closed by its writer, or was renamed to its present name when complete.
    pub(crate) fn closed(&mut self, path: PathBuf) {
        self.changing.remove(&path);
        self.failures.remove(&path);
        self.ready.insert(path, ());
    }

    /// Records that a name was removed.
    pub(crate) fn removed(&mut self, path: &Path) {
        self.changing.remove(path);
        self.ready.remove(path);
        self.failures.remove(path);
    }

    /// Records a file that a walk has found. If `has_rested` is true, the file has been unchanged long enough and is
    /// ready.
    pub(crate) fn found(&mut self, path: PathBuf, stamp: Stamp, has_rested: bool, now: Instant) {
        let number = self.state.hash_one(&path);
        let known = self.known.get(&number);
        self.met
            .iter_mut()
            .for_each(|met| met.extend(known.map(|_| number)));
        // A batch may run longer than the time between two walks.
        if let Some(Known::InBatch { version } | Known::AtTarget { version, .. }) = known
            && *version == stamp.number(&self.state)
        {
            return;
        }
        if self.ready.contains_key(&path) {
            return;
        }
        match self.changing.get_mut(&path) {
            Some(Changing {
                stamp: Some(before),
                since,
                ..
            }) if *before != stamp => {
                (*before, *since) = (stamp, now);
            }
            Some(_) => {}
            None if has_rested => self.ready.extend([(path, ())]),
            None => {
                let changing = Changing {
                    stamp: Some(stamp),
                    since: now,
                    rest: self.rest,
                };
                self.changing.insert(path, changing);
            }
        }
    }

    /// Begins a walk of the whole tree.
    pub(crate) fn begin_walk(&mut self) {
        self.met = Some(HashSet::new());
    }

    /// Ends a walk. If the walk was complete, files that it did not find are forgotten.
    pub(crate) fn end_walk(&mut self, is_whole: bool) {
        if let Some(met) = self.met.take().filter(|_| is_whole) {
            self.known.retain(|number, known| {
                met.contains(number) || matches!(known, Known::InBatch { .. })
            });
        }
    }

    /// Checks the files that should have been unchanged long enough to be ready. `look` returns the current version of
    /// a file.
    pub(crate) fn check_rested(&mut self, now: Instant, look: impl Fn(&Path) -> Option<Stamp>) {
        let is_due = |changing: &Changing| now.duration_since(changing.since) >= changing.rest;
        let due: Vec<_> = self
            .changing
            .iter()
            .filter(|(_, changing)| is_due(changing))
            .map(|(path, _)| path.clone())
            .collect();
        for path in due {
            let found = look(&path);
            let Some(changing) = self.changing.get_mut(&path) else {
                continue;
            };
            match (found, changing.stamp) {
                (None, _) => self.removed(&path),
                // The file was written through a memory mapping, which inotify does not report.
                (Some(found), Some(before)) if found != before => {
                    (changing.stamp, changing.since) = (Some(found), now);
                }
                (Some(_), _) => {
                    self.changing.remove(&path);
                    self.ready.insert(path, ());
                }
            }
        }
    }

    /// Returns the time until the next file may have been unchanged long enough.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Duration> {
        let left =
            |changing: &Changing| (changing.since + changing.rest).saturating_duration_since(now);
        self.changing.values().map(left).min()
    }

    /// Returns the number of ready files and the number of changing files.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.ready.len(), self.changing.len())
    }

    /// Hands out up to `files_max` ready files. `look` returns the current version of a file, which is recorded as the
    /// version in the batch.
    pub(crate) fn take(
        &mut self,
        files_max: usize,
        look: impl Fn(&Path) -> Option<Stamp>,
    ) -> Batch {
        let mut files = Vec::new();
        let mut by_contents = false;
        while files.len() < files_max
            && let Some((path, ())) = self.ready.pop_first()
        {
            let Some(stamp) = look(&path) else { continue };
            let version = stamp.number(&self.state);
            by_contents |= match self.note(&path, Known::InBatch { version }) {
                None => false,
                Some(Known::AtTarget { look, .. }) => look == stamp.version_number(&self.state),
                Some(Known::InDoubt | Known::InBatch { .. }) => true,
            };
            files.push((path, stamp));
        }
        Batch { files, by_contents }
    }

    /// Records the state of a file that was handed out, and returns the previous state.
    fn note(&mut self, path: &Path, known: Known) -> Option<Known> {
        let number = self.state.hash_one(path);
        self.met.iter_mut().for_each(|met| {
            met.insert(number);
        });
        self.known.insert(number, known)
    }

    /// Settles a batch. Files that have changed since they were handed out must be moved again. Files for which
    /// `has_failed` returns true are moved again after a delay.
    pub(crate) fn settle(
        &mut self,
        batch: Batch,
        has_failed: impl Fn(&Path) -> bool,
        now: Instant,
        look: impl Fn(&Path) -> Option<Stamp>,
    ) {
        for (path, stamp) in batch.files {
            self.note(&path, Known::InDoubt);
            let Some(found) = look(&path) else {
                self.removed(&path);
                continue;
            };
            if has_failed(&path) {
                let failures = self.failures.entry(path.clone()).or_default();
                *failures += 1;
                let rest = self
                    .rest
                    .max(REST_MIN)
                    .saturating_mul(1 << (*failures).min(12))
                    .min(FAILURE_REST_MAX);
                // A file that is changing becomes ready again anyway and needs no separate retry.
                let changing = Changing {
                    stamp: None,
                    since: now,
                    rest,
                };
                self.changing.entry(path).or_insert(changing);
                continue;
            }
            self.failures.remove(&path);
            if found == stamp {
                let at_target = Known::AtTarget {
                    version: stamp.number(&self.state),
                    look: stamp.version_number(&self.state),
                };
                self.note(&path, at_target);
            } else if !self.ready.contains_key(&path) {
                let changing = Changing {
                    stamp: Some(found),
                    since: now,
                    rest: self.rest,
                };
                self.changing.entry(path).or_insert(changing);
            }
        }
    }

    /// Takes back a batch whose files were not moved.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        for (path, _) in batch.files {
            self.note(&path, Known::InDoubt);
            if !self.changing.contains_key(&path) {
                self.ready.insert(path, ());
            }
        }
    }
}

const REST_MIN: Duration = Duration::from_secs(1);
/// Maximum delay before a file that could not be moved is retried.
const FAILURE_REST_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(3);

    fn stamp(text: &str) -> Stamp {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Stamp::of(&file.path().metadata().unwrap()).unwrap()
    }

    fn stamp_of(file: &tempfile::NamedTempFile) -> Stamp {
        Stamp::of(&file.path().metadata().unwrap()).unwrap()
    }

    /// Writes other contents of the same length and restores the modification time.
    fn written_again(file: &tempfile::NamedTempFile, text: &str) -> Stamp {
        let before = stamp_of(file);
        let modified = file.path().metadata().unwrap().modified().unwrap();
        loop {
            std::fs::write(file.path(), text).unwrap();
            let opened = std::fs::File::options().write(true).open(file.path());
            opened.unwrap().set_modified(modified).unwrap();
            let after = stamp_of(file);
            if after != before {
                return after;
            }
        }
    }

    fn taken(ledger: &mut Ledger, look: Option<Stamp>) -> Vec<String> {
        let batch = ledger.take(99, |_| look);
        let paths = batch
            .paths()
            .map(|path| path.display().to_string())
            .collect();
        ledger.settle(batch, |_| false, Instant::now(), |_| look);
        paths
    }

    #[test]
    fn a_file_is_ready_when_it_is_closed_or_has_rested() {
        let (mut ledger, now, one) = (Ledger::new(REST), Instant::now(), stamp("1"));
        ledger.changed("a".into(), now);
        ledger.changed("b".into(), now);
        ledger.closed("a".into());
        assert_eq!(
            (ledger.counts(), ledger.next_due(now)),
            ((1, 1), Some(REST))
        );
        ledger.check_rested(now + REST / 2, |_| Some(one));
        assert_eq!(taken(&mut ledger, Some(one)), ["a"]);
        ledger.changed("b".into(), now + REST / 2);
        ledger.check_rested(now + REST, |_| Some(one));
        assert_eq!(ledger.counts(), (0, 1), "it was changed again");
        ledger.check_rested(now + REST * 2, |_| Some(one));
        assert_eq!(taken(&mut ledger, Some(one)), ["b"]);
    }

    #[test]
    fn what_is_at_the_target_is_not_moved_again_unless_it_changes() {
        let (mut ledger, now, one, two) =
            (Ledger::new(REST), Instant::now(), stamp("1"), stamp("two"));
        ledger.found("a".into(), one, true, now);
        assert_eq!(taken(&mut ledger, Some(one)), ["a"]);
        for _ in 0..2 {
            ledger.begin_walk();
            ledger.found("a".into(), one, true, now);
            ledger.end_walk(true);
        }
        assert_eq!(ledger.counts(), (0, 0));
        ledger.found("a".into(), two, false, now);
        assert_eq!(ledger.counts(), (0, 1));
        ledger.found("a".into(), one, false, now + REST);
        assert_eq!(ledger.counts(), (0, 1), "as it was when it was moved");
        ledger.begin_walk();
        ledger.end_walk(true);
        ledger.found("b".into(), one, true, now);
        assert_eq!(ledger.counts().0, 1);
    }

    #[test]
    fn what_looks_the_same_and_was_written_again_is_compared_by_contents() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let (mut ledger, now, one) = (Ledger::new(REST), Instant::now(), stamp_of(&file));
        ledger.closed("a".into());
        let batch = ledger.take(9, |_| Some(one));
        assert!(!batch.is_by_contents());
        ledger.settle(batch, |_| false, now, |_| Some(one));
        // The kernel reports that the file was closed.
        ledger.closed("a".into());
        assert!(ledger.take(9, |_| Some(one)).is_by_contents());
        // Or a walk finds that the file has changed.
        let two = written_again(&file, "two");
        ledger.begin_walk();
        ledger.found("a".into(), two, true, now);
        ledger.end_walk(true);
        assert!(ledger.take(9, |_| Some(two)).is_by_contents());
        // A file that was not handed out before is not compared by contents.
        ledger.closed("b".into());
        assert!(!ledger.take(9, |_| Some(two)).is_by_contents());
    }

    /// The version that the batch moved, if any, is then unknown.
    #[test]
    fn what_was_written_again_while_its_batch_ran_is_compared_by_contents() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let one = stamp_of(&file);
        let two = written_again(&file, "two");
        let now = Instant::now();
        type End = fn(&mut Ledger, Batch, Stamp, Instant);
        let ends: [End; 3] = [
            |ledger, batch, two, now| ledger.settle(batch, |_| false, now, |_| Some(two)),
            |ledger, batch, two, now| ledger.settle(batch, |_| true, now, |_| Some(two)),
            |ledger, batch, _, _| ledger.put_back(batch),
        ];
        for end in ends {
            let mut ledger = Ledger::new(REST);
            ledger.closed("a".into());
            let batch = ledger.take(9, |_| Some(one));
            assert!(!batch.is_by_contents());
            end(&mut ledger, batch, two, now);
            ledger.closed("a".into());
            let batch = ledger.take(9, |_| Some(two));
            assert!(batch.is_by_contents());
            ledger.settle(batch, |_| false, now, |_| Some(two));
            ledger.begin_walk();
            ledger.found("a".into(), two, true, now);
            ledger.end_walk(true);
            assert_eq!(ledger.counts(), (0, 0), "it is settled");
        }
    }

    /// While a file is rewritten, a walk may see it with another size for a moment.
    #[test]
    fn what_a_walk_meets_between_two_versions_that_look_the_same_is_compared_by_contents() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let (mut ledger, now, one) = (Ledger::new(REST), Instant::now(), stamp_of(&file));
        ledger.closed("a".into());
        assert_eq!(taken(&mut ledger, Some(one)), ["a"]);
        ledger.begin_walk();
        ledger.found("a".into(), stamp("between"), false, now);
        ledger.end_walk(true);
        let two = written_again(&file, "two");
        ledger.closed("a".into());
        assert!(ledger.take(9, |_| Some(two)).is_by_contents());
    }

    #[test]
    fn a_batch_that_outlasts_the_time_between_walks_is_handed_out_once() {
        let (mut ledger, now, one, two) =
            (Ledger::new(REST), Instant::now(), stamp("1"), stamp("two"));
        ledger.found("a".into(), one, true, now);
        ledger.found("b".into(), one, true, now);
        let batch = ledger.take(9, |_| Some(one));
        for _ in 0..2 {
            ledger.begin_walk();
            ledger.found("a".into(), one, true, now);
            ledger.found("b".into(), two, true, now);
            ledger.end_walk(true);
        }
        let b = taken(&mut ledger, Some(two));
        assert_eq!(b, ["b"], "the one that has changed meanwhile");
        let of_b = |path: &Path| Some(if path == Path::new("a") { one } else { two });
        ledger.settle(batch, |_| false, now, of_b);
        ledger.begin_walk();
        ledger.found("a".into(), one, true, now);
        ledger.end_walk(true);
        assert!(!taken(&mut ledger, Some(two)).contains(&"a".to_owned()));
    }

    #[test]
    fn what_changes_while_it_is_moved_is_moved_again() {
        let (mut ledger, now, one, two) =
            (Ledger::new(REST), Instant::now(), stamp("1"), stamp("two"));
        ledger.closed("a".into());
        let batch = ledger.take(9, |_| Some(one));
        ledger.settle(batch, |_| false, now, |_| Some(two));
        assert_eq!(ledger.counts(), (0, 1));
        ledger.check_rested(now + REST, |_| Some(two));
        let batch = ledger.take(9, |_| Some(two));
        ledger.put_back(batch);
        assert_eq!(taken(&mut ledger, Some(two)), ["a"]);
    }

    #[test]
    fn what_has_failed_is_tried_again_later_and_what_is_gone_is_not() {
        let (mut ledger, now, one) = (Ledger::new(REST), Instant::now(), stamp("1"));
        ledger.closed("a".into());
        ledger.closed("b".into());
        let batch = ledger.take(9, |_| Some(one));
        ledger.settle(
            batch,
            |_| true,
            now,
            |path| (path == Path::new("a")).then_some(one),
        );
        assert_eq!(ledger.counts(), (0, 1));
        ledger.check_rested(now + REST, |_| Some(one));
        assert_eq!(ledger.counts(), (0, 1), "the wait doubles");
        ledger.check_rested(now + REST * 2, |_| Some(one));
        assert_eq!(taken(&mut ledger, Some(one)), ["a"]);
        ledger.closed("c".into());
        assert_eq!(taken(&mut ledger, None), Vec::<String>::new());
    }

    #[test]
    fn what_is_written_by_way_of_memory_has_not_rested() {
        let (mut ledger, now, one, two) =
            (Ledger::new(REST), Instant::now(), stamp("1"), stamp("two"));
        ledger.found("a".into(), one, false, now);
        ledger.check_rested(now + REST, |_| Some(two));
        assert_eq!(ledger.counts(), (0, 1));
        ledger.check_rested(now + REST * 2, |_| Some(two));
        assert_eq!(ledger.counts(), (1, 0));
    }
}
