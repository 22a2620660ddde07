//! The account of a push: what was found, moved and refused, where its time went, and what is told of it at the end.

pub(crate) mod book;
pub(crate) mod bottleneck;
pub(crate) mod failure;
pub(crate) mod heard;
pub(crate) mod limit;
pub(crate) mod manifest;
pub(crate) mod receipts;
pub(crate) mod summary;
pub(crate) mod timeline;
pub(crate) mod totals;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zmove_scan::{Entry, EntryKind, ScanError};
use zmove_types::{Cv, Event, GroupSpan, Observer, RelPath};
use zmove_wire::limits::SYMLINK_BYTES_MAX;

use self::book::Book;
use self::failure::FileError;
use self::totals::Totals;
use crate::read::source::{FoundHoles, Look, SourceDirectory};

/// Counts what happens to files, and tells the user.
pub(crate) struct Account {
    pub(crate) totals: Totals,
    pub(crate) observer: Arc<dyn Observer>,
    book: Mutex<Book>,
}

/// What a receipt is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Files that have become whole.
    pub(crate) files: u64,
    /// All bytes of these files.
    pub(crate) whole_bytes: u64,
    /// Bytes of any file that were not counted before.
    pub(crate) bytes: u64,
    /// Those of `bytes` that were shown to the user before.
    pub(crate) shown: u64,
}

impl Account {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { totals: Totals::default(), observer, book: Mutex::default() }
    }

    /// What is known of files for longer than this session.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was at the target already; it counts as moved if an earlier session has brought it.
    pub(crate) fn skipped(&self, path: &RelPath, look: Look) {
        let bytes = look.bytes;
        if self.book().confirm_earlier(path, look) {
            return self.moved(&Moved { files: 1, whole_bytes: bytes, bytes, shown: 0 });
        }
        self.totals.skipped.add(1);
        self.observer.on(&Event::Skipped { files: 1, bytes });
    }

    /// Groups of a file of `bytes` came in an earlier transfer.
    pub(crate) fn resumed(&self, held: &[Option<Cv>], bytes: u64) {
        let there = (0..).zip(held).filter(|(_, cv)| cv.is_some());
        let spans = there.filter_map(|(index, _)| GroupSpan::of(bytes, index));
        let bytes = spans.map(|span| u64::from(span.len)).sum();
        self.totals.resumed.add(bytes);
        self.observer.on(&Event::Skipped { files: 0, bytes });
    }

    /// The receiver has said that something is at the target.
    pub(crate) fn moved(&self, moved: &Moved) {
        let Moved { files, whole_bytes, bytes, shown } = *moved;
        self.totals.files.add(files);
        self.totals.whole_bytes.add(whole_bytes);
        self.totals.bytes.add(bytes);
        self.show(files, bytes.saturating_sub(shown));
    }

    /// Tells the user what is at the target, whether it has its name or not.
    pub(crate) fn show(&self, files: u64, bytes: u64) {
        self.totals.bytes_stored.add(bytes);
        self.observer.on(&Event::Stored { files, bytes });
    }

    /// A group of another version at the target is the same.
    pub(crate) fn matched(&self, bytes: u64) {
        self.totals.matched.add(bytes);
        self.observer.on(&Event::Skipped { files: 0, bytes });
    }

    /// The holes of a large file have been looked for.
    pub(crate) fn found_holes(&self, holes: FoundHoles) {
        self.totals.holes_not_kept.add(u64::from(holes.lacks));
        self.observer.on(&Event::Skipped { files: 0, bytes: holes.bytes });
    }

    /// Whether an entry can be at the target; what cannot is counted, or has failed.
    pub(crate) fn can_carry(&self, directory: &SourceDirectory, entry: &Entry) -> bool {
        let path = || directory.display(&entry.name);
        match &entry.kind {
            EntryKind::Special => self.totals.specials.add(1),
            EntryKind::Symlink(target) if target.is_empty() || target.len() > SYMLINK_BYTES_MAX => {
                self.fail(&FileError::LinkTarget { path: path() });
            }
            EntryKind::File if GroupSpan::count(entry.size).is_none() => {
                self.fail(&FileError::TooLarge { path: path() });
            }
            EntryKind::Directory | EntryKind::Symlink(_) | EntryKind::File => return true,
        }
        false
    }

    /// One file or directory failed; the rest goes on.
    pub(crate) fn fail(&self, error: &FileError) {
        self.totals.failed.add(1);
        self.totals.unread.add(u64::from(error.is_unread()));
        self.totals.unplaced.add(u64::from(error.is_unplaced()));
        let message = error.to_string();
        if self.book().tell(&message) {
            self.observer.on(&Event::Failed { message });
        }
    }

    /// Something of the source could not be seen.
    pub(crate) fn fail_scan(&self, error: ScanError) {
        if matches!(error, ScanError::Vanished { .. }) {
            self.totals.vanished.add(1);
        }
        self.totals.scan_errors.add(1);
        self.fail(&FileError::Scan(error));
    }
}
