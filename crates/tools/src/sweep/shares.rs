//! Compares the rates of a push with the limits of its storage, which earlier sweeps have measured.
//!
//! **Invariant:** the comparison is advice. If there is no sweep, there is no comparison, and nothing fails.

use std::time::Duration;

use serde::Serialize;
use zmove_types::Lock;
use zmove_wire::FileTotal;

use crate::sweep::ceiling::Ceiling;
use crate::sweep::result::{IoDirection, Sweep};

/// Files and bytes that a push has moved, by size.
#[derive(Debug, Default)]
pub struct MovedSizes(Lock<SizeCounts>);

#[derive(Clone, Debug, Default)]
struct SizeCounts {
    /// Files and bytes that were sent in batches, indexed by the mean file size of the batch as a power of two.
    small: Vec<FileTotal>,
    /// Files that were sent in groups, and their bytes.
    large: FileTotal,
}

impl MovedSizes {
    /// Adds one report of the receiver: a batch of whole files, a group of a large file, or the end of a large file.
    pub fn add(&self, files: u64, bytes: u64) {
        let mut counts = self.0.lock();
        let total = match bytes.checked_div(files) {
            Some(mean) if bytes > 0 || files > 1 => {
                let power = mean.checked_ilog2().unwrap_or(0) as usize;
                if counts.small.len() <= power {
                    counts.small.resize(power + 1, FileTotal::default());
                }
                &mut counts.small[power]
            }
            _ => &mut counts.large,
        };
        total.add(FileTotal { files, bytes });
    }

    /// Returns the total of all files and bytes.
    #[must_use]
    pub fn total(&self) -> FileTotal {
        let SizeCounts { small, large } = &*self.0.lock();
        small.iter().fold(*large, |mut sum, total| {
            sum.add(*total);
            sum
        })
    }

    /// Returns the minimum time to move these files, in seconds.
    fn seconds(&self, ceiling: &Ceiling) -> f64 {
        let SizeCounts { small, mut large } = self.0.lock().clone();
        if large.bytes > 0 {
            large.files = large.files.max(1);
        }
        let totals = small.iter().chain([&large]);
        totals
            .map(|total| ceiling.seconds(total.files, total.bytes))
            .sum()
    }
}

/// The rates of a push as fractions of the speed of its storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    reads: Option<Share>,
    writes: Option<Share>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Share {
    share: f64,
    /// The UTC date of the sweep with which the push is compared.
    sweep: String,
}

/// Minimum duration of a push for a comparison.
const TIME_MIN: Duration = Duration::from_secs(1);

impl Shares {
    /// Compares a push from `source` to `target` with a sweep of each storage.
    #[must_use]
    pub fn of(
        moved: &MovedSizes,
        took: Duration,
        source: Option<&Sweep>,
        target: Option<&Sweep>,
    ) -> Self {
        // A shorter push consists mostly of its start and end, and says little about the storage.
        if took < TIME_MIN {
            return Self::default();
        }
        let share = |sweep: &Sweep, direction| {
            let seconds = moved.seconds(&Ceiling::of(sweep, direction)?);
            let share = seconds / took.as_secs_f64().max(1e-9);
            (seconds > 0.0).then(|| Share {
                share,
                sweep: sweep.day(),
            })
        };
        Self {
            reads: source.and_then(|sweep| share(sweep, IoDirection::Read)),
            writes: target.and_then(|sweep| share(sweep, IoDirection::Write)),
        }
    }

    /// Returns a line for the summary, or an empty string.
    #[must_use]
    pub fn line(&self) -> String {
        let told = |what, share: &Option<Share>, whose| {
            let Share { share, sweep } = share.as_ref()?;
            Some(format!(
                "{what}: {:.0} % of the measured rate of {whose} storage (sweep of {sweep})",
                share * 100.0
            ))
        };
        let told = [
            told("reads", &self.reads, "this"),
            told("writes", &self.writes, "the target's"),
        ];
        let told: Vec<_> = told.into_iter().flatten().collect();
        if told.is_empty() {
            String::new()
        } else {
            told.join("; ") + "\n"
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a sweep of storage on which each file takes a millisecond up to 1 MiB, and each byte takes a constant
    /// time above.
    fn sweep() -> Sweep {
        let size = |file_bytes: u64| {
            let (rate, class) = (file_bytes * 1000, "losf");
            let moved = json!({ "files": 1, "bytes": file_bytes, "seconds": 0.001, "bytes_per_second": rate,
                "files_per_second": 1000.0, "way": "buffered" });
            json!({ "file_bytes": file_bytes, "class": class, "files_planned": 1, "write": moved, "read": moved })
        };
        let sweep = json!({ "format": 1, "zmove": "0", "unix_seconds": 1_795_132_800,
            "storage": { "path": "/", "kind": "xfs", "source": "x", "id": "0" },
            "host": { "name": "x", "cpu": "x", "cores": 1, "core_operations_per_second": 1.0 },
            "threads": 1, "budget_bytes": 1, "time_seconds": 1.0, "seconds": 1.0, "complete": true,
            "sizes": [size(1 << 10), size(1 << 20)] });
        Sweep::from_json(&sweep.to_string()).unwrap()
    }

    #[test]
    fn a_share_is_the_least_time_over_the_real_one() {
        let moved = MovedSizes::default();
        moved.add(400, 400 << 12);
        moved.add(500, 0);
        (0..25).for_each(|_| moved.add(0, 4 << 20));
        moved.add(1, 0);
        let sweep = sweep();
        let shares = Shares::of(&moved, Duration::from_secs(2), Some(&sweep), None);
        assert_eq!(
            shares.line(),
            "reads: 50 % of the measured rate of this storage (sweep of 2026-11-20)\n"
        );
        let said = json!(shares);
        assert_eq!(
            (&said["reads"]["sweep"], &said["writes"]),
            (&json!("2026-11-20"), &Value::Null)
        );
        let both = Shares::of(&moved, Duration::from_secs(4), Some(&sweep), Some(&sweep));
        assert!(both.line().ends_with(
            "; writes: 25 % of the measured rate of the target's storage (sweep of 2026-11-20)\n"
        ));
    }

    #[test]
    fn without_a_sweep_or_anything_moved_there_is_nothing_to_say() {
        let moved = MovedSizes::default();
        assert_eq!(
            Shares::of(&moved, Duration::from_secs(2), Some(&sweep()), None).line(),
            ""
        );
        moved.add(1, 5);
        assert_eq!(
            Shares::of(&moved, Duration::from_secs(2), None, None).line(),
            ""
        );
    }
}
