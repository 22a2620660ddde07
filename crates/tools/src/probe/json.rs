//! The results of a probe as a JSON object. The name of each figure contains its unit.

use serde_json::{Value, json};
use zmove_sender::{PathReport, ProbeReport, Round};

use super::{ProbeResults, best, cpu_per_gib};

/// Returns the whole object.
pub(super) fn of(found: &ProbeResults) -> Value {
    let ProbeReport {
        round_trips,
        first_byte,
        lanes_max,
        rounds,
        ..
    } = &found.report;
    json!({
        "zmove": env!("CARGO_PKG_VERSION"),
        "host": found.host,
        "transport": found.transport,
        "round_trip_min_seconds": round_trips.min.as_secs_f64(),
        "round_trip_mean_seconds": round_trips.mean().as_secs_f64(),
        "round_trips": round_trips.count,
        "first_byte_seconds": first_byte.as_secs_f64(),
        "lanes_max": lanes_max,
        "rounds": rounds.iter().map(round).collect::<Vec<_>>(),
        "best_lanes": best(&found.report).map(|round| round.lanes),
        "source_storage": found.source,
        "target_storage": found.target,
        "tree": found.tree.as_ref().map(|tree| &tree.name),
        "prediction": found.prediction(),
        "advice": found.advice(),
    })
}

fn round(round: &Round) -> Value {
    let path = round.path.as_ref();
    json!({
        "lanes": round.lanes,
        "bits_per_second": round.steady.bytes_per_second() * 8.0,
        "bytes": round.steady.bytes,
        "seconds": round.steady.time.as_secs_f64(),
        "first_bits_per_second": round.ramp.bytes_per_second() * 8.0,
        "first_seconds": round.ramp.time.as_secs_f64(),
        "bytes_sent": path.map(|path| path.bytes_sent),
        "bytes_retransmitted": path.map(|path| path.bytes_retransmitted),
        "segments_retransmitted": path.map(|path| path.segments_retransmitted),
        "retransmitted_share": path.map(PathReport::retransmitted_share),
        "receive_window_limited_share": path.map(PathReport::receive_window_share),
        "send_buffer_limited_share": path.map(PathReport::send_buffer_share),
        "lane_round_trip_min_seconds": path.and_then(|path| path.round_trip_min).map(|time| time.as_secs_f64()),
        "lane_round_trip_smoothed_seconds": round.smoothed.map(|time| time.as_secs_f64()),
        "control_round_trip_min_seconds": round.round_trips.min.as_secs_f64(),
        "control_round_trip_mean_seconds": round.round_trips.mean().as_secs_f64(),
        "congestion": round.congestion,
        "sender_cpu_seconds_per_gib": cpu_per_gib(round.sender_cpu, round),
        "receiver_cpu_seconds_per_gib": cpu_per_gib(round.receiver_cpu, round),
    })
}
