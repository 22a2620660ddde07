//! What a push did, and what kept it from being faster.

use std::time::Duration;

use crate::account::bottleneck::Bottleneck;
use crate::tune::path::{Finding, PathReport};

/// The account of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files that are whole and verified at the target because of this push.
    pub files: u64,
    /// Bytes of the files counted in `files`.
    pub bytes: u64,
    /// Files that were equal at the target already.
    pub skipped: u64,
    /// Bytes of large files that had come in an earlier transfer and were not sent again.
    pub bytes_resumed: u64,
    /// Bytes of large files that another version at the target had as well, and that were not sent.
    pub bytes_matched: u64,
    /// Files whose holes are zeros at the target, all or some of them: the receiver is of an older release, or there
    /// were too many.
    pub holes_not_kept: u64,
    /// FIFOs, sockets and devices, which are not copied.
    pub specials: u64,
    /// Files and directories that failed.
    pub failed: u64,
    /// Of these, how many vanished while the source was walked.
    pub vanished: u64,
    /// Entries that were at the target alone and have been removed, or would be; of a tree that would be, only its
    /// top counts.
    pub removed: u64,
    /// Entries that are at the target alone and stay because as many have gone as may.
    pub spared: u64,
    /// Entries that are at the target alone and stay because the source changed while it was pushed.
    pub kept_by_change: u64,
    /// Items that arrived damaged and were sent again.
    pub resent: u64,
    /// Chunks that were sent again because their lane was slow.
    pub repeated: u64,
    /// How often connections were lost and came back.
    pub reconnects: u64,
    /// How many lanes there were, at most at once.
    pub lanes: usize,
    /// From the start of the command to the receiver's last word.
    pub elapsed: Duration,
    /// Of that, what the bottleneck and the path are about: the time since connections last came back.
    pub judged: Duration,
    /// From the start of the command to the first data on a lane.
    pub first_byte: Option<Duration>,
    /// How long the receiver's last flush took.
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
    /// What the kernel tells of the path, where its TCP carries the lanes.
    pub path: Option<PathReport>,
    /// What the push would do, if only a preview was asked for.
    pub preview: Option<Preview>,
    /// What suits the path, where the number of lanes was not fixed.
    pub learnt: Option<Learnt>,
    /// Entries that the selection left out; a directory counts once, whatever is in it.
    pub left_out: u64,
}

/// What a push would do; [`Summary::files`] and [`Summary::bytes`] are then what would be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Entries that would be made.
    pub added: u64,
    /// Entries that would be changed or replaced.
    pub changed: u64,
}

/// What a push has found out for the next one on the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// The number of lanes that suited the path.
    pub lanes: u16,
    /// Whether a congestion control that takes no notice of loss was.
    pub loss_tolerant: bool,
}

impl Summary {
    /// What would help the path, where that is the limit and the kernel knows why.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        let finding = self.path.as_ref()?.finding(self.bottleneck.limit);
        // what it advises has been done
        let done = self.learnt.is_some_and(|learnt| learnt.loss_tolerant);
        finding.filter(|finding| !(done && matches!(finding, Finding::Loss(_))))
    }

    /// For how much of the time nothing was on its way, from 0 to 1.
    #[must_use]
    pub fn path_idle(&self) -> Option<f64> {
        Some(self.path.as_ref()?.idle_share(self.judged))
    }
}
