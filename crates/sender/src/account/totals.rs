//! What a push has counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// The totals of one push, from which its summary is made.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Regular files that the scan has found; each ends as moved, skipped or failed.
    pub(crate) found: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// With the bytes of files that are stored and have no names yet.
    pub(crate) bytes_stored: AtomicU64,
    /// The bytes of the files that are whole.
    pub(crate) whole_bytes: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_handed_over: AtomicU64,
    /// The part of `bytes_handed_over` that the receiver has settled, well or badly.
    pub(crate) bytes_settled: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) matched: AtomicU64,
    pub(crate) specials: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) vanished: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) added: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) removed: AtomicU64,
    /// What was asked to be removed in this run, with all below it where that counts.
    pub(crate) doomed: AtomicU64,
    /// What is at the target alone and stays because enough has gone.
    pub(crate) spared: AtomicU64,
    /// What is at the target alone and stays because the source has changed since the first walk began.
    pub(crate) kept_by_change: AtomicU64,
    /// Parts of the source that could not be seen.
    pub(crate) scan_errors: AtomicU64,
    /// Files and links that the scan has found and that could not be read.
    pub(crate) unread: AtomicU64,
    /// What was to be at the target, and of which not all is.
    pub(crate) unplaced: AtomicU64,
}

impl Totals {
    /// How much of the source is not known.
    pub(crate) fn source_errors(&self) -> u64 {
        self.scan_errors.load(Ordering::Relaxed) + self.unread.load(Ordering::Relaxed)
    }

    /// Whether it is known of each file that it is at the target, or that one is not.
    pub(crate) fn are_files_told(&self) -> bool {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lost = self.source_errors() + count(&self.unplaced);
        lost > 0 || count(&self.found) <= count(&self.files) + count(&self.skipped)
    }

    /// At the good end of a session: files that nothing was told of. Where something has failed these may be it.
    pub(crate) fn unaccounted(&self) -> u64 {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        match count(&self.failed) {
            0 => count(&self.found).saturating_sub(count(&self.files) + count(&self.skipped)),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nothing_was_told_of_is_missed() {
        let totals = Totals { found: 7.into(), files: 4.into(), skipped: 2.into(), ..Totals::default() };
        assert_eq!(totals.unaccounted(), 1);
        totals.files.fetch_add(1, Ordering::Relaxed);
        assert_eq!(totals.unaccounted(), 0);
        let failed = Totals { found: 1.into(), failed: 1.into(), ..Totals::default() };
        assert_eq!(failed.unaccounted(), 0, "the exit code tells already");
    }
}
