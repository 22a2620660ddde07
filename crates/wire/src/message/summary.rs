//! The summary of a transfer: what it did, and what kept it from being faster. A sender that was dialled says it at the
//! good end, so that who has asked for the files is told the same as one who pushes.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_types::{ByteCount, Counters, percent};

use super::{NotKept, SignedReceipt, counters::CounterList, list};
use crate::limits::{LANES_MAX, MISSED_MAX};

/// The account of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The report counters, which [`TransferAccount`] carries.
    #[serde(skip)]
    pub counters: Counters,
    /// What was to be kept of entries and is not, by kind and reason.
    #[serde(deserialize_with = "list::at_most::<MISSED_MAX, _, _>")]
    pub not_kept: Vec<NotKept>,
    /// The time from the start of the command to the receiver's last message.
    pub elapsed: Duration,
    /// The part of that time which the bottleneck and the path are about: since connections last came back.
    pub measured: Duration,
    /// The time from the start of the command to the first data on a lane.
    pub first_byte: Option<Duration>,
    /// The duration of the receiver's last flush.
    pub flush: Duration,
    /// CPU time of the sender's process.
    pub sender_cpu: Duration,
    /// CPU time of the receiver's process.
    pub receiver_cpu: Duration,
    /// What limited the rate.
    pub bottleneck: Bottleneck,
    /// The kernel's report on the path, where its TCP carries the lanes.
    pub path: Option<PathReport>,
    /// Whether only a preview was requested.
    pub is_preview: bool,
    /// The settings that suit the path, where the number of lanes was not fixed.
    pub learnt: Option<Learnt>,
    /// What the path has carried at its best; none within one host.
    pub at_best: Option<AtBest>,
    /// What the receiver has signed, where the transfer was opened by a grant.
    pub receipt: Option<Box<SignedReceipt>>,
}

/// The summary as it travels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferAccount {
    /// The report counters.
    pub counters: CounterList,
    /// All else.
    pub rest: Summary,
}

impl From<Summary> for TransferAccount {
    fn from(summary: Summary) -> Self {
        Self {
            counters: summary.counters.into(),
            rest: Summary {
                counters: Counters::default(),
                ..summary.in_short()
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
        // A share that a peer claims is shown to people: none is more than the whole.
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

/// The settings that a push has found for the next one on the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learnt {
    /// The number of lanes that suited the path.
    pub lanes: u16,
    /// Whether a congestion control that takes no notice of loss suited the path.
    pub loss_tolerant: bool,
}

/// What the path has carried at its best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtBest {
    /// Acknowledged on all lanes together, over the best round trip.
    pub bytes_per_second: u64,
    /// The shortest round trip.
    pub round_trip: Duration,
}

impl AtBest {
    /// What was acknowledged within a round trip.
    #[must_use]
    pub fn in_round_trip(&self) -> u64 {
        let micros = u128::from(self.bytes_per_second).saturating_mul(self.round_trip.as_micros());
        u64::try_from(micros / 1_000_000).unwrap_or(u64::MAX)
    }
}

impl Summary {
    /// Advice on the path, where that is the limit and the kernel knows why.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        let finding = self.path.as_ref()?.finding(self.bottleneck.limit);
        // No advice to do what has been done.
        let done = self.learnt.is_some_and(|learnt| learnt.loss_tolerant);
        finding.filter(|finding| !(done && matches!(finding, Finding::Loss(_))))
    }

    /// The same with three lanes at most: those that have carried the least, the middle and the most.
    fn in_short(mut self) -> Self {
        if let Some(path) = &mut self.path
            && let [least, .., most] = path.bytes_acked[..]
        {
            let middle = path.bytes_acked[path.bytes_acked.len() / 2];
            path.bytes_acked = vec![least, middle, most];
        }
        self
    }

    /// The share of the time for which nothing was on its way, from 0 to 1.
    #[must_use]
    pub fn path_idle(&self) -> Option<f64> {
        Some(self.path.as_ref()?.idle_share(self.measured))
    }
}

/// The limit of a push, and its share of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// The limit that applied for the longest time.
    pub limit: Limit,
    /// The share of that limit in the time, in percent.
    pub percent: u8,
    /// The share of each limit, in percent, in the order of [`Limit::ALL`].
    pub shares: [u8; Limit::ALL.len()],
}

/// A possible limit of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Nothing in particular: dialling, and waiting for replies.
    #[default]
    StartUp,
    /// Walking the source.
    Scan,
    /// Reading and hashing the source.
    SourceReads,
    /// Encrypting on the sender or sharing its cores.
    SenderCpu,
    /// The path, or the kernel's window on it.
    Path,
    /// The rate that the sender's user has set.
    OwnRate,
    /// The rate that the receiver allows the sender's key.
    AllowedRate,
    /// Decrypting and checking on the receiver.
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

/// The connections of all lanes together. A value that an old kernel does not report is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(deserialize_with = "list::at_most::<{ ACKED_MAX }, _, _>")]
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
        let others = self
            .receive_window_limited
            .saturating_add(self.send_buffer_limited);
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
    fn finding(&self, limit: Limit) -> Option<Finding> {
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

/// The maximum number of lanes of which the bytes are named.
const ACKED_MAX: usize = LANES_MAX as usize;

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

    /// A host may send any times and rates.
    #[test]
    fn the_longest_times_are_no_overflow() {
        let report = PathReport {
            receive_window_limited: Duration::MAX,
            send_buffer_limited: Duration::MAX,
            ..report(0, 0, 0)
        };
        assert!(report.congestion_share().abs() < f64::EPSILON);
        let at_best = AtBest {
            bytes_per_second: u64::MAX,
            round_trip: Duration::MAX,
        };
        assert_eq!(at_best.in_round_trip(), u64::MAX);
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
