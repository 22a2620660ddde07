//! The data ranges of a sparse file. Everything outside them is a hole, which reads as zeros and takes no storage.
//!
//! The sender determines the ranges and sends them in the file's header. Both sides skip everything outside them.
//!
//! **Invariant:** the ranges are in ascending order, non-empty, separated by holes and inside the file. There are at
//! most [`DataRanges::MAX`] of them, and the file has at least one hole.

use std::ops::Range;

use crate::units::{GROUP_BYTES, GroupSpan};

/// The ranges of a file that contain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRanges {
    file_bytes: u64,
    ranges: Vec<Range<u64>>,
}

/// Collects the data ranges of a file in ascending order.
#[derive(Clone, Debug, Default)]
pub struct DataRangesBuilder {
    ranges: Vec<Range<u64>>,
    merged_holes: u64,
}

impl DataRanges {
    /// Maximum number of ranges per file. If a file has more, its smallest holes are treated as data.
    pub const MAX: usize = 8192;

    /// Creates the ranges of a file of `file_bytes`. Returns `None` if they violate the invariant.
    #[must_use]
    pub fn new(file_bytes: u64, ranges: Vec<Range<u64>>) -> Option<Self> {
        let ascend = ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
        let are_whole = ranges
            .iter()
            .all(|range| range.start < range.end && range.end <= file_bytes);
        let has_hole =
            ranges.first().is_none_or(|first| *first != (0..file_bytes)) && file_bytes > 0;
        let valid = ascend && are_whole && has_hole && ranges.len() <= Self::MAX;
        valid.then_some(Self { file_bytes, ranges })
    }

    /// Returns the ranges in ascending order.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns the length of the file, in bytes.
    #[must_use]
    pub const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the holes: before the first range, between the ranges, and after the last range.
    pub fn holes(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(0).chain(self.ranges.iter().map(|range| range.end));
        let ends = self
            .ranges
            .iter()
            .map(|range| range.start)
            .chain(std::iter::once(self.file_bytes));
        starts
            .zip(ends)
            .map(|(start, end)| start..end)
            .filter(|hole| !hole.is_empty())
    }

    /// Returns the number of data bytes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Returns the data ranges inside a group, relative to the start of the group.
    pub fn within(&self, span: GroupSpan) -> impl Iterator<Item = Range<usize>> {
        let (start, end) = (span.offset(), span.offset() + u64::from(span.len));
        let first = self.ranges.partition_point(|range| range.end <= start);
        let inside = self.ranges[first..]
            .iter()
            .take_while(move |range| range.start < end);
        inside.map(move |range| {
            let within =
                |offset: u64| usize::try_from(offset - start).expect("a group is 4 MiB at most");
            within(range.start.max(start))..within(range.end.min(end))
        })
    }

    /// Returns whether a group contains any data.
    #[must_use]
    pub fn has_group(&self, index: u32) -> bool {
        self.next_group(index) == Some(index)
    }

    /// Returns the first group at or after `index` that contains data.
    #[must_use]
    pub fn next_group(&self, index: u32) -> Option<u32> {
        let start = u64::from(index) * GROUP_BYTES;
        let next = self
            .ranges
            .get(self.ranges.partition_point(|range| range.end <= start))?;
        Some(group_of(next.start.max(start)))
    }

    /// Returns all groups that contain data, in ascending order.
    pub fn groups(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.next_group(0), |index| {
            self.next_group(index.checked_add(1)?)
        })
    }

    /// Returns the number of groups that contain data. Visits ranges instead of groups, because the file header of a
    /// peer may claim 2³² groups.
    #[must_use]
    pub fn group_count(&self) -> usize {
        let mut count = 0;
        let mut uncounted = 0;
        for range in &self.ranges {
            let end = u64::from(group_of(range.end - 1)) + 1;
            count += end - uncounted.max(range.start / GROUP_BYTES);
            uncounted = end;
        }
        usize::try_from(count).expect("a file has fewer than 2^32 groups")
    }
}

impl DataRangesBuilder {
    /// Appends a range, which must not start before the ranges that were added earlier.
    pub fn add(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            Some(last) if last.end >= range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
        // Makes one pass for many holes instead of one pass per hole.
        if self.ranges.len() > 2 * DataRanges::MAX {
            self.merge_across_small_holes();
        }
    }

    /// Returns the ranges of a file of `file_bytes` and the number of holes that were turned into data. The ranges are
    /// `None` if no hole is left.
    #[must_use]
    pub fn finish(mut self, file_bytes: u64) -> (Option<DataRanges>, u64) {
        if self.ranges.len() > DataRanges::MAX {
            self.merge_across_small_holes();
        }
        (DataRanges::new(file_bytes, self.ranges), self.merged_holes)
    }

    /// Turns the smallest holes between ranges into data. It may run at any time: a hole that is among the largest of
    /// the whole file is also among the largest found so far.
    fn merge_across_small_holes(&mut self) {
        let mut holes: Vec<_> = self
            .ranges
            .windows(2)
            .map(|pair| (pair[1].start - pair[0].end, pair[1].start))
            .collect();
        let lost = self.ranges.len() - DataRanges::MAX;
        holes.select_nth_unstable(lost - 1);
        let mut behind: Vec<_> = holes[..lost].iter().map(|(_, start)| *start).collect();
        behind.sort_unstable();
        self.merged_holes += lost as u64;
        self.ranges.dedup_by(|range, before| {
            let joins = behind.binary_search(&range.start).is_ok();
            if joins {
                before.end = range.end;
            }
            joins
        });
    }
}

fn group_of(offset: u64) -> u32 {
    u32::try_from(offset / GROUP_BYTES).expect("a file has fewer than 2^32 groups")
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of one range are meant"
)]
mod tests {
    use super::*;

    const GROUP: u64 = GROUP_BYTES;

    fn ranges(file_bytes: u64, ranges: &[Range<u64>]) -> DataRanges {
        DataRanges::new(file_bytes, ranges.to_vec()).unwrap()
    }

    #[test]
    fn ranges_that_overlap_touch_or_pass_the_end_are_none() {
        let wrong: [&[Range<u64>]; 7] = [
            &[0..5, 4..8],
            &[0..5, 5..8],
            &[6..8, 0..5],
            &[3..3],
            #[expect(clippy::reversed_empty_ranges, reason = "as a peer may say")]
            &[5..3],
            &[3..11],
            &[0..10],
        ];
        for wrong in wrong {
            assert_eq!(DataRanges::new(10, wrong.to_vec()), None, "{wrong:?}");
        }
        for right in [&[][..], &[0..9], &[1..10], &[0..5, 6..10]] {
            assert!(DataRanges::new(10, right.to_vec()).is_some(), "{right:?}");
        }
        assert_eq!(DataRanges::new(0, Vec::new()), None);
        let many = |count: u64| (0..count).map(|at| 2 * at..2 * at + 1).collect::<Vec<_>>();
        let most = DataRanges::MAX as u64;
        assert!(DataRanges::new(u64::MAX, many(most)).is_some());
        assert_eq!(DataRanges::new(u64::MAX, many(most + 1)), None);
    }

    /// Each byte of a file is in a hole or in the data of its group.
    #[test]
    fn holes_and_the_data_of_all_groups_are_the_file() {
        let cases = [
            ranges(3 * GROUP + 5, &[]),
            ranges(
                3 * GROUP + 5,
                &[0..1, GROUP - 1..GROUP + 1, 3 * GROUP..3 * GROUP + 5],
            ),
            ranges(3 * GROUP, &[5..3 * GROUP - 7]),
            ranges(GROUP, &[0..4096, 8192..12_288]),
            ranges(4 * GROUP, &[0..GROUP, 2 * GROUP..3 * GROUP]),
        ];
        for data in cases {
            let mut pieces: Vec<_> = data.holes().collect();
            let count = GroupSpan::count(data.file_bytes).unwrap();
            for span in (0..count).map(|index| GroupSpan::of(data.file_bytes, index).unwrap()) {
                let inside: Vec<_> = data.within(span).collect();
                assert_eq!(
                    !inside.is_empty(),
                    data.has_group(span.index),
                    "{data:?} {span:?}"
                );
                pieces.extend(inside.iter().map(|range| {
                    span.offset() + range.start as u64..span.offset() + range.end as u64
                }));
            }
            pieces.sort_by_key(|piece| piece.start);
            let end = pieces.iter().fold(0, |end, piece| {
                assert_eq!(piece.start, end, "{data:?}");
                piece.end
            });
            assert_eq!(end, data.file_bytes);
            let groups: Vec<_> = (0..count).filter(|index| data.has_group(*index)).collect();
            assert_eq!(data.groups().collect::<Vec<_>>(), groups);
            assert_eq!(data.group_count(), groups.len(), "{data:?}");
        }
    }

    #[test]
    fn of_too_many_holes_the_smallest_become_data() {
        let mut finder = DataRangesBuilder::default();
        let (mut at, mut largest) = (0, Vec::new());
        for number in 0..5 * DataRanges::MAX as u64 {
            // Every fifth hole is large, throughout the file.
            let hole = if number % 5 == 4 {
                1000
            } else {
                1 + number % 3
            };
            finder.add(at..at + 10);
            if hole == 1000 {
                largest.push(at + 10..at + 10 + hole);
            }
            at += 10 + hole;
        }
        let (data, lost) = finder.finish(at);
        let data = data.unwrap();
        assert_eq!(
            (data.ranges().len(), lost),
            (DataRanges::MAX, 4 * DataRanges::MAX as u64)
        );
        // The last hole is at the end of the file.
        assert_eq!(data.holes().collect::<Vec<_>>(), largest);
    }

    #[test]
    fn ranges_that_touch_are_found_as_one() {
        let mut finder = DataRangesBuilder::default();
        [0..4, 4..8, 9..10]
            .into_iter()
            .for_each(|range| finder.add(range));
        assert_eq!(finder.finish(10), (Some(ranges(10, &[0..8, 9..10])), 0));
        let mut finder = DataRangesBuilder::default();
        finder.add(0..10);
        assert_eq!(finder.finish(10), (None, 0), "there is no hole");
    }
}
