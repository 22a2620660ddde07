//! The watch: a thread that hears what the kernel tells, walks the tree at intervals, and keeps the account.

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

use crate::events::{Events, Happened};
use crate::ledger::{Batch, Ledger};
use crate::stamp::{Stamp, age};

/// The terms of a watch.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How long a file that nobody has closed is left unchanged before it counts as ready.
    pub rest: Duration,
    /// The shortest time between two walks; `None`: a minute, or `rest` where nothing is told of changes. A walk that
    /// takes long is followed by a longer pause in any case.
    pub rescan: Option<Duration>,
    /// Whether a directory is on a file system that other hosts change too, of which the kernel tells nothing.
    pub is_shared: fn(&Path) -> bool,
    /// Whether a name is that of a file which will get another one when it is whole.
    pub is_unfinished: fn(&OsStr) -> bool,
}

/// How changes are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// The kernel tells of them.
    Events,
    /// By walks alone, for this reason.
    Walks(String),
}

/// How a watch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// How changes are found.
    pub how: How,
    /// How many directories the kernel watches.
    pub directories: usize,
    /// How many files are ready.
    pub ready: usize,
    /// How many files change, or rest.
    pub changing: usize,
    /// Whether the root is there.
    pub is_there: bool,
    /// Whether the whole tree has been walked once, so that nothing is ready but what was counted.
    pub has_walked: bool,
}

/// A watched tree. It is watched as long as the process lives.
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
    how: How,
    directories: usize,
    is_there: bool,
    has_walked: bool,
    notes: Vec<String>,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(root: &Path, terms: Terms) -> io::Result<Self> {
        Self::begin_with(root, terms, usize::MAX)
    }

    /// With no more directories watched than these, as the kernel may have it.
    fn begin_with(root: &Path, terms: Terms, watches_max: usize) -> io::Result<Self> {
        let account = Account {
            ledger: Ledger::new(terms.rest),
            how: How::Events,
            directories: 0,
            is_there: false,
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
        let walks_only = (terms.is_shared)(root);
        let mut watcher = Watcher {
            root: root.to_owned(),
            terms,
            shared,
            watches_max,
            events: None,
            identity: None,
            root_went: false,
            next_walk: Instant::now(),
            broke_off: false,
            unreadable: HashSet::new(),
        };
        if walks_only {
            watcher.walks_alone(
                "it is on a network file system, and what other hosts change there is not told"
                    .into(),
            );
        }
        std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || watcher.run())?;
        Ok(watch)
    }

    /// Files that are ready, once there are some; none after `patience`.
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

    /// Takes note of a batch that has been moved, but for what `has_failed`.
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

    /// How it is.
    #[must_use]
    pub fn state(&self) -> State {
        let account = self.shared.account();
        let (ready, changing) = account.ledger.counts();
        let Account {
            directories,
            is_there,
            has_walked,
            ..
        } = *account;
        State {
            how: account.how.clone(),
            directories,
            ready,
            changing,
            is_there,
            has_walked,
        }
    }

    /// What a user should know, each once.
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

/// The thread's own.
struct Watcher {
    root: PathBuf,
    terms: Terms,
    shared: Arc<Shared>,
    watches_max: usize,
    /// `None` where the tree is walked alone, or not there.
    events: Option<Events>,
    /// What the root was known by when it was opened.
    identity: Option<(u64, u64)>,
    /// Whether the kernel has told that it went: a new one may be known by the same numbers.
    root_went: bool,
    next_walk: Instant,
    /// Whether the last walk has left something for the next.
    broke_off: bool,
    /// What could not be read, so that it is told once.
    unreadable: HashSet<PathBuf>,
}

impl Watcher {
    fn run(mut self) {
        loop {
            self.look_for_root();
            if self.identity.is_some() {
                self.hear();
                if Instant::now() >= self.next_walk {
                    self.walk();
                }
            }
            self.look_at_rested();
            self.rest();
        }
    }

    /// Begins anew where the root is another directory than before, or none.
    fn look_for_root(&mut self) {
        let found = identity(&self.root);
        if found == self.identity && !std::mem::take(&mut self.root_went) {
            return;
        }
        if self.identity.is_some() {
            let what = if found.is_some() {
                "is another directory now"
            } else {
                "is gone: waiting for it"
            };
            self.shared
                .note(format!("'{}' {what}", self.root.display()));
        } else if self.shared.account().has_walked {
            self.shared
                .note(format!("'{}' is there again", self.root.display()));
        }
        self.identity = found;
        self.events = None;
        self.next_walk = Instant::now();
        self.shared.account().is_there = found.is_some();
        if found.is_some() && self.shared.account().how == How::Events {
            match Events::begin() {
                Ok(events) => self.events = Some(events),
                Err(error) => self.walks_alone(refused(&error, "instances", &self.root)),
            }
        }
    }

    fn walks_alone(&mut self, why: String) {
        let text = format!("'{}' is walked at intervals: {why}", self.root.display());
        let mut account = self.shared.account();
        if account.how == How::Events {
            account.how = How::Walks(why);
            account.notes.push(text);
        }
    }

    /// Takes note of what the kernel tells.
    fn hear(&mut self) {
        let Some(events) = &mut self.events else {
            return;
        };
        let told = match events.read() {
            Ok(told) => told,
            Err(error) => {
                self.shared.note(format!(
                    "what the kernel tells of changes cannot be read: {error}"
                ));
                vec![Happened::Lost]
            }
        };
        let now = Instant::now();
        for happened in told {
            match happened {
                Happened::Changed(path) => {
                    self.came(path, |ledger, path| ledger.changed(path, now))
                }
                Happened::Closed(path) => self.came(path, Ledger::closed),
                Happened::Gone(path) => self.shared.account().ledger.gone(&path),
                Happened::Directory(path) => drop(self.walk_at(&path)),
                Happened::RootGone => self.root_went = true,
                Happened::Lost => {
                    self.next_walk = now;
                    self.shared.note(
                        "more changes than the kernel keeps (sysctl fs.inotify.max_queued_events): walking the tree"
                            .to_owned(),
                    );
                }
            }
        }
    }

    fn is_unfinished(&self, path: &Path) -> bool {
        path.file_name().is_some_and(self.terms.is_unfinished)
    }

    fn came(&self, path: PathBuf, note: impl FnOnce(&mut Ledger, PathBuf)) {
        let is_wanted = !self.is_unfinished(&path) && stamp_at(&self.root.join(&path)).is_some();
        let mut account = self.shared.account();
        if is_wanted {
            note(&mut account.ledger, path);
            self.shared.is_ready.notify_all();
        } else {
            account.ledger.gone(&path);
        }
    }

    /// Walks the whole tree.
    fn walk(&mut self) {
        let begun = Instant::now();
        self.shared.account().ledger.walk_begins();
        let is_whole = self.walk_at(Path::new(""));
        let took = begun.elapsed();
        let mut account = self.shared.account();
        account.ledger.walk_ends(is_whole);
        account.has_walked = true;
        let pause = match (&account.how, self.terms.rescan) {
            _ if std::mem::take(&mut self.broke_off) => TURN,
            (_, Some(rescan)) => rescan.max(took),
            (How::Events, None) => PAUSE.max(took * PAUSES_OF_WALKS),
            (How::Walks(_), None) => self.terms.rest.max(WALKS_PAUSE_MIN).max(took * 2),
        };
        self.next_walk = Instant::now() + pause;
    }

    fn walk_at(&mut self, below: &Path) -> bool {
        let is_whole = self.walk_tree(below);
        self.shared.is_ready.notify_all();
        self.shared.account().directories = self.events.as_ref().map_or(0, Events::directories);
        is_whole
    }

    fn look_at_rested(&self) {
        let mut account = self.shared.account();
        let by_walks = account.how != How::Events;
        account.ledger.look_at_rested(Instant::now(), |path| {
            let path = self.root.join(path);
            if by_walks {
                // A server's word counts, and not what this host remembers of it.
                let _revalidated = File::open(&path);
            }
            stamp_at(&path)
        });
        self.shared.is_ready.notify_all();
    }

    /// Waits until something happens or is due.
    fn rest(&self) {
        let now = Instant::now();
        let due = self.shared.account().ledger.next_due(now).unwrap_or(TURN);
        let walk = self.next_walk.saturating_duration_since(now);
        let pause = due.min(walk).clamp(Duration::from_millis(10), TURN);
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

/// Whether a walk goes on.
enum Go {
    On,
    /// Not into this directory.
    Past,
    /// No further at all.
    Home,
}

impl Watcher {
    /// Walks what is at `below` the root; returns whether it has met all that there is.
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
                // what took its place meanwhile is told by whoever told of this
                Ok(_) => continue,
                Err(error) => {
                    is_whole &= self.pass_over(&path, &error);
                    continue;
                }
            };
            match self.enter(&path, &below, &metadata) {
                Go::On => {}
                Go::Past => continue,
                Go::Home => return false,
            }
            let entries = match path.read_dir() {
                Ok(entries) => entries,
                Err(error) => {
                    is_whole &= self.pass_over(&path, &error);
                    continue;
                }
            };
            for entry in entries {
                let found = entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
                match found {
                    Ok((name, metadata)) if metadata.is_dir() => left.push(below.join(name)),
                    Ok((name, metadata)) => self.meet(below.join(name), &metadata),
                    Err(error) => is_whole &= self.pass_over(&path, &error),
                }
            }
        }
        is_whole
    }

    /// A directory that is about to be read is watched first.
    fn enter(&mut self, path: &Path, below: &Path, metadata: &Metadata) -> Go {
        if self.shared.account().ledger.counts().0 >= READY_MAX {
            // What is left is met when these have been moved.
            self.broke_off = true;
            return Go::Home;
        }
        let is_elsewhere = self
            .identity
            .is_some_and(|(device, _)| device != metadata.dev());
        if is_elsewhere && self.shared.account().how == How::Events && (self.terms.is_shared)(path)
        {
            self.walks_alone(format!("'{}' is on a network file system", path.display()));
        }
        let Some(events) = &mut self.events else {
            return Go::On;
        };
        let watched = if events.directories() >= self.watches_max {
            Err(Errno::NOSPC.into())
        } else {
            events.watch(path, below)
        };
        match watched {
            Ok(()) => Go::On,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Go::Past
            }
            // Only walks find what changes in this directory. The rest of the tree is watched.
            Err(error) if !below.as_os_str().is_empty() && !is_for_all(&error) => {
                self.pass_over(path, &error);
                Go::On
            }
            Err(error) => {
                self.walks_alone(refused(&error, "watches", path));
                Go::On
            }
        }
    }

    /// Takes note of a file, a link or whatever else is no directory.
    fn meet(&self, below: PathBuf, metadata: &Metadata) {
        let Some(stamp) = Stamp::of(metadata).filter(|_| !self.is_unfinished(&below)) else {
            return;
        };
        let mut account = self.shared.account();
        // A server's clock may be another.
        let rest = if account.how == How::Events {
            self.terms.rest
        } else {
            self.terms.rest.max(CLOCKS_APART_MAX)
        };
        account
            .ledger
            .met(below, stamp, age(metadata) >= rest, Instant::now());
    }

    /// Tells what cannot be read, once; returns whether it is just gone.
    fn pass_over(&mut self, path: &Path, error: &io::Error) -> bool {
        let is_gone = error.kind() == ErrorKind::NotFound;
        if !is_gone && self.unreadable.insert(path.to_owned()) {
            self.shared.note(format!(
                "'{}' cannot be read, and is not watched: {error}",
                path.display()
            ));
        }
        is_gone
    }
}

/// The numbers of a directory: device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata()
        .ok()
        .filter(Metadata::is_dir)
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Whether the kernel refuses any more watches, and not just this one.
fn is_for_all(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::MFILE | Errno::NOMEM | Errno::NOSYS)
    )
}

/// The reason for which the kernel watches no more.
fn refused(error: &io::Error, what: &str, path: &Path) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::MFILE) => {
            format!("the kernel watches no more for this user (sysctl fs.inotify.max_user_{what})")
        }
        _ => format!("the kernel cannot watch '{}': {error}", path.display()),
    }
}

fn stamp_at(path: &Path) -> Option<Stamp> {
    Stamp::of(&path.symlink_metadata().ok()?)
}

/// The time between two walks where the kernel tells of changes, and how many times that of a walk it is at least.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSES_OF_WALKS: u32 = 10;
/// The time between two walks where there is nothing else.
const WALKS_PAUSE_MIN: Duration = Duration::from_secs(1);
/// How long it rests where nothing is due: the root may be another.
const TURN: Duration = Duration::from_secs(1);
/// The most files that are ready before a walk breaks off: 64 MiB of names.
const READY_MAX: usize = 1 << 18;
/// How far a server's clock may be from this host's.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
