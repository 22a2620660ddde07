//! The work done by the movers of a job. Each node keeps a tally and reports it to the head, which adds up all tallies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zmove_types::Counters;
use zmove_wire::limits::MISSED_MAX;
use zmove_wire::{FileTotal, NotKept};

/// Counts of completed work items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of completed items in all passes.
    pub items: u64,
    /// Number of items that were put into the queue by completed items. Each of these items must be completed once.
    pub announced: u64,
    /// Metadata that could not be preserved in all passes, by kind and reason.
    pub not_kept: Vec<NotKept>,
    /// Number of directories whose mode and time could not be set at the end of the job.
    pub(crate) failed_directories: u64,
    /// Counts by pass. `bytes` includes `bytes_resumed`.
    passes: BTreeMap<u32, Counters>,
}

impl Tally {
    /// Adds a completed item, which has put `announced` further items into the queue.
    pub(crate) fn add(&mut self, pass: u32, counts: &Counters, announced: u64) {
        self.items += 1;
        self.announced += announced;
        self.count(pass, counts);
    }

    fn count(&mut self, pass: u32, counts: &Counters) {
        let sum = self.passes.entry(pass).or_default();
        *sum = sum.plus(counts);
    }

    /// Adds counts of metadata that could not be preserved.
    pub(crate) fn add_not_preserved(&mut self, counts: Vec<NotKept>) {
        for count in counts {
            let is_like = |known: &&mut NotKept| (known.kind, known.why) == (count.kind, count.why);
            if let Some(known) = self.not_kept.iter_mut().find(is_like) {
                known.entries = known.entries.saturating_add(count.entries);
            } else if self.not_kept.len() < MISSED_MAX {
                self.not_kept.push(count);
            }
        }
    }

    /// Returns the sum of both tallies.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.items += other.items;
        self.announced += other.announced;
        self.failed_directories += other.failed_directories;
        for (pass, counts) in other.passes {
            self.count(pass, &counts);
        }
        self.add_not_preserved(other.not_kept);
        self
    }

    /// Returns the report counters of the job. Earlier passes contribute only the files that they moved, which the
    /// newest pass found at the target. It counted skipped and failed entries again.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut passes = self.passes.values().rev().copied();
        let newest = passes.next().unwrap_or_default();
        let mut moved_before = FileTotal::default();
        for Counters { files, bytes, .. } in passes {
            moved_before.add(FileTotal { files, bytes });
        }
        let FileTotal { files, bytes } = moved_before;
        let sent = newest.bytes.saturating_sub(newest.bytes_resumed);
        Counters {
            files: newest.files.saturating_add(files),
            bytes: sent.saturating_add(bytes),
            skipped: newest.skipped.saturating_sub(files),
            failed: newest.failed.saturating_add(self.failed_directories),
            ..newest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::MetadataKinds;
    use zmove_wire::NotKeptReason;

    fn counts(files: u64, skipped: u64, failed: u64) -> Counters {
        Counters {
            files: files - skipped,
            bytes: 10 * (files - skipped),
            failed,
            skipped,
            ..Counters::default()
        }
    }

    #[test]
    fn a_file_that_an_earlier_pass_has_moved_counts_as_moved_and_a_failure_counts_once() {
        let mut one = Tally::default();
        one.add(1, &counts(6, 1, 2), 0);
        let mut other = Tally::default();
        other.add(1, &counts(3, 0, 0), 0);
        other.add(2, &counts(10, 9, 2), 0);
        // A late item of the first pass.
        one.add(1, &counts(1, 0, 1), 0);
        let both = [one.clone().and(other.clone()), other.and(one)];
        for tally in both {
            let counters = tally.counters();
            assert_eq!((counters.files, counters.bytes), (10, 100));
            assert_eq!((counters.skipped, counters.failed), (0, 2));
            assert_eq!(tally.items, 4);
        }
    }

    #[test]
    fn what_was_not_kept_adds_up_by_kind_and_reason() {
        let add_not_preserved = |entries| {
            vec![NotKept::new(
                MetadataKinds::OWNER,
                NotKeptReason::NotPermitted,
                entries,
            )]
        };
        let mut tally = Tally::default();
        tally.add_not_preserved(add_not_preserved(2));
        tally.add_not_preserved(add_not_preserved(3));
        assert_eq!(tally.clone().and(tally).not_kept, add_not_preserved(10));
    }
}
