//! Predicts the duration of a push from measurements. The module only computes and does no I/O.
//!
//! Within a size class, source reads, the network path and target writes overlap, so the slowest of the three
//! determines the time of the class. The classes overlap only partly, so their times are added, together with the start
//! time. Storage times come from the sweeps by file size ([`Ceiling`]). The path's time is computed from the rate of
//! the best round, the bytes of the files and an overhead per file. The start time is the time to the first byte, minus
//! two round trips for which a push does not wait.
//!
//! A value that was not measured does not limit the prediction and is shown as unknown. The prediction ignores files
//! that are already at the target, the CPU time of reading and storing, and other transfers.

use serde::Serialize;
use zmove_scan::Share;
use zmove_types::{ByteCount, SizeClass};

use crate::figures::class_key;
use crate::sweep::Ceiling;

/// The measured limits of a transfer from storage to storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferLimits<'a> {
    /// The read speed of the source's storage. If it is `None`, it does not limit the prediction.
    pub(super) source: Option<&'a Ceiling>,
    /// The rate of the path, in bytes per second.
    pub(super) path: f64,
    /// The speed at which the target's storage writes and flushes. If it is `None`, it does not limit the prediction.
    pub(super) target: Option<&'a Ceiling>,
    /// The time from the start to the arrival of the first byte, in seconds.
    pub(super) start: f64,
}

/// The part of a transfer that limits its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    Start,
    Source,
    Path,
    Target,
}

/// The prediction for one size class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ClassTime {
    pub(super) class: &'static str,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) source_seconds: Option<f64>,
    pub(super) path_seconds: f64,
    pub(super) target_seconds: Option<f64>,
    /// The time of the slowest of source, path and target, in seconds.
    pub(super) seconds: f64,
    pub(super) limited_by: Limit,
}

/// The prediction for a tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Prediction {
    pub(super) seconds: f64,
    pub(super) bytes_per_second: f64,
    pub(super) files_per_second: f64,
    pub(super) start_seconds: f64,
    /// The part of the transfer that takes most of the predicted time.
    pub(super) limited_by: Limit,
    pub(super) classes: Vec<ClassTime>,
}

/// Predicts the push of files. `sizes` contains the lower bound of each bucket of the histogram and the files in the
/// bucket. Returns `None` if there are no files.
pub(super) fn predict(sizes: &[(u64, Share)], way: &TransferLimits<'_>) -> Option<Prediction> {
    let classes = [SizeClass::Losf, SizeClass::Medium, SizeClass::Large];
    let classes: Vec<_> = classes
        .into_iter()
        .filter_map(|class| class_time(class, sizes, way))
        .collect();
    let seconds = way.start + classes.iter().map(|class| class.seconds).sum::<f64>();
    if classes.is_empty() {
        return None;
    }
    let of = |limit: &Limit| {
        let own = classes.iter().filter(|class| class.limited_by == *limit);
        let start = if *limit == Limit::Start {
            way.start
        } else {
            0.0
        };
        start + own.map(|class| class.seconds).sum::<f64>()
    };
    let limits = [Limit::Start, Limit::Source, Limit::Path, Limit::Target];
    let limited_by = limits
        .into_iter()
        .max_by(|one, other| of(one).total_cmp(&of(other)))?;
    let count = |of: fn(&ClassTime) -> u64| ByteCount(classes.iter().map(of).sum()).as_f64();
    Some(Prediction {
        seconds,
        bytes_per_second: count(|class| class.bytes) / seconds,
        files_per_second: count(|class| class.files) / seconds,
        start_seconds: way.start,
        limited_by,
        classes,
    })
}

fn class_time(
    class: SizeClass,
    sizes: &[(u64, Share)],
    way: &TransferLimits<'_>,
) -> Option<ClassTime> {
    let own = || {
        sizes
            .iter()
            .filter(|(start, _)| SizeClass::of(*start) == class)
            .map(|(_, share)| share)
    };
    let (files, bytes) = own().fold((0, 0), |(files, bytes), share| {
        (files + share.files, bytes + share.bytes)
    });
    if files == 0 {
        return None;
    }
    let storage = |ceiling: &Ceiling| {
        own()
            .map(|share| ceiling.seconds(share.files, share.bytes))
            .sum()
    };
    let source = way.source.map(storage);
    let target = way.target.map(storage);
    let path = ByteCount(bytes + files * ENTRY_BYTES).as_f64() / way.path.max(1.0);
    let stages: [(Limit, Option<f64>); 3] = [
        (Limit::Source, source),
        (Limit::Target, target),
        (Limit::Path, Some(path)),
    ];
    let stages = stages
        .into_iter()
        .filter_map(|(limit, seconds)| Some((limit, seconds?)));
    let (limited_by, seconds) = stages.max_by(|one, other| one.1.total_cmp(&other.1))?;
    Some(ClassTime {
        class: class_key(class),
        files,
        bytes,
        source_seconds: source,
        path_seconds: path,
        target_seconds: target,
        seconds,
        limited_by,
    })
}

/// Bytes sent for each file in addition to its contents: name, mode, time, length and hash.
const ENTRY_BYTES: u64 = 100;

impl Limit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Start => "the start-up",
            Self::Source => "source storage",
            Self::Path => "the path",
            Self::Target => "target storage",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(files: u64, bytes: u64) -> Share {
        Share { files, bytes }
    }

    /// Returns the ceiling of a storage with a constant number of files per second up to 1 MiB, and a constant number
    /// of bytes per second above.
    fn storage(files_per_second: f64) -> Ceiling {
        let size = |file_bytes: u64| {
            (
                file_bytes,
                files_per_second * ByteCount(file_bytes).as_f64(),
            )
        };
        Ceiling::of_rates([size(1 << 10), size(1 << 20)]).unwrap()
    }

    fn about(seconds: f64, expected: f64) {
        assert!(
            (seconds / expected - 1.0).abs() < 1e-9,
            "{seconds} for {expected}"
        );
    }

    #[test]
    fn each_class_takes_as_long_as_its_slowest_stage() {
        let (source, target) = (storage(20_000.0), storage(10_000.0));
        let way = TransferLimits {
            source: Some(&source),
            path: 1e9,
            target: Some(&target),
            start: 0.25,
        };
        let sizes = [
            (1 << 10, share(100_000, 100_000 << 10)),
            (1 << 30, share(10, 10_000_000_000)),
        ];
        let predicted = predict(&sizes, &way).unwrap();
        let [losf, large] = predicted.classes.as_slice() else {
            panic!("{predicted:?}")
        };
        assert_eq!((losf.class, losf.limited_by), ("losf", Limit::Target));
        about(losf.seconds, 10.0);
        about(losf.source_seconds.unwrap(), 5.0);
        about(losf.path_seconds, (100_000.0 * 1124.0) / 1e9);
        assert_eq!((large.class, large.limited_by), ("large", Limit::Path));
        about(large.seconds, (10_000_000_000.0 + 1_000.0) / 1e9);
        about(predicted.seconds, 0.25 + losf.seconds + large.seconds);
        about(
            predicted.bytes_per_second,
            (102_400_000.0 + 1e10) / predicted.seconds,
        );
        about(predicted.files_per_second, 100_010.0 / predicted.seconds);
        assert_eq!(predicted.limited_by, Limit::Path);
    }

    #[test]
    fn what_was_not_measured_is_no_limit() {
        let way = TransferLimits {
            source: None,
            path: 1e6,
            target: None,
            start: 0.1,
        };
        let predicted = predict(&[(1 << 20, share(1, 2_000_000))], &way).unwrap();
        about(predicted.seconds, 0.1 + 2.0001);
        let class = &predicted.classes[0];
        assert_eq!(
            (class.source_seconds, class.target_seconds, class.limited_by),
            (None, None, Limit::Path)
        );
    }

    #[test]
    fn few_bytes_are_limited_by_the_start() {
        let way = TransferLimits {
            source: None,
            path: 1e9,
            target: None,
            start: 0.3,
        };
        let predicted = predict(&[(0, share(1, 0)), (4, share(1, 5))], &way).unwrap();
        assert_eq!(
            (predicted.limited_by, predicted.classes[0].files),
            (Limit::Start, 2)
        );
    }

    #[test]
    fn nothing_takes_no_prediction_and_no_path_no_panic() {
        let way = TransferLimits {
            source: None,
            path: 0.0,
            target: None,
            start: 0.0,
        };
        assert_eq!(predict(&[], &way), None);
        assert!(
            predict(&[(1, share(1, 1))], &way)
                .unwrap()
                .seconds
                .is_finite()
        );
    }
}
