//! Counts of a running walk, which other threads can read.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zmove_types::{Escaped, StageClock};

use crate::entry::{Entry, EntryKind};

/// The counts of a walk so far.
#[derive(Debug, Default)]
pub struct WalkTally {
    pub(crate) clock: StageClock,
    left_out: AtomicU64,
    parts: AtomicU64,
    first_part: OnceLock<PathBuf>,
    entries: AtomicU64,
    bytes: AtomicU64,
    ended: AtomicBool,
}

/// Totals of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkTotals {
    /// Number of entries.
    pub entries: u64,
    /// Total size of all files in bytes.
    pub bytes: u64,
}

/// The parts of unfinished transfers that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedParts {
    /// Number of parts.
    pub count: u64,
    /// The path of one of the parts.
    pub first: Option<PathBuf>,
}

impl UnfinishedParts {
    /// Returns a warning for the user if any parts were skipped. The warning names one of the parts, because the user
    /// may have created an entry with such a name.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let count = self.count;
        let first = Escaped::path(self.first.as_ref()?);
        Some(if count == 1 {
            format!("a part of an unfinished transfer in the source is left out: '{first}'")
        } else {
            format!(
                "{count} parts of unfinished transfers in the source are left out, for example '{first}'"
            )
        })
    }
}

impl WalkTally {
    /// Returns the totals if the walk has ended.
    #[must_use]
    pub fn final_totals(&self) -> Option<WalkTotals> {
        let ended = self.ended.load(Ordering::Acquire);
        ended.then(|| self.current_totals())
    }

    /// Returns the totals so far.
    #[must_use]
    pub fn current_totals(&self) -> WalkTotals {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WalkTotals {
            entries: count(&self.entries),
            bytes: count(&self.bytes),
        }
    }

    pub(crate) fn add(&self, entries: &[Entry]) {
        let bytes = entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::File)
            .map(|entry| entry.size)
            .sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.entries
            .fetch_add(entries.len() as u64, Ordering::Relaxed);
    }

    /// Returns the number of entries that the selection has excluded.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    pub(crate) fn count_excluded(&self, entries: u64) {
        self.left_out.fetch_add(entries, Ordering::Relaxed);
    }

    /// Returns the parts of unfinished transfers that were skipped.
    pub(crate) fn parts(&self) -> UnfinishedParts {
        UnfinishedParts {
            count: self.parts.load(Ordering::Relaxed),
            first: self.first_part.get().cloned(),
        }
    }

    pub(crate) fn count_skipped_part(&self, path: impl FnOnce() -> PathBuf) {
        self.first_part.get_or_init(path);
        self.parts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}
