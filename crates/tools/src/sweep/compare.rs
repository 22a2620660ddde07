//! The postulation of "When to use rsync" (Chin Fang, R. "Les" A. Cottrell, Ezra Kissel), section "A precaution and a
//! postulation": the best that the transfer rate of another site lets one expect here, `U_b = F_s × F_c × E_1`.
//!
//! There `F_s` is the attainable storage throughput here over that of the reference, `F_c` the same for the
//! computational power of the processor, whose clock the paper's appendix compares, and `E_1` the transfer rate that
//! the reference has reached. A transfer reads and writes, so the lesser of both ratios is the `F_s` of a size.

use crate::sweep::result::{Direction, Measured, Sweep};

/// The comparison of this site with a reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The sizes that both sweeps have measured.
    pub sizes: Vec<Compared>,
    /// `F_c`: the speed of a core here divided by that of a core of the reference.
    pub cpu: f64,
}

/// The results for one file size, divided by those of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The size of each file, in bytes.
    pub file_bytes: u64,
    /// The ratio for writing, if both sweeps have measured that.
    pub write: Option<f64>,
    /// The ratio for reading, if both sweeps have measured that.
    pub read: Option<f64>,
}

impl Comparison {
    /// Compares the sweep from `here` with a reference; `None` where they share no size, or a core's speed is not
    /// known.
    #[must_use]
    pub fn new(here: &Sweep, reference: &Sweep) -> Option<Self> {
        let speed = |sweep: &Sweep| sweep.host.core_operations_per_second;
        let cpu = speed(here) / speed(reference);
        let there = |size: &Measured| {
            reference
                .sizes
                .iter()
                .find(|there| there.file_bytes == size.file_bytes)
        };
        let sizes: Vec<_> = here
            .sizes
            .iter()
            .filter_map(|size| compared(size, there(size)?))
            .collect();
        (!sizes.is_empty() && cpu.is_finite() && cpu > 0.0).then_some(Self { sizes, cpu })
    }
}

impl Compared {
    /// `F_s`: the lesser of both ratios.
    #[must_use]
    pub fn storage(&self) -> f64 {
        self.write
            .into_iter()
            .chain(self.read)
            .fold(f64::INFINITY, f64::min)
    }
}

fn compared(here: &Measured, there: &Measured) -> Option<Compared> {
    let ratio = |direction| {
        let (here, there) = (here.moved(direction)?, there.moved(direction)?);
        Some(here.bytes_per_second / there.bytes_per_second)
    };
    let (write, read) = (ratio(Direction::Write), ratio(Direction::Read));
    let any = write.is_some() || read.is_some();
    any.then_some(Compared {
        file_bytes: here.file_bytes,
        write,
        read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::result::tests::of;

    /// The paper's testbeds: storage 30 to 40 % below the reference, processors of 2.6 and 3.2 GHz.
    #[test]
    fn the_papers_numbers_give_the_papers_factors() {
        let (mut here, mut there) = (
            of(&[(1024, 6.5e9), (4096, 7e9)]),
            of(&[(1024, 1e10), (4096, 1e10)]),
        );
        here.host.core_operations_per_second = 2.6;
        there.host.core_operations_per_second = 3.2;
        let compared = Comparison::new(&here, &there).unwrap();
        assert!(
            (1.0 / compared.cpu - 1.23).abs() < 0.001,
            "the reference's clock is 23 % higher"
        );
        assert!(
            (compared.sizes[0].storage() - 0.65).abs() < 1e-9,
            "{compared:?}"
        );
        assert!(
            (compared.sizes[1].storage() - 0.7).abs() < 1e-9,
            "{compared:?}"
        );
        let bound = compared.sizes[0].storage() * compared.cpu * 40e9;
        assert!((bound - 21.125e9).abs() < 1.0, "{bound}");
    }

    #[test]
    fn the_lesser_direction_bounds() {
        let (mut here, there) = (of(&[(1024, 1e9)]), of(&[(1024, 1e9)]));
        here.sizes[0].write.as_mut().unwrap().bytes_per_second /= 4.0;
        assert_eq!(
            Comparison::new(&here, &there).unwrap().sizes[0].storage(),
            0.25
        );
        here.sizes[0].write = None;
        let sizes = Comparison::new(&here, &there).unwrap().sizes;
        assert_eq!((sizes[0].write, sizes[0].storage()), (None, 1.0));
    }

    #[test]
    fn what_has_no_size_in_common_cannot_be_compared() {
        assert_eq!(
            Comparison::new(&of(&[(1024, 1.0)]), &of(&[(2048, 1.0)])),
            None
        );
        let mut unknown = of(&[(1024, 1.0)]);
        unknown.host.core_operations_per_second = 0.0;
        assert_eq!(Comparison::new(&of(&[(1024, 1.0)]), &unknown), None);
    }
}
