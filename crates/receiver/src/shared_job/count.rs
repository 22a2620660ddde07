//! How far a job is: what the journals of all its receivers say has ended, of all epochs. What has ended stays so, also
//! where its writer was fenced off later.
//!
//! What is counted is conserved: each work item announces others, and each of these ends. An item may be done twice;
//! where the sources have changed between, it announces other work the second time; of the first time some may have
//! ended and some be lost. Then either both ends are recorded, and they contradict each other, or work has ended that
//! no recorded end has announced, and the sum of the ids says so. Neither heals by another walk, so the head begins
//! another *pass*: all work once more, under ids of its own. Only the newest pass counts; of those before it is known
//! which files they have brought, which the newest has found there.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zmove_types::{Counters, Kinds, WorkId};
use zmove_wire::limits::MISSED_MAX;
use zmove_wire::{Lack, NotKept, SharedJobCount, WorkEnd};

use crate::quota::{Booking, Quota};
use crate::resume::journal::Record;
use crate::shared_job::journals::Journals;

/// What has ended, each work item once.
#[derive(Debug, Default)]
struct Ended {
    /// Of all passes: no two of them have an id in common.
    work: HashMap<WorkId, WorkEnd>,
    /// The newest one.
    pass: u32,
    repeats: u64,
    /// Of the newest pass.
    contradictions: u64,
    /// Of all passes.
    not_kept: BTreeMap<(Kinds, Lack), u64>,
}

/// The memory of a work item in a table that has just grown.
const WORK_BYTES: usize = 2 * size_of::<(WorkId, WorkEnd)>();

impl Ended {
    /// Takes an end. Of two of one work item the one counts of which less has failed: what has come once is there.
    /// What one has not found there, and another has, has come by the job.
    fn take(&mut self, end: WorkEnd) {
        if end.pass > self.pass {
            self.pass = end.pass;
            self.contradictions = 0;
        }
        match self.work.entry(end.work) {
            Entry::Vacant(place) => {
                place.insert(end);
            }
            Entry::Occupied(mut before) => {
                self.repeats += 1;
                let announced = |end: &WorkEnd| (end.children, end.children_sum);
                let differ = announced(&end) != announced(before.get());
                self.contradictions += u64::from(end.pass == self.pass && differ);
                let before = before.get_mut();
                let skipped = before.counts.skipped.min(end.counts.skipped);
                let skipped_bytes = before.counts.skipped_bytes.min(end.counts.skipped_bytes);
                if end.counts.failed < before.counts.failed {
                    *before = end;
                }
                before.counts.skipped = skipped;
                before.counts.skipped_bytes = skipped_bytes;
            }
        }
    }

    fn lack(&mut self, counts: Vec<NotKept>) {
        for NotKept { kind, why, entries } in counts {
            let is_known = self.not_kept.contains_key(&(kind, why));
            if is_known || self.not_kept.len() < MISSED_MAX {
                let count = self.not_kept.entry((kind, why)).or_default();
                *count = count.saturating_add(entries);
            }
        }
    }

    fn count(&self) -> SharedJobCount {
        let mut count = SharedJobCount {
            not_kept: NotKept::all(&self.not_kept).collect(),
            pass: self.pass,
            repeats: self.repeats,
            contradictions: self.contradictions,
            ..SharedJobCount::default()
        };
        for end in self.work.values().filter(|end| end.pass == self.pass) {
            count.work_ended += 1;
            count.work_announced = count.work_announced.saturating_add(end.children);
            count.work_without_parent += u64::from(!self.work.contains_key(&end.parent));
            // the first work item is announced by nobody
            let own = if end.work == end.parent {
                0
            } else {
                end.work.number()
            };
            count.missing_sum = count
                .missing_sum
                .wrapping_add(end.children_sum)
                .wrapping_sub(own);
            count.counts = count.counts.and(end.counts);
        }
        let counts = &mut count.counts;
        for end in self.work.values().filter(|end| end.pass < self.pass) {
            let brought = Counters::from(end.counts);
            counts.skipped = counts.skipped.saturating_sub(brought.files);
            counts.skipped_bytes = counts.skipped_bytes.saturating_sub(brought.bytes);
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
        Self {
            journals: Journals::new(quota.book_nothing()),
            ended: Ended::default(),
            held: quota.book_nothing(),
        }
    }

    /// Counts what the journals say by now.
    pub(super) fn count(&mut self, directory: &OwnedFd) -> io::Result<SharedJobCount> {
        let Self {
            journals,
            ended,
            held,
        } = self;
        journals.read_on(
            directory,
            |_epoch| true,
            |(), record, _end| {
                let end = match record {
                    Record::WorkEnded(end) => end,
                    Record::NotKept(counts) => {
                        ended.lack(counts);
                        return Ok(());
                    }
                    _other => return Ok(()),
                };
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
    use std::fs::File;
    use std::sync::Arc;

    use super::*;
    use crate::quota::Quotas;
    use crate::quota::limits::Limits;
    use crate::resume::journal::Journal;
    use crate::resume::parts::begin;
    use crate::shared_job::journals::name_of;
    use proptest::prelude::{any, proptest};
    use zmove_disk::Tree;
    use zmove_transport::Fingerprint;
    use zmove_types::{ByteCount, TransferId};
    use zmove_wire::WorkCounts;

    /// The id of a work item of a pass.
    fn id(pass: u32, work: u8) -> WorkId {
        let digest = blake3::hash(&[&pass.to_le_bytes()[..], &[work]].concat());
        WorkId(digest.as_bytes()[..16].try_into().unwrap())
    }

    fn end_in(pass: u32, work: u8, parent: u8, children: &[u8]) -> WorkEnd {
        WorkEnd {
            work: id(pass, work),
            parent: id(pass, parent),
            pass,
            children: children.len() as u64,
            children_sum: children
                .iter()
                .fold(0, |sum, child| id(pass, *child).number().wrapping_add(sum)),
            counts: WorkCounts {
                files: 1,
                bytes: 10,
                ..WorkCounts::default()
            },
        }
    }

    fn end(work: u8, parent: u8, children: &[u8]) -> WorkEnd {
        end_in(1, work, parent, children)
    }

    /// The same, where what it is about was at the target.
    fn found(mut end: WorkEnd) -> WorkEnd {
        end.counts.skipped = end.counts.files;
        end.counts.skipped_bytes = end.counts.bytes;
        end
    }

    fn failed(failed: u64) -> WorkCounts {
        WorkCounts {
            failed,
            ..WorkCounts::default()
        }
    }

    fn count(ends: &[WorkEnd]) -> SharedJobCount {
        let mut ended = Ended::default();
        ends.iter().for_each(|end| ended.take(*end));
        ended.count()
    }

    #[test]
    fn work_that_has_ended_twice_counts_once() {
        let ends = [
            end(1, 1, &[2, 3]),
            end(2, 1, &[]),
            end(3, 1, &[]),
            end(2, 1, &[]),
            end(1, 1, &[2, 3]),
        ];
        let counted = count(&ends);
        let expected = SharedJobCount {
            pass: 1,
            work_ended: 3,
            work_announced: 2,
            counts: WorkCounts {
                files: 3,
                bytes: 30,
                ..WorkCounts::default()
            },
            repeats: 2,
            ..SharedJobCount::default()
        };
        assert!(counted == expected && counted.is_finished(), "{counted:?}");
    }

    #[test]
    fn two_ends_that_announce_other_work_contradict_each_other() {
        let has = [end(2, 1, &[]), end(3, 1, &[]), end(4, 1, &[])];
        for (one, other) in [(&[2_u8, 3][..], &[2_u8][..]), (&[2, 3], &[3, 4])] {
            for ends in [[one, other], [other, one]] {
                let ends: Vec<_> = ends
                    .into_iter()
                    .map(|children| end(1, 1, children))
                    .chain(has)
                    .collect();
                let counted = count(&ends);
                assert_eq!((counted.repeats, counted.contradictions), (1, 1));
                assert!(
                    counted.is_contradictory() && !counted.is_finished(),
                    "{counted:?}"
                );
            }
        }
    }

    /// Of the first time that the parent was done no end is recorded, and as much is lost as makes the number right.
    #[test]
    fn as_much_work_as_was_announced_but_other_work_finishes_nothing() {
        let counted = count(&[end(1, 1, &[2, 3]), end(2, 1, &[]), end(4, 1, &[])]);
        assert_eq!((counted.missing_work(), counted.contradictions), (0, 0));
        assert!(
            counted.is_contradictory() && !counted.is_finished(),
            "{counted:?}"
        );
        let more = count(&[
            end(1, 1, &[2, 3]),
            end(2, 1, &[]),
            end(3, 1, &[]),
            end(4, 1, &[]),
        ]);
        assert!(more.is_contradictory() && !more.is_finished(), "{more:?}");
        let less = count(&[end(1, 1, &[2, 3]), end(4, 1, &[])]);
        assert!(
            less.missing_work() == 1 && !less.is_contradictory() && !less.is_finished(),
            "{less:?}"
        );
        let parentless = count(&[end(2, 1, &[]), end(3, 1, &[])]);
        assert!(
            !parentless.is_contradictory(),
            "its parent may end yet: {parentless:?}"
        );
    }

    /// Also where ends of an older one come late, and contradict each other.
    #[test]
    fn the_newest_pass_counts_alone() {
        let old = [
            end(1, 1, &[2, 3]),
            WorkEnd {
                counts: failed(1),
                ..end(2, 1, &[])
            },
        ];
        let new = [found(end_in(2, 1, 1, &[2])), found(end_in(2, 2, 1, &[]))];
        let late = [end(1, 1, &[2, 4]), end(4, 1, &[])];
        let counted = count(&[&old[..], &new[..1], &late[..]].concat());
        assert!(
            counted.pass == 2 && counted.missing_work() == 1 && !counted.is_finished(),
            "{counted:?}"
        );
        for ends in [[&old[..], &late, &new], [&new[..], &old, &late]] {
            let counted = count(&ends.concat());
            assert!(
                counted.is_finished() && counted.contradictions == 0,
                "{counted:?}"
            );
            // two of the older pass have come by the job
            let expected = WorkCounts {
                files: 2,
                bytes: 20,
                ..WorkCounts::default()
            };
            assert_eq!(counted.counts, expected);
        }
    }

    #[test]
    fn what_has_come_once_has_not_failed() {
        let (good, bad) = (
            end(1, 1, &[]),
            WorkEnd {
                counts: failed(2),
                ..end(1, 1, &[])
            },
        );
        for ends in [[good, bad], [bad, good]] {
            let counted = count(&ends);
            assert_eq!((counted.counts, counted.contradictions), (good.counts, 0));
        }
        assert_eq!(count(&[bad]).counts.failed, 2);
    }

    /// By whichever of the two.
    #[test]
    fn what_was_not_there_when_work_was_done_for_the_first_time_has_come_by_the_job() {
        let first = end(1, 1, &[]);
        let again = found(first);
        for ends in [[first, again], [again, first]] {
            assert_eq!(count(&ends).counts, first.counts);
        }
        assert_eq!(count(&[again]).counts, again.counts);
        assert_eq!(count(&[again, again]).counts, again.counts);
    }

    /// The child is told first: its number alone would do.
    #[test]
    fn work_whose_announcer_has_not_ended_finishes_nothing() {
        let counted = count(&[end(2, 1, &[])]);
        assert!(
            counted.work_without_parent == 1 && !counted.is_finished(),
            "{counted:?}"
        );
    }

    /// Whoever may write to the job's directory can put a journal of any length there.
    #[test]
    fn each_work_item_is_booked_once_before_it_is_kept_and_given_back() {
        let home = tempfile::tempdir().unwrap();
        let directory = Arc::new(OwnedFd::from(File::open(home.path()).unwrap()));
        let begin = begin(
            TransferId([7; 16]),
            String::new(),
            &Tree::open(home.path()).unwrap(),
        );
        let name = name_of(1, begin.transfer);
        let journal = Journal::create_in_job(&directory, &name, &begin, u64::MAX).unwrap();
        // there is room for less than six, and for the journal
        let memory_per_identity = ByteCount(6 * WORK_BYTES as u64);
        let limits = Limits {
            memory_per_identity,
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let before = quota.memory_held();
        let mut ends = ReadEnds::new(&quota);
        let lack = |entries| vec![NotKept::new(Kinds::OWNER, Lack::NotPermitted, entries)];
        for work in [0, 1, 2, 3, 4, 0, 1, 2, 3, 4] {
            let end = end(work, 0, if work == 0 { &[1, 2, 3, 4] } else { &[] });
            journal.work_ended(end, lack(1)).unwrap();
        }
        journal.not_kept(lack(5)).unwrap();
        let counted = ends.count(&directory).unwrap();
        assert!(counted.is_finished());
        assert_eq!(counted.not_kept, lack(15));
        journal.work_ended(end(5, 0, &[]), Vec::new()).unwrap();
        let told = ends.count(&directory).unwrap_err();
        assert_eq!(Errno::from_io_error(&told), Some(Errno::NOMEM));
        drop(ends);
        assert_eq!(quota.memory_held(), before);
    }

    /// The items of a random tree, each by its parent; 0 is the first.
    fn tree(parents: &[u8]) -> Vec<u8> {
        let above = (1..).zip(parents).map(|(item, parent)| parent % item);
        std::iter::once(0).chain(above).collect()
    }

    fn end_of(tree: &[u8], item: u8) -> WorkEnd {
        let children = (1..)
            .zip(&tree[1..])
            .filter(|(_, parent)| **parent == item)
            .map(|(child, _)| child);
        end(
            item,
            tree[usize::from(item)],
            &children.collect::<Vec<u8>>(),
        )
    }

    proptest! {
        /// Of a tree of work any part is lost, doubled and put in any order: it is finished when no end is missing, and
        /// not before.
        #[test]
        fn a_job_is_finished_when_each_work_item_has_ended(
            parents in proptest::collection::vec(any::<u8>(), 0..20),
            told in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let tree = tree(&parents);
            let items = u8::try_from(tree.len()).unwrap();
            let ends: Vec<_> = told.into_iter().map(|item| item % items).collect();
            let all = (0..items).all(|item| ends.contains(&item));
            let counted = count(&ends.iter().map(|item| end_of(&tree, *item)).collect::<Vec<_>>());
            assert!(counted.is_finished() == all && counted.contradictions == 0, "{counted:?}");
        }

        /// The source changes while the job runs, so each item may announce the children that either of two trees gives
        /// it. Whatever has ended of both: it is finished only if all that is reached from the first item has ended.
        #[test]
        fn a_job_whose_source_changes_is_not_finished_before_each_announced_work_item_has_ended(
            one in proptest::collection::vec(any::<u8>(), 5),
            other in proptest::collection::vec(any::<u8>(), 5),
            told in proptest::collection::vec((0..6_u8, any::<bool>()), 0..12),
        ) {
            let trees = [tree(&one), tree(&other)];
            let ends: Vec<_> =
                told.iter().map(|(item, changed)| end_of(&trees[usize::from(*changed)], *item)).collect();
            let mut reached = vec![0];
            let mut at = 0;
            while let Some(item) = reached.get(at).copied() {
                at += 1;
                for (_, changed) in told.iter().filter(|(told, _)| *told == item) {
                    let children = (1..6).filter(|child| trees[usize::from(*changed)][usize::from(*child)] == item);
                    reached.extend(children.filter(|child| !reached.contains(child)).collect::<Vec<u8>>());
                }
            }
            let all = reached.iter().all(|item| told.iter().any(|(told, _)| told == item));
            let counted = count(&ends);
            assert!(all || !counted.is_finished(), "{counted:?}");
        }
    }
}
