//! How far a job is: what the journals of all its receivers say has ended, of all epochs. What has ended stays so, also
//! where its writer was fenced off later.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zmove_types::WorkId;
use zmove_wire::{SharedJobCount, WorkEnd};

use crate::quota::{Booking, Quota};
use crate::resume::journal::Record;
use crate::shared_job::journals::Journals;

/// What has ended, each work item once.
#[derive(Debug, Default)]
struct Ended {
    work: HashMap<WorkId, WorkEnd>,
    repeats: u64,
    contradictions: u64,
}

/// The memory of a work item in a table that has just grown.
const WORK_BYTES: usize = 2 * size_of::<(WorkId, WorkEnd)>();

impl Ended {
    /// Takes an end. Where two ends of one work item differ in what they have announced, the one with more of it
    /// counts: then the job does not end before all of that has. Otherwise the one of which less has failed: what has
    /// come once is there. What one has not found there, and another has, has come by the job.
    fn take(&mut self, end: WorkEnd) {
        match self.work.entry(end.work) {
            Entry::Vacant(place) => {
                place.insert(end);
            }
            Entry::Occupied(mut before) => {
                self.repeats += 1;
                self.contradictions += u64::from(before.get().children != end.children);
                let better = |end: &WorkEnd| (end.children, Reverse(end.failed));
                let skipped = before.get().skipped.min(end.skipped);
                let skipped_bytes = before.get().skipped_bytes.min(end.skipped_bytes);
                let counts = if better(&end) > better(before.get()) { end } else { *before.get() };
                before.insert(WorkEnd { skipped, skipped_bytes, ..counts });
            }
        }
    }

    fn count(&self) -> SharedJobCount {
        let mut count = SharedJobCount {
            repeats: self.repeats,
            contradictions: self.contradictions,
            ..SharedJobCount::default()
        };
        for end in self.work.values() {
            count.work_ended += 1;
            count.work_announced = count.work_announced.saturating_add(end.children);
            count.work_without_parent += u64::from(!self.work.contains_key(&end.parent));
            count.files = count.files.saturating_add(end.files);
            count.bytes = count.bytes.saturating_add(end.bytes);
            count.failed = count.failed.saturating_add(end.failed);
            count.skipped = count.skipped.saturating_add(end.skipped);
            count.skipped_bytes = count.skipped_bytes.saturating_add(end.skipped_bytes);
        }
        count
    }
}

/// The ends of work items that a session has read of the journals of its job.
#[derive(Debug)]
pub(super) struct ReadEnds {
    journals: Journals<()>,
    ended: Ended,
    held: Booking,
}

impl ReadEnds {
    pub(super) fn new(quota: &Quota) -> Self {
        let journals = Journals::new(quota.book_nothing());
        Self { journals, ended: Ended::default(), held: quota.book_nothing() }
    }

    /// Counts what the journals say by now.
    pub(super) fn count(&mut self, directory: &OwnedFd) -> io::Result<SharedJobCount> {
        let Self { journals, ended, held } = self;
        journals.read_on(
            directory,
            |_epoch| true,
            |(), record, _end| {
                let Record::WorkEnded(end) = record else { return Ok(()) };
                if !ended.work.contains_key(&end.work) {
                    held.grow(WORK_BYTES).map_err(|_over_limit| Errno::NOMEM)?;
                }
                ended.take(end);
                Ok(())
            },
        )?;
        Ok(ended.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    fn end(work: u8, parent: u8, children: u64) -> WorkEnd {
        let [work, parent] = [work, parent].map(|number| WorkId([number; 16]));
        WorkEnd { work, parent, children, files: 1, bytes: 10, failed: 0, skipped: 0, skipped_bytes: 0 }
    }

    fn count(ends: &[WorkEnd]) -> SharedJobCount {
        let mut ended = Ended::default();
        ends.iter().for_each(|end| ended.take(*end));
        ended.count()
    }

    #[test]
    fn work_that_has_ended_twice_counts_once() {
        let ends = [end(1, 1, 2), end(2, 1, 0), end(3, 1, 0), end(2, 1, 0), end(1, 1, 2)];
        let counted = count(&ends);
        let expected = SharedJobCount {
            work_ended: 3,
            work_announced: 2,
            files: 3,
            bytes: 30,
            repeats: 2,
            ..SharedJobCount::default()
        };
        assert!(counted == expected && counted.is_finished(), "{counted:?}");
    }

    #[test]
    fn of_two_ends_that_differ_the_one_that_announces_more_counts() {
        for ends in [[end(1, 1, 1), end(1, 1, 2)], [end(1, 1, 2), end(1, 1, 1)]] {
            let counted = count(&ends);
            assert_eq!((counted.work_announced, counted.repeats, counted.contradictions), (2, 1, 1));
            assert!(!counted.is_finished());
        }
    }

    #[test]
    fn what_has_come_once_has_not_failed() {
        let (good, bad) = (end(1, 1, 0), WorkEnd { failed: 2, files: 0, ..end(1, 1, 0) });
        for ends in [[good, bad], [bad, good]] {
            let counted = count(&ends);
            assert_eq!((counted.failed, counted.files, counted.contradictions), (0, 1, 0));
        }
        assert_eq!(count(&[bad]).failed, 2);
    }

    /// By whichever of the two.
    #[test]
    fn what_was_not_there_when_work_was_done_for_the_first_time_has_come_by_the_job() {
        let (first, again) = (end(1, 1, 0), WorkEnd { skipped: 1, skipped_bytes: 10, ..end(1, 1, 0) });
        for more in [0, 3] {
            let again = WorkEnd { children: more, ..again };
            for ends in [[first, again], [again, first]] {
                let counted = count(&ends);
                assert_eq!((counted.files, counted.skipped, counted.skipped_bytes), (1, 0, 0));
            }
            assert_eq!((count(&[again]).skipped, count(&[again, again]).skipped_bytes), (1, 10));
        }
    }

    /// The child is told first: its number alone would do.
    #[test]
    fn work_whose_announcer_has_not_ended_finishes_nothing() {
        let counted = count(&[end(2, 1, 0)]);
        assert!(counted.work_without_parent == 1 && !counted.is_finished(), "{counted:?}");
    }

    proptest! {
        /// Of a tree of work any part is lost, doubled and put in any order: it is finished when no end is missing, and
        /// not before.
        #[test]
        fn a_job_is_finished_when_each_work_item_has_ended(
            parents in proptest::collection::vec(any::<u8>(), 0..20),
            told in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let items = u8::try_from(parents.len()).unwrap() + 1;
            let parent = |item: u8| if item == 0 { 0 } else { parents[usize::from(item) - 1] % item };
            let children = |item: u8| (1..items).filter(|child| parent(*child) == item).count() as u64;
            let ends: Vec<_> = told.into_iter().map(|item| item % items).collect();
            let all = (0..items).all(|item| ends.contains(&item));
            let ends: Vec<_> =
                ends.into_iter().map(|item| end(item, parent(item), children(item))).collect();
            assert_eq!(count(&ends).is_finished(), all);
        }
    }
}
