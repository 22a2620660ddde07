//! The totals of a push.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use zmove_types::Kinds;
use zmove_wire::{Lack, NotKept};

use crate::account::summary::Summary;

/// The totals of one push, from which its summary is made.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Regular files that the scan has found; each ends as moved, skipped or failed.
    pub(crate) found: Count,
    /// The bytes of these files.
    pub(crate) found_bytes: Count,
    /// The bytes among them that need not travel.
    pub(crate) skipped_bytes: Count,
    pub(crate) files: Count,
    pub(crate) bytes: Count,
    /// The same bytes, with those of files that are stored and have no names yet.
    pub(crate) bytes_stored: Count,
    /// The bytes of the files that are whole.
    pub(crate) whole_bytes: Count,
    pub(crate) bytes_read: Count,
    pub(crate) bytes_handed_over: Count,
    /// The part of `bytes_handed_over` that the receiver has settled, stored or not.
    pub(crate) bytes_settled: Count,
    pub(crate) skipped: Count,
    /// The files among `skipped` that stand in the manifest, or will.
    pub(crate) listed: Count,
    /// The files among `files` that have become another name of a file at the target.
    pub(crate) linked: Count,
    pub(crate) resumed: Count,
    pub(crate) matched: Count,
    pub(crate) specials: Count,
    /// What was not kept, and why.
    pub(crate) not_kept: Mutex<BTreeMap<(Kinds, Lack), u64>>,
    pub(crate) failed: Count,
    pub(crate) vanished: Count,
    pub(crate) resent: Count,
    pub(crate) repeated: Count,
    pub(crate) added: Count,
    pub(crate) changed: Count,
    pub(crate) removed: Count,
    /// Entries that were asked to be removed in this run, with all below them where that counts.
    pub(crate) extraneous: Count,
    /// Entries that are at the target alone and stay because as many have been removed as may be.
    pub(crate) spared: Count,
    /// Entries that are at the target alone and stay because the source has changed since the first walk began.
    pub(crate) kept_by_change: Count,
    /// Parts of the source that could not be scanned.
    pub(crate) scan_errors: Count,
    /// Files and links that the scan has found and that could not be read.
    pub(crate) unread: Count,
    /// Entries that were to be at the target and are not, or not completely.
    pub(crate) unplaced: Count,
}

/// A number that any thread adds to.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn take_back(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }
}

impl Totals {
    /// The summary of this session, as if there were no other.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            files: self.files.get(),
            bytes: self.bytes.get(),
            skipped: self.skipped.get(),
            linked: self.linked.get(),
            bytes_matched: self.matched.get(),
            specials: self.specials.get(),
            not_kept: self.not_kept(),
            failed: self.failed.get(),
            vanished: self.vanished.get(),
            removed: self.removed.get(),
            spared: self.spared.get(),
            kept_by_change: self.kept_by_change.get(),
            resent: self.resent.get(),
            repeated: self.repeated.get(),
            ..Summary::default()
        }
    }

    /// The files that were at the target and do not stand in the manifest.
    pub(crate) fn unlisted(&self) -> u64 {
        self.skipped.get().saturating_sub(self.listed.get())
    }

    /// What was not kept, and why.
    fn not_kept(&self) -> Vec<NotKept> {
        let counts = self.not_kept.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .map(|((kind, why), entries)| NotKept::new(*kind, *why, *entries))
            .collect()
    }

    /// How much of the source is not known.
    pub(crate) fn source_errors(&self) -> u64 {
        self.scan_errors.get() + self.unread.get()
    }

    /// Whether every file found is known to be at the target, or at least one is known not to be.
    pub(crate) fn are_files_told(&self) -> bool {
        let lost = self.source_errors() + self.unplaced.get();
        lost > 0 || self.found.get() <= self.files.get() + self.skipped.get()
    }

    /// The number of files of which nothing was reported at the good end of a session; 0 where something has failed,
    /// since these files may be it.
    pub(crate) fn unaccounted(&self) -> u64 {
        match self.failed.get() {
            0 => self
                .found
                .get()
                .saturating_sub(self.files.get() + self.skipped.get()),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl From<u64> for Count {
        fn from(number: u64) -> Self {
            Self(number.into())
        }
    }

    #[test]
    fn a_file_that_nothing_was_told_of_is_missed() {
        let totals = Totals {
            found: 7.into(),
            files: 4.into(),
            skipped: 2.into(),
            ..Totals::default()
        };
        assert_eq!(totals.unaccounted(), 1);
        totals.files.add(1);
        assert_eq!(totals.unaccounted(), 0);
        let failed = Totals {
            found: 1.into(),
            failed: 1.into(),
            ..Totals::default()
        };
        assert_eq!(failed.unaccounted(), 0, "the exit code tells already");
    }
}
