//! Plans a sweep: the sizes to measure and the number of files of each size, within a budget of bytes and time.
//!
//! **Invariant:** the files of all cells, rounded up to whole pages, never exceed the budget.

use std::time::Duration;

use zmove_types::{ByteCount, PAGE_BYTES};

/// A size to measure, and its number of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The size of each file.
    pub(crate) file_bytes: u64,
    /// Number of files to write. Fewer are written if the time is too short.
    pub(crate) files: u64,
}

/// Returns the cells of a sweep, smallest files first. The sizes are powers of two if the budget and the time are large
/// enough for all of them, and powers of four otherwise. No size has more than `files_max` files.
pub(crate) fn cells_within(budget: ByteCount, time: Duration, files_max: u64) -> Vec<Cell> {
    let fine = in_steps_of(2, budget, files_max);
    let has_large = fine.last().is_some_and(|cell| cell.file_bytes >= LARGE);
    let below_large = fine.iter().filter(|cell| cell.file_bytes < LARGE).count();
    let has_all_below_large = below_large == sizes(SMALLEST..=LARGE - 1, 2).count();
    let count = u32::try_from(fine.len().max(1)).unwrap_or(u32::MAX);
    if has_large && has_all_below_large && time / count >= FINE_CELL_TIME {
        return fine;
    }
    in_steps_of(4, budget, files_max)
}

/// Returns the cells for sizes that grow by the factor `step`. Large files get two fifths of the budget. Medium files
/// get two thirds of the remainder, and small files get the rest. If the larger files cannot use all of their bytes,
/// the smaller files get the difference.
fn in_steps_of(step: u64, ByteCount(budget): ByteCount, files_max: u64) -> Vec<Cell> {
    let large = class_cells(budget / 5 * 2, sizes(LARGE..=LARGEST, 4), files_max);
    let left = budget - written(&large);
    let medium = class_cells(left / 3 * 2, sizes(MEDIUM..=LARGE - 1, step), files_max);
    let left = left - written(&medium);
    let small = class_cells(left, sizes(SMALLEST..=MEDIUM - 1, step), files_max);
    [small, medium, large].concat()
}

fn sizes(range: std::ops::RangeInclusive<u64>, step: u64) -> impl Iterator<Item = u64> {
    let next = move |size: &u64| size.checked_mul(step);
    std::iter::successors(Some(*range.start()), next).take_while(move |size| range.contains(size))
}

/// Returns the cells of one class. The sizes share the budget equally. The largest sizes are left out if the budget
/// does not allow at least one file of each size.
fn class_cells(share: u64, sizes: impl Iterator<Item = u64>, files_max: u64) -> Vec<Cell> {
    let sizes: Vec<_> = sizes.collect();
    let fits = |count: &usize| share / *count as u64 >= on_disk(sizes[*count - 1]);
    let Some(count) = (1..=sizes.len()).rev().find(fits).filter(|_| files_max > 0) else {
        return Vec::new();
    };
    let each = share / count as u64;
    let cell = |&file_bytes: &u64| Cell {
        file_bytes,
        files: (each / on_disk(file_bytes)).min(files_max),
    };
    sizes[..count].iter().map(cell).collect()
}

/// Returns the total number of bytes that cells write, in whole pages.
fn written(cells: &[Cell]) -> u64 {
    cells
        .iter()
        .map(|cell| cell.files * on_disk(cell.file_bytes))
        .sum()
}

/// Returns the minimum space that a file occupies: whole pages.
fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES as u64)
}

const SMALLEST: u64 = 1 << 10;
const MEDIUM: u64 = 1 << 20;
const LARGE: u64 = 1 << 30;
/// The largest size. The sweep of the paper ends there too.
const LARGEST: u64 = 1 << 40;
/// The minimum time per size for a sweep in powers of two.
const FINE_CELL_TIME: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(budget: u64, seconds: u64) -> Vec<Cell> {
        let time = Duration::from_secs(seconds);
        cells_within(ByteCount(budget), time, 1 << 18)
    }

    fn sizes_of(plan: &[Cell]) -> Vec<u64> {
        plan.iter().map(|cell| cell.file_bytes).collect()
    }

    #[test]
    fn the_usual_budget_has_all_classes_in_powers_of_four() {
        let plan = plan(10 << 30, 120);
        let (k, m) = (1 << 10, 1 << 20);
        let expected = [
            k,
            4 * k,
            16 * k,
            64 * k,
            256 * k,
            m,
            4 * m,
            16 * m,
            64 * m,
            256 * m,
            1 << 30,
        ];
        assert_eq!(sizes_of(&plan), expected);
        assert_eq!(plan[10].files, 4);
        assert!(plan[0].files > 50_000, "{plan:?}");
    }

    #[test]
    fn much_of_both_has_powers_of_two() {
        assert_eq!(sizes_of(&plan(100 << 30, 600)).len(), 10 + 10 + 2);
        assert_eq!(sizes_of(&plan(100 << 30, 120)).len(), 5 + 5 + 2);
    }

    #[test]
    fn little_has_the_smaller_files_alone() {
        assert_eq!(
            plan(4096, 120),
            [Cell {
                file_bytes: 1024,
                files: 1
            }]
        );
        assert_eq!(plan(4095, 120), []);
        assert_eq!(sizes_of(&plan(8 << 20, 120)).last(), Some(&(1 << 20)));
    }

    proptest! {
        #[test]
        fn no_budget_is_passed(budget in any::<u64>(), shift in 0_u32..64, files_max in 0_u64..1 << 20, seconds in 0_u64..10_000) {
            let budget = ByteCount(budget >> shift);
            let plan = cells_within(budget, Duration::from_secs(seconds), files_max);
            prop_assert!(written(&plan) <= budget.0, "{plan:?}");
            prop_assert!(plan.iter().all(|cell| (1..=files_max).contains(&cell.files)), "{plan:?}");
            prop_assert!(plan.windows(2).all(|pair| pair[0].file_bytes < pair[1].file_bytes), "{plan:?}");
            prop_assert_eq!(plan.is_empty(), budget.0 < 4096 || files_max == 0);
        }
    }
}
