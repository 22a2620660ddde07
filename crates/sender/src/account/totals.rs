//! The totals of a push.

use std::collections::BTreeMap;

use zmove_types::{AtomicCounter, AtomicCounters, ByteOrigins, Kinds, Lock};
use zmove_wire::limits::MISSED_MAX;
use zmove_wire::{Lack, NotKept, Summary};

/// The totals of one push, from which its summary is made.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// The report counters.
    pub(crate) counters: AtomicCounters,
    /// Regular files that the scan has found; each ends as moved, skipped or failed.
    pub(crate) found: AtomicCounter,
    /// Bytes of these files.
    pub(crate) found_bytes: AtomicCounter,
    /// Bytes of these files that are not sent.
    pub(crate) skipped_bytes: AtomicCounter,
    /// Bytes that are stored, with those of files that are not named yet.
    pub(crate) bytes_stored: AtomicCounter,
    /// Bytes of the files that are whole.
    pub(crate) whole: Lock<ByteOrigins>,
    pub(crate) bytes_read: AtomicCounter,
    pub(crate) bytes_handed_over: AtomicCounter,
    /// The part of `bytes_handed_over` that the receiver has settled, stored or not.
    pub(crate) bytes_settled: AtomicCounter,
    /// Skipped files that are in the manifest, or will be.
    pub(crate) listed: AtomicCounter,
    /// What was not kept, and why.
    pub(crate) not_kept: Lock<BTreeMap<(Kinds, Lack), u64>>,
    /// Entries whose removal was requested in this run, with all below them where that counts.
    pub(crate) extraneous: AtomicCounter,
    /// Parts of the source that could not be scanned.
    pub(crate) scan_errors: AtomicCounter,
    /// Files and links that the scan has found and that could not be read.
    pub(crate) unread: AtomicCounter,
    /// Entries that should be at the target and are missing or incomplete.
    pub(crate) unplaced: AtomicCounter,
}

impl Totals {
    /// The summary of this session, as if there were no other.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            counters: self.counters.read(),
            not_kept: self.not_kept(),
            ..Summary::default()
        }
    }

    /// The files that were at the target and do not stand in the manifest.
    pub(crate) fn unlisted(&self) -> u64 {
        self.counters
            .skipped
            .get()
            .saturating_sub(self.listed.get())
    }

    /// What was not kept since the call before, and why.
    pub(crate) fn take_not_kept(&self) -> Vec<NotKept> {
        let counts = std::mem::take(&mut *self.not_kept.lock());
        NotKept::all(&counts).take(MISSED_MAX).collect()
    }

    /// What was not kept, and why.
    fn not_kept(&self) -> Vec<NotKept> {
        NotKept::all(&self.not_kept.lock()).collect()
    }

    /// How much of the source is not known.
    pub(crate) fn source_errors(&self) -> u64 {
        self.scan_errors.get() + self.unread.get()
    }

    /// Whether every file found is known to be at the target, or at least one is known not to be.
    pub(crate) fn are_files_told(&self) -> bool {
        let lost = self.source_errors() + self.unplaced.get();
        lost > 0 || self.untold() == 0
    }

    /// The number of files found that are not known to be at the target.
    fn untold(&self) -> u64 {
        let told = self.counters.files.get() + self.counters.skipped.get();
        self.found.get().saturating_sub(told)
    }

    /// The number of files of which nothing was reported at the good end of a session; 0 where something has failed,
    /// since these files may be it.
    pub(crate) fn unaccounted(&self) -> u64 {
        match self.counters.failed.get() {
            0 => self.untold(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nothing_was_told_of_is_missed() {
        let totals = Totals {
            found: 7.into(),
            counters: AtomicCounters {
                files: 4.into(),
                skipped: 2.into(),
                ..AtomicCounters::default()
            },
            ..Totals::default()
        };
        assert_eq!(totals.unaccounted(), 1);
        totals.counters.files.add(1);
        assert_eq!(totals.unaccounted(), 0);
        let failed = Totals {
            found: 1.into(),
            counters: AtomicCounters {
                failed: 1.into(),
                ..AtomicCounters::default()
            },
            ..Totals::default()
        };
        assert_eq!(failed.unaccounted(), 0, "the exit code tells already");
    }
}
