//! What the sessions of one run have in common.
//!
//! A session that loses its connections can be followed by another, which walks the sources again and is told by the receiver
//! what is there. **Invariant:** a file that any session has moved counts as moved once, stands in the manifest once, and a
//! failure is told once. What failed in the end is what failed in the last session, for it tried everything again.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use zmove_scan::{Entry, SourceIdentity};
use zmove_types::{FileNumber, Name, RelPath, Root, Sample, Timestamp, TransferId};

use crate::account::manifest::Manifest;
use crate::read::source::LargeSource;
use crate::shared::{Counters, Sent};

/// One run of a push, of as many sessions as it takes.
#[derive(Debug)]
pub struct Run {
    pub(crate) started: Instant,
    cpu_started: Duration,
    /// Of the first session.
    id: Option<TransferId>,
    pub(crate) heard: Heard,
    /// Sessions in which the receiver has given leave.
    begun: u64,
    /// Sessions in which the receiver has answered.
    answered: u64,
    pub(crate) earlier: Earlier,
    pub(crate) book: Book,
    /// How long the next session waits for its turn at a busy receiver.
    pub(crate) patience: Duration,
    /// That of what the first walk has found, where the target becomes a mirror of it.
    identity: Option<Arc<SourceIdentity>>,
}

/// How far the conversation of a session came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    #[default]
    Nothing,
    /// The receiver has given leave.
    Leave,
    /// It has said something about what it was given.
    Answer,
}

/// What all sessions before this one have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    /// Files that are whole and verified because of them.
    pub(crate) files: u64,
    /// The bytes of these.
    pub(crate) bytes: u64,
    /// What else they have brought: groups of files that are not whole.
    pub(crate) partial_bytes: u64,
    /// Entries that were at the target alone.
    pub(crate) removed: u64,
    /// What any of them asked to be removed.
    pub(crate) doomed: u64,
    pub(crate) resent: u64,
    pub(crate) repeated: u64,
    pub(crate) lanes: usize,
    pub(crate) first_byte: Option<Duration>,
    /// How far the stages were.
    pub(crate) reached: Sample,
}

/// What is known of single files for longer than a session.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) manifest: Option<Manifest>,
    /// Set when the target gave its only entry another name.
    pub(crate) single_name: Option<Name>,
    /// Sent in an earlier session that has not heard what became of them.
    unconfirmed: HashMap<RelPath, Unconfirmed>,
    /// Failures that earlier sessions have told, and this one.
    told: HashSet<u64>,
    telling: HashSet<u64>,
    hasher: RandomState,
}

/// A file that may be at the target because of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unconfirmed {
    look: Look,
    root: Root,
}

/// What the same file of the source looks like as long as nobody changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) bytes: u64,
    pub(crate) mtime: Timestamp,
}

impl Look {
    pub(crate) fn of(entry: &Entry) -> Self {
        Self { bytes: entry.size, mtime: entry.metadata.mtime }
    }
}

impl Run {
    /// A run of which nothing has happened. `started` is when the user began to wait.
    #[must_use]
    pub fn begin(manifest: Option<Manifest>, started: Instant) -> Self {
        Self {
            started,
            cpu_started: cpu_time(),
            id: None,
            heard: Heard::Nothing,
            begun: 0,
            answered: 0,
            earlier: Earlier::default(),
            book: Book { manifest, ..Book::default() },
            patience: Duration::ZERO,
            identity: None,
        }
    }

    /// Whether the receiver has ever taken the transfer.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.heard >= Heard::Leave
    }

    /// Has the next session wait so long for its turn at a busy receiver; without this it does not wait.
    pub const fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// In how many sessions the receiver has answered to what it was given.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// By what all walks know that the sources are what they were when the first began, which is now unless there has
    /// been one.
    pub(crate) fn identity(&mut self, own_directories: &[FileNumber]) -> Arc<SourceIdentity> {
        let begin = || Arc::new(SourceIdentity::begin(own_directories.to_vec()));
        Arc::clone(self.identity.get_or_insert_with(begin))
    }

    /// How often it went on after its connections were lost.
    pub(crate) fn reconnects(&self) -> u64 {
        self.begun.saturating_sub(1)
    }

    /// What tells the receiver which run this `transfer` belongs to.
    pub(crate) fn id(&mut self, transfer: TransferId) -> [u8; 16] {
        self.id.get_or_insert(transfer).0
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_started)
    }

    /// A session has come so far.
    pub(crate) fn note(&mut self, heard: Heard) {
        self.heard = self.heard.max(heard);
        self.begun += u64::from(heard >= Heard::Leave);
        self.answered += u64::from(heard == Heard::Answer);
    }
}

impl Earlier {
    /// Adds a session that broke off.
    pub(crate) fn add(&mut self, counters: &Counters, lanes: usize, first_byte: Option<Duration>) {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        self.files += count(&counters.files);
        self.bytes += count(&counters.whole_bytes);
        self.partial_bytes += count(&counters.bytes).saturating_sub(count(&counters.whole_bytes));
        self.removed += count(&counters.removed);
        self.doomed = count(&counters.doomed);
        self.resent += count(&counters.resent);
        self.repeated += count(&counters.repeated);
        self.lanes = self.lanes.max(lanes);
        self.first_byte = self.first_byte.or(first_byte);
    }

    /// Where all sessions are together, when this one is at `now`.
    pub(crate) fn with(&self, now: Sample) -> Sample {
        let sum = |now: Option<u64>, before: Option<u64>| now.map(|now| now + before.unwrap_or(0));
        Sample {
            bytes_read: now.bytes_read + self.reached.bytes_read,
            bytes_handed_over: now.bytes_handed_over + self.reached.bytes_handed_over,
            bytes_acked: sum(now.bytes_acked, self.reached.bytes_acked),
            bytes_stored: now.bytes_stored + self.reached.bytes_stored,
            segments_retransmitted: sum(now.segments_retransmitted, self.reached.segments_retransmitted),
            ..now
        }
    }
}

impl Book {
    /// A file is whole at the target because of this session.
    pub(crate) fn confirm(&mut self, path: &RelPath, root: Option<&Root>) {
        if !self.unconfirmed.is_empty() {
            self.unconfirmed.remove(path);
        }
        let renamed = self.single_name.as_ref().and_then(|name| RelPath::root().join(name).ok());
        if let (Some(manifest), Some(root)) = (&mut self.manifest, root) {
            manifest.add(renamed.as_ref().unwrap_or(path), root);
        }
    }

    /// A file that looks so is at the target already; whether an earlier session has brought it without hearing so.
    pub(crate) fn confirm_earlier(&mut self, path: &RelPath, look: Look) -> bool {
        if self.unconfirmed.is_empty() {
            return false;
        }
        let Some(sent) = self.unconfirmed.remove(path).filter(|sent| sent.look == look) else {
            return false;
        };
        self.confirm(path, Some(&sent.root));
        true
    }

    /// Whether this failure is news: no earlier session has told it.
    pub(crate) fn tell(&mut self, message: &str) -> bool {
        let failure = self.hasher.hash_one(message);
        self.telling.insert(failure);
        !self.told.contains(&failure)
    }

    /// The session has broken off.
    pub(crate) fn break_off(&mut self) {
        self.told.extend(self.telling.drain());
        self.manifest.iter_mut().for_each(Manifest::may_repeat);
    }

    /// The session is over, and the receiver has not said that this has its names.
    pub(crate) fn leave_open(&mut self, work: &Sent) {
        if let Sent::Batch(batch) = work {
            let failed: HashSet<_> = batch.failed().collect();
            for file in batch.files.iter().filter(|file| !file.retouched && !failed.contains(&file.path)) {
                let sent = Unconfirmed { look: file.look, root: file.root };
                self.remember(file.path.clone(), sent);
            }
        }
    }

    fn remember(&mut self, path: RelPath, sent: Unconfirmed) {
        if self.unconfirmed.len() < UNCONFIRMED_MAX || self.unconfirmed.contains_key(&path) {
            self.unconfirmed.insert(path, sent);
        }
    }

    /// The same of a large file; one that was not sent in full cannot be whole.
    pub(crate) fn leave_large_open(&mut self, file: &LargeSource) {
        if let Some(root) = file.root().filter(|_| !file.is_dead()) {
            let sent = Unconfirmed { look: Look::of(&file.entry), root };
            self.remember(file.target.clone(), sent);
        }
    }
}

/// What several sessions may leave open, each as much as may be on its way or without a name; the next session meets these files
/// first, as a rule. One beyond that counts as skipped where it is found to be there, and not as moved.
const UNCONFIRMED_MAX: usize = 1 << 20;

/// That of the whole process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::pack::Pack;
    use crate::shared::{SentBatch, SentFile};

    fn look(bytes: u64) -> Look {
        Look { bytes, mtime: Timestamp { seconds: 7, nanos: 8 } }
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    fn sent(name: &str) -> Sent {
        let file = SentFile { path: path(name), root: Root([7; 32]), look: look(5), retouched: false };
        Sent::Batch(SentBatch { pack: Pack::of(Vec::new()), files: vec![file], faults: Vec::new() })
    }

    #[test]
    fn what_was_sent_and_not_confirmed_counts_once_when_it_is_there() {
        let home = tempfile::tempdir().unwrap();
        let manifest = home.path().join("m");
        let mut book = Book { manifest: Some(Manifest::create(&manifest).unwrap()), ..Book::default() };
        for name in ["a", "b", "c", "d"] {
            book.leave_open(&sent(name));
        }
        assert!(book.confirm_earlier(&path("a"), look(5)) && !book.confirm_earlier(&path("a"), look(5)));
        assert!(!book.confirm_earlier(&path("b"), look(6)), "it is another one");
        let changed = Look { mtime: Timestamp { seconds: 7, nanos: 9 }, ..look(5) };
        assert!(!book.confirm_earlier(&path("d"), changed), "another version is there");
        book.confirm(&path("c"), Some(&Root([8; 32])));
        assert!(!book.confirm_earlier(&path("c"), look(5)), "it was moved again");
        book.manifest.take().unwrap().finish().unwrap();
        let text = format!("{}  a\n{}  c\n", "07".repeat(32), "08".repeat(32));
        assert_eq!(std::fs::read_to_string(manifest).unwrap(), text);
    }

    /// Nobody knows what has gone of what was asked for when the connection was lost.
    #[test]
    fn what_a_session_asked_to_be_removed_counts_in_the_next_one() {
        let mut earlier = Earlier::default();
        let counters = Counters { doomed: 5.into(), removed: 3.into(), ..Counters::default() };
        earlier.add(&counters, 1, None);
        // the next one begins with what the first had asked for
        let counters =
            Counters { doomed: (earlier.doomed + 2).into(), removed: 2.into(), ..Counters::default() };
        earlier.add(&counters, 1, None);
        assert_eq!((earlier.doomed, earlier.removed), (7, 5));
    }

    #[test]
    fn what_sessions_leave_open_is_bounded() {
        let mut book = Book::default();
        let sent = Unconfirmed { look: look(5), root: Root([7; 32]) };
        (0..=UNCONFIRMED_MAX).for_each(|number| book.remember(path(&number.to_string()), sent));
        assert_eq!(book.unconfirmed.len(), UNCONFIRMED_MAX);
        // what is known already is known anew
        book.remember(path("0"), Unconfirmed { look: look(6), ..sent });
        assert!(book.confirm_earlier(&path("0"), look(6)));
    }

    #[test]
    fn a_failure_is_news_in_one_session() {
        let mut book = Book::default();
        assert!(book.tell("read 'a'") && book.tell("read 'a'"), "it is for the session to say it twice");
        book.break_off();
        assert!(!book.tell("read 'a'") && book.tell("read 'b'"));
        book.break_off();
        assert!(!book.tell("read 'a'") && !book.tell("read 'b'"));
    }

    #[test]
    fn leave_is_not_forgotten_and_each_answer_counts() {
        let mut run = Run::begin(None, Instant::now());
        assert!(!run.was_up());
        for heard in [Heard::Answer, Heard::Nothing, Heard::Leave, Heard::Answer] {
            run.note(heard);
        }
        assert_eq!((run.was_up(), run.answered()), (true, 2));
        assert_eq!(run.reconnects(), 2, "also after a session in which nothing more was said");
    }
}
