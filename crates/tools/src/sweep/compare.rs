//! The postulation of "When to use rsync" (Chin Fang, R. "Les" A. Cottrell, Ezra Kissel), section "A precaution and a
//! postulation". It derives the best transfer rate that this site can expect from the transfer rate of a reference
//! site: `U_b = F_s × F_c × E_1`.
//!
//! `F_s` is the storage throughput of this site divided by that of the reference. `F_c` is the same ratio for the speed
//! of the processor. The appendix of the paper compares clock frequencies for it. `E_1` is the transfer rate of the
//! reference. A transfer reads and writes, so `F_s` for a size is the smaller of the ratios for reading and writing.

use std::str::FromStr;

use zmove_types::{ByteCount, ByteRate, ParseRateError, Printable, RateLimit, parse_size};

use crate::drawing::scale::size_label;
use crate::sweep::result::{IoDirection, Measured, Sweep};

/// A transfer rate `E_1` that the reference site has achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceRate {
    /// The file size to which the rate applies. If it is `None`, the rate applies to all sizes for which no rate is
    /// given.
    pub file_bytes: Option<u64>,
    /// The rate.
    pub rate: RateLimit,
}

impl FromStr for ReferenceRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, rate) = match text.split_once('=') {
            Some((size, rate)) => (Some(size), rate),
            None => (None, text),
        };
        let size = size
            .map(parse_size)
            .transpose()
            .map_err(|error| error.to_string())?;
        let rate = rate
            .parse()
            .map_err(|error: ParseRateError| error.to_string())?;
        Ok(Self {
            file_bytes: size.map(|size| size.0),
            rate,
        })
    }
}

/// Compares the sweep `here` with the sweep of a reference site, and derives the transfer rates to expect. Returns the
/// text. Returns `None` if the sweeps have no size in common, or the speed of a core is unknown.
#[must_use]
pub fn compare(here: &Sweep, reference: &Sweep, rates: &[ReferenceRate]) -> Option<String> {
    let comparison = Comparison::new(here, reference)?;
    let named = |sweep: &Sweep| {
        Printable(format!(
            "{} on {} ({})",
            sweep.storage.path, sweep.host.name, sweep.host.cpu
        ))
    };
    let mut text = format!(
        "here:      {}\nreference: {}\nF_c = {:.2} (how fast one core is, here over there)\n\n",
        named(here),
        named(reference),
        comparison.cpu,
    );
    text += "     size  F_s write   F_s read      F_s   U_b = F_s x F_c x E_1\n";
    for size in &comparison.sizes {
        let shown =
            |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        text += &format!(
            "{:>9} {:>10} {:>10} {:>8.2}   {}\n",
            size_label(size.file_bytes),
            shown(size.write),
            shown(size.read),
            size.storage(),
            bound(size, comparison.cpu, rates),
        );
    }
    Some(text + SOURCE)
}

/// The comparison of this site with a reference.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// The sizes that both sweeps have measured.
    pub(crate) sizes: Vec<Compared>,
    /// `F_c`: the speed of a core of this site divided by that of a core of the reference.
    pub(crate) cpu: f64,
}

/// The ratios of the results for one file size to those of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Compared {
    /// The size of each file, in bytes.
    pub(crate) file_bytes: u64,
    /// The ratio for writing, if both sweeps have measured it.
    pub(crate) write: Option<f64>,
    /// The ratio for reading, if both sweeps have measured it.
    pub(crate) read: Option<f64>,
}

impl Comparison {
    /// Compares the sweep `here` with the sweep of a reference site. Returns `None` if the sweeps have no size in
    /// common, or the speed of a core is unknown.
    pub(crate) fn new(here: &Sweep, reference: &Sweep) -> Option<Self> {
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
    /// Returns `F_s`: the smaller of the ratios for writing and reading.
    pub(crate) fn storage(&self) -> f64 {
        self.write
            .into_iter()
            .chain(self.read)
            .fold(f64::INFINITY, f64::min)
    }
}

fn compared(here: &Measured, there: &Measured) -> Option<Compared> {
    let ratio = |direction| {
        let here = here.moved(direction)?.bytes_per_second;
        Some(here / there.moved(direction)?.bytes_per_second)
    };
    let write = ratio(IoDirection::Write);
    let read = ratio(IoDirection::Read);
    let any = write.is_some() || read.is_some();
    any.then_some(Compared {
        file_bytes: here.file_bytes,
        write,
        read,
    })
}

const SOURCE: &str = "\
F_s is the lesser of writing and reading: a transfer does both. By the postulation of \"When to use rsync\"
(Chin Fang, R. \"Les\" A. Cottrell, Ezra Kissel); E_1 is the transfer rate that the reference has reached (--e1).
";

/// Formats the expected rate if the rate of the reference is known. Otherwise formats the factor by which to multiply
/// that rate.
fn bound(size: &Compared, cpu: f64, rates: &[ReferenceRate]) -> String {
    let of_this_size = rates
        .iter()
        .find(|rate| rate.file_bytes == Some(size.file_bytes));
    let known = of_this_size.or_else(|| rates.iter().find(|rate| rate.file_bytes.is_none()));
    let share = size.storage() * cpu;
    match known {
        Some(known) => {
            let rate = ByteCount(known.rate.bytes_per_second()).as_f64();
            ByteRate(share * rate).to_string()
        }
        None => format!("{share:.2} x E_1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::result::tests::of;

    /// The testbeds of the paper: storage that is 30 to 40 % slower than the reference, and processors with 2.6 and 3.2
    /// GHz.
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

    #[test]
    fn the_rate_of_a_size_goes_before_that_of_all() {
        let size = Compared {
            file_bytes: 1024,
            write: Some(0.65),
            read: Some(0.7),
        };
        let rates: Vec<ReferenceRate> = ["1Gbit", "1KiB=10Gbit"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(bound(&size, 0.8, &rates), "5.20 Gbit/s");
        assert_eq!(
            bound(
                &Compared {
                    file_bytes: 4096,
                    ..size
                },
                0.8,
                &rates
            ),
            "520 Mbit/s"
        );
        assert_eq!(bound(&size, 0.8, &[]), "0.52 x E_1");
    }

    #[test]
    fn rates_of_a_reference_are_read() {
        let read = |text: &str| {
            text.parse::<ReferenceRate>()
                .map(|at| (at.file_bytes, at.rate.bytes_per_second()))
        };
        assert_eq!(read("64KiB=8Mbit"), Ok((Some(65_536), 1_000_000)));
        assert_eq!(read("100MB"), Ok((None, 100_000_000)));
        assert!(read("x=1Gbit").is_err() && read("1KiB=").is_err());
    }
}
