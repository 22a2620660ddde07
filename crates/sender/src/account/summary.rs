//! The summary of a push: what it did, and what kept it from being faster.

use std::time::Duration;

use zmove_types::Counters;
use zmove_wire::{NotKept, PathAccount, SignedReceipt, TransferAccount};

use crate::account::bottleneck::Bottleneck;
use crate::account::limit::Limit;
use crate::tune::path::{Finding, PathReport};

/// The account of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The report counters.
    pub counters: Counters,
    /// What was to be kept of entries and is not, by kind and reason.
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

/// The settings that a push has found for the next one on the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// The number of lanes that suited the path.
    pub lanes: u16,
    /// Whether a congestion control that takes no notice of loss suited the path.
    pub loss_tolerant: bool,
}

/// What the path has carried at its best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let micros = u128::from(self.bytes_per_second) * self.round_trip.as_micros();
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

    /// The share of the time for which nothing was on its way, from 0 to 1.
    #[must_use]
    pub fn path_idle(&self) -> Option<f64> {
        Some(self.path.as_ref()?.idle_share(self.measured))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The account as it travels to a receiver that has dialled.
impl From<&Summary> for TransferAccount {
    fn from(summary: &Summary) -> Self {
        Self {
            counters: summary.counters.into(),
            not_kept: summary.not_kept.clone(),
            elapsed_us: micros(summary.elapsed),
            first_byte_us: summary.first_byte.map(micros),
            flush_us: micros(summary.flush),
            sender_cpu_us: micros(summary.sender_cpu),
            receiver_cpu_us: micros(summary.receiver_cpu),
            shares: summary.bottleneck.shares.to_vec(),
            limit: summary.bottleneck.limit as u8,
            path: summary.path.as_ref().map(path_account),
            is_preview: summary.is_preview,
            learnt: summary
                .learnt
                .map(|learnt| (learnt.lanes, learnt.loss_tolerant)),
            at_best: summary
                .at_best
                .map(|best| (best.bytes_per_second, micros(best.round_trip))),
        }
    }
}

/// The account of a sender that was dialled, as one that pushes has it. Nothing is said of times before it was asked.
impl From<TransferAccount> for Summary {
    fn from(account: TransferAccount) -> Self {
        let time = Duration::from_micros;
        let mut shares = [0; Limit::ALL.len()];
        shares
            .iter_mut()
            .zip(&account.shares)
            .for_each(|(share, told)| *share = (*told).min(100));
        let limit = Limit::ALL
            .get(usize::from(account.limit))
            .copied()
            .unwrap_or_default();
        Self {
            counters: account.counters.into(),
            not_kept: account.not_kept,
            elapsed: time(account.elapsed_us),
            measured: time(account.elapsed_us),
            first_byte: account.first_byte_us.map(time),
            flush: time(account.flush_us),
            sender_cpu: time(account.sender_cpu_us),
            receiver_cpu: time(account.receiver_cpu_us),
            bottleneck: Bottleneck {
                limit,
                percent: shares[limit as usize],
                shares,
            },
            path: account.path.map(path_report),
            is_preview: account.is_preview,
            learnt: account.learnt.map(|(lanes, loss_tolerant)| Learnt {
                lanes,
                loss_tolerant,
            }),
            at_best: account
                .at_best
                .map(|(bytes_per_second, round_trip)| AtBest {
                    bytes_per_second,
                    round_trip: time(round_trip),
                }),
            receipt: None,
        }
    }
}

fn path_account(path: &PathReport) -> PathAccount {
    // only the least, the middle and the most of them are told
    let lanes = &path.bytes_acked;
    let few = lanes.len() <= LANES_TOLD_MAX;
    let every = if few {
        1
    } else {
        lanes.len().div_ceil(LANES_TOLD_MAX)
    };
    PathAccount {
        bytes_sent: path.bytes_sent,
        bytes_retransmitted: path.bytes_retransmitted,
        segments_retransmitted: path.segments_retransmitted,
        busy_us: micros(path.busy),
        receive_window_us: micros(path.receive_window_limited),
        send_buffer_us: micros(path.send_buffer_limited),
        busy_longest_us: micros(path.busy_longest),
        round_trip_us: path.round_trip_min.map(micros),
        since_data_us: path.since_data_sent.map(micros),
        bytes_acked: lanes.iter().copied().step_by(every).collect(),
        by_quic: path.by_quic,
    }
}

/// The most lanes whose bytes are told, of all that there have been.
const LANES_TOLD_MAX: usize = 512;

fn path_report(path: PathAccount) -> PathReport {
    let time = Duration::from_micros;
    PathReport {
        bytes_sent: path.bytes_sent,
        bytes_retransmitted: path.bytes_retransmitted,
        segments_retransmitted: path.segments_retransmitted,
        busy: time(path.busy_us),
        receive_window_limited: time(path.receive_window_us),
        send_buffer_limited: time(path.send_buffer_us),
        busy_longest: time(path.busy_longest_us),
        round_trip_min: path.round_trip_us.map(time),
        since_data_sent: path.since_data_us.map(time),
        bytes_acked: path.bytes_acked,
        by_quic: path.by_quic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_has_travelled_says_the_same() {
        let second = Duration::from_secs(1);
        let path = PathReport {
            bytes_sent: 3,
            busy: second,
            bytes_acked: vec![1, 2],
            ..PathReport::default()
        };
        let bottleneck = Bottleneck {
            limit: Limit::Path,
            percent: 70,
            shares: [0, 0, 0, 0, 70, 0, 0, 30, 0],
        };
        let summary = Summary {
            counters: Counters {
                files: 1,
                skipped: 2,
                failed: 3,
                lanes: 4,
                ..Counters::default()
            },
            elapsed: second,
            measured: second,
            first_byte: Some(second / 2),
            bottleneck,
            path: Some(path),
            is_preview: true,
            learnt: Some(Learnt {
                lanes: 7,
                loss_tolerant: true,
            }),
            at_best: Some(AtBest {
                bytes_per_second: 8,
                round_trip: second,
            }),
            ..Summary::default()
        };
        assert_eq!(Summary::from(TransferAccount::from(&summary)), summary);
    }
}
