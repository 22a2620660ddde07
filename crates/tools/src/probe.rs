//! The results of a probe and the advice based on them, as text and as JSON.
//!
//! **Invariant:** each figure was measured on the path or storage that it describes. A figure that was not measured is
//! reported as unknown.

mod advice;
mod json;
mod prediction;
mod storage;
mod table;

use std::time::Duration;

use serde_json::Value;
use zmove_disk::cores;
use zmove_scan::Share;
use zmove_sender::{ProbeReport, Round};
use zmove_types::{ByteCount, ByteRate};

use crate::sweep::IoDirection;
use prediction::{Prediction, TransferLimits, predict};
pub use storage::StorageRates;

/// The results of a probe: the path, the storage of both sides, and the tree to predict.
#[derive(Debug)]
pub struct ProbeResults {
    /// The display name of the receiver.
    pub host: String,
    /// The name of the transport.
    pub transport: String,
    /// The measurements of the network path.
    pub report: ProbeReport,
    /// The largest number of lanes that the user requested.
    pub lanes_asked: u16,
    /// The storage of the sender, if known.
    pub source: Option<StorageRates>,
    /// The storage of the receiver, if measured.
    pub target: Option<StorageRates>,
    /// The tree whose push is predicted, if any.
    pub tree: Option<ProbedTree>,
}

/// The tree whose push is predicted.
#[derive(Debug)]
pub struct ProbedTree {
    /// The display path of the tree.
    pub name: String,
    /// The lower bound of each bucket of the histogram, and the files in the bucket.
    pub sizes: Vec<(u64, Share)>,
}

impl ProbeResults {
    /// Returns the results as text. Its tables fit into 80 columns.
    #[must_use]
    pub fn text(&self) -> String {
        table::of(self)
    }

    /// Returns the results as a JSON object. The name of each figure contains its unit.
    #[must_use]
    pub fn json(&self) -> Value {
        json::of(self)
    }

    fn advice(&self) -> Vec<String> {
        advice::of(&self.report, self.lanes_asked, cores())
    }

    /// Returns the prediction for the tree. Returns `None` if there is no tree, the tree has no files, or the path was
    /// not measured.
    fn prediction(&self) -> Option<Prediction> {
        let ceiling =
            |storage: &Option<StorageRates>, direction| storage.as_ref()?.ceiling(direction);
        let reads = ceiling(&self.source, IoDirection::Read);
        let writes = ceiling(&self.target, IoDirection::Write);
        // A push starts to send before the receiver has answered its greeting and permitted the push, which saves two
        // round trips.
        let ahead = self.report.round_trips.min * 2;
        let way = TransferLimits {
            source: reads.as_ref(),
            path: best(&self.report)?.steady.bytes_per_second(),
            target: writes.as_ref(),
            start: self.report.first_byte.saturating_sub(ahead).as_secs_f64(),
        };
        predict(&self.tree.as_ref()?.sizes, &way)
    }
}

/// Returns the round with the highest rate.
fn best(report: &ProbeReport) -> Option<&Round> {
    let rate = |round: &Round| round.steady.bytes_per_second();
    report.rounds.iter().reduce(|best, round| {
        if rate(round) > rate(best) {
            round
        } else {
            best
        }
    })
}

/// Returns the rate that was measured in a round.
fn rate(round: &Round) -> ByteRate {
    ByteRate(round.steady.bytes_per_second())
}

fn milliseconds(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 {
        format!("{millis:.2} ms")
    } else {
        format!("{millis:.1} ms")
    }
}

/// Returns the CPU time per GiB that was received, in seconds.
fn cpu_per_gib(cpu: Duration, round: &Round) -> Option<f64> {
    let gib = ByteCount(round.steady.bytes).as_f64() / GIB;
    (gib > 0.0).then(|| cpu.as_secs_f64() / gib)
}

const GIB: f64 = 1_073_741_824.0;
