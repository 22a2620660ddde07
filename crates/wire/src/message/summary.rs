//! The summary of a transfer: its results and its bottleneck. A dialed sender sends the summary after a successful end,
//! so that the output of a pull is the same as that of a push.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_types::{ByteCount, Counters, percent};

use super::{NotKept, SignedReceipt, counters::CounterList, list};
use crate::limits::{LANES_MAX, MISSED_MAX};

/// The summary of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The report counters. They are sent in [`TransferAccount`].
    #[serde(skip)]
    pub counters: Counters,
    /// Metadata that was not preserved, by kind and reason.
    #[serde(deserialize_with = "list::at_most::<MISSED_MAX, _, _>")]
    pub not_kept: Vec<NotKept>,
    /// Time from the start of the command to the receiver's last message.
    pub elapsed: Duration,
    /// The time since the last reconnect, to which `bottleneck` and `path` refer.
    pub measured: Duration,
    /// Time from the start of the command to the first data on a lane.
    pub first_byte: Option<Duration>,
    /// Duration of the receiver's last flush.
    pub flush: Duration,
    /// CPU time of the sender's process.
    pub sender_cpu: Duration,
    /// CPU time of the receiver's process.
    pub receiver_cpu: Duration,
    /// The stage or setting that limited the rate.
    pub bottleneck: Bottleneck,
    /// Statistics of the lanes' connections, if available.
    pub path: Option<PathReport>,
    /// Whether only a preview was requested.
    pub is_preview: bool,
    /// The best settings that were found for the path, if the user did not fix the number of lanes.
    pub learnt: Option<LearnedSettings>,
    /// The best rate and round-trip time of the path. `None` if both sides are on the same host.
    pub at_best: Option<BestRate>,
    /// The receipt that the receiver has signed, if the transfer was opened by a grant.
    pub receipt: Option<Box<SignedReceipt>>,
}

/// The summary in encoded form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferAccount {
    /// The report counters.
    pub counters: CounterList,
    /// All other fields.
    pub rest: Summary,
}

impl From<Summary> for TransferAccount {
    fn from(summary: Summary) -> Self {
        Self {
            counters: summary.counters.into(),
            rest: Summary {
                counters: Counters::default(),
                ..summary.shortened()
            },
        }
    }
}

impl From<TransferAccount> for Summary {
    fn from(account: TransferAccount) -> Self {
        let mut summary = Self {
            counters: account.counters.into(),
            ..account.rest
        };
        // These shares are claims of a peer that are shown to users, so each is limited to 100 %.
        let bottleneck = &mut summary.bottleneck;
        for share in [&mut bottleneck.percent]
            .into_iter()
            .chain(&mut bottleneck.shares)
        {
            *share = (*share).min(100);
        }
        summary
    }
}

/// Settings found by a push, for the next push on the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedSettings {
    /// The number of lanes that was best for the path.
    pub lanes: u16,
    /// Whether a congestion control that ignores packet loss was best for the path.
    pub loss_tolerant: bool,
}

/// The best rate and round-trip time of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestRate {
    /// Maximum rate at which data was acknowledged on all lanes together, in bytes per second.
    pub bytes_per_second: u64,
    /// Shortest round-trip time.
    pub round_trip: Duration,
}

impl BestRate {
    /// Returns the number of bytes acknowledged in one round trip.
    #[must_use]
    pub fn bytes_per_round_trip(&self) -> u64 {
        let micros = u128::from(self.bytes_per_second).saturating_mul(self.round_trip.as_micros());
        u64::try_from(micros / 1_000_000).unwrap_or(u64::MAX)
    }
}

impl Summary {
    /// Returns advice on the path, if the path limited the rate and the kernel's statistics show the reason.
    #[must_use]
    pub fn finding(&self) -> Option<PathAdvice> {
        let finding = self.path.as_ref()?.finding(self.bottleneck.limit);
        // Do not advise changing the congestion control if the path already uses one that ignores packet loss.
        let done = self.learnt.is_some_and(|learnt| learnt.loss_tolerant);
        finding.filter(|finding| !(done && matches!(finding, PathAdvice::Loss(_))))
    }

    /// Keeps the values of only three lanes: the lanes with the fewest, the median and the most acknowledged bytes.
    fn shortened(mut self) -> Self {
        if let Some(path) = &mut self.path
            && let [least, .., most] = path.bytes_acked[..]
        {
            let middle = path.bytes_acked[path.bytes_acked.len() / 2];
            path.bytes_acked = vec![least, middle, most];
        }
        self
    }

    /// Returns the share of the time during which no data was in transit, from 0 to 1.
    #[must_use]
    pub fn path_idle(&self) -> Option<f64> {
        Some(self.path.as_ref()?.idle_share(self.measured))
    }
}

/// The bottleneck of a push, with the share of the time for which each limit applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// The limit that applied for the longest time.
    pub limit: Limit,
    /// The share of the time for which this limit applied, in percent.
    pub percent: u8,
    /// The share of the time for each limit, in percent. The elements are in the order of [`Limit::ALL`].
    pub shares: [u8; Limit::ALL.len()],
}

/// A possible limit on the rate of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Start-up and waiting for replies, while no other limit applied.
    #[default]
    StartUp,
    /// Walking the source.
    Scan,
    /// Reading and hashing the source.
    SourceReads,
    /// Encryption at the sender, or contention for its cores.
    SenderCpu,
    /// The path, or the kernel's window for it.
    Path,
    /// The rate limit set by the sender's user.
    OwnRate,
    /// The rate limit that the receiver sets for the sender's key.
    AllowedRate,
    /// Decrypting and verifying at the receiver.
    ReceiverCpu,
    /// Creating, writing and flushing at the target.
    TargetWrites,
}

impl Limit {
    /// All limits, in the order of the pipeline.
    pub const ALL: [Self; 9] = [
        Self::StartUp,
        Self::Scan,
        Self::SourceReads,
        Self::SenderCpu,
        Self::Path,
        Self::OwnRate,
        Self::AllowedRate,
        Self::ReceiverCpu,
        Self::TargetWrites,
    ];
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartUp => "start-up and waiting for replies",
            Self::Scan => "walking the source",
            Self::SourceReads => "source reads",
            Self::SenderCpu => "the sender's CPU",
            Self::Path => "the network path",
            Self::OwnRate => "the rate set by --limit",
            Self::AllowedRate => "the rate that the receiver allows this key",
            Self::ReceiverCpu => "the receiver's CPU",
            Self::TargetWrites => "target writes",
        })
    }
}

/// Statistics of the connections of all lanes together. A value that an old kernel does not report is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// Bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Segments retransmitted.
    pub segments_retransmitted: u64,
    /// Time for which lanes had data in transit or queued for sending, summed over the lanes. Includes the times of the
    /// next two fields.
    pub busy: Duration,
    /// The part of this time for which the receiver's window was full.
    pub receive_window_limited: Duration,
    /// The part of this time for which the sender's socket buffer was too small.
    pub send_buffer_limited: Duration,
    /// Busy time of the busiest lane.
    pub busy_longest: Duration,
    /// Shortest round-trip time of any lane.
    pub round_trip_min: Option<Duration>,
    /// Time since any lane last sent data.
    pub since_data_sent: Option<Duration>,
    /// Bytes acknowledged on each lane, in ascending order.
    #[serde(deserialize_with = "list::at_most::<{ ACKED_MAX }, _, _>")]
    pub bytes_acked: Vec<u64>,
    /// Whether the lanes used QUIC, whose windows no kernel setting controls.
    pub by_quic: bool,
}

/// A property of the path that reduces the rate, and that a user can improve.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PathAdvice {
    /// The receiver's windows are too small for the path. Contains the share of the lanes' busy time, in percent, for
    /// which the windows were full.
    ReceiveWindow(u8),
    /// The sender's socket buffers are too small for the path. Contains the share of the lanes' busy time, in percent,
    /// for which they were too small.
    SendBuffer(u8),
    /// Data had to be retransmitted. Contains the share of the data sent, from 0 to 1.
    Loss(f64),
    /// Data had to be retransmitted over QUIC, whose congestion control tolerates the loss of single packets. Contains
    /// the share of the data sent, from 0 to 1.
    DatagramLoss(f64),
}

impl PathReport {
    /// Returns the share of the lanes' busy time for which the receiver's window was full, from 0 to 1.
    #[must_use]
    pub fn receive_window_share(&self) -> f64 {
        share(self.receive_window_limited, self.busy)
    }

    /// Returns the share of the lanes' busy time for which the sender's socket buffer was too small, from 0 to 1.
    #[must_use]
    pub fn send_buffer_share(&self) -> f64 {
        share(self.send_buffer_limited, self.busy)
    }

    /// Returns the share of the lanes' busy time for which the path itself was the limit, because of its congestion
    /// window or rate.
    #[must_use]
    pub fn congestion_share(&self) -> f64 {
        let others = self
            .receive_window_limited
            .saturating_add(self.send_buffer_limited);
        share(self.busy.saturating_sub(others), self.busy)
    }

    /// Returns the share of the data sent that was retransmitted.
    #[must_use]
    pub fn retransmitted_share(&self) -> f64 {
        ByteCount(self.bytes_retransmitted).as_f64() / ByteCount(self.bytes_sent.max(1)).as_f64()
    }

    /// Returns the share of `elapsed` for which no data was in transit even on the busiest lane.
    #[must_use]
    pub fn idle_share(&self, elapsed: Duration) -> f64 {
        1.0 - share(self.busy_longest, elapsed).min(1.0)
    }

    /// Returns advice on the path if `limit` is the path. With any other limit, full windows are only a symptom of that
    /// limit.
    fn finding(&self, limit: Limit) -> Option<PathAdvice> {
        if limit != Limit::Path {
            return None;
        }
        let window = self.receive_window_share();
        let buffer = self.send_buffer_share();
        if window >= REPORTED_SHARE_MIN && self.by_quic {
            // With QUIC, a full window means that the receiver processes data slowly. No setting can improve that.
            None
        } else if window >= REPORTED_SHARE_MIN && window >= buffer {
            Some(PathAdvice::ReceiveWindow(percent(window)))
        } else if buffer >= REPORTED_SHARE_MIN {
            Some(PathAdvice::SendBuffer(percent(buffer)))
        } else {
            let loss = self.retransmitted_share();
            let finding = if self.by_quic {
                PathAdvice::DatagramLoss(loss)
            } else {
                PathAdvice::Loss(loss)
            };
            (loss >= REPORTED_LOSS_MIN).then_some(finding)
        }
    }
}

/// Minimum share of the lanes' busy time for which advice is given.
const REPORTED_SHARE_MIN: f64 = 0.2;
/// Minimum share of retransmitted data for which advice is given: one segment in a thousand, which reduces the rate of
/// a long path.
const REPORTED_LOSS_MIN: f64 = 0.001;

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() {
        0.0
    } else {
        part.as_secs_f64() / whole.as_secs_f64()
    }
}

/// Maximum number of lanes whose bytes are listed.
const ACKED_MAX: usize = LANES_MAX as usize;

impl fmt::Display for PathAdvice {
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
                "retransmitted {:.1} %: packets are lost on the path, or at the target because net.core.rmem_max is \
                 too small",
                share * 100.0
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode_message, encode_message};

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
    fn no_share_that_a_peer_claims_is_more_than_the_whole() {
        let bottleneck = Bottleneck {
            percent: 255,
            shares: [101; Limit::ALL.len()],
            ..Bottleneck::default()
        };
        let rest = Summary {
            bottleneck,
            ..Summary::default()
        };
        let taken = Summary::from(TransferAccount {
            rest,
            ..TransferAccount::default()
        });
        assert_eq!(taken.bottleneck.percent, 100);
        assert_eq!(taken.bottleneck.shares, [100; Limit::ALL.len()]);
    }

    /// A peer may report arbitrary times and rates.
    #[test]
    fn the_longest_times_are_no_overflow() {
        let report = PathReport {
            receive_window_limited: Duration::MAX,
            send_buffer_limited: Duration::MAX,
            ..report(0, 0, 0)
        };
        assert!(report.congestion_share().abs() < f64::EPSILON);
        let at_best = BestRate {
            bytes_per_second: u64::MAX,
            round_trip: Duration::MAX,
        };
        assert_eq!(at_best.bytes_per_round_trip(), u64::MAX);
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
        assert!(said.contains("net.core.rmem_max"), "{said}");
        // No kernel setting enlarges a QUIC window.
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
    fn a_summary_that_has_travelled_says_the_same_of_three_lanes() {
        let second = Duration::from_secs(1);
        let path = |bytes_acked: &[u64]| {
            Some(PathReport {
                bytes_sent: 3,
                busy: second,
                bytes_acked: bytes_acked.to_vec(),
                ..PathReport::default()
            })
        };
        let summary = Summary {
            counters: Counters {
                files: 1,
                skipped: 2,
                ..Counters::default()
            },
            elapsed: second,
            first_byte: Some(second / 2),
            bottleneck: Bottleneck {
                limit: Limit::Path,
                percent: 70,
                shares: [0, 0, 0, 0, 70, 0, 0, 30, 0],
            },
            path: path(&[1, 2, 3, 4, 5]),
            is_preview: true,
            ..Summary::default()
        };
        let account = TransferAccount::from(summary.clone());
        let decoded = decode_message::<TransferAccount>(&encode_message(&account)[4..]);
        let expected = Summary {
            path: path(&[1, 3, 5]),
            ..summary
        };
        assert_eq!(decoded.map(Summary::from), Ok(expected));
        for few in [&[][..], &[7], &[7, 9]] {
            let summary = Summary {
                path: path(few),
                ..Summary::default()
            };
            let account = TransferAccount::from(summary);
            let lanes = Summary::from(account).path.unwrap().bytes_acked;
            let at = |part: usize| few.get(part).copied();
            assert_eq!(
                [0, lanes.len() / 2].map(|part| lanes.get(part).copied()),
                [at(0), at(few.len() / 2)]
            );
            assert_eq!(lanes.last(), few.last());
        }
    }
}
