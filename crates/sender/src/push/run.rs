//! The state that the sessions of one run share.
//!
//! A session that loses its connections can be followed by another, which walks the sources again and is informed by
//! the receiver of what is there.
//!
//! - Files and bytes moved: those of earlier sessions are added. Files that the last session found equal because of
//!   them are taken off. [`FileLedger`] keeps what is known of single files.
//! - Entries removed: those of earlier sessions are added. The walk for names begins again, and nothing of a
//!   session is being removed when the next begins.
//! - Failures are counted by the last session, which has tried everything again.
//! - The bottleneck and the path are those of the last session; the summary's time is that of the whole run.
//!
//! **Invariant:** a file that any session has moved counts as moved once, stands in the manifest once, and a failure is
//! reported once. Only failures of the last session count at the end, for it tried everything again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zmove_scan::FirstWalk;
use zmove_types::{FileNumber, Sample, TransferId};

use crate::account::file_ledger::FileLedger;
use crate::account::manifest::Manifest;
use crate::account::totals::Totals;

/// One run of a push, of as many sessions as it takes.
#[derive(Debug)]
pub struct Run {
    pub(crate) started: Instant,
    cpu_started: Duration,
    /// The id of the first session's transfer.
    id: Option<TransferId>,
    pub(crate) phase: Phase,
    /// The number of sessions that the receiver has opened.
    begun: u64,
    /// The number of sessions in which the receiver has answered to something.
    answered: u64,
    /// The number of those that have come further than all before.
    further: u64,
    /// The most bytes that a session that broke off has known to be at the target.
    bytes_there_most: u64,
    pub(crate) earlier: Earlier,
    pub(crate) files: FileLedger,
    /// The longest wait of the next session for its turn at a busy receiver.
    pub(crate) patience: Duration,
    /// The sources as the first walk found them, where the target becomes a mirror of them.
    first_walk: Option<Arc<FirstWalk>>,
}

/// How far the conversation of a session came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Nothing,
    /// The receiver has opened the transfer.
    Permission,
    /// The receiver has answered to something that was sent.
    Answer,
}

/// The results of all sessions before this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    /// Files that are whole and verified because of them.
    pub(crate) files: u64,
    /// The hard links among them.
    pub(crate) linked: u64,
    /// The bytes of these files.
    pub(crate) bytes: u64,
    /// Other bytes that these sessions have brought: groups of files that are not whole.
    pub(crate) partial_bytes: u64,
    /// Entries that were at the target alone and have been removed.
    pub(crate) removed: u64,
    /// Entries that any of these sessions asked to be removed.
    pub(crate) extraneous: u64,
    pub(crate) resent: u64,
    pub(crate) repeated: u64,
    pub(crate) lanes: usize,
    pub(crate) first_byte: Option<Duration>,
    /// How far the stages had come.
    pub(crate) reached: Sample,
}

impl Run {
    /// A new run. `started` is when the user began to wait.
    #[must_use]
    pub fn begin(manifest: Option<Manifest>, started: Instant) -> Self {
        Self {
            started,
            cpu_started: cpu_time(),
            id: None,
            phase: Phase::Nothing,
            begun: 0,
            answered: 0,
            further: 0,
            bytes_there_most: 0,
            earlier: Earlier::default(),
            files: FileLedger::new(manifest),
            patience: Duration::ZERO,
            first_walk: None,
        }
    }

    /// Whether the receiver has ever opened the transfer.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.phase >= Phase::Permission
    }

    /// Sets how long the next session waits for its turn at a busy receiver; the default is not at all.
    pub const fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The number of sessions that the receiver has opened.
    #[must_use]
    pub const fn begun(&self) -> u64 {
        self.begun
    }

    /// The number of sessions in which the receiver has answered to something that was sent.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// The number of sessions that broke off and had come further than all before: files became whole or were removed,
    /// or more bytes were found there or stored than in any session before. Fewer may be the same ones once more.
    #[must_use]
    pub const fn further(&self) -> u64 {
        self.further
    }

    /// The record by which all walks check that the sources are what they were when the first walk began, which is
    /// now unless there has been one.
    pub(crate) fn first_walk(&mut self, own_directories: &[FileNumber]) -> Arc<FirstWalk> {
        let begin = || Arc::new(FirstWalk::begin(own_directories.to_vec()));
        Arc::clone(self.first_walk.get_or_insert_with(begin))
    }

    /// The number of times that the run went on after its connections were lost.
    pub(crate) fn reconnects(&self) -> u64 {
        self.begun.saturating_sub(1)
    }

    /// The id by which the receiver recognizes the run that this `transfer` belongs to.
    pub(crate) fn id(&mut self, transfer: TransferId) -> [u8; 16] {
        self.id.get_or_insert(transfer).0
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_started)
    }

    /// Notes how far a session has come.
    pub(crate) fn note(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
        self.begun += u64::from(phase >= Phase::Permission);
        self.answered += u64::from(phase == Phase::Answer);
    }

    /// Adds a session that broke off.
    pub(crate) fn add(&mut self, totals: &Totals, lanes: usize, first_byte: Option<Duration>) {
        let bytes_there = totals.skipped_bytes.get() + totals.bytes.get();
        let has_changed = totals.files.get() + totals.removed.get() > 0;
        self.further += u64::from(has_changed || bytes_there > self.bytes_there_most);
        self.bytes_there_most = self.bytes_there_most.max(bytes_there);
        self.earlier.add(totals, lanes, first_byte);
    }
}

impl Earlier {
    /// Adds the results of a session that broke off.
    pub(crate) fn add(&mut self, totals: &Totals, lanes: usize, first_byte: Option<Duration>) {
        self.files += totals.files.get();
        self.linked += totals.linked.get();
        self.bytes += totals.whole_bytes.get();
        self.partial_bytes += totals.bytes.get().saturating_sub(totals.whole_bytes.get());
        self.removed += totals.removed.get();
        self.extraneous = totals.extraneous.get();
        self.resent += totals.resent.get();
        self.repeated += totals.repeated.get();
        self.lanes = self.lanes.max(lanes);
        self.first_byte = self.first_byte.or(first_byte);
    }

    /// The progress of all sessions together, when this one is at `now`.
    pub(crate) fn with(&self, now: Sample) -> Sample {
        let sum = |now: Option<u64>, before: Option<u64>| now.map(|now| now + before.unwrap_or(0));
        Sample {
            bytes_read: now.bytes_read + self.reached.bytes_read,
            bytes_handed_over: now.bytes_handed_over + self.reached.bytes_handed_over,
            bytes_acked: sum(now.bytes_acked, self.reached.bytes_acked),
            bytes_stored: now.bytes_stored + self.reached.bytes_stored,
            segments_retransmitted: sum(now.segments_retransmitted, self.reached.segments_retransmitted),
            ..now
        }
    }
}

/// CPU time of the whole process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sender does not know which of the entries were removed before the connection was lost.
    #[test]
    fn what_a_session_asked_to_be_removed_counts_in_the_next_one() {
        let mut earlier = Earlier::default();
        let totals = Totals { extraneous: 5.into(), removed: 3.into(), ..Totals::default() };
        earlier.add(&totals, 1, None);
        // The next session begins with the number that the first had asked for.
        let totals =
            Totals { extraneous: (earlier.extraneous + 2).into(), removed: 2.into(), ..Totals::default() };
        earlier.add(&totals, 1, None);
        assert_eq!((earlier.extraneous, earlier.removed), (7, 5));
    }

    #[test]
    fn sessions_that_store_the_same_bytes_again_come_no_further() {
        let mut run = Run::begin(None, Instant::now());
        let mut further = |skipped_bytes: u64, bytes: u64, files: u64| {
            let before = run.further();
            let (skipped_bytes, bytes, files) = (skipped_bytes.into(), bytes.into(), files.into());
            run.add(&Totals { skipped_bytes, bytes, files, ..Totals::default() }, 1, None);
            run.further() > before
        };
        assert!(!further(0, 0, 0));
        assert!(further(0, 9, 0));
        assert!(!further(0, 9, 0), "a group that was not kept comes again");
        assert!(further(9, 1, 0));
        assert!(!further(2, 2, 0));
        assert!(further(2, 2, 1), "a file of the rest");
    }

    #[test]
    fn leave_is_not_forgotten_and_each_answer_counts() {
        let mut run = Run::begin(None, Instant::now());
        assert!(!run.was_up());
        for phase in [Phase::Answer, Phase::Nothing, Phase::Permission, Phase::Answer] {
            run.note(phase);
        }
        assert_eq!((run.was_up(), run.answered()), (true, 2));
        assert_eq!(run.reconnects(), 2, "also after a session in which nothing more was said");
    }
}
