//! The totals of a push.

use std::collections::BTreeMap;

use zmove_types::{AtomicCounter, AtomicCounters, BytesByOrigin, Lock, MetadataKinds};
use zmove_wire::limits::MISSED_MAX;
use zmove_wire::{NotKept, NotKeptReason, Summary};

/// The totals of one push, from which its summary is built.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Counters for the report.
    pub(crate) counters: AtomicCounters,
    /// Regular files that the scan has found. Each file is eventually moved, skipped or failed.
    pub(crate) found: AtomicCounter,
    /// Bytes of the files in `found`.
    pub(crate) found_bytes: AtomicCounter,
    /// Bytes of the files in `found` that are not sent.
    pub(crate) skipped_bytes: AtomicCounter,
    /// Stored bytes, including those of files that are not yet renamed into place.
    pub(crate) bytes_stored: AtomicCounter,
    /// Bytes of complete files.
    pub(crate) whole: Lock<BytesByOrigin>,
    pub(crate) bytes_read: AtomicCounter,
    pub(crate) bytes_handed_over: AtomicCounter,
    /// Number of the bytes in `bytes_handed_over` that the receiver has settled, whether the bytes were stored or not.
    pub(crate) bytes_settled: AtomicCounter,
    /// Number of skipped files that the manifest lists or will list.
    pub(crate) listed: AtomicCounter,
    /// Number of entries for each kind of attribute that was not kept and each reason.
    pub(crate) not_kept: Lock<BTreeMap<(MetadataKinds, NotKeptReason), u64>>,
    /// Number of entries whose removal was requested in this run. Entries below a removed directory are included if
    /// they are counted.
    pub(crate) extraneous: AtomicCounter,
    /// Parts of the source that could not be scanned.
    pub(crate) scan_errors: AtomicCounter,
    /// Files and links that the scan has found but that could not be read.
    pub(crate) unread: AtomicCounter,
    /// Entries that should be at the target and are missing or incomplete.
    pub(crate) unplaced: AtomicCounter,
}

impl Totals {
    /// Returns the summary of this session alone, without earlier sessions of the run.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            counters: self.counters.read(),
            not_kept: self.not_kept(),
            ..Summary::default()
        }
    }

    /// Returns the number of files that were already at the target and are not in the manifest.
    pub(crate) fn unlisted(&self) -> u64 {
        self.counters
            .skipped
            .get()
            .saturating_sub(self.listed.get())
    }

    /// Returns which attributes were not kept since the previous call, and why.
    pub(crate) fn take_not_kept(&self) -> Vec<NotKept> {
        let counts = std::mem::take(&mut *self.not_kept.lock());
        NotKept::all(&counts).take(MISSED_MAX).collect()
    }

    /// Returns which attributes were not kept, and why.
    fn not_kept(&self) -> Vec<NotKept> {
        NotKept::all(&self.not_kept.lock()).collect()
    }

    /// Returns the number of source entries that could not be scanned or read.
    pub(crate) fn source_errors(&self) -> u64 {
        self.scan_errors.get() + self.unread.get()
    }

    /// Returns `true` if every file found is known to be at the target. Also returns `true` if at least one file is
    /// known to be missing or incorrect there, because that is already a definite result.
    pub(crate) fn are_files_confirmed(&self) -> bool {
        let lost = self.source_errors() + self.unplaced.get();
        lost > 0 || self.unconfirmed_files() == 0
    }

    /// Returns the number of files found that are not known to be at the target.
    fn unconfirmed_files(&self) -> u64 {
        let told = self.counters.files.get() + self.counters.skipped.get();
        self.found.get().saturating_sub(told)
    }

    /// Returns the number of files for which no result was reported by the successful end of a session. Returns 0 if
    /// anything has failed, because the failures may concern these files.
    pub(crate) fn unaccounted(&self) -> u64 {
        match self.counters.failed.get() {
            0 => self.unconfirmed_files(),
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
