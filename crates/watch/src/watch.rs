//! The watch: a thread that reads inotify events, walks the tree at intervals, and keeps the ledger.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::events::{Events, TreeEvent};
use crate::ledger::{Batch, Ledger};
use crate::stamp::{Stamp, age};

/// The settings of a watch.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// Time for which a file that was not closed must stay unchanged before it counts as ready.
    pub rest: Duration,
    /// Minimum time between two walks. The default (`None`) is one minute if inotify reports changes. If the tree is
    /// only walked, the default is [`rest`](Self::rest), but at least one second. A slow walk makes the time longer.
    pub rescan: Option<Duration>,
    /// Returns whether a directory is on a file system that other hosts can change without an inotify event.
    pub is_shared: fn(&Path) -> bool,
    /// Returns whether a name is the temporary name of an incomplete file.
    pub is_unfinished: fn(&OsStr) -> bool,
}

/// How changes are detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeDetection {
    /// By inotify events.
    Events,
    /// By walks only, for this reason.
    Walks(String),
}

/// The state of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchStatus {
    /// How changes are detected.
    pub detection: ChangeDetection,
    /// Number of directories that inotify watches.
    pub directories: usize,
    /// Number of ready files.
    pub ready: usize,
    /// Number of files that are changing or have not been unchanged long enough.
    pub changing: usize,
    /// Whether the root exists.
    pub exists: bool,
    /// Whether the whole tree has been walked once, so that the counts include all existing files.
    pub has_walked: bool,
}

/// A watched tree. The watch runs until the process ends.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    account: Mutex<Account>,
    is_ready: Condvar,
}

#[derive(Debug)]
struct Account {
    ledger: Ledger,
    detection: ChangeDetection,
    directories: usize,
    exists: bool,
    has_walked: bool,
    notes: Vec<String>,
}

impl Watch {
    /// Starts a watch.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn begin(root: &Path, config: WatchConfig) -> io::Result<Self> {
        Self::begin_with(root, config, usize::MAX)
    }

    /// Starts a watch with a limit on the number of watched directories, as the kernel may impose one.
    fn begin_with(root: &Path, config: WatchConfig, watches_max: usize) -> io::Result<Self> {
        let account = Account {
            ledger: Ledger::new(config.rest),
            detection: ChangeDetection::Events,
            directories: 0,
            exists: false,
            has_walked: false,
            notes: Vec::new(),
        };
        let shared = Arc::new(Shared {
            account: Mutex::new(account),
            is_ready: Condvar::new(),
        });
        let watch = Self {
            root: root.to_owned(),
            shared: Arc::clone(&shared),
        };
        let walks_only = (config.is_shared)(root);
        let mut watcher = Watcher {
            root: root.to_owned(),
            config,
            shared,
            watches_max,
            events: None,
            identity: None,
            has_root_gone: false,
            next_walk: Instant::now(),
            was_interrupted: false,
            unreadable: HashSet::new(),
        };
        if walks_only {
            watcher.rely_on_walks(
                "it is on a network file system, which does not report the changes of other hosts"
                    .into(),
            );
        }
        std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || watcher.run())?;
        Ok(watch)
    }

    /// Waits up to `patience` for ready files and hands out at most `files_max` of them. Returns `None` if no file
    /// became ready.
    #[must_use]
    pub fn take(&self, files_max: usize, patience: Duration) -> Option<Batch> {
        let until = Instant::now() + patience;
        let mut account = self.shared.account();
        while account.ledger.counts().0 == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.is_ready.wait_timeout(account, left);
            account = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let batch = account
            .ledger
            .take(files_max, |path| stamp_at(&self.root.join(path)));
        Some(batch).filter(|batch| batch.paths().len() > 0)
    }

    /// Settles a batch that has been moved, except for the files for which `has_failed` returns true.
    pub fn settle(&self, batch: Batch, has_failed: impl Fn(&Path) -> bool) {
        let look = |path: &Path| stamp_at(&self.root.join(path));
        self.shared
            .account()
            .ledger
            .settle(batch, has_failed, Instant::now(), look);
    }

    /// Takes back a batch that has not been moved.
    pub fn put_back(&self, batch: Batch) {
        self.shared.account().ledger.put_back(batch);
    }

    /// Returns the state of the watch.
    #[must_use]
    pub fn state(&self) -> WatchStatus {
        let account = self.shared.account();
        let (ready, changing) = account.ledger.counts();
        let Account {
            directories,
            exists,
            has_walked,
            ..
        } = *account;
        WatchStatus {
            detection: account.detection.clone(),
            directories,
            ready,
            changing,
            exists,
            has_walked,
        }
    }

    /// Returns the notes for the user since the previous call.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.account().notes)
    }
}

impl Shared {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, text: String) {
        self.account().notes.push(text);
    }
}

/// The state of the thread.
struct Watcher {
    root: PathBuf,
    config: WatchConfig,
    shared: Arc<Shared>,
    watches_max: usize,
    /// The inotify watches. `None` if the root does not exist, or if the tree is only walked.
    events: Option<Events>,
    /// Device and inode of the root when it was opened.
    identity: Option<(u64, u64)>,
    /// Whether the kernel has reported that the root was removed or renamed. A new root may have the same device and
    /// inode.
    has_root_gone: bool,
    next_walk: Instant,
    /// Whether the last walk stopped before it had read the whole tree.
    was_interrupted: bool,
    /// Paths that could not be read. Each is reported only once.
    unreadable: HashSet<PathBuf>,
}

impl Watcher {
    fn run(mut self) {
        loop {
            self.check_root();
            if self.identity.is_some() {
                self.read_events();
                if Instant::now() >= self.next_walk {
                    self.walk();
                }
            }
            self.check_rested();
            self.wait_until_due();
        }
    }

    /// Starts again with an empty state if the root has been replaced, removed or created.
    fn check_root(&mut self) {
        let found = identity(&self.root);
        if found == self.identity && !std::mem::take(&mut self.has_root_gone) {
            return;
        }
        if self.identity.is_some() {
            let what = if found.is_some() {
                "was replaced by another directory"
            } else {
                "does not exist any more: waiting until it exists again"
            };
            self.shared
                .note(format!("'{}' {what}", self.root.display()));
        } else if self.shared.account().has_walked {
            self.shared
                .note(format!("'{}' exists again", self.root.display()));
        }
        self.identity = found;
        self.events = None;
        self.next_walk = Instant::now();
        self.shared.account().exists = found.is_some();
        if found.is_some() && self.shared.account().detection == ChangeDetection::Events {
            match Events::begin() {
                Ok(events) => self.events = Some(events),
                Err(error) => self.rely_on_walks(refused(&error, "instances", &self.root)),
            }
        }
    }

    fn rely_on_walks(&mut self, why: String) {
        let text = format!("'{}' is scanned at intervals: {why}", self.root.display());
        let mut account = self.shared.account();
        if account.detection == ChangeDetection::Events {
            account.detection = ChangeDetection::Walks(why);
            account.notes.push(text);
        }
    }

    /// Processes the events from the kernel.
    fn read_events(&mut self) {
        let Some(events) = &mut self.events else {
            return;
        };
        let new_events = match events.read() {
            Ok(new_events) => new_events,
            Err(error) => {
                self.shared
                    .note(format!("cannot read the kernel's change events: {error}"));
                vec![TreeEvent::Lost]
            }
        };
        let now = Instant::now();
        for event in new_events {
            match event {
                TreeEvent::Changed(path) => {
                    self.note_change(path, |ledger, path| ledger.changed(path, now))
                }
                TreeEvent::Closed(path) => self.note_change(path, Ledger::closed),
                TreeEvent::Gone(path) => self.shared.account().ledger.removed(&path),
                TreeEvent::Directory(path) => drop(self.walk_at(&path)),
                TreeEvent::RootGone => self.has_root_gone = true,
                TreeEvent::Lost => {
                    self.next_walk = now;
                    self.shared.note(
                        "the kernel's event queue overflowed (raise sysctl fs.inotify.max_queued_events): scanning \
                         the tree"
                            .to_owned(),
                    );
                }
            }
        }
    }

    fn is_unfinished(&self, path: &Path) -> bool {
        path.file_name().is_some_and(self.config.is_unfinished)
    }

    fn note_change(&self, path: PathBuf, note: impl FnOnce(&mut Ledger, PathBuf)) {
        let is_wanted = !self.is_unfinished(&path) && stamp_at(&self.root.join(&path)).is_some();
        let mut account = self.shared.account();
        if is_wanted {
            note(&mut account.ledger, path);
            self.shared.is_ready.notify_all();
        } else {
            account.ledger.removed(&path);
        }
    }

    /// Walks the whole tree.
    fn walk(&mut self) {
        let begun = Instant::now();
        self.shared.account().ledger.begin_walk();
        let is_whole = self.walk_at(Path::new(""));
        let took = begun.elapsed();
        let mut account = self.shared.account();
        account.ledger.end_walk(is_whole);
        account.has_walked = true;
        let pause = match (&account.detection, self.config.rescan) {
            _ if std::mem::take(&mut self.was_interrupted) => POLL_INTERVAL_MAX,
            (_, Some(rescan)) => rescan.max(took),
            (ChangeDetection::Events, None) => PAUSE.max(took * PAUSES_OF_WALKS),
            (ChangeDetection::Walks(_), None) => {
                self.config.rest.max(WALKS_PAUSE_MIN).max(took * 2)
            }
        };
        self.next_walk = Instant::now() + pause;
    }

    fn walk_at(&mut self, below: &Path) -> bool {
        let is_whole = self.walk_tree(below);
        self.shared.is_ready.notify_all();
        self.shared.account().directories = self.events.as_ref().map_or(0, Events::directories);
        is_whole
    }

    fn check_rested(&self) {
        let mut account = self.shared.account();
        let by_walks = account.detection != ChangeDetection::Events;
        account.ledger.check_rested(Instant::now(), |path| {
            let path = self.root.join(path);
            if by_walks {
                // Opening the file revalidates this host's cached metadata with the file server.
                let _revalidated = File::open(&path);
            }
            stamp_at(&path)
        });
        self.shared.is_ready.notify_all();
    }

    /// Waits for an event, or until the next check of a file or the next walk is due.
    fn wait_until_due(&self) {
        let now = Instant::now();
        let due = self
            .shared
            .account()
            .ledger
            .next_due(now)
            .unwrap_or(POLL_INTERVAL_MAX);
        let walk = self.next_walk.saturating_duration_since(now);
        let pause = due
            .min(walk)
            .clamp(Duration::from_millis(10), POLL_INTERVAL_MAX);
        match &self.events {
            Some(events) => {
                let pause = Timespec::try_from(pause).ok();
                let mut sources = [PollFd::new(events.descriptor(), PollFlags::IN)];
                let _woken = poll(&mut sources, pause.as_ref());
            }
            None => std::thread::sleep(pause),
        }
    }
}

/// How a walk continues.
enum WalkStep {
    Enter,
    /// Skip this directory.
    Skip,
    /// Stop the walk.
    Stop,
}

impl Watcher {
    /// Walks the directory at `below`, a path relative to the root, with everything below it. Returns whether all
    /// entries were found.
    fn walk_tree(&mut self, below: &Path) -> bool {
        let mut left = vec![below.to_owned()];
        let mut is_whole = true;
        while let Some(below) = left.pop() {
            let path = self.root.join(&below);
            let looked = if below.as_os_str().is_empty() {
                path.metadata()
            } else {
                path.symlink_metadata()
            };
            let metadata = match looked {
                Ok(metadata) if metadata.is_dir() => metadata,
                // An entry that has replaced the directory is reported by an event or found by a walk.
                Ok(_) => continue,
                Err(error) => {
                    is_whole &= self.skip_unreadable(&path, &error);
                    continue;
                }
            };
            match self.enter(&path, &below, &metadata) {
                WalkStep::Enter => {}
                WalkStep::Skip => continue,
                WalkStep::Stop => return false,
            }
            let entries = match path.read_dir() {
                Ok(entries) => entries,
                Err(error) => {
                    is_whole &= self.skip_unreadable(&path, &error);
                    continue;
                }
            };
            for entry in entries {
                let found = entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
                match found {
                    Ok((name, metadata)) if metadata.is_dir() => left.push(below.join(name)),
                    Ok((name, metadata)) => self.visit_file(below.join(name), &metadata),
                    Err(error) => is_whole &= self.skip_unreadable(&path, &error),
                }
            }
        }
        is_whole
    }

    /// Starts to watch a directory that is about to be read, so that no change is missed.
    fn enter(&mut self, path: &Path, below: &Path, metadata: &Metadata) -> WalkStep {
        if self.shared.account().ledger.counts().0 >= READY_MAX {
            // The walk stops because enough files are ready. The next walk finds the remaining files after these have
            // been moved.
            self.was_interrupted = true;
            return WalkStep::Stop;
        }
        let is_elsewhere = self
            .identity
            .is_some_and(|(device, _)| device != metadata.dev());
        if is_elsewhere
            && self.shared.account().detection == ChangeDetection::Events
            && (self.config.is_shared)(path)
        {
            self.rely_on_walks(format!("'{}' is on a network file system", path.display()));
        }
        let Some(events) = &mut self.events else {
            return WalkStep::Enter;
        };
        let watched = if events.directories() >= self.watches_max {
            Err(Errno::NOSPC.into())
        } else {
            events.watch(path, below)
        };
        match watched {
            Ok(()) => WalkStep::Enter,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                WalkStep::Skip
            }
            // Changes in this directory are found only by walks. The rest of the tree is still watched.
            Err(error) if !below.as_os_str().is_empty() && !is_for_all(&error) => {
                self.skip_unreadable(path, &error);
                WalkStep::Enter
            }
            Err(error) => {
                self.rely_on_walks(refused(&error, "watches", path));
                WalkStep::Enter
            }
        }
    }

    /// Records an entry that is not a directory.
    fn visit_file(&self, below: PathBuf, metadata: &Metadata) {
        let Some(stamp) = Stamp::of(metadata).filter(|_| !self.is_unfinished(&below)) else {
            return;
        };
        let mut account = self.shared.account();
        // The server's clock may differ from this host's.
        let rest = if account.detection == ChangeDetection::Events {
            self.config.rest
        } else {
            self.config.rest.max(CLOCKS_APART_MAX)
        };
        account
            .ledger
            .found(below, stamp, age(metadata) >= rest, Instant::now());
    }

    /// Reports a path that cannot be read, unless it has been reported before. Returns whether the path no longer
    /// exists.
    fn skip_unreadable(&mut self, path: &Path, error: &io::Error) -> bool {
        let is_gone = error.kind() == ErrorKind::NotFound;
        if !is_gone && self.unreadable.insert(path.to_owned()) {
            self.shared.note(format!(
                "'{}' cannot be read, so it is not watched: {error}",
                path.display()
            ));
        }
        is_gone
    }
}

/// Returns the device and the inode of a directory.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata()
        .ok()
        .filter(Metadata::is_dir)
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns whether the kernel refuses all further watches and not only this one.
fn is_for_all(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::MFILE | Errno::NOMEM | Errno::NOSYS)
    )
}

/// Returns the reason why the kernel refuses a watch.
fn refused(error: &io::Error, what: &str, path: &Path) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::MFILE) => {
            format!(
                "the kernel's limit for this user is reached (raise sysctl fs.inotify.max_user_{what})"
            )
        }
        _ => format!("the kernel cannot watch '{}': {error}", path.display()),
    }
}

fn stamp_at(path: &Path) -> Option<Stamp> {
    Stamp::of(&path.symlink_metadata().ok()?)
}

/// Minimum time between two walks if inotify reports changes. The time is also at least `PAUSES_OF_WALKS` times the
/// duration of the last walk.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSES_OF_WALKS: u32 = 10;
/// Minimum time between two walks if the tree is only walked.
const WALKS_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Maximum time between two iterations of the loop. The root may have been replaced in the meantime.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Number of ready files at which a walk stops. Their paths take about 64 MiB.
const READY_MAX: usize = 1 << 18;
/// Maximum difference between the clocks of a file server and this host.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
