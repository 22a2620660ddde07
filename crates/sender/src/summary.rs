//! What a push did, and what kept it from being faster.

use std::fmt;
use std::time::Duration;

use zmove_types::StageTimes;
use zmove_wire::{Finished, StageReport};

/// The account of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files that are whole and verified at the target because of this push.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were equal at the target already.
    pub skipped: u64,
    /// FIFOs, sockets and devices, which are not copied.
    pub specials: u64,
    /// Files and directories that failed.
    pub failed: u64,
    /// Of these, how many vanished while the source was walked.
    pub vanished: u64,
    /// Items that arrived damaged and were sent again.
    pub resent: u64,
    /// How many lanes carried data.
    pub lanes: usize,
    /// From the start of the command to the receiver's last word.
    pub elapsed: Duration,
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
    /// What limited the rate.
    pub verdict: Verdict,
}

/// The stage that everything else waited for, and for how much of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Which stage.
    pub limit: Limit,
    /// The share of the time, in percent.
    pub percent: u8,
}

/// What can limit a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// Nothing in particular: too little was moved to tell.
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
    /// Decrypting and checking on the receiver.
    ReceiverCpu,
    /// Creating and writing at the target.
    TargetWrites,
}

/// The times of all stages of one push.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stages {
    pub(crate) scan: StageTimes,
    pub(crate) read: StageTimes,
    pub(crate) lane: StageTimes,
    pub(crate) receive: StageTimes,
    pub(crate) store: StageTimes,
}

impl Stages {
    /// All stages, with the receiver's as it reported them.
    pub(crate) fn with_report(self, finished: &Finished) -> Self {
        Self { receive: times(finished.receive), store: times(finished.store), ..self }
    }

    /// What was booked after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            scan: self.scan.since(&before.scan),
            read: self.read.since(&before.read),
            lane: self.lane.since(&before.lane),
            receive: self.receive.since(&before.receive),
            store: self.store.since(&before.store),
        }
    }

    /// What this side alone can tell while the push runs.
    pub(crate) fn live_limit(&self) -> &'static str {
        match self.verdict().limit {
            Limit::StartUp => "waiting for replies",
            Limit::Scan => "source scan",
            Limit::SourceReads => "source reads",
            Limit::SenderCpu => "sender CPU",
            Limit::Path | Limit::ReceiverCpu | Limit::TargetWrites => "path or target",
        }
    }

    /// Walks down the pipeline to the stage that its upstream waits for and that keeps its downstream waiting.
    pub(crate) fn verdict(&self) -> Verdict {
        if self.lane.total().is_zero() {
            return Verdict::default();
        }
        let starved_lanes = self.lane.share(self.lane.starved);
        let blocked_lanes = self.lane.share(self.lane.blocked);
        let (limit, share) =
            if starved_lanes > blocked_lanes && starved_lanes > self.lane.share(self.lane.busy) {
                self.source_side(starved_lanes)
            } else if self.lane.share(self.lane.busy) > blocked_lanes {
                (Limit::SenderCpu, self.lane.share(self.lane.busy))
            } else {
                self.target_side()
            };
        Verdict { limit, percent: percent(share) }
    }

    /// The lanes had nothing to send: the scan or the readers were the slower.
    fn source_side(&self, starved_lanes: f64) -> (Limit, f64) {
        let starved_readers = self.read.share(self.read.starved);
        let scan_busy = self.scan.share(self.scan.busy);
        match (starved_readers, scan_busy) {
            (waiting, busy) if waiting > 0.5 && busy > 0.5 => (Limit::Scan, busy),
            (waiting, _) if waiting > 0.5 => (Limit::StartUp, starved_lanes),
            _ => (Limit::SourceReads, self.read.share(self.read.busy)),
        }
    }

    /// The lanes waited for the socket: the path, or a receiver that does not take.
    fn target_side(&self) -> (Limit, f64) {
        let store_busy = self.store.share(self.store.busy);
        let blocked = self.receive.share(self.receive.blocked);
        let busy = self.receive.share(self.receive.busy);
        let starved = self.receive.share(self.receive.starved);
        if blocked >= busy && blocked >= starved || store_busy > 0.8 {
            (Limit::TargetWrites, store_busy.max(blocked))
        } else if busy > starved {
            (Limit::ReceiverCpu, busy)
        } else {
            (Limit::Path, starved)
        }
    }
}

fn times(report: StageReport) -> StageTimes {
    StageTimes {
        busy: Duration::from_micros(report.busy_us),
        starved: Duration::from_micros(report.starved_us),
        blocked: Duration::from_micros(report.blocked_us),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100")]
fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartUp => "start-up and waiting for replies",
            Self::Scan => "walking the source",
            Self::SourceReads => "source reads",
            Self::SenderCpu => "the sender's CPU",
            Self::Path => "the network path",
            Self::ReceiverCpu => "the receiver's CPU",
            Self::TargetWrites => "target writes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(busy: u64, starved: u64, blocked: u64) -> StageTimes {
        let seconds = Duration::from_secs;
        StageTimes { busy: seconds(busy), starved: seconds(starved), blocked: seconds(blocked) }
    }

    fn limit(
        scan: StageTimes,
        read: StageTimes,
        lane: StageTimes,
        receive: StageTimes,
        store: StageTimes,
    ) -> Limit {
        Stages { scan, read, lane, receive, store }.verdict().limit
    }

    #[test]
    fn the_verdict_names_the_stage_that_all_wait_for() {
        let (idle_up, full) = (stage(1, 0, 9), stage(1, 0, 9));
        assert_eq!(
            limit(stage(9, 0, 1), stage(1, 9, 0), stage(1, 9, 0), stage(1, 9, 0), stage(1, 9, 0)),
            Limit::Scan
        );
        assert_eq!(
            limit(idle_up, stage(9, 0, 1), stage(1, 9, 0), stage(1, 9, 0), stage(1, 9, 0)),
            Limit::SourceReads
        );
        assert_eq!(limit(idle_up, full, stage(9, 0, 1), stage(1, 9, 0), stage(1, 9, 0)), Limit::SenderCpu);
        assert_eq!(limit(idle_up, full, full, stage(1, 9, 0), stage(1, 9, 0)), Limit::Path);
        assert_eq!(limit(idle_up, full, full, stage(9, 1, 0), stage(1, 9, 0)), Limit::ReceiverCpu);
        assert_eq!(limit(idle_up, full, full, full, stage(9, 1, 0)), Limit::TargetWrites);
    }
}
