//! The summary of a push: what it did, and what kept it from being faster.

use std::time::Duration;

use zmove_wire::NotKept;

use crate::account::bottleneck::Bottleneck;
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
