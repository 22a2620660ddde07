//! The path as the kernel, or QUIC, reports it: the connections of all lanes, summed; and advice where the path is the
//! limit.
//!
//! Each lane over TCP is asked once a second for the progress line, and at the end for the summary. Advice is
//! given only where the path is the limit, since a slow target fills windows too.

use std::fmt;
use std::time::Duration;

use zmove_transport::{PathProbe, TcpInfo, Transport};
use zmove_types::ByteCount;

use crate::account::limit::{Limit, percent};

/// The connections of all lanes together. A value that an old kernel does not report is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// Bytes put on the wire, those sent again included.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_retransmitted: u64,
    /// Segments sent again.
    pub segments_retransmitted: u64,
    /// The time for which lanes had data on the wire or waiting for it, summed over the lanes; the next two are part of
    /// it.
    pub busy: Duration,
    /// The part of this time for which the receiver's window was full.
    pub receive_window_limited: Duration,
    /// The part of this time for which the sender's socket buffer was too small.
    pub send_buffer_limited: Duration,
    /// The busy time of the busiest lane.
    pub busy_longest: Duration,
    /// The shortest round trip of any lane.
    pub round_trip_min: Option<Duration>,
    /// The time since any lane last put data on the wire.
    pub since_data_sent: Option<Duration>,
    /// Bytes acknowledged on each lane, in ascending order.
    pub bytes_acked: Vec<u64>,
    /// Whether QUIC carried the lanes, whose windows are no kernel setting.
    pub by_quic: bool,
}

/// A property of the path that costs time, with advice.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// The receiver's windows are too small for the path: the percentage of the path's time for which they were full.
    ReceiveWindow(u8),
    /// The sender's socket buffers are too small for the path: the percentage of the path's time.
    SendBuffer(u8),
    /// Data had to be sent again: its share of all that was sent.
    Loss(f64),
    /// Data had to be sent again over QUIC, whose congestion control bears the loss of single packets.
    DatagramLoss(f64),
}

impl PathReport {
    /// Reads all lanes' connections; `None` when there are none, as within one process.
    pub(crate) fn gather<'a>(probes: impl Iterator<Item = &'a PathProbe>) -> Option<Self> {
        let mut by_quic = false;
        let asked = probes.inspect(|probe| by_quic |= probe.transport() == Some(Transport::Quic));
        let infos: Vec<_> = asked.filter_map(PathProbe::read).collect();
        (!infos.is_empty()).then(|| Self {
            by_quic,
            ..Self::sum(&infos)
        })
    }

    pub(super) fn sum(infos: &[TcpInfo]) -> Self {
        let mut report = Self::default();
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

    /// The counts and times added after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            receive_window_limited: self
                .receive_window_limited
                .saturating_sub(before.receive_window_limited),
            send_buffer_limited: self
                .send_buffer_limited
                .saturating_sub(before.send_buffer_limited),
            segments_retransmitted: self
                .segments_retransmitted
                .saturating_sub(before.segments_retransmitted),
            ..self.clone()
        }
    }

    /// The share of the lanes' busy time for which the receiver's window was full, from 0 to 1.
    #[must_use]
    pub fn receive_window_share(&self) -> f64 {
        share(self.receive_window_limited, self.busy)
    }

    /// The share of the lanes' busy time for which the sender's socket buffer was too small, from 0 to 1.
    #[must_use]
    pub fn send_buffer_share(&self) -> f64 {
        share(self.send_buffer_limited, self.busy)
    }

    /// The share of the lanes' busy time for which the path itself, by its congestion window and its rate, set the
    /// pace.
    #[must_use]
    pub fn congestion_share(&self) -> f64 {
        let others = self.receive_window_limited + self.send_buffer_limited;
        share(self.busy.saturating_sub(others), self.busy)
    }

    /// The share of what was sent that was sent again.
    #[must_use]
    pub fn retransmitted_share(&self) -> f64 {
        ByteCount(self.bytes_retransmitted).as_f64() / ByteCount(self.bytes_sent.max(1)).as_f64()
    }

    /// The share of `elapsed` for which not even the busiest lane had anything on its way.
    #[must_use]
    pub fn idle_share(&self, elapsed: Duration) -> f64 {
        1.0 - share(self.busy_longest, elapsed).min(1.0)
    }

    /// Advice on the path when `limit` was the limit: where that is something else, full windows and waits are only its
    /// echo.
    pub(crate) fn finding(&self, limit: Limit) -> Option<Finding> {
        if limit != Limit::Path {
            return None;
        }
        let window = self.receive_window_share();
        let buffer = self.send_buffer_share();
        if window >= WORTH_SAYING && self.by_quic {
            // The receiver is slow to take what has arrived: there is nothing to set.
            None
        } else if window >= WORTH_SAYING && window >= buffer {
            Some(Finding::ReceiveWindow(percent(window)))
        } else if buffer >= WORTH_SAYING {
            Some(Finding::SendBuffer(percent(buffer)))
        } else {
            let loss = self.retransmitted_share();
            let finding = if self.by_quic {
                Finding::DatagramLoss(loss)
            } else {
                Finding::Loss(loss)
            };
            (loss >= LOSS_WORTH_SAYING).then_some(finding)
        }
    }
}

/// The least share of the path's time that is worth advice.
const WORTH_SAYING: f64 = 0.2;
/// The least loss that a long path feels: one segment of a thousand.
const LOSS_WORTH_SAYING: f64 = 0.001;

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() {
        0.0
    } else {
        part.as_secs_f64() / whole.as_secs_f64()
    }
}

/// Bytes that the kernel has taken and that are not acknowledged, whether still unsent or on the way.
pub(crate) fn unacked(info: &TcpInfo) -> u64 {
    on_the_way(info) + u64::from(info.bytes_unsent.unwrap_or(0))
}

/// Bytes that have been sent and not acknowledged.
pub(crate) fn on_the_way(info: &TcpInfo) -> u64 {
    let sent = info
        .bytes_sent
        .unwrap_or(0)
        .saturating_sub(info.bytes_retransmitted.unwrap_or(0));
    sent.saturating_sub(info.bytes_acked.unwrap_or(0))
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReceiveWindow(percent) => write!(
                f,
                "receive window limited {percent} % of the path's time: raise net.ipv4.tcp_rmem at the target"
            ),
            Self::SendBuffer(percent) => write!(
                f,
                "send buffer limited {percent} % of the path's time: raise net.ipv4.tcp_wmem at the source"
            ),
            Self::Loss(share) => write!(
                f,
                "retransmitted {:.1} %: the path loses packets; more --streams or --congestion bbr may help",
                share * 100.0
            ),
            Self::DatagramLoss(share) => write!(
                f,
                "retransmitted {:.1} %: packets are lost on the path, or at the target for want of net.core.rmem_max",
                share * 100.0
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(window: u64, buffer: u64, retransmitted: u64) -> PathReport {
        PathReport {
            busy: Duration::from_secs(100),
            receive_window_limited: Duration::from_secs(window),
            send_buffer_limited: Duration::from_secs(buffer),
            bytes_sent: 100_000,
            bytes_retransmitted: retransmitted,
            ..PathReport::default()
        }
    }

    #[test]
    fn each_finding_has_its_remedy() {
        let cases = [
            (
                report(40, 10, 300),
                Some("receive window limited 40 % of the path's time: raise net.ipv4.tcp_rmem"),
            ),
            (
                report(10, 50, 300),
                Some("send buffer limited 50 % of the path's time: raise net.ipv4.tcp_wmem"),
            ),
            (
                report(10, 10, 300),
                Some("retransmitted 0.3 %: the path loses packets"),
            ),
            (report(10, 10, 10), None),
            (PathReport::default(), None),
        ];
        for (report, expected) in cases {
            let said = report
                .finding(Limit::Path)
                .map(|finding| finding.to_string());
            match (&said, expected) {
                (Some(said), Some(expected)) => assert!(said.starts_with(expected), "{said}"),
                _ => assert_eq!(said.as_deref(), expected),
            }
            assert_eq!(report.finding(Limit::TargetWrites), None);
        }
        let by_quic = PathReport {
            by_quic: true,
            ..report(0, 0, 300)
        };
        let said = by_quic.finding(Limit::Path).unwrap().to_string();
        assert!(said.ends_with("net.core.rmem_max"), "{said}");
        // No kernel setting opens a window of QUIC.
        assert_eq!(
            PathReport {
                by_quic: true,
                ..report(40, 10, 0)
            }
            .finding(Limit::Path),
            None
        );
    }

    #[test]
    fn lanes_add_up() {
        let lane = |bytes, busy, idle| TcpInfo {
            bytes_acked: Some(bytes),
            busy: Some(Duration::from_secs(busy)),
            since_data_sent: Some(Duration::from_secs(idle)),
            ..TcpInfo::default()
        };
        let report = PathReport::sum(&[lane(7, 3, 5), lane(5, 1, 2)]);
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
