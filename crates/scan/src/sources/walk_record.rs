//! A record of the first walk of some roots. A later walk uses it to check that it sees the same trees. All walks of a
//! mirror's run share one record, because each walk opens the sources by path and may reach other directories.
//!
//! The record holds the roots, the time at which the first walk began, and the device and inode of each mount point
//! below a root. A mount point has `STATX_ATTR_MOUNT_ROOT`, or before Linux 5.8 another device than its root. To find
//! mount points, the walk calls `statx` for each directory.
//!
//! The record contains no names. Instead, changes are detected by ctimes. A rename updates the ctimes of both
//! directories, so a directory whose ctime is later than the start of the walk may have lost or gained names. If the
//! ctime is later but the mtime is not, the directory itself was renamed, its mode was changed, or a program has reset
//! its mtime. Everything below such a directory counts as changed too, because the directory may have replaced another
//! one, and its subdirectories have old times.
//!
//! A walk also records whether a directory changed between the start of the walk and the listing of the directory. If a
//! file was moved from such a directory into one that had already been listed, the scan misses the file. Another walk
//! ([`ScanConfig::reread`](crate::ScanConfig)) visits the changed directories again.
//!
//! The start time is read from the clock, and the walk begins at the next tick of the clock. File systems take
//! timestamps from ticks, so a change just before the start would otherwise look like a change just after it. If source
//! and target are on the same host, journals that the push writes into a source do not count as changes. A manifest
//! does not count either, because it is created before the start and renamed after the end.
//!
//! **Invariant:** the recorded identity of a root never changes. The first roots stay open while the record exists, so
//! no other directory can get their inode numbers. All other roots are identified by their time of birth too. On a file
//! system without times of birth, the ctimes of a new directory and of its subdirectories show the change.

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

use crate::directory::{Directory, DirectoryStatus, RootIdentity, SourceRoot};

/// The record of the first walk of some roots, used by later walks.
#[derive(Debug)]
pub struct WalkRecord {
    began: Timestamp,
    /// Directories that this program itself changes during the walks.
    own: Vec<FileNumber>,
    roots: Lock<HashMap<PathBuf, KnownRoot>>,
    mounts: Lock<Mounts>,
    /// Whether any directory changed between the start of the walk and its listing.
    has_changed: AtomicBool,
    /// Whether the time of such a change had no fraction of a second.
    has_whole_seconds: AtomicBool,
    /// The directories that may have changed while a walk reread them.
    unstable_directories: Lock<Vec<PathBuf>>,
    /// Directories with ctimes in the future that were the same before and after a walk reread them. Shared by the
    /// records of all walks. The clock may have been wrong at their last change.
    reread_in_future: Arc<Lock<HashMap<FileNumber, Timestamp>>>,
}

/// A root that a walk has opened as a directory.
#[derive(Debug)]
struct KnownRoot {
    identity: RootIdentity,
    /// The open root, or `None` if too many roots are open.
    open: Option<Arc<SourceRoot>>,
}

/// The mount points below the roots, by identity, each with its path.
pub(crate) type Mounts = HashMap<FileNumber, PathBuf>;

/// The state just before a directory is listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListingStart {
    /// The time of the clock that file systems use for timestamps.
    began: Timestamp,
    /// The identity and times of the directory, if the walk rereads it.
    before: Option<DirectoryStatus>,
}

/// The possible changes of a directory since the first walk began, as shown by its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryChange {
    Nothing,
    /// Entries may have been added or removed.
    Names,
    /// The directory, with everything below it, may have replaced another directory.
    Replaced,
}

impl WalkRecord {
    /// Creates a record for a walk that is about to start. Returns at the next tick of the clock, so that every later
    /// change on this host gets a later timestamp than any earlier change. Changes of the directories in `own` are
    /// ignored.
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
            mounts: Lock::default(),
            has_changed: AtomicBool::new(false),
            has_whole_seconds: AtomicBool::new(false),
            unstable_directories: Lock::default(),
            reread_in_future: Arc::default(),
        }
    }

    /// Creates a record for a walk that rereads the directories that have changed since this walk began. First waits
    /// until further changes get a later timestamp, even on a file system that stores whole seconds.
    #[must_use]
    pub fn begin_reread(&self) -> Self {
        if self.has_whole_seconds.load(Ordering::Relaxed) {
            thread::sleep(WHOLE_SECONDS);
        }
        Self {
            reread_in_future: Arc::clone(&self.reread_in_future),
            ..Self::begin(self.own.clone())
        }
    }

    /// Records a root that a walk has opened as a directory, unless an earlier walk has recorded it.
    pub(crate) fn note_root(&self, root: &SourceRoot) -> Result<(), Errno> {
        let mut roots = self.roots.lock();
        let stays_open = roots.len() < ROOTS_OPEN_MAX;
        if let Entry::Vacant(place) = roots.entry(root.path().to_owned()) {
            let open = stays_open
                .then(|| root.with_prefix(root.prefix()))
                .transpose()?;
            place.insert(KnownRoot {
                identity: root.identity,
                open: open.map(Arc::new),
            });
        }
        Ok(())
    }

    /// Returns the root that is recorded for this path, or `None` if no walk has opened the path as a directory. The
    /// inner value is the open root, or `None` if the root is not kept open.
    pub(crate) fn root(&self, path: &Path) -> Option<Option<Arc<SourceRoot>>> {
        self.roots.lock().get(path).map(|known| known.open.clone())
    }

    /// Records a directory below a root if it is a mount point.
    pub(crate) fn note_mount(&self, directory: &Directory, status: &DirectoryStatus) {
        if let Some(mount) = status.mount(directory.root()) {
            self.mounts
                .lock()
                .entry(mount)
                .or_insert_with(|| directory.full_path());
        }
    }

    /// Returns whether an earlier walk opened a different directory at this path. `root` is `None` if the path is no
    /// longer a directory.
    pub(crate) fn is_replaced_root(&self, path: &Path, root: Option<&SourceRoot>) -> bool {
        let roots = self.roots.lock();
        roots
            .get(path)
            .is_some_and(|known| !root.is_some_and(|root| known.identity.is_same(root.identity)))
    }

    /// Returns the mounts that were found below the roots.
    pub(crate) fn mounts(&self) -> Mounts {
        self.mounts.lock().clone()
    }

    /// Returns the change that the times of a directory indicate. The ctime decides, because no program can set it. If
    /// the ctime is later than the start but the mtime is not, the directory was renamed, its mode was changed, or a
    /// program has reset the mtime.
    pub(crate) fn change(&self, status: &DirectoryStatus) -> DirectoryChange {
        let is_reread = || self.reread_in_future.lock().get(&status.number) == Some(&status.ctime);
        if !self.is_after_begin(status.ctime) || self.own.contains(&status.number) || is_reread() {
            DirectoryChange::Nothing
        } else if self.is_after_begin(status.mtime) {
            DirectoryChange::Names
        } else {
            DirectoryChange::Replaced
        }
    }

    /// Records the times of a directory after it was listed. `listed` is the state just before the listing.
    pub(crate) fn note_listed(
        &self,
        directory: &Directory,
        listed: ListingStart,
        after: &DirectoryStatus,
    ) {
        if self.own.contains(&after.number) || !self.is_after_begin(after.ctime) {
            return;
        }
        if after.ctime.nanos == 0 {
            self.has_whole_seconds.store(true, Ordering::Relaxed);
        }
        let Some(before) = listed.before else {
            self.has_changed.store(true, Ordering::Relaxed);
            return;
        };
        // If the clock of the storage is ahead of this host's clock, it is not certain that the change was later than
        // the listing.
        let is_ahead = after.ctime > now(ClockId::Realtime);
        let is_other = before.ctime != after.ctime;
        if is_other || !is_ahead {
            self.has_changed.store(true, Ordering::Relaxed);
        } else {
            let mut reread = self.reread_in_future.lock();
            reread.insert(after.number, after.ctime);
        }
        if is_other || !is_ahead && is_not_before(after.ctime, listed.began) {
            self.unstable_directories.lock().push(directory.full_path());
        }
    }

    /// Returns whether the walk may have missed an entry because it was renamed during the walk.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Returns the directories that may have changed while a walk reread them.
    #[must_use]
    pub fn unstable_directories(&self) -> Vec<PathBuf> {
        let mut unstable_directories = self.unstable_directories.lock().clone();
        unstable_directories.sort_unstable();
        unstable_directories
    }

    fn is_after_begin(&self, time: Timestamp) -> bool {
        is_not_before(time, self.began) && (time.nanos == 0 || time != self.began)
    }
}

impl ListingStart {
    /// Records that a directory is about to be listed. If the walk rereads the directory, `before` is its current
    /// status.
    pub(crate) fn begin(before: Option<DirectoryStatus>) -> Self {
        Self {
            began: now(ClockId::RealtimeCoarse),
            before,
        }
    }
}

/// Returns whether a timestamp of a file system is equal to or later than `began`, a time of this host's clock.
fn is_not_before(time: Timestamp, began: Timestamp) -> bool {
    // A time without nanoseconds may come from a file system that stores whole seconds.
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

/// Maximum number of roots that stay open. It is small, because the limit on descriptors may be low.
const ROOTS_OPEN_MAX: usize = 16;
/// Maximum wait for the next tick. It is longer than a tick, and only takes effect if the clock is set back during the
/// wait.
const TICK_MAX: Duration = Duration::from_millis(60);
const PAUSE: Duration = Duration::from_millis(1);
/// A wait longer than 2 s, which is the resolution of some file systems.
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
        let walk_record = WalkRecord {
            began: Timestamp {
                seconds: 7,
                nanos: 5,
            },
            ..WalkRecord::begin(Vec::new())
        };
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        let change = |changed, names| walk_record.change(&status(changed, names));
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
            [DirectoryChange::Replaced; 2]
        );
        // The modification time alone does not count, because programs can set it.
        assert_eq!(change(at(7, 5), at(99, 9)), DirectoryChange::Nothing);
        // A file system with a resolution of 2 s.
        assert_eq!(
            [5, 6, 7].map(|seconds| change(at(seconds, 0), at(1, 1))),
            [
                DirectoryChange::Nothing,
                DirectoryChange::Replaced,
                DirectoryChange::Replaced
            ]
        );
        let own = WalkRecord {
            own: vec![FileNumber {
                device: 1,
                inode: 2,
            }],
            ..walk_record
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
            let walk_record = WalkRecord::begin(Vec::new());
            assert_eq!(walk_record.change(&look()), DirectoryChange::Nothing);
            remove_file(home.path().join(number.to_string())).unwrap();
            assert_eq!(walk_record.change(&look()), DirectoryChange::Names);
        }
    }

    /// A directory may have been changed while the clock was ahead. It must not keep removals away until then.
    #[test]
    fn a_time_in_the_future_is_no_change_after_the_directory_was_reread() {
        let home = tempfile::tempdir().unwrap();
        let root = SourceRoot::open(
            home.path(),
            &RelPath::root(),
            crate::directory::Extent::Tree,
            rustix::fs::OFlags::empty(),
        );
        let directory = Directory::open(&Arc::new(root.unwrap()), &RelPath::root()).unwrap();
        let in_future = |seconds| {
            let seconds = now(ClockId::Realtime).seconds + seconds;
            let old = Timestamp::default();
            status(Timestamp { seconds, nanos: 1 }, old)
        };
        let (found, later) = (in_future(1_000_000), in_future(2_000_000));
        let walked = WalkRecord::begin(Vec::new());
        walked.note_listed(&directory, ListingStart::begin(None), &found);
        assert!(walked.has_changed());
        assert_eq!(walked.change(&found), DirectoryChange::Replaced);
        let again = walked.begin_reread();
        again.note_listed(&directory, ListingStart::begin(Some(found)), &found);
        assert!(!again.has_changed());
        for record in [&walked, &again] {
            assert_eq!(record.change(&found), DirectoryChange::Nothing);
            assert_eq!(record.change(&later), DirectoryChange::Replaced);
        }
        again.note_listed(&directory, ListingStart::begin(Some(found)), &later);
        assert!(again.has_changed());
        assert_eq!(walked.change(&later), DirectoryChange::Replaced);
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
        let walked = Arc::new(WalkRecord::begin(Vec::new()));
        let config = ScanConfig {
            walk_record: Some(Arc::clone(&walked)),
            ..ScanConfig::default()
        };
        // Each root yields three items: the root, its directory and its file.
        assert_eq!(scan(roots.clone(), &config).count(), 3 * roots.len());
        assert!(!walked.has_changed());
        rename(path(0).join("d/f"), path(0).join("d/g")).unwrap();
        let exchanged =
            (1..roots.len()).find(|number| matches!(walked.root(&path(*number)), Some(None)));
        let exchanged = path(exchanged.unwrap());
        rename(&exchanged, home.path().join("old")).unwrap();
        create_dir_all(exchanged.join("new")).unwrap();
        let again = Arc::new(walked.begin_reread());
        let config = ScanConfig {
            walk_record: Some(Arc::clone(&again)),
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
                    assert!(matches!(error, ScanError::RootReplaced { .. }), "{error}");
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
