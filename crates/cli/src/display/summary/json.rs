//! The summary as JSON. The report counters are taken from their table.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;
use zmove_engine::TransportUse;
use zmove_sender::{Bottleneck, Limit, PathReport, Summary};
use zmove_types::{ByteRate, CounterScope};
use zmove_wire::NotKept;

use crate::args::PushArgs;
use crate::display::summary::{SessionCount, is_same, proofs};
use crate::value::cause::snake;

/// Returns the summary as an event. Unknown fields are null.
pub(super) fn as_json(
    summary: &Summary,
    args: &PushArgs,
    transport_use: Option<TransportUse>,
    sessions: SessionCount,
) -> serde_json::Value {
    let transport = transport_use.map(|transport_use| transport_use.transport);
    let resumed = transport_use
        .map(|transport_use| transport_use.resumption)
        .filter(|resumption| resumption.bytes > 0);
    let counters = &summary.counters;
    let is_preview = summary.is_preview;
    // A preview sends no data, so it has no rate and no limit.
    let sent = (!is_preview).then_some(());
    let proofs = if is_preview || counters.files == 0 {
        &[]
    } else {
        proofs(args)
    };
    let mut said = json!({
        "event": "summary",
        "dry_run": is_preview,
        "verify": args.verify.then(|| is_same(summary)),
        "not_kept": not_kept_as_json(&summary.not_kept),
        "verified": proofs,
        "cipher": transport.map(|_| cipher_key(args)),
        "transport": transport.map(|transport| transport.to_string()),
        "resumed_window_bytes": resumed.map(|resumption| resumption.bytes),
        "resumed_window_refuted": resumed.map(|resumption| resumption.is_refuted),
        "seconds": summary.elapsed.as_secs_f64(),
        "bytes_per_second": sent.map(|()| ByteRate::new(counters.bytes, summary.elapsed).0),
        "first_byte_seconds": summary.first_byte.map(|time| time.as_secs_f64()),
        "flush_seconds": summary.flush.as_secs_f64(),
        "sender_cpu_seconds": summary.sender_cpu.as_secs_f64(),
        "receiver_cpu_seconds": summary.receiver_cpu.as_secs_f64(),
        "limited_by": sent.map(|()| limit_key(summary.bottleneck.limit)),
        "limited_percent": sent.map(|()| summary.bottleneck.percent),
        "shares_percent": sent.map(|()| shares(&summary.bottleneck)),
        "path": summary.path.as_ref().map(|path| path_as_json(path, summary)),
        "advice": sent.and_then(|()| summary.finding()).map(|finding| finding.to_string()),
    });
    for (row, value) in counters.rows() {
        let is_counted = match row.scope {
            CounterScope::Any => true,
            CounterScope::Preview => is_preview,
            CounterScope::OneSession => sessions == SessionCount::One,
        };
        said[row.name] = json!(is_counted.then_some(value));
    }
    if sessions == SessionCount::Several {
        OF_ONE_SESSION
            .into_iter()
            .for_each(|field| said[field] = json!(null));
        said["cipher"] = json!(cipher_key(args));
    }
    said
}

/// Fields that are measured in one session. They are null if the transfer had several sessions. Counters are not listed
/// here.
const OF_ONE_SESSION: [&str; 6] = [
    "flush_seconds",
    "sender_cpu_seconds",
    "receiver_cpu_seconds",
    "limited_by",
    "limited_percent",
    "shares_percent",
];

/// Returns the metadata that could not be preserved.
pub(crate) fn not_kept_as_json(counts: &[NotKept]) -> Vec<serde_json::Value> {
    let lack = |lack: &NotKept| json!({ "what": lack.kind.to_string(), "why": lack.why.to_string(), "entries": lack.entries });
    counts.iter().map(lack).collect()
}

/// Returns the share of the elapsed time that each limit accounts for.
fn shares(bottleneck: &Bottleneck) -> serde_json::Value {
    let keys = Limit::ALL.into_iter().map(limit_key);
    keys.zip(bottleneck.shares.map(serde_json::Value::from))
        .collect()
}

/// Returns the kernel's statistics about the connections of the lanes. Shares are numbers from 0 to 1.
fn path_as_json(path: &PathReport, summary: &Summary) -> serde_json::Value {
    let started = if summary.counters.reconnects > 0 {
        Duration::ZERO
    } else {
        summary.first_byte.unwrap_or_default()
    };
    let sending = summary.measured.saturating_sub(started);
    let goodput = |bytes: Option<&u64>| bytes.map(|bytes| ByteRate::new(*bytes, sending).0);
    let lanes = &path.bytes_acked;
    json!({
        "round_trip_min_seconds": path.round_trip_min.map(|time| time.as_secs_f64()),
        "bytes_sent": path.bytes_sent,
        "bytes_retransmitted": path.bytes_retransmitted,
        "segments_retransmitted": path.segments_retransmitted,
        "retransmitted_share": path.retransmitted_share(),
        "busy_lane_seconds": path.busy.as_secs_f64(),
        "idle_share": path.idle_share(summary.measured),
        "receive_window_limited_share": path.receive_window_share(),
        "send_buffer_limited_share": path.send_buffer_share(),
        "congestion_limited_share": path.congestion_share(),
        "lane_bytes_per_second_min": goodput(lanes.first()),
        "lane_bytes_per_second_median": goodput(lanes.get(lanes.len() / 2)),
        "lane_bytes_per_second_max": goodput(lanes.last()),
    })
}

/// Returns the cipher in the form in which it is typed on the command line.
pub(super) fn cipher_key(args: &PushArgs) -> String {
    args.cipher
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns the name of a limit in JSON. For example, `SourceReads` becomes `source_reads`.
fn limit_key(limit: Limit) -> String {
    snake(&format!("{limit:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use zmove_types::Counters;

    use super::*;
    use crate::display::summary::tests::args;

    /// Returns the JSON of a transfer with these counters.
    fn said(counters: Counters, is_preview: bool, sessions: SessionCount) -> Value {
        let summary = Summary {
            counters,
            is_preview,
            ..Summary::default()
        };
        as_json(&summary, &args(), None, sessions)
    }

    #[test]
    fn json_has_each_counter_by_its_name() {
        for row in Counters::TABLE {
            let mut counters = Counters::default();
            counters.set(row.id, 7);
            let said = [
                said(counters, false, SessionCount::One),
                said(counters, true, SessionCount::One),
                said(counters, false, SessionCount::Several),
            ]
            .map(|said| said[row.name].clone());
            let expected = match row.scope {
                CounterScope::Any => [json!(7), json!(7), json!(7)],
                CounterScope::Preview => [json!(null), json!(7), json!(null)],
                CounterScope::OneSession => [json!(7), json!(7), json!(null)],
            };
            assert_eq!(said, expected, "{}", row.name);
        }
    }

    #[test]
    fn a_preview_has_no_rate_and_no_limit() {
        let of_rates = [
            "bytes_per_second",
            "limited_by",
            "limited_percent",
            "shares_percent",
            "advice",
        ];
        let counters = Counters {
            files: 1,
            bytes: 1 << 30,
            ..Counters::default()
        };
        let preview = said(counters, true, SessionCount::One);
        assert_eq!(of_rates.map(|field| &preview[field]), [&Value::Null; 5]);
        let pushed = said(counters, false, SessionCount::One);
        assert!(pushed["bytes_per_second"].is_f64() && pushed["limited_by"].is_string());
        assert!(pushed["limited_percent"].is_u64() && pushed["shares_percent"].is_object());
    }

    /// The schema has the same counters as the table.
    #[test]
    fn the_schema_describes_each_counter() {
        let schema = include_str!("../../../../../docs/schema/events.json");
        let schema: Value = serde_json::from_str(schema).unwrap();
        let summary = &schema["$defs"]["summary"];
        for row in Counters::TABLE {
            let kind = match row.scope {
                CounterScope::Any => json!("integer"),
                CounterScope::Preview | CounterScope::OneSession => json!(["integer", "null"]),
            };
            let expected = json!({ "description": row.meaning, "type": kind, "minimum": 0 });
            assert_eq!(
                summary["properties"][row.name], expected,
                "docs/schema/events.json must have this of {}: {expected:#}",
                row.name
            );
            let required = summary["required"].as_array().unwrap();
            assert!(required.contains(&json!(row.name)), "{}", row.name);
        }
    }
}
