//! The results of a probe, and what follows from them, as text and as JSON.
//!
//! **Invariant:** every figure is measured on the thing that it describes; anything not measured is reported as
//! unknown.

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
use prediction::{Prediction, Way, predict};
pub use storage::StorageRates;

/// All results of a probe.
#[derive(Debug)]
pub struct ProbeResults {
    /// The receiver, as it is shown.
    pub host: String,
    /// The name of the transport.
    pub transport: String,
    /// The measurements of the path.
    pub report: ProbeReport,
    /// The largest number of lanes that was asked for.
    pub lanes_asked: u16,
    /// The storage of this side, if it is known.
    pub source: Option<StorageRates>,
    /// The storage of the receiver, if it was measured.
    pub target: Option<StorageRates>,
    /// The tree whose push is predicted.
    pub tree: Option<ProbedTree>,
}

/// A tree whose push is predicted.
#[derive(Debug)]
pub struct ProbedTree {
    /// The path of the tree, as it is shown.
    pub name: String,
    /// The least size of each bucket of a histogram, and its files.
    pub sizes: Vec<(u64, Share)>,
}

impl ProbeResults {
    /// The results as text, whose tables fit a terminal of 80 columns.
    #[must_use]
    pub fn text(&self) -> String {
        table::of(self)
    }

    /// The results as one JSON object, with the unit of each figure in its name.
    #[must_use]
    pub fn json(&self) -> Value {
        json::of(self)
    }

    fn advice(&self) -> Vec<String> {
        advice::of(&self.report, self.lanes_asked, cores())
    }

    /// The prediction for the tree; `None` if it has no files, or nothing is known of the path.
    fn prediction(&self) -> Option<Prediction> {
        let ceiling =
            |storage: &Option<StorageRates>, direction| storage.as_ref()?.ceiling(direction);
        let reads = ceiling(&self.source, IoDirection::Read);
        let writes = ceiling(&self.target, IoDirection::Write);
        // A push begins to send without waiting for the receiver's greeting and permission.
        let ahead = self.report.round_trips.min * 2;
        let way = Way {
            source: reads.as_ref(),
            path: best(&self.report)?.steady.bytes_per_second(),
            target: writes.as_ref(),
            start: self.report.first_byte.saturating_sub(ahead).as_secs_f64(),
        };
        predict(&self.tree.as_ref()?.sizes, &way)
    }
}

/// The round with the highest rate.
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

/// The rate of a round.
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

/// The CPU seconds for each GiB that came.
fn cpu_per_gib(cpu: Duration, round: &Round) -> Option<f64> {
    let gib = ByteCount(round.steady.bytes).as_f64() / GIB;
    (gib > 0.0).then(|| cpu.as_secs_f64() / gib)
}

const GIB: f64 = 1_073_741_824.0;
