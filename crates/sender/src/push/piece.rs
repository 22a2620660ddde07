//! A piece of a fed push. In every stage of the pipeline, each entry of the piece holds a reference to the piece
//! through the entry's directory.
//!
//! **Invariant:** an entry counts as confirmed only when the receiver has reported it, or if it is a special file that
//! is not copied. An entry with any other outcome only drops its reference, and the piece then counts the entry as
//! failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use zmove_scan::{Entry, EntryKind};
use zmove_types::{Counters, Lock, RelPath};
use zmove_wire::FileHead;

/// A piece of a push, kept alive by its entries.
#[derive(Debug)]
pub(crate) struct Piece {
    found: u64,
    large_bytes: u64,
    reports: mpsc::UnboundedSender<PieceProgress>,
    /// Bytes that have not been read yet.
    unread: AtomicU64,
    half: u64,
    confirmed: AtomicU64,
    progress: AtomicU64,
    settled: Lock<Settled>,
}

/// A progress report of a piece.
#[derive(Debug, PartialEq, Eq)]
pub enum PieceProgress {
    /// A large file that is not sent with the piece, because several senders share it.
    Large(SharedLargeFile),
    /// Half of the bytes have been read, so another piece is needed to keep the lanes busy. Not every piece reports
    /// this.
    HalfRead,
    /// Everything in the piece has settled, except the files reported as `Large`.
    Settled(Settled),
}

/// The size of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceSize {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Minimum size in bytes of files that several senders share.
    pub(crate) large_bytes: u64,
}

/// The result of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Counts, without large files that are not yet renamed into place.
    pub counts: Counters,
    /// The declarations of large files whose groups have all been stored. A later order of the shared job renames them
    /// into place.
    pub unnamed: Vec<FileHead>,
    /// The error with which groups of a large file have failed. No other report contains it.
    pub range_error: Option<String>,
}

/// A large file that the receiver needs and several senders share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLargeFile {
    /// Path of the file's directory, relative to its source.
    pub directory: RelPath,
    /// The file.
    pub entry: Entry,
}

impl Piece {
    /// Creates a piece and the channel on which its progress is reported.
    pub(crate) fn new(size: PieceSize) -> (Arc<Self>, mpsc::UnboundedReceiver<PieceProgress>) {
        let (reports, hears) = mpsc::unbounded_channel();
        let piece = Self {
            found: size.entries,
            large_bytes: size.large_bytes,
            reports,
            unread: AtomicU64::new(size.bytes),
            half: size.bytes / 2,
            confirmed: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            settled: Lock::default(),
        };
        (Arc::new(piece), hears)
    }

    fn report(&self, progress: PieceProgress) {
        let _nobody_waits = self.reports.send(progress);
    }

    /// Records that `bytes` more bytes have been read.
    pub(crate) fn note_read(&self, bytes: u64) {
        let less = |unread: u64| Some(unread.saturating_sub(bytes));
        let before = self
            .unread
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or_default();
        if before > self.half && before.saturating_sub(bytes) <= self.half {
            self.report(PieceProgress::HalfRead);
        }
    }

    /// Returns a counter that increases whenever the receiver stores or confirms part of the piece.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Counts an entry as confirmed by the receiver.
    pub(crate) fn confirm(&self, entry: &Entry) {
        self.confirm_without_data();
        if entry.kind == EntryKind::File {
            let counts = &mut self.settled.lock().counts;
            counts.files += 1;
            counts.bytes += entry.size;
        }
    }

    /// Counts an entry that already existed at the target.
    pub(crate) fn confirm_existing(&self, entry: &Entry) {
        self.confirm_without_data();
        if entry.kind == EntryKind::File {
            self.settled.lock().counts.skipped += 1;
        }
    }

    /// Shares a file that the receiver needs among several senders, if the file is large enough. Returns whether the
    /// file is shared.
    pub(crate) fn share_if_large(&self, directory: &RelPath, entry: &Entry) -> bool {
        let is_large = entry.kind == EntryKind::File && entry.size >= self.large_bytes;
        if is_large {
            self.confirm_without_data();
            let found = SharedLargeFile {
                directory: directory.clone(),
                entry: entry.clone(),
            };
            self.report(PieceProgress::Large(found));
        }
        is_large
    }

    /// Counts a special file, which is not copied.
    pub(crate) fn leave_special(&self) {
        self.confirm_without_data();
        self.settled.lock().counts.specials += 1;
    }

    /// Counts an entry without file data as confirmed, such as a directory.
    pub(crate) fn confirm_without_data(&self) {
        self.confirmed.fetch_add(1, Ordering::Relaxed);
        self.note_progress();
    }

    /// Records that the receiver has stored part of the piece.
    pub(crate) fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the receiver has all requested groups of a large file. An order renames the file into place later.
    pub(crate) fn confirm_large(&self, head: Option<FileHead>) {
        self.confirm_without_data();
        self.settled.lock().unnamed.extend(head);
    }

    /// Records why groups of a large file have failed.
    pub(crate) fn fail_range(&self, why: String) {
        self.settled.lock().range_error = Some(why);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let confirmed = self.confirmed.load(Ordering::Relaxed);
        let mut settled = std::mem::take(self.settled.get_mut());
        settled.counts.failed = self.found.saturating_sub(confirmed);
        self.report(PieceProgress::Settled(settled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_piece_is_told_once_and_its_end_when_the_last_holder_goes() {
        let (piece, mut reports) = Piece::new(PieceSize {
            entries: 3,
            bytes: 101,
            large_bytes: u64::MAX,
        });
        piece.note_read(50);
        assert!(reports.try_recv().is_err(), "51 of 101 are left");
        piece.note_read(1);
        assert_eq!(reports.try_recv().unwrap(), PieceProgress::HalfRead);
        // A group that is sent again is read again.
        piece.note_read(100);
        assert!(reports.try_recv().is_err());
        piece.confirm_without_data();
        drop(Arc::clone(&piece));
        assert!(reports.try_recv().is_err(), "somebody holds it");
        drop(piece);
        assert_eq!(
            reports.try_recv().unwrap(),
            PieceProgress::Settled(Settled {
                counts: Counters {
                    failed: 2,
                    ..Counters::default()
                },
                ..Settled::default()
            })
        );
    }
}
