//! The minimum time to move files, according to a sweep. For a size between two measured sizes, the time per file is
//! interpolated linearly on logarithmic scales.
//!
//! **Invariant:** the sizes are in ascending order, and all times are positive.

use zmove_types::ByteCount;

use crate::sweep::result::{IoDirection, Measured, Sweep};

/// The speed limit of storage in one direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ceiling {
    /// The logarithms of the measured sizes and of the time per file, in bytes and seconds.
    times: Vec<(f64, f64)>,
}

impl Ceiling {
    /// Returns the limit that a sweep has measured in one direction. Returns `None` if nothing was measured in this
    /// direction.
    pub(crate) fn of(sweep: &Sweep, direction: IoDirection) -> Option<Self> {
        let rate =
            |size: &Measured| Some((size.file_bytes, size.moved(direction)?.bytes_per_second));
        Self::of_rates(sweep.sizes.iter().filter_map(rate))
    }

    /// Creates a limit from sizes in ascending order and their rates in bytes per second. Invalid sizes and rates are
    /// ignored. Returns `None` if no valid ones remain.
    pub(crate) fn of_rates(rates: impl IntoIterator<Item = (u64, f64)>) -> Option<Self> {
        let mut times: Vec<(f64, f64)> = Vec::new();
        for (file_bytes, rate) in rates {
            let size = ByteCount(file_bytes).as_f64();
            let grows = times.last().is_none_or(|last| size.ln() > last.0);
            if file_bytes > 0 && rate > 0.0 && rate.is_finite() && grows {
                times.push((size.ln(), (size / rate).ln()));
            }
        }
        (!times.is_empty()).then_some(Self { times })
    }

    /// Returns the minimum time for `files` files with a total of `bytes` bytes, if the files are of similar size.
    pub(crate) fn seconds(&self, files: u64, bytes: u64) -> f64 {
        if files == 0 {
            return 0.0;
        }
        let files = ByteCount(files).as_f64();
        files * self.file_seconds(ByteCount(bytes).as_f64() / files)
    }

    /// Returns the time for one file, in seconds. For sizes below the smallest measured size, the time is constant. For
    /// sizes above the largest, it is proportional to the number of bytes.
    fn file_seconds(&self, bytes: f64) -> f64 {
        let size = bytes.max(1.0).ln();
        let above = self.times.partition_point(|(edge, _)| *edge < size);
        let time = match (
            above.checked_sub(1).map(|below| self.times[below]),
            self.times.get(above),
        ) {
            (Some((lower, short)), Some((upper, long))) => {
                let share = (size - lower) / (upper - lower);
                short + share * (long - short)
            }
            (None, Some((_, shortest))) => *shortest,
            (Some((largest, longest)), None) => longest + size - largest,
            (None, None) => unreachable!("there is a size"),
        };
        time.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::result::tests::of;

    fn about(seconds: f64, expected: f64) {
        assert!(
            (seconds / expected - 1.0).abs() < 1e-9,
            "{seconds} for {expected}"
        );
    }

    #[test]
    fn measured_sizes_take_what_was_measured() {
        let sweep = of(&[(1 << 10, 1024e3), (1 << 20, 1048.576e6), (1 << 30, 2e9)]);
        let (reads, writes) = [IoDirection::Read, IoDirection::Write]
            .map(|way| Ceiling::of(&sweep, way))
            .into();
        let (reads, writes) = (reads.unwrap(), writes.unwrap());
        about(reads.seconds(5000, 5000 << 10), 5.0);
        about(reads.seconds(2, 2 << 20), 0.002);
        about(writes.seconds(2, 2 << 20), 0.004);
        about(reads.seconds(3, 3 << 30), 3.0 * 1_073_741_824.0 / 2e9);
    }

    #[test]
    fn others_take_what_their_neighbours_say() {
        let reads = Ceiling::of(
            &of(&[(1 << 10, 1024e3), (1 << 20, 1048.576e6)]),
            IoDirection::Read,
        )
        .unwrap();
        // Files of both sizes take a millisecond each. So do files of sizes in between, and smaller files.
        about(reads.seconds(1000, 1000 << 14), 1.0);
        about(reads.seconds(1000, 0), 1.0);
        about(reads.seconds(1, 1 << 30), 1.024);
        assert_eq!(reads.seconds(0, 0), 0.0);
    }

    #[test]
    fn rates_that_cannot_be_are_passed_over() {
        let rates = [
            (0, 1e6),
            (1024, 1024e3),
            (1024, 1.0),
            (512, 1.0),
            (4096, 0.0),
            (8192, f64::INFINITY),
        ];
        about(Ceiling::of_rates(rates).unwrap().seconds(1, 1 << 20), 1.024);
        assert_eq!(Ceiling::of_rates([(1024, -1.0)]), None);
    }

    #[test]
    fn nothing_measured_is_no_ceiling() {
        let mut sweep = of(&[(1024, 1.0)]);
        sweep.sizes[0].read = None;
        assert_eq!(Ceiling::of(&sweep, IoDirection::Read), None);
        assert!(Ceiling::of(&sweep, IoDirection::Write).is_some());
    }
}
