//! Splits the results of a scan into work items.
//!
//! **Invariant:** the split depends only on the scan's results.

use zmove_scan::Portion;
use zmove_types::GroupSpan;
use zmove_wire::GroupRange;

use crate::queue::{ItemWork, SplitFile};

/// Returns the items for the rest of a portion, which any mover may process.
pub(crate) fn rest_of(portion: &Portion) -> impl Iterator<Item = ItemWork> {
    let trees = in_turns(&portion.directories).map(|some| ItemWork::Trees(some.to_vec()));
    let names = portion
        .names
        .iter()
        .map(|(directory, names)| ItemWork::Names {
            directory: directory.clone(),
            names: names.clone(),
        });
    trees.chain(names)
}

/// Returns the items for a large file: ranges of the missing groups, and the commit of the file.
pub(crate) fn work_of(file: &SplitFile, missing: &[GroupRange]) -> impl Iterator<Item = ItemWork> {
    let of = |range: GroupRange| {
        missing.iter().filter_map(move |missing| {
            let first = range.first.max(missing.first);
            let count = range.end().min(missing.end()).checked_sub(first)?;
            (count > 0).then(|| GroupRange::new(first, count))
        })
    };
    let range = |range| ItemWork::Range {
        file: file.clone(),
        range,
    };
    ranges(file)
        .flat_map(of)
        .map(range)
        .chain(std::iter::once(ItemWork::Large(file.clone())))
}

/// Splits directories into the items that scan them. If there are few directories, each item has few, because the
/// directories may be large and all nodes should get some. If there are many directories, each item has more, because
/// the directories may be small.
fn in_turns<T>(directories: &[T]) -> impl Iterator<Item = &[T]> {
    let at_once = directories
        .len()
        .div_ceil(ITEMS_PER_PORTION)
        .clamp(1, DIRECTORIES_MAX);
    directories.chunks(at_once)
}

/// Returns the ranges of a large file, contiguous and in order. Most of the file is in long ranges, so that a receiver
/// writes large contiguous parts. The end of the file is in short ranges, so that no node works much longer than the
/// other nodes.
fn ranges(file: &SplitFile) -> impl Iterator<Item = GroupRange> {
    let groups = GroupSpan::count(file.bytes).unwrap_or(0);
    let long = (groups / LONG_RANGES).clamp(LONG_RANGE_GROUPS_MIN, LONG_RANGE_GROUPS_MAX);
    let short_from = groups - groups / 4;
    let mut first = 0;
    std::iter::from_fn(move || {
        let groups = match short_from.checked_sub(first) {
            None | Some(0) => (long / 8).max(2).min(groups - first),
            Some(left) => long.min(left),
        };
        let range = GroupRange::new(first, groups);
        first += groups;
        (groups > 0).then_some(range)
    })
}

/// Number of items for the remaining directories of a portion, unless each item would exceed the maximum.
const ITEMS_PER_PORTION: usize = 16;
/// Maximum number of directories in an item. Their paths take up to 256 KiB.
const DIRECTORIES_MAX: usize = 64;
/// Number of long ranges into which a file is split. The constants below limit their length.
const LONG_RANGES: u32 = 64;
const LONG_RANGE_GROUPS_MIN: u32 = 4;
const LONG_RANGE_GROUPS_MAX: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::root;
    use zmove_scan::MarkedPath;
    use zmove_types::{GROUP_BYTES, Name, Timestamp};

    fn file_of(groups: u64) -> SplitFile {
        let directory = root();
        let name = Name::from_bytes(b"f").unwrap();
        let (bytes, mtime) = (groups * GROUP_BYTES, Timestamp::default());
        SplitFile {
            directory,
            name,
            bytes,
            mtime,
        }
    }

    fn ranges_of(groups: u64) -> Vec<(u32, u32)> {
        ranges(&file_of(groups))
            .map(|range| (range.first, range.count))
            .collect()
    }

    #[test]
    fn groups_that_are_there_are_in_no_range() {
        let file = file_of(20);
        let missing = [(2, 3), (8, 1), (14, 6)].map(|(first, count)| GroupRange::new(first, count));
        let sent: Vec<_> = work_of(&file, &missing)
            .filter_map(|work| match work {
                ItemWork::Range { range, .. } => Some((range.first, range.count)),
                _ => None,
            })
            .collect();
        assert_eq!(
            sent,
            [(2, 2), (4, 1), (8, 1), (14, 1), (15, 2), (17, 2), (19, 1)]
        );
        assert_eq!(work_of(&file, &[]).count(), 1, "its name is given");
    }

    #[test]
    fn ranges_have_each_group_once_and_the_last_are_short() {
        assert_eq!(
            ranges_of(20),
            [(0, 4), (4, 4), (8, 4), (12, 3), (15, 2), (17, 2), (19, 1)]
        );
        for groups in [16, 17, 33, 1000, 5000, 262_144, 4_000_000] {
            let ranges = ranges_of(groups);
            let mut next = 0;
            for (first, groups) in &ranges {
                assert_eq!(*first, next);
                next += groups;
            }
            assert_eq!(u64::from(next), groups);
            assert!(
                ranges
                    .iter()
                    .all(|(_, groups)| *groups <= LONG_RANGE_GROUPS_MAX)
            );
            assert!(ranges.last().unwrap().1 <= ranges[0].1);
        }
    }

    #[test]
    fn few_directories_are_an_item_each_and_many_are_many_at_once() {
        let places = |count: usize| vec![root(); count];
        let sizes = |count| {
            in_turns(&places(count))
                .map(<[MarkedPath]>::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(3), [1, 1, 1]);
        assert_eq!(sizes(33), [3; 11]);
        let many = sizes(10_000);
        assert!(
            many.iter().all(|size| *size <= DIRECTORIES_MAX)
                && many.iter().sum::<usize>() == 10_000
        );
    }
}
