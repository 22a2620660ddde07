//! Figures as people read them.

use std::time::Duration;

use zmove_sender::{ProbeReport, Round};
use zmove_types::{ByteCount, ByteRate};

/// The round that carried most.
pub(super) fn best(report: &ProbeReport) -> Option<&Round> {
    let rate = |round: &Round| round.steady.bytes_per_second();
    report.rounds.iter().reduce(|best, round| if rate(round) > rate(best) { round } else { best })
}

/// What a round carried.
pub(super) fn rate(round: &Round) -> ByteRate {
    ByteRate(round.steady.bytes_per_second())
}

pub(super) fn milliseconds(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 { format!("{millis:.2} ms") } else { format!("{millis:.1} ms") }
}

/// CPU seconds for each GiB that came.
pub(super) fn cpu_per_gib(cpu: Duration, round: &Round) -> Option<f64> {
    let gib = ByteCount(round.steady.bytes).as_f64() / GIB;
    (gib > 0.0).then(|| cpu.as_secs_f64() / gib)
}

pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

const GIB: f64 = 1_073_741_824.0;
