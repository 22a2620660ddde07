//! What is known of single files for longer than a session: see [`Run`](crate::Run).
//!
//! Files that a session has sent without a confirmation, or that were stored and not published, are kept by
//! path, with their hash, a bounded number of them; a file that the next session finds equal then counts as
//! moved. The manifest gets a line when a file is confirmed, by whichever session; at its end the last line
//! of each name is kept. A failure is told once by its text.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use zmove_types::{Name, RelPath, Root};

use crate::account::manifest::Manifest;
use crate::read::source::{LargeSource, Look};
use crate::send::sent::Sent;

/// What is known of single files for longer than a session.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) manifest: Option<Manifest>,
    /// Set when the target gave its only entry another name.
    pub(crate) single_name: Option<Name>,
    /// Files that were sent in an earlier session, which has not heard what became of them.
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
    /// None of a file whose holes were not hashed.
    root: Option<Root>,
}

impl Book {
    pub(crate) fn new(manifest: Option<Manifest>) -> Self {
        Self { manifest, ..Self::default() }
    }

    /// A file is whole at the target because of this session.
    pub(crate) fn confirm(&mut self, path: &RelPath, root: Option<&Root>) {
        if !self.unconfirmed.is_empty() {
            self.unconfirmed.remove(path);
        }
        let renamed = self.renamed();
        if let (Some(manifest), Some(root)) = (&mut self.manifest, root) {
            manifest.add(renamed.as_ref().unwrap_or(path), root);
        }
    }

    /// The path of the only entry, where the target has given it another name.
    pub(crate) fn renamed(&self) -> Option<RelPath> {
        self.single_name.as_ref().and_then(|name| RelPath::root().join(name).ok())
    }

    /// A file that looks so is at the target already; whether an earlier session has brought it without hearing so.
    pub(crate) fn confirm_earlier(&mut self, path: &RelPath, look: Look) -> bool {
        if self.unconfirmed.is_empty() {
            return false;
        }
        let Some(sent) = self.unconfirmed.remove(path).filter(|sent| sent.look == look) else {
            return false;
        };
        self.confirm(path, sent.root.as_ref());
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
            for file in batch.stored_files() {
                let sent = Unconfirmed { look: file.look, root: Some(file.root) };
                self.remember(file.path.clone(), sent);
            }
        }
    }

    fn remember(&mut self, path: RelPath, sent: Unconfirmed) {
        if self.unconfirmed.len() < UNCONFIRMED_MAX || self.unconfirmed.contains_key(&path) {
            self.unconfirmed.insert(path, sent);
        }
    }

    /// The session is over, and the receiver has not said that this large file is whole. A file that was not sent in
    /// full cannot be.
    pub(crate) fn leave_large_open(&mut self, file: &LargeSource) {
        if file.is_all_read() && !file.is_dead() {
            let sent = Unconfirmed { look: Look::of(&file.entry), root: file.root() };
            self.remember(file.target.clone(), sent);
        }
    }
}

/// What several sessions may leave open, each as much as may be on its way or without a name; the next session meets
/// these files first, as a rule. One beyond that counts as skipped where it is found to be there, and not as moved.
const UNCONFIRMED_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use zmove_types::Timestamp;

    use super::*;
    use crate::plan::pack::Pack;
    use crate::send::sent::{SentBatch, SentFile};

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

    #[test]
    fn what_sessions_leave_open_is_bounded() {
        let mut book = Book::default();
        let sent = Unconfirmed { look: look(5), root: Some(Root([7; 32])) };
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
}
