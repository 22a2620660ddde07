//! Advice based on a histogram: the size class that takes the most time, and the minimum time that the storage needs to
//! read the tree.

use serde::Serialize;
use zmove_scan::{Histogram, Share};
use zmove_types::{ByteCount, SizeClass};

use crate::figures::{bytes_per_second, duration, percent, share};
use crate::sweep::{Ceiling, IoDirection, Sweep};

/// The minimum time to read a tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadTime {
    seconds: f64,
    files_per_second: f64,
    bytes_per_second: f64,
    /// The fraction of the time that small files take.
    losf_share: f64,
    /// The date of the sweep on which the estimate is based.
    sweep: String,
}

impl ReadTime {
    /// Estimates the minimum time from a sweep of the storage. Returns `None` if there is nothing to read.
    #[must_use]
    pub fn of(histogram: &Histogram, sweep: &Sweep) -> Option<Self> {
        let ceiling = Ceiling::of(sweep, IoDirection::Read)?;
        let time = |(start, share): (u64, Share)| {
            (
                SizeClass::of(start),
                ceiling.seconds(share.files, share.bytes),
            )
        };
        let times: Vec<_> = histogram.buckets().map(time).collect();
        let seconds: f64 = times.iter().map(|(_, seconds)| seconds).sum();
        let losf = times
            .iter()
            .filter(|(class, _)| *class == SizeClass::Losf)
            .map(|(_, seconds)| seconds);
        (seconds > 0.0).then(|| Self {
            seconds,
            files_per_second: ByteCount(histogram.files.files).as_f64() / seconds,
            bytes_per_second: ByteCount(histogram.files.bytes).as_f64() / seconds,
            losf_share: losf.sum::<f64>() / seconds,
            sweep: sweep.day(),
        })
    }
}

/// Returns the advice that is printed below the table. `name` is the path of the tree as the user typed it.
#[must_use]
pub fn advice(histogram: &Histogram, expected: Option<&ReadTime>, name: &str) -> String {
    let Histogram { files, losf, .. } = histogram;
    if files.files == 0 {
        return String::new();
    }
    let count = share(losf.files, files.files);
    let size = share(losf.bytes, files.bytes);
    let losf_time = expected.map(|expected| expected.losf_share);
    let decides = match (losf_time, size) {
        (Some(share), _) | (None, share) if share >= 0.5 => {
            "their number decides: files per second count, at both ends"
        }
        (None, _) if count >= 0.9 => "they are few bytes, but may take most of the time",
        _ => "the larger files decide: bytes per second count",
    };
    let mut text = format!(
        "LOSF is {} of the files and {} of the bytes: {decides}\n",
        percent(count),
        percent(size)
    );
    text.push_str(&match expected {
        Some(at) => format!(
            "reading it takes {} at least, at {:.0} files/s and {}, LOSF {} of it (sweep of {})\n",
            duration(at.seconds),
            at.files_per_second,
            bytes_per_second(at.bytes_per_second),
            percent(at.losf_share),
            at.sweep,
        ),
        None => format!("'zmove sweep {name}' measures what this storage gives for it\n"),
    });
    text
}
