//! The results of a probe, and its figures as people read them.

use std::time::Duration;

use zmove_sender::{ProbeReport, Round};
use zmove_transport::Transport;
use zmove_types::{ByteCount, ByteRate};

use super::prediction::Prediction;
use super::storage::Storage;

/// All results of a probe.
pub(super) struct Findings {
    pub(super) host: String,
    pub(super) transport: Transport,
    pub(super) report: ProbeReport,
    pub(super) source: Option<Storage>,
    pub(super) target: Option<Storage>,
    /// The path of the tree, as it was typed.
    pub(super) tree: Option<String>,
    pub(super) prediction: Option<Prediction>,
    pub(super) advice: Vec<String>,
}

/// The round with the highest rate.
pub(super) fn best(report: &ProbeReport) -> Option<&Round> {
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
pub(super) fn rate(round: &Round) -> ByteRate {
    ByteRate(round.steady.bytes_per_second())
}

pub(super) fn milliseconds(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 {
        format!("{millis:.2} ms")
    } else {
        format!("{millis:.1} ms")
    }
}

/// The CPU seconds for each GiB that came.
pub(super) fn cpu_per_gib(cpu: Duration, round: &Round) -> Option<f64> {
    let gib = ByteCount(round.steady.bytes).as_f64() / GIB;
    (gib > 0.0).then(|| cpu.as_secs_f64() / gib)
}

const GIB: f64 = 1_073_741_824.0;
