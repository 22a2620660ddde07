//! The record by which a later walk of the same roots is known to find what the first one found: the roots themselves,
//! the mounts below them, and the moment at which the first walk began. The walks of a mirror share one record, over
//! all sessions of a run, since each opens the sources by their paths and may reach something else.
//!
//! The record holds the roots, and device and inode of each directory that is the root of a mount
//! (`STATX_ATTR_MOUNT_ROOT`; before Linux 5.8 of each whose device is not the root's). That costs a `statx` for each
//! directory.
//!
//! Names are not kept. A rename gives both directories a new ctime, so a directory has lost or got names where its
//! ctime is later than the beginning. A later ctime without a later mtime comes from a rename of the directory itself,
//! from a new mode, or from a program that sets times back. Everything below such a directory counts as changed too,
//! since a directory that takes the place of another brings directories that are as old as ever.
//!
//! A walk also notes whether a directory had changed since the beginning when it had been listed. A file that was moved
//! out of it, into a directory that had been listed before, may be missing then. Another walk
//! ([`ScanConfig::reread`](crate::ScanConfig)) visits the changed directories again.
//!
//! The beginning is read from the clock, and the walk begins in the clock's next tick: file systems stamp no finer than
//! by ticks, so a change just before the beginning differs from one just after it. Journals that a push within one host
//! writes into a source do not count as changes. Neither does a manifest, which is made before the beginning and gets
//! its name after the end.
//!
//! **Invariant:** a root that a mirror knows stays open as long as this lives, so that no other directory gets its
//! number; and the record of it is never replaced.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use zmove_types::{FileNumber, Lock, Timestamp};

use crate::directory::{Directory, DirectoryStatus, SourceRoot};

/// The record of the first walk of some roots, for the walks that follow it.
#[derive(Debug)]
pub struct FirstWalk {
    began: Timestamp,
    /// Directories that the program itself changes meanwhile.
    own: Vec<FileNumber>,
    roots: Lock<HashMap<PathBuf, KnownRoot>>,
    /// The maximum number of roots that stay open.
    roots_open_max: usize,
    mounts: Lock<Mounts>,
    /// Whether a directory had changed since the beginning when it had been listed.
    has_changed: AtomicBool,
    /// Whether the time of such a change has no nanoseconds.
    has_whole_seconds: AtomicBool,
    /// The directories that may have changed while they were reread.
    restless: Lock<Vec<PathBuf>>,
}

/// A root that a walk has opened.
#[derive(Debug)]
struct KnownRoot {
    number: FileNumber,
    /// The root, open as long as this.
    open: Option<Arc<SourceRoot>>,
}

/// The mounts below the roots, with their paths.
pub(crate) type Mounts = HashMap<FileNumber, PathBuf>;

/// The moment at which a directory was about to be listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    /// The time of the clock whose ticks file systems stamp.
    began: Timestamp,
    /// The times of the directory, if the walk rereads it.
    before: Option<DirectoryStatus>,
}

/// The possible changes of a directory since the first walk began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryChange {
    Nothing,
    /// Names may have come and gone.
    Names,
    /// The directory may have been put into the place of another, with all that is below it.
    Place,
}

impl FirstWalk {
    /// A record for a walk that is about to begin. Returns in the next tick of the clock, so that every later change
    /// gives a directory of this host a later time than each earlier one. Changes in the directories `own` do not
    /// count.
    #[must_use]
    pub fn begin(own: Vec<FileNumber>) -> Self {
        let began = now(ClockId::Realtime);
        let started = Instant::now();
        while now(ClockId::RealtimeCoarse) <= began && started.elapsed() < TICK_MAX {
            thread::sleep(PAUSE);
        }
        Self {
            began,
            own,
            roots: Lock::default(),
            roots_open_max: usize::MAX,
            mounts: Lock::default(),
            has_changed: AtomicBool::new(false),
            has_whole_seconds: AtomicBool::new(false),
            restless: Lock::default(),
        }
    }

    /// A record for a walk that rereads what has changed since this one began. Waits until later changes have another
    /// time, also on a file system that keeps seconds only.
    #[must_use]
    pub fn begin_again(&self) -> Self {
        if self.has_whole_seconds.load(Ordering::Relaxed) {
            thread::sleep(WHOLE_SECONDS);
        }
        Self {
            roots_open_max: self.roots_open_max,
            ..Self::begin(self.own.clone())
        }
    }

    /// The same record, which keeps only a few roots open, for walks by which nothing is removed. Another directory may
    /// get the number of a root that is not open.
    #[must_use]
    pub fn with_few_descriptors(self) -> Self {
        Self {
            roots_open_max: ROOTS_OPEN_MAX,
            ..self
        }
    }

    /// Records a root that a walk has opened as a directory, unless an earlier walk has.
    pub(crate) fn note_root(&self, root: &SourceRoot) -> Result<(), Errno> {
        let mut roots = self.roots.lock();
        let stays_open = roots.len() < self.roots_open_max;
        if let Entry::Vacant(place) = roots.entry(root.path().to_owned()) {
            let open = stays_open.then(|| root.again(root.prefix())).transpose()?;
            place.insert(KnownRoot {
                number: root.number,
                open: open.map(Arc::new),
            });
        }
        Ok(())
    }

    /// Whether a walk has opened a directory as this root; the directory, if it is open.
    pub(crate) fn root(&self, path: &Path) -> Option<Option<Arc<SourceRoot>>> {
        self.roots.lock().get(path).map(|known| known.open.clone())
    }

    /// Records the mount on a directory that a walk has opened below a root, if there is one.
    pub(crate) fn note_mount(&self, directory: &Directory, status: &DirectoryStatus) {
        if let Some(mount) = status.mount(directory.root()) {
            self.mounts
                .lock()
                .entry(mount)
                .or_insert_with(|| directory.full_path());
        }
    }

    /// Whether an earlier walk has opened another directory at this path; `root` is `None` where it is no directory
    /// now.
    pub(crate) fn is_other(&self, path: &Path, root: Option<&SourceRoot>) -> bool {
        let roots = self.roots.lock();
        roots
            .get(path)
            .is_some_and(|known| Some(known.number) != root.map(|root| root.number))
    }

    /// The mounts below the roots that have been met.
    pub(crate) fn mounts(&self) -> Mounts {
        self.mounts.lock().clone()
    }

    /// The change that a directory's times show. The ctime decides, which nobody can set. If the mtime is no later, the
    /// directory has been renamed, or its mode has changed, or somebody has set the mtime back.
    pub(crate) fn change(&self, status: &DirectoryStatus) -> DirectoryChange {
        if !self.is_later(status.ctime) || self.own.contains(&status.number) {
            DirectoryChange::Nothing
        } else if self.is_later(status.mtime) {
            DirectoryChange::Names
        } else {
            DirectoryChange::Place
        }
    }

    /// Notes the times of a directory after it was listed; `listed` tells when.
    pub(crate) fn note_listed(
        &self,
        directory: &Directory,
        listed: Listed,
        after: &DirectoryStatus,
    ) {
        if self.own.contains(&after.number) || !self.is_later(after.ctime) {
            return;
        }
        if after.ctime.nanos == 0 {
            self.has_whole_seconds.store(true, Ordering::Relaxed);
        }
        let Some(before) = listed.before else {
            self.has_changed.store(true, Ordering::Relaxed);
            return;
        };
        // Only if the clock of the storage is not ahead of ours, our clock tells whether the change came later.
        let is_ahead = after.ctime > now(ClockId::Realtime);
        let is_other = before.ctime != after.ctime;
        if is_other || !is_ahead {
            self.has_changed.store(true, Ordering::Relaxed);
        }
        if is_other || !is_ahead && is_since(after.ctime, listed.began) {
            self.restless.lock().push(directory.full_path());
        }
    }

    /// Whether the walk may have missed an entry that was renamed meanwhile.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// The directories that changed while they were reread, or may have.
    #[must_use]
    pub fn restless(&self) -> Vec<PathBuf> {
        let mut restless = self.restless.lock().clone();
        restless.sort_unstable();
        restless
    }

    fn is_later(&self, time: Timestamp) -> bool {
        is_since(time, self.began) && (time.nanos == 0 || time != self.began)
    }
}

impl Listed {
    /// A directory is about to be listed. `before` has its times if the walk rereads it.
    pub(crate) fn begin(before: Option<DirectoryStatus>) -> Self {
        Self {
            began: now(ClockId::RealtimeCoarse),
            before,
        }
    }
}

/// Whether a time of a file system is not before a time of the clock.
fn is_since(time: Timestamp, began: Timestamp) -> bool {
    // A time without nanoseconds may come from a file system that keeps seconds only.
    let has_seconds_only = time.nanos == 0;
    if has_seconds_only {
        time.seconds >= began.seconds - 1
    } else {
        time >= began
    }
}

fn now(clock: ClockId) -> Timestamp {
    let now = clock_gettime(clock);
    Timestamp {
        seconds: now.tv_sec,
        nanos: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

/// So few that other descriptors are left under a low limit.
const ROOTS_OPEN_MAX: usize = 16;
/// The longest wait for the next tick, longer than a tick: a clock that has been set back is not waited for.
const TICK_MAX: Duration = Duration::from_millis(60);
const PAUSE: Duration = Duration::from_millis(1);
/// Longer than the step of two seconds in which some file systems keep times.
const WHOLE_SECONDS: Duration = Duration::from_millis(2100);

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, remove_file, rename, write};

    use zmove_types::RelPath;

    use super::*;
    use crate::{ScanConfig, ScanError, ScanItem, ScanRoot, scan};

    fn status(changed: Timestamp, names: Timestamp) -> DirectoryStatus {
        let number = FileNumber {
            device: 1,
            inode: 2,
        };
        DirectoryStatus {
            number,
            is_mount: Some(false),
            mtime: names,
            ctime: changed,
        }
    }

    #[test]
    fn only_what_changes_after_the_beginning_has_changed() {
        let first_walk = FirstWalk {
            began: Timestamp {
                seconds: 7,
                nanos: 5,
            },
            ..FirstWalk::begin(Vec::new())
        };
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        let change = |changed, names| first_walk.change(&status(changed, names));
        assert_eq!(
            [at(7, 5), at(6, 9)].map(|time| change(time, time)),
            [DirectoryChange::Nothing; 2]
        );
        assert_eq!(
            [at(7, 6), at(9, 1)].map(|time| change(time, time)),
            [DirectoryChange::Names; 2]
        );
        assert_eq!(
            [at(7, 5), at(3, 0)].map(|names| change(at(7, 6), names)),
            [DirectoryChange::Place; 2]
        );
        // The modification time can be set to any value.
        assert_eq!(change(at(7, 5), at(99, 9)), DirectoryChange::Nothing);
        // A file system that stores times in steps of two seconds.
        assert_eq!(
            [5, 6, 7].map(|seconds| change(at(seconds, 0), at(1, 1))),
            [
                DirectoryChange::Nothing,
                DirectoryChange::Place,
                DirectoryChange::Place
            ]
        );
        let own = FirstWalk {
            own: vec![FileNumber {
                device: 1,
                inode: 2,
            }],
            ..first_walk
        };
        assert_eq!(
            own.change(&status(at(9, 1), at(9, 1))),
            DirectoryChange::Nothing
        );
    }

    #[test]
    fn a_change_just_before_the_beginning_is_told_from_one_just_after_it() {
        let home = tempfile::tempdir().unwrap();
        let look = || {
            let root = SourceRoot::open(
                home.path(),
                &RelPath::root(),
                crate::directory::Extent::Tree,
                rustix::fs::OFlags::empty(),
            );
            Directory::open(&Arc::new(root.unwrap()), &RelPath::root())
                .unwrap()
                .status()
                .unwrap()
        };
        for number in 0..50 {
            write(home.path().join(number.to_string()), "").unwrap();
            let first_walk = FirstWalk::begin(Vec::new());
            assert_eq!(first_walk.change(&look()), DirectoryChange::Nothing);
            remove_file(home.path().join(number.to_string())).unwrap();
            assert_eq!(first_walk.change(&look()), DirectoryChange::Names);
        }
    }

    #[test]
    fn a_walk_that_rereads_visits_what_has_changed_of_the_same_roots() {
        let home = tempfile::tempdir().unwrap();
        let path = |number: usize| home.path().join(number.to_string());
        let root = |number: usize| {
            create_dir_all(path(number).join("d")).unwrap();
            write(path(number).join("d/f"), "").unwrap();
            let prefix = RelPath::from_bytes(number.to_string().as_bytes()).unwrap();
            ScanRoot::new(path(number), prefix)
        };
        let roots: Vec<_> = (0..ROOTS_OPEN_MAX + 4).map(root).collect();
        let walked = Arc::new(FirstWalk::begin(Vec::new()).with_few_descriptors());
        let config = ScanConfig {
            first_walk: Some(Arc::clone(&walked)),
            ..ScanConfig::default()
        };
        // Each root, its directory and its file.
        assert_eq!(scan(roots.clone(), &config).count(), 3 * roots.len());
        assert!(!walked.has_changed());
        rename(path(0).join("d/f"), path(0).join("d/g")).unwrap();
        let exchanged =
            (1..roots.len()).find(|number| matches!(walked.root(&path(*number)), Some(None)));
        let exchanged = path(exchanged.unwrap());
        rename(&exchanged, home.path().join("old")).unwrap();
        create_dir_all(exchanged.join("new")).unwrap();
        let again = Arc::new(walked.begin_again());
        let config = ScanConfig {
            first_walk: Some(Arc::clone(&again)),
            reread: Some(walked),
            ..config
        };
        let mut found = Vec::new();
        for item in scan(roots, &config) {
            match item {
                ScanItem::Batch(batch) => found.extend(
                    batch
                        .entries
                        .iter()
                        .map(|entry| batch.directory.display_path(&entry.name)),
                ),
                ScanItem::Error(error) => {
                    assert!(matches!(error, ScanError::Exchanged { .. }), "{error}");
                    found.push(error.path().unwrap().to_owned());
                }
                ScanItem::Root { directory, .. } => panic!("{directory:?}"),
            }
        }
        found.sort_unstable();
        assert_eq!(found, [path(0).join("d/g"), exchanged]);
        assert!(!again.has_changed());
    }
}
