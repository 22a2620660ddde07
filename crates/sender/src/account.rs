//! The account of a push: what was found, moved and refused, where its time went, and the report at the end.

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
    ByteCount, ByteOrigins, Escaped, Event, GroupSpan, Kinds, Lock, Observer, RelPath, Root,
};
use zmove_wire::limits::SYMLINK_BYTES_MAX;
use zmove_wire::{FoundSoFar, Lack, Missed, NotKept};

use self::failure::FileError;
use self::file_ledger::{FileLedger, Unconfirmed};
use self::manifest::Known;
use self::totals::Totals;
use crate::read::extras::Extras;
use crate::read::group_values::GroupValues;
use crate::read::source::{FileLook, LargeSource, SourceDirectory};

/// Counts what happens to files, and reports it to the user.
pub(crate) struct PushAccount {
    pub(crate) totals: Totals,
    pub(crate) observer: Arc<dyn Observer>,
    files: Lock<FileLedger>,
    has_found_all: AtomicBool,
    /// The bytes that the target's file system has room for, as far as that is known.
    room: AtomicU64,
}

/// The files and bytes that a receipt is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovedCounts {
    /// Files that have become whole.
    pub(crate) files: u64,
    /// All bytes of the files counted in `files`, whenever they were counted.
    pub(crate) whole: ByteOrigins,
    /// Bytes of any file that were not counted before.
    pub(crate) bytes: u64,
    /// The part of `bytes` that was shown to the user before.
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

    /// The ledger of single files, which lasts longer than this session.
    pub(crate) fn files(&self) -> MutexGuard<'_, FileLedger> {
        self.files.lock()
    }

    /// Counts a file that was at the target already, and lists it where its `root` is known; it counts as moved if an
    /// earlier session has brought it, and then the answer is `false`.
    pub(crate) fn skipped(
        &self,
        path: &RelPath,
        look: FileLook,
        root: Option<(&Root, Known)>,
    ) -> bool {
        let bytes = look.bytes;
        let earlier = self.files().confirm_earlier(path, look);
        if let Some(sent) = earlier {
            self.found_moved(bytes, &sent);
            return false;
        }
        self.totals.counters.skipped.add(1);
        let mut files = self.files();
        if let Some((root, known)) = root
            && (known == Known::Compared || files.lists_what_stays())
        {
            self.totals.listed.add(1);
            files.confirm(path, Some(root), known);
        }
        drop(files);
        self.need_not_travel(1, bytes);
        true
    }

    /// Counts a file of so many bytes as moved that an earlier session has sent.
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
        self.need_not_travel(0, bytes.saturating_sub(origins.sent));
    }

    /// Counts the groups of a file of `bytes` that the target holds; returns the bytes of these.
    pub(crate) fn held(&self, path: &RelPath, held: &GroupValues, bytes: u64) -> ByteOrigins {
        let mut origins = ByteOrigins::default();
        let files = self.files();
        for span in held.known().filter_map(|index| GroupSpan::of(bytes, index)) {
            origins += ByteOrigins::of(files.brought.origin(path, span.index), span.len.into());
        }
        drop(files);
        self.totals.counters.bytes.add(origins.sent);
        self.totals.counters.bytes_matched.add(origins.matched);
        self.totals.counters.bytes_resumed.add(origins.resumed);
        self.need_not_travel(0, origins.sum());
        origins
    }

    /// Takes back the bytes of groups that the target holds and that have turned out to be holes, which are no part of
    /// what is moved; returns how many these are. `holes` has the group's number and that of its bytes.
    pub(crate) fn not_held(&self, file: &LargeSource, holes: &[(u32, u64)]) -> u64 {
        if holes.is_empty() {
            return 0;
        }
        let mut origins = ByteOrigins::default();
        let files = self.files();
        for (index, bytes) in holes {
            origins += ByteOrigins::of(files.brought.origin(&file.target, *index), *bytes);
        }
        drop(files);
        self.take_back(&file.take_back(&origins));
        origins.sum()
    }

    fn take_back(&self, bytes: &ByteOrigins) {
        self.totals.counters.bytes.take_back(bytes.sent);
        self.totals.counters.bytes_matched.take_back(bytes.matched);
        self.totals.counters.bytes_resumed.take_back(bytes.resumed);
    }

    /// Counts a name that leads to a file at the target now; `bytes` is the file's size.
    pub(crate) fn linked(&self, bytes: u64) {
        self.totals.counters.hard_links.add(1);
        self.totals.counters.files.add(1);
        self.tell(Event::Stored { files: 1, bytes: 0 });
        self.need_not_travel(0, bytes);
    }

    fn need_not_travel(&self, files: u64, bytes: u64) {
        self.totals.skipped_bytes.add(bytes);
        self.tell(Event::Skipped { files, bytes });
    }

    /// Counts files that the scan has found.
    pub(crate) fn find(&self, files: u64, bytes: u64) {
        self.totals.found.add(files);
        self.totals.found_bytes.add(bytes);
        self.tell(Event::Found { files, bytes });
    }

    /// Notes that the scan has ended, which has passed over these `parts` of unfinished transfers.
    pub(crate) fn end_scan(&self, parts: &UnfinishedParts) {
        self.has_found_all.store(true, Ordering::Relaxed);
        self.tell(Event::ScanEnded);
        if let Some(message) = parts.warning()
            && self.files().report_once(&message)
        {
            self.warn(message);
        }
    }

    /// Reports an event to the user.
    pub(crate) fn tell(&self, event: Event) {
        self.observer.on(&event);
    }

    /// Warns the user.
    pub(crate) fn warn(&self, message: String) {
        self.tell(Event::Warned { message });
    }

    /// What the scan has found so far.
    pub(crate) fn found(&self) -> FoundSoFar {
        FoundSoFar {
            files: self.totals.found.get(),
            bytes: self.totals.found_bytes.get(),
            skipped_bytes: self.totals.skipped_bytes.get(),
            all: self.has_found_all.load(Ordering::Relaxed),
        }
    }

    /// Notes how many bytes the target's file system has room for.
    pub(crate) fn target_has_free(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// Warns once in a run when what is to be sent, `needed` so far, is more than the target has room for. Old versions
    /// that are replaced may make room, and a file system may compress, so the push goes on.
    pub(crate) fn need_room(&self, needed: u64) {
        let room = self.room.load(Ordering::Relaxed);
        if needed <= room || !self.files().report_once(LITTLE_ROOM) {
            return;
        }
        let free = ByteCount(room);
        let needed = ByteCount(needed);
        self.warn(format!(
            "the target has {free} free, {LITTLE_ROOM}: {needed} have been found so far"
        ));
    }

    /// Counts what the receiver has confirmed to be at the target.
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

    /// Shows the user what is at the target, whether it has its name or not.
    pub(crate) fn show(&self, files: u64, bytes: u64) {
        self.totals.bytes_stored.add(bytes);
        self.tell(Event::Stored { files, bytes });
    }

    /// Counts a group that need not be sent, since the target has its bytes; of a file that has failed it `counts` not.
    pub(crate) fn same(&self, bytes: &ByteOrigins, counts: bool) {
        if counts {
            self.totals.counters.bytes.add(bytes.sent);
            self.totals.counters.bytes_matched.add(bytes.matched);
        }
        self.need_not_travel(0, bytes.sum());
    }

    /// Bytes of files are holes, and are not sent.
    pub(crate) fn found_holes(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.need_not_travel(0, bytes);
    }

    /// Whether the target can have such an entry; one that it cannot have is counted as left out or as failed.
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

    /// Entries have not got all that was to be kept of them.
    pub(crate) fn not_kept(&self, counts: &[NotKept]) {
        let mut not_kept = self.totals.not_kept.lock();
        for lack in counts {
            *not_kept.entry((lack.kind, lack.why)).or_default() += lack.entries;
        }
    }

    /// An entry is sent without all that was to be kept of it.
    pub(crate) fn lacking(&self, extras: &Extras, path: &RelPath, lacks: &[(Kinds, Lack)]) {
        let lacks: Vec<_> = lacks
            .iter()
            .map(|(kind, why)| NotKept::new(*kind, *why, 1))
            .collect();
        self.not_kept(&lacks);
        if extras.is_named() && !lacks.is_empty() {
            self.name_missed(&Missed {
                path: path.clone(),
                lacks,
            });
        }
    }

    /// Names an entry that lacks something.
    pub(crate) fn name_missed(&self, Missed { path, lacks }: &Missed) {
        let path = self.files().renamed().unwrap_or_else(|| path.clone());
        let entry = if path.is_root() {
            "the target itself".to_owned()
        } else {
            format!("'{}'", Escaped::path(&path.as_path()))
        };
        for lack in lacks {
            let message = format!("{} of {entry} ({})", lack.kind, lack.why);
            self.tell(Event::NotKept { message });
        }
    }

    /// One file or directory failed; the rest goes on.
    pub(crate) fn fail(&self, error: &FileError) {
        self.totals.counters.failed.add(1);
        self.totals.unread.add(u64::from(error.is_unread()));
        self.totals.unplaced.add(u64::from(error.is_unplaced()));
        let message = error.to_string();
        if self.files().report_once(&message) {
            self.tell(Event::Failed { message });
        }
    }

    /// A large file failed. What was counted of it is taken back: the summary is about files that are whole, and one
    /// that has no room may have brought more bytes than all of these.
    pub(crate) fn fail_large(&self, file: &LargeSource, counted: ByteOrigins, error: &FileError) {
        self.take_back(&counted);
        match file.piece_of_range() {
            Some(piece) => piece.fail_range(error.to_string()),
            None => self.fail(error),
        }
    }

    /// Names a directory of the source of which entries may be missing.
    pub(crate) fn doubt(&self, directory: &Path) {
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

/// The part of a warning that names no number.
const LITTLE_ROOM: &str = "and what is to be sent is more";
