//! The summary of a push: what it did, and what kept it from being faster.

use std::time::Duration;

use zmove_wire::{NotKept, PathAccount, SignedReceipt, TransferAccount};

use crate::account::bottleneck::Bottleneck;
use crate::account::limit::Limit;
use crate::tune::path::{Finding, PathReport};

/// The account of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files that are whole and verified at the target because of this push.
    pub files: u64,
    /// Bytes of the files counted in `files`.
    pub bytes: u64,
    /// The files among `files` that are a further name of another: a hard link, for which no data was sent.
    pub linked: u64,
    /// Files that were equal at the target already.
    pub skipped: u64,
    /// Bytes of large files that had come in an earlier transfer and were not sent again.
    pub bytes_resumed: u64,
    /// Bytes of large files that another version at the target had as well, and that were not sent.
    pub bytes_matched: u64,
    /// FIFOs, sockets and devices, which are not copied.
    pub specials: u64,
    /// What was to be kept of entries and is not, by kind and reason.
    pub not_kept: Vec<NotKept>,
    /// Files and directories that failed.
    pub failed: u64,
    /// The number of failed entries that vanished while the source was walked.
    pub vanished: u64,
    /// Entries that were at the target alone and have been removed, or would be; of a tree that would be removed, only
    /// its top counts.
    pub removed: u64,
    /// Entries that are at the target alone and stay because as many have been removed as may be.
    pub spared: u64,
    /// Entries that are at the target alone and stay because the source changed while it was pushed.
    pub kept_by_change: u64,
    /// Items that arrived damaged and were sent again.
    pub resent: u64,
    /// Chunks that were sent again because their lane was slow.
    pub repeated: u64,
    /// The number of times that connections were lost and came back.
    pub reconnects: u64,
    /// The most lanes that there were at once.
    pub lanes: usize,
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
    /// Names that the manifest cannot hold.
    pub manifest_left_out: u64,
    /// Files that were at the target and were not read, so that the manifest does not have them.
    pub manifest_unread: u64,
    /// Files whose time differs at the target, because the target's file system cannot store the source's
    /// time.
    pub times_beyond_range: u64,
    /// What limited the rate.
    pub bottleneck: Bottleneck,
    /// The kernel's report on the path, where its TCP carries the lanes.
    pub path: Option<PathReport>,
    /// What the push would do, if only a preview was asked for.
    pub preview: Option<Preview>,
    /// The settings that suit the path, where the number of lanes was not fixed.
    pub learnt: Option<Learnt>,
    /// What the path has carried at its best; none within one host.
    pub at_best: Option<AtBest>,
    /// Entries that the selection left out; a directory counts once, whatever is in it.
    pub left_out: u64,
    /// What the receiver has signed, where the transfer was opened by a grant.
    pub receipt: Option<Box<SignedReceipt>>,
}

/// What a push would do; [`Summary::files`] and [`Summary::bytes`] then count what would be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Entries that would be made.
    pub added: u64,
    /// Entries that would be changed or replaced.
    pub changed: u64,
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
            files: summary.files,
            bytes: summary.bytes,
            linked: summary.linked,
            skipped: summary.skipped,
            bytes_resumed: summary.bytes_resumed,
            bytes_matched: summary.bytes_matched,
            specials: summary.specials,
            not_kept: summary.not_kept.clone(),
            failed: summary.failed,
            vanished: summary.vanished,
            removed: summary.removed,
            spared: summary.spared,
            kept_by_change: summary.kept_by_change,
            resent: summary.resent,
            repeated: summary.repeated,
            lanes: summary.lanes as u64,
            elapsed_us: micros(summary.elapsed),
            first_byte_us: summary.first_byte.map(micros),
            flush_us: micros(summary.flush),
            sender_cpu_us: micros(summary.sender_cpu),
            receiver_cpu_us: micros(summary.receiver_cpu),
            times_beyond_range: summary.times_beyond_range,
            shares: summary.bottleneck.shares.to_vec(),
            limit: summary.bottleneck.limit as u8,
            path: summary.path.as_ref().map(path_account),
            preview: summary
                .preview
                .map(|preview| (preview.added, preview.changed)),
            learnt: summary
                .learnt
                .map(|learnt| (learnt.lanes, learnt.loss_tolerant)),
            at_best: summary
                .at_best
                .map(|best| (best.bytes_per_second, micros(best.round_trip))),
            left_out: summary.left_out,
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
            files: account.files,
            bytes: account.bytes,
            linked: account.linked,
            skipped: account.skipped,
            bytes_resumed: account.bytes_resumed,
            bytes_matched: account.bytes_matched,
            specials: account.specials,
            not_kept: account.not_kept,
            failed: account.failed,
            vanished: account.vanished,
            removed: account.removed,
            spared: account.spared,
            kept_by_change: account.kept_by_change,
            resent: account.resent,
            repeated: account.repeated,
            reconnects: 0,
            lanes: usize::try_from(account.lanes).unwrap_or(usize::MAX),
            elapsed: time(account.elapsed_us),
            measured: time(account.elapsed_us),
            first_byte: account.first_byte_us.map(time),
            flush: time(account.flush_us),
            sender_cpu: time(account.sender_cpu_us),
            receiver_cpu: time(account.receiver_cpu_us),
            manifest_left_out: 0,
            manifest_unread: 0,
            times_beyond_range: account.times_beyond_range,
            bottleneck: Bottleneck {
                limit,
                percent: shares[limit as usize],
                shares,
            },
            path: account.path.map(path_report),
            preview: account
                .preview
                .map(|(added, changed)| Preview { added, changed }),
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
            left_out: account.left_out,
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
            files: 1,
            skipped: 2,
            failed: 3,
            lanes: 4,
            elapsed: second,
            measured: second,
            first_byte: Some(second / 2),
            bottleneck,
            path: Some(path),
            preview: Some(Preview {
                added: 5,
                changed: 6,
            }),
            learnt: Some(Learnt {
                lanes: 7,
                loss_tolerant: true,
            }),
            at_best: Some(AtBest {
                bytes_per_second: 8,
                round_trip: second,
            }),
            left_out: 9,
            ..Summary::default()
        };
        assert_eq!(Summary::from(TransferAccount::from(&summary)), summary);
    }
}
