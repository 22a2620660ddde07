//! A piece of a push that is fed, held by all that belongs to it: by the directory of each entry, wherever that is.
//!
//! **Invariant:** an entry counts as confirmed only by the receiver's word. Whatever else becomes of an entry, it lets
//! go of its piece, and is missed among what was confirmed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use zmove_scan::{Entry, EntryKind};
use zmove_types::{Lock, RelPath};
use zmove_wire::{FileHead, WorkCounts};

/// A piece of a push, held by all that belongs to it.
#[derive(Debug)]
pub(crate) struct Piece {
    found: u64,
    large_bytes: u64,
    heard: mpsc::UnboundedSender<Progress>,
    /// The bytes that have not been read yet.
    unread: AtomicU64,
    half: u64,
    confirmed: AtomicU64,
    progress: AtomicU64,
    settled: Lock<Settled>,
}

/// What becomes of a piece that is under way.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// A large file is not sent with the piece: it is left to several, or at the target already.
    Large(LargeFound),
    /// Half of the bytes are on their way to the lanes: another piece keeps them busy. Not said of all pieces.
    HalfRead,
    /// All else of the piece has settled.
    Settled(Settled),
}

/// What a piece has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceSize {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Files of so many bytes are left to several.
    pub(crate) large_bytes: u64,
}

/// What has become of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The counts, without large files that have no names yet.
    pub counts: WorkCounts,
    /// Large files all groups of which have been stored, and which get their names by an order.
    pub unnamed: Vec<Unnamed>,
    /// Why groups of a large file have failed, which is told nobody else.
    pub why: Option<String>,
}

/// A large file that has no name at the target yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// The declaration, for the order.
    pub head: Vec<u8>,
    /// The path at the target.
    pub path: PathBuf,
    /// The length.
    pub bytes: u64,
}

impl Unnamed {
    pub(crate) fn of(head: &FileHead) -> Self {
        Self {
            head: head.encode(),
            path: head.path.as_path().to_owned(),
            bytes: head.bytes,
        }
    }
}

/// A file that is so large that several are to send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeFound {
    /// The directory that it is in, below its source.
    pub directory: RelPath,
    /// The file.
    pub entry: Entry,
    /// Whether it is to be sent.
    pub at_target: AtTarget,
}

/// Whether the target has a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtTarget {
    /// The target has it: nothing of it is to be sent.
    There,
    /// The receiver needs it.
    Needed,
}

impl Piece {
    /// A piece of this size, and the end at which one hears of it.
    pub(crate) fn new(size: PieceSize) -> (Arc<Self>, mpsc::UnboundedReceiver<Progress>) {
        let (heard, hears) = mpsc::unbounded_channel();
        let piece = Self {
            found: size.entries,
            large_bytes: size.large_bytes,
            heard,
            unread: AtomicU64::new(size.bytes),
            half: size.bytes / 2,
            confirmed: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            settled: Lock::default(),
        };
        (Arc::new(piece), hears)
    }

    fn tell(&self, progress: Progress) {
        let _nobody_waits = self.heard.send(progress);
    }

    /// So many bytes more have been read.
    pub(crate) fn has_read(&self, bytes: u64) {
        let less = |unread: u64| Some(unread.saturating_sub(bytes));
        let before = self
            .unread
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or_default();
        if before > self.half && before.saturating_sub(bytes) <= self.half {
            self.tell(Progress::HalfRead);
        }
    }

    /// A number that grows as long as the receiver stores and confirms something of the piece.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// The receiver has an entry.
    pub(crate) fn confirm(&self, entry: &Entry) {
        self.confirm_without_data();
        if entry.kind == EntryKind::File {
            let counts = &mut self.settled.lock().counts;
            counts.files += 1;
            counts.bytes += entry.size;
        }
    }

    /// The target has had an entry before.
    pub(crate) fn confirm_there(&self, entry: &Entry) {
        self.confirm(entry);
        if entry.kind == EntryKind::File {
            let counts = &mut self.settled.lock().counts;
            counts.skipped += 1;
            counts.skipped_bytes += entry.size;
        }
    }

    /// Leaves a file that the receiver needs to several, if it is so large; returns whether it has.
    pub(crate) fn leaves(&self, directory: &RelPath, entry: &Entry) -> bool {
        self.tell_if_large(directory, entry, AtTarget::Needed)
    }

    /// The target has an entry that it was asked about. A file that would be left to several is told of, and counts for
    /// nothing here: another may have given it its name.
    pub(crate) fn stays(&self, directory: &RelPath, entry: &Entry) {
        if !self.tell_if_large(directory, entry, AtTarget::There) {
            self.confirm_there(entry);
        }
    }

    /// Tells of a file that is left to several, if it is so large; returns whether it is.
    fn tell_if_large(&self, directory: &RelPath, entry: &Entry, at_target: AtTarget) -> bool {
        let is_large = entry.kind == EntryKind::File && entry.size >= self.large_bytes;
        if is_large {
            self.confirm_without_data();
            let found = LargeFound {
                directory: directory.clone(),
                entry: entry.clone(),
                at_target,
            };
            self.tell(Progress::Large(found));
        }
        is_large
    }

    /// A special file is not copied.
    pub(crate) fn leave_special(&self) {
        self.confirm_without_data();
        self.settled.lock().counts.specials += 1;
    }

    /// The receiver has a directory itself.
    pub(crate) fn confirm_without_data(&self) {
        self.confirmed.fetch_add(1, Ordering::Relaxed);
        self.has_moved();
    }

    /// The receiver has stored something of it.
    pub(crate) fn has_moved(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// The receiver has all groups of a large file that were to be sent; it gets its name by an order.
    pub(crate) fn confirm_large(&self, head: Option<FileHead>) {
        self.confirm_without_data();
        let unnamed = head.as_ref().map(Unnamed::of);
        self.settled.lock().unnamed.extend(unnamed);
    }

    /// Groups of a large file have failed.
    pub(crate) fn fail_range(&self, why: String) {
        self.settled.lock().why = Some(why);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let confirmed = self.confirmed.load(Ordering::Relaxed);
        let mut settled = std::mem::take(self.settled.get_mut());
        settled.counts.failed = self.found.saturating_sub(confirmed);
        self.tell(Progress::Settled(settled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_piece_is_told_once_and_its_end_when_the_last_holder_goes() {
        let (piece, mut heard) = Piece::new(PieceSize {
            entries: 3,
            bytes: 101,
            large_bytes: u64::MAX,
        });
        piece.has_read(50);
        assert!(heard.try_recv().is_err(), "51 of 101 are left");
        piece.has_read(1);
        assert_eq!(heard.try_recv().unwrap(), Progress::HalfRead);
        // a resent group is read again
        piece.has_read(100);
        assert!(heard.try_recv().is_err());
        piece.confirm_without_data();
        drop(Arc::clone(&piece));
        assert!(heard.try_recv().is_err(), "somebody holds it");
        drop(piece);
        assert_eq!(
            heard.try_recv().unwrap(),
            Progress::Settled(Settled {
                counts: WorkCounts {
                    failed: 2,
                    ..WorkCounts::default()
                },
                ..Settled::default()
            })
        );
    }
}
