//! Which sizes are measured, and with how many files: all of a budget of bytes, and what fits into the time.
//!
//! **Invariant:** what all cells write, in whole pages, is within the budget, whatever that is.

use std::time::Duration;

use zmove_types::{ByteCount, PAGE_BYTES, SizeClass};

/// What a plan must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that are written in all, and that are there at once.
    pub budget: ByteCount,
    /// The time for everything.
    pub time: Duration,
    /// The most files of one size.
    pub files_max: u64,
}

/// The cells of a sweep, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// From the smallest files to the largest.
    pub cells: Vec<Cell>,
}

/// Files of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The size of each.
    pub file_bytes: u64,
    /// How many there are to be, if the time is enough.
    pub files: u64,
}

impl Plan {
    /// The sizes in powers of two where bytes and time are enough for all of them, in powers of four otherwise.
    #[must_use]
    pub fn within(limits: &Limits) -> Self {
        let fine = Self::in_steps_of(2, limits);
        let whole = fine.cells.last().is_some_and(|cell| cell.file_bytes >= LARGE);
        let sizes = u32::try_from(fine.cells.len().max(1)).unwrap_or(u32::MAX);
        if whole && fine.has_all_below_large() && limits.time / sizes >= FINE_CELL_TIME {
            return fine;
        }
        Self::in_steps_of(4, limits)
    }

    /// What is written in all, in whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.cells.iter().map(|cell| cell.files * on_disk(cell.file_bytes)).sum()
    }

    /// Large files get two fifths, medium ones two thirds of what is left then, and small ones the rest; what the larger
    /// cannot use is the smaller's.
    fn in_steps_of(step: u64, limits: &Limits) -> Self {
        let budget = limits.budget.0;
        let large = class_cells(budget / 5 * 2, sizes(LARGE..=LARGEST, 4), limits.files_max);
        let left = budget - written(&large);
        let medium = class_cells(left / 3 * 2, sizes(MEDIUM..=LARGE - 1, step), limits.files_max);
        let left = left - written(&medium);
        let small = class_cells(left, sizes(SMALLEST..=MEDIUM - 1, step), limits.files_max);
        Self { cells: [small, medium, large].concat() }
    }

    fn has_all_below_large(&self) -> bool {
        let all = sizes(SMALLEST..=LARGE - 1, 2).count();
        self.cells.iter().filter(|cell| cell.file_bytes < LARGE).count() == all
    }
}

impl Cell {
    /// The class of its files.
    #[must_use]
    pub fn class(&self) -> SizeClass {
        SizeClass::of(self.file_bytes)
    }
}

fn sizes(range: std::ops::RangeInclusive<u64>, step: u64) -> impl Iterator<Item = u64> {
    let next = move |size: &u64| size.checked_mul(step);
    std::iter::successors(Some(*range.start()), next).take_while(move |size| range.contains(size))
}

/// As many of the sizes, from the smallest on, as get one file at least of an equal share each.
fn class_cells(share: u64, sizes: impl Iterator<Item = u64>, files_max: u64) -> Vec<Cell> {
    let sizes: Vec<_> = sizes.collect();
    let fits = |count: &usize| share / *count as u64 >= on_disk(sizes[*count - 1]);
    let Some(count) = (1..=sizes.len()).rev().find(fits).filter(|_| files_max > 0) else { return Vec::new() };
    let each = share / count as u64;
    let cell = |&file_bytes: &u64| Cell { file_bytes, files: (each / on_disk(file_bytes)).min(files_max) };
    sizes[..count].iter().map(cell).collect()
}

fn written(cells: &[Cell]) -> u64 {
    cells.iter().map(|cell| cell.files * on_disk(cell.file_bytes)).sum()
}

/// What a file takes at least: whole pages.
fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES as u64)
}

const SMALLEST: u64 = 1 << 10;
const MEDIUM: u64 = 1 << 20;
const LARGE: u64 = 1 << 30;
/// Where the paper's sweep ends.
const LARGEST: u64 = 1 << 40;
/// A size needs so much, for a fine sweep to be worth it.
const FINE_CELL_TIME: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(budget: u64, seconds: u64) -> Plan {
        let time = Duration::from_secs(seconds);
        Plan::within(&Limits { budget: ByteCount(budget), time, files_max: 1 << 18 })
    }

    fn sizes_of(plan: &Plan) -> Vec<u64> {
        plan.cells.iter().map(|cell| cell.file_bytes).collect()
    }

    #[test]
    fn the_usual_budget_has_all_classes_in_powers_of_four() {
        let plan = plan(10 << 30, 120);
        let (k, m) = (1 << 10, 1 << 20);
        let expected = [k, 4 * k, 16 * k, 64 * k, 256 * k, m, 4 * m, 16 * m, 64 * m, 256 * m, 1 << 30];
        assert_eq!(sizes_of(&plan), expected);
        assert_eq!(plan.cells[10].files, 4);
        assert!(plan.cells[0].files > 50_000, "{plan:?}");
    }

    #[test]
    fn much_of_both_has_powers_of_two() {
        assert_eq!(sizes_of(&plan(100 << 30, 600)).len(), 10 + 10 + 2);
        assert_eq!(sizes_of(&plan(100 << 30, 120)).len(), 5 + 5 + 2);
    }

    #[test]
    fn little_has_the_smaller_files_alone() {
        assert_eq!(plan(4096, 120).cells, [Cell { file_bytes: 1024, files: 1 }]);
        assert_eq!(plan(4095, 120).cells, []);
        assert_eq!(sizes_of(&plan(8 << 20, 120)).last(), Some(&(1 << 20)));
    }

    proptest! {
        #[test]
        fn no_budget_is_passed(budget in any::<u64>(), shift in 0_u32..64, files_max in 0_u64..1 << 20, seconds in 0_u64..10_000) {
            let limits = Limits { budget: ByteCount(budget >> shift), time: Duration::from_secs(seconds), files_max };
            let plan = Plan::within(&limits);
            prop_assert!(plan.bytes() <= limits.budget.0, "{plan:?}");
            prop_assert!(plan.cells.iter().all(|cell| (1..=files_max).contains(&cell.files)), "{plan:?}");
            prop_assert!(plan.cells.windows(2).all(|pair| pair[0].file_bytes < pair[1].file_bytes), "{plan:?}");
            prop_assert_eq!(plan.cells.is_empty(), limits.budget.0 < 4096 || files_max == 0);
        }
    }
}
