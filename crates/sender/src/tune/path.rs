//! The path as reported by the kernel or QUIC, summed over the connections of all lanes.
//!
//! The session reads the lanes' reports every 25 ms to count acknowledged bytes and every 250 ms for the tuner. It also
//! reads them once a second for the progress line, and at the end for the summary.

use zmove_transport::{PathProbe, TcpInfo, Transport};
use zmove_wire::PathReport;

/// Reads the state of all lanes' connections. Returns `None` if no connection reports its state, for example if both
/// sides run in one process.
pub(crate) fn gather<'a>(probes: impl Iterator<Item = &'a PathProbe>) -> Option<PathReport> {
    let mut by_quic = false;
    let asked = probes.inspect(|probe| by_quic |= probe.transport() == Some(Transport::Quic));
    let infos: Vec<_> = asked.filter_map(PathProbe::read).collect();
    (!infos.is_empty()).then(|| PathReport {
        by_quic,
        ..sum(&infos)
    })
}

/// Returns the sum of these connections.
pub(super) fn sum(infos: &[TcpInfo]) -> PathReport {
    let mut report = PathReport::default();
    for info in infos {
        let busy = info.busy.unwrap_or_default();
        report.bytes_sent += info.bytes_sent.unwrap_or(0);
        report.bytes_retransmitted += info.bytes_retransmitted.unwrap_or(0);
        report.segments_retransmitted += u64::from(info.segments_retransmitted.unwrap_or(0));
        report.busy += busy;
        report.busy_longest = report.busy_longest.max(busy);
        report.receive_window_limited += info.receive_window_limited.unwrap_or_default();
        report.send_buffer_limited += info.send_buffer_limited.unwrap_or_default();
        report.bytes_acked.push(info.bytes_acked.unwrap_or(0));
    }
    report.bytes_acked.sort_unstable();
    report.round_trip_min = infos
        .iter()
        .filter_map(|info| info.round_trip_min.or(info.round_trip))
        .min();
    report.since_data_sent = infos.iter().filter_map(|info| info.since_data_sent).min();
    report
}

/// Returns a report with the increases of counts and times from `before` to `report`. All other fields are taken from
/// `report`.
pub(crate) fn since(report: &PathReport, before: &PathReport) -> PathReport {
    PathReport {
        busy: report.busy.saturating_sub(before.busy),
        receive_window_limited: report
            .receive_window_limited
            .saturating_sub(before.receive_window_limited),
        send_buffer_limited: report
            .send_buffer_limited
            .saturating_sub(before.send_buffer_limited),
        segments_retransmitted: report
            .segments_retransmitted
            .saturating_sub(before.segments_retransmitted),
        ..report.clone()
    }
}

/// Returns the number of bytes that the kernel has accepted and the peer has not acknowledged. These bytes may be
/// unsent or in transit.
pub(crate) fn unacked(info: &TcpInfo) -> u64 {
    on_the_way(info) + u64::from(info.bytes_unsent.unwrap_or(0))
}

/// Returns the number of bytes that have been sent and not acknowledged.
pub(crate) fn on_the_way(info: &TcpInfo) -> u64 {
    let sent = info
        .bytes_sent
        .unwrap_or(0)
        .saturating_sub(info.bytes_retransmitted.unwrap_or(0));
    sent.saturating_sub(info.bytes_acked.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lanes_add_up() {
        let lane = |bytes, busy, idle| TcpInfo {
            bytes_acked: Some(bytes),
            busy: Some(Duration::from_secs(busy)),
            since_data_sent: Some(Duration::from_secs(idle)),
            ..TcpInfo::default()
        };
        let report = sum(&[lane(7, 3, 5), lane(5, 1, 2)]);
        assert_eq!(report.bytes_acked, [5, 7]);
        assert_eq!(
            (report.busy.as_secs(), report.busy_longest.as_secs()),
            (4, 3)
        );
        assert_eq!(report.since_data_sent, Some(Duration::from_secs(2)));
        assert!((report.idle_share(Duration::from_secs(12)) - 0.75).abs() < 1e-9);
        assert!((report.congestion_share() - 1.0).abs() < 1e-9);
    }
}
