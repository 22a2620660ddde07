//! The account of a push: the results of its files, the time spent in each stage, and the final report.

pub(crate) mod bottleneck;
pub(crate) mod failure;
pub(crate) mod file_ledger;
pub(crate) mod manifest;
pub(crate) mod receipts;
pub(crate) mod report_limits;
pub(crate) mod timeline;
pub(crate) mod totals;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use zmove_scan::{Entry, EntryKind, ScanError, UnfinishedParts};
use zmove_types::{
    ByteCount, BytesByOrigin, Escaped, Event, GroupSpan, Lock, MetadataKinds, Observer, RelPath,
    Root,
};
use zmove_wire::limits::SYMLINK_BYTES_MAX;
use zmove_wire::{FoundSoFar, Missed, NotKept, NotKeptReason};

use self::failure::FileError;
use self::file_ledger::{FileLedger, Unconfirmed};
use self::manifest::ProofMethod;
use self::totals::Totals;
use crate::read::extras::Extras;
use crate::read::group_values::GroupValues;
use crate::read::source::{LargeSource, SizeAndMtime, SourceDirectory};

/// Counts the results of files and reports them to the user.
pub(crate) struct PushAccount {
    pub(crate) totals: Totals,
    pub(crate) observer: Arc<dyn Observer>,
    files: Lock<FileLedger>,
    has_found_all: AtomicBool,
    /// Free bytes of the target's file system, or `u64::MAX` if unknown.
    room: AtomicU64,
}

/// Counts of the files and bytes that a receipt confirms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovedCounts {
    /// Files that are now complete.
    pub(crate) files: u64,
    /// All bytes of the files counted in `files`, including bytes that an earlier receipt confirmed.
    pub(crate) whole: BytesByOrigin,
    /// Bytes that this receipt is the first to confirm, of complete and incomplete files.
    pub(crate) bytes: u64,
    /// Number of the bytes in `bytes` that were already reported to the user.
    pub(crate) shown: u64,
}

impl PushAccount {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            totals: Totals::default(),
            observer,
            files: Lock::default(),
            has_found_all: AtomicBool::new(false),
            room: AtomicU64::new(u64::MAX),
        }
    }

    /// Locks the ledger of single files, which outlives this session.
    pub(crate) fn files(&self) -> MutexGuard<'_, FileLedger> {
        self.files.lock()
    }

    /// Counts a file that was already at the target, and returns `true`. Lists the file in the manifest if its `root`
    /// is known. If an earlier session sent the file, counts the file as moved instead and returns `false`.
    pub(crate) fn skipped(
        &self,
        path: &RelPath,
        size_and_mtime: SizeAndMtime,
        root: Option<(&Root, ProofMethod)>,
    ) -> bool {
        let bytes = size_and_mtime.bytes;
        let earlier = self.files().confirm_earlier(path, size_and_mtime);
        if let Some(sent) = earlier {
            self.found_moved(bytes, &sent);
            return false;
        }
        self.totals.counters.skipped.add(1);
        let mut files = self.files();
        if let Some((root, known)) = root
            && (known == ProofMethod::Compared || files.lists_unchanged_files())
        {
            self.totals.listed.add(1);
            files.confirm(path, Some(root), known);
        }
        drop(files);
        self.count_unsent(1, bytes);
        true
    }

    /// Counts a file as moved because an earlier session sent it. `bytes` is the size of the file.
    fn found_moved(&self, bytes: u64, sent: &Unconfirmed) {
        let Some(origins) = sent.origins else {
            return self.linked(bytes);
        };
        self.moved(&MovedCounts {
            files: 1,
            whole: origins,
            bytes: origins.sent,
            shown: 0,
        });
        self.totals.counters.bytes_matched.add(origins.matched);
        self.totals.counters.bytes_resumed.add(origins.resumed);
        self.count_unsent(0, bytes.saturating_sub(origins.sent));
    }

    /// Counts the groups of a file that the target already holds. `bytes` is the size of the file. Returns the bytes of
    /// these groups by origin.
    pub(crate) fn held(&self, path: &RelPath, held: &GroupValues, bytes: u64) -> BytesByOrigin {
        let mut origins = BytesByOrigin::default();
        let files = self.files();
        for span in held.known().filter_map(|index| GroupSpan::of(bytes, index)) {
            origins +=
                BytesByOrigin::of(files.delivery_log.origin(path, span.index), span.len.into());
        }
        drop(files);
        self.totals.counters.bytes.add(origins.sent);
        self.totals.counters.bytes_matched.add(origins.matched);
        self.totals.counters.bytes_resumed.add(origins.resumed);
        self.count_unsent(0, origins.sum());
        origins
    }

    /// Subtracts the hole bytes of groups that the target holds. These bytes were counted with the groups before the
    /// holes were known, but holes are not part of the bytes moved. `holes` contains the index of each such group and
    /// its number of hole bytes. Returns the total number of bytes in these holes.
    pub(crate) fn not_held(&self, file: &LargeSource, holes: &[(u32, u64)]) -> u64 {
        if holes.is_empty() {
            return 0;
        }
        let mut origins = BytesByOrigin::default();
        let files = self.files();
        for (index, bytes) in holes {
            origins += BytesByOrigin::of(files.delivery_log.origin(&file.target, *index), *bytes);
        }
        drop(files);
        self.take_back(&file.take_back(&origins));
        origins.sum()
    }

    fn take_back(&self, bytes: &BytesByOrigin) {
        self.totals.counters.bytes.take_back(bytes.sent);
        self.totals.counters.bytes_matched.take_back(bytes.matched);
        self.totals.counters.bytes_resumed.take_back(bytes.resumed);
    }

    /// Counts a name that is now linked to a file at the target. `bytes` is the size of the file.
    pub(crate) fn linked(&self, bytes: u64) {
        self.totals.counters.hard_links.add(1);
        self.totals.counters.files.add(1);
        self.report(Event::Stored { files: 1, bytes: 0 });
        self.count_unsent(0, bytes);
    }

    fn count_unsent(&self, files: u64, bytes: u64) {
        self.totals.skipped_bytes.add(bytes);
        self.report(Event::Skipped { files, bytes });
    }

    /// Counts files that the scan has found.
    pub(crate) fn find(&self, files: u64, bytes: u64) {
        self.totals.found.add(files);
        self.totals.found_bytes.add(bytes);
        self.report(Event::Found { files, bytes });
    }

    /// Records that the scan has ended. `parts` are the temporary files of unfinished transfers that the scan has
    /// skipped.
    pub(crate) fn end_scan(&self, parts: &UnfinishedParts) {
        self.has_found_all.store(true, Ordering::Relaxed);
        self.report(Event::ScanEnded);
        if let Some(message) = parts.warning()
            && self.files().report_once(&message)
        {
            self.warn(message);
        }
    }

    /// Reports an event to the user.
    pub(crate) fn report(&self, event: Event) {
        self.observer.on(&event);
    }

    /// Warns the user.
    pub(crate) fn warn(&self, message: String) {
        self.report(Event::Warned { message });
    }

    /// Returns the number of files and bytes that the scan has found so far.
    pub(crate) fn found(&self) -> FoundSoFar {
        FoundSoFar {
            files: self.totals.found.get(),
            bytes: self.totals.found_bytes.get(),
            skipped_bytes: self.totals.skipped_bytes.get(),
            all: self.has_found_all.load(Ordering::Relaxed),
        }
    }

    /// Records the free space of the target's file system in bytes.
    pub(crate) fn set_target_free(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// Warns once per run if the `needed` bytes found so far exceed the free space of the target. The push continues,
    /// because replacing old versions may free space and a file system may compress.
    pub(crate) fn check_room(&self, needed: u64) {
        let room = self.room.load(Ordering::Relaxed);
        if needed <= room || !self.files().report_once(LITTLE_ROOM) {
            return;
        }
        let free = ByteCount(room);
        let needed = ByteCount(needed);
        self.warn(format!(
            "the target has {free} free, {LITTLE_ROOM}: the scan has found {needed} so far"
        ));
    }

    /// Counts files and bytes that the receiver has confirmed to be at the target.
    pub(crate) fn moved(&self, moved: &MovedCounts) {
        let MovedCounts {
            files,
            whole,
            bytes,
            shown,
        } = *moved;
        self.totals.counters.files.add(files);
        *self.totals.whole.lock() += whole;
        self.totals.counters.bytes.add(bytes);
        self.show(files, bytes.saturating_sub(shown));
    }

    /// Reports to the user how many files and bytes are stored at the target. The files need not be renamed into place
    /// yet.
    pub(crate) fn show(&self, files: u64, bytes: u64) {
        self.totals.bytes_stored.add(bytes);
        self.report(Event::Stored { files, bytes });
    }

    /// Counts a group that is not sent because the target already has its bytes. `counts` is `false` if the file of the
    /// group has failed.
    pub(crate) fn count_matched(&self, bytes: &BytesByOrigin, counts: bool) {
        if counts {
            self.totals.counters.bytes.add(bytes.sent);
            self.totals.counters.bytes_matched.add(bytes.matched);
        }
        self.count_unsent(0, bytes.sum());
    }

    /// Counts bytes that are not sent because they are holes.
    pub(crate) fn found_holes(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.count_unsent(0, bytes);
    }

    /// Returns whether the target can store `entry`. If it cannot, the entry is counted as left out or failed.
    pub(crate) fn can_carry(
        &self,
        extras: &Extras,
        directory: &SourceDirectory,
        entry: &Entry,
    ) -> bool {
        let path = || directory.display(&entry.name);
        if let Some(message) = extras.never_copied(entry)
            && self.files().report_once(&message)
        {
            self.warn(message);
        }
        match &entry.kind {
            EntryKind::Special(special) if extras.kinds().has_any(special.kind()) => return true,
            EntryKind::Special(_) => self.totals.counters.specials.add(1),
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

    /// Counts requested attributes that were not kept.
    pub(crate) fn not_kept(&self, counts: &[NotKept]) {
        let mut not_kept = self.totals.not_kept.lock();
        for lack in counts {
            *not_kept.entry((lack.kind, lack.why)).or_default() += lack.entries;
        }
    }

    /// Counts an entry that is sent without some of the requested attributes.
    pub(crate) fn count_lacking(
        &self,
        extras: &Extras,
        path: &RelPath,
        lacks: &[(MetadataKinds, NotKeptReason)],
    ) {
        let lacks: Vec<_> = lacks
            .iter()
            .map(|(kind, why)| NotKept::new(*kind, *why, 1))
            .collect();
        self.not_kept(&lacks);
        if extras.reports_names() && !lacks.is_empty() {
            self.name_missed(&Missed {
                path: path.clone(),
                lacks,
            });
        }
    }

    /// Reports the path of an entry and the attributes that it lacks.
    pub(crate) fn name_missed(&self, Missed { path, lacks }: &Missed) {
        let path = self.files().renamed().unwrap_or_else(|| path.clone());
        let entry = if path.is_root() {
            "the target itself".to_owned()
        } else {
            format!("'{}'", Escaped::path(&path.as_path()))
        };
        for lack in lacks {
            let message = format!("{} of {entry} ({})", lack.kind, lack.why);
            self.report(Event::NotKept { message });
        }
    }

    /// Counts and reports a file or directory that has failed. The push continues.
    pub(crate) fn fail(&self, error: &FileError) {
        self.totals.counters.failed.add(1);
        self.totals.unread.add(u64::from(error.is_unread()));
        self.totals.unplaced.add(u64::from(error.is_unplaced()));
        let message = error.to_string();
        if self.files().report_once(&message) {
            self.report(Event::Failed { message });
        }
    }

    /// Counts a large file that has failed, and subtracts its bytes from the totals. The summary covers complete files
    /// only. A file that fails for lack of space may have transferred more bytes than all other files together.
    pub(crate) fn fail_large(&self, file: &LargeSource, counted: BytesByOrigin, error: &FileError) {
        self.take_back(&counted);
        match file.piece_of_range() {
            Some(piece) => piece.fail_range(error.to_string()),
            None => self.fail(error),
        }
    }

    /// Reports a source directory that changed during the scan, so that some of its entries may be missing at the
    /// target.
    pub(crate) fn report_unstable_directory(&self, directory: &Path) {
        self.totals.counters.in_doubt.add(1);
        self.warn(format!(
            "sender: list directory '{}': it changed each time it was read, and entries may be missing at the target; run \
             the command again",
            Escaped::path(directory)
        ));
    }

    /// Counts and reports a part of the source that could not be scanned.
    pub(crate) fn fail_scan(&self, error: ScanError) {
        if matches!(error, ScanError::Vanished { .. }) {
            self.totals.counters.vanished.add(1);
        }
        self.totals.scan_errors.add(1);
        self.fail(&FileError::Scan(error));
    }
}

/// The part of the warning that is the same in every session. The warning is recognized by this text and reported once.
const LITTLE_ROOM: &str = "less than the push needs";
