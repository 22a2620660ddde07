//! What the sessions of one run have in common.
//!
//! A session that loses its connections can be followed by another, which walks the sources again and is told
//! by the receiver what is there.
//!
//! - Files and bytes moved: those of earlier sessions are added. Taken off is what the last session found
//!   equal, since it was there because of them. [`Book`] keeps what is known of single files.
//! - Entries removed: those of earlier sessions are added. The walk for names begins again, and nothing of a
//!   session is being removed when the next begins.
//! - Failures are counted by the last session, which has tried all of it again.
//! - The bottleneck and the path are those of the last session; the summary's time is that of the whole run.
//!
//! **Invariant:** a file that any session has moved counts as moved once, stands in the manifest once, and a
//! failure is told once. Only failures of the last session stand at the end, for it tried everything again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zmove_scan::SourceIdentity;
use zmove_types::{FileNumber, Sample, TransferId};

use crate::account::book::Book;
use crate::account::manifest::Manifest;
use crate::account::totals::Totals;

/// One run of a push, of as many sessions as it takes.
#[derive(Debug)]
pub struct Run {
    pub(crate) started: Instant,
    cpu_started: Duration,
    /// Of the first session.
    id: Option<TransferId>,
    pub(crate) heard: Heard,
    /// Sessions in which the receiver has given leave.
    begun: u64,
    /// Sessions in which the receiver has answered.
    answered: u64,
    pub(crate) earlier: Earlier,
    pub(crate) book: Book,
    /// How long the next session waits for its turn at a busy receiver.
    pub(crate) patience: Duration,
    /// The identity of what the first walk has found, where the target becomes a mirror of it.
    identity: Option<Arc<SourceIdentity>>,
}

/// How far the conversation of a session came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    #[default]
    Nothing,
    /// The receiver has given leave.
    Leave,
    /// It has said something about what it was given.
    Answer,
}

/// What all sessions before this one have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    /// Files that are whole and verified because of them.
    pub(crate) files: u64,
    /// The bytes of these.
    pub(crate) bytes: u64,
    /// What else they have brought: groups of files that are not whole.
    pub(crate) partial_bytes: u64,
    /// Entries that were at the target alone.
    pub(crate) removed: u64,
    /// What any of them asked to be removed.
    pub(crate) doomed: u64,
    pub(crate) resent: u64,
    pub(crate) repeated: u64,
    pub(crate) lanes: usize,
    pub(crate) first_byte: Option<Duration>,
    /// How far the stages were.
    pub(crate) reached: Sample,
}

impl Run {
    /// A run of which nothing has happened. `started` is when the user began to wait.
    #[must_use]
    pub fn begin(manifest: Option<Manifest>, started: Instant) -> Self {
        Self {
            started,
            cpu_started: cpu_time(),
            id: None,
            heard: Heard::Nothing,
            begun: 0,
            answered: 0,
            earlier: Earlier::default(),
            book: Book::new(manifest),
            patience: Duration::ZERO,
            identity: None,
        }
    }

    /// Whether the receiver has ever taken the transfer.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.heard >= Heard::Leave
    }

    /// Has the next session wait so long for its turn at a busy receiver; without this it does not wait.
    pub const fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// In how many sessions the receiver has answered to what it was given.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// By what all walks know that the sources are what they were when the first began, which is now unless there has
    /// been one.
    pub(crate) fn identity(&mut self, own_directories: &[FileNumber]) -> Arc<SourceIdentity> {
        let begin = || Arc::new(SourceIdentity::begin(own_directories.to_vec()));
        Arc::clone(self.identity.get_or_insert_with(begin))
    }

    /// How often it went on after its connections were lost.
    pub(crate) fn reconnects(&self) -> u64 {
        self.begun.saturating_sub(1)
    }

    /// What tells the receiver which run this `transfer` belongs to.
    pub(crate) fn id(&mut self, transfer: TransferId) -> [u8; 16] {
        self.id.get_or_insert(transfer).0
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_started)
    }

    /// A session has come so far.
    pub(crate) fn note(&mut self, heard: Heard) {
        self.heard = self.heard.max(heard);
        self.begun += u64::from(heard >= Heard::Leave);
        self.answered += u64::from(heard == Heard::Answer);
    }
}

impl Earlier {
    /// Adds a session that broke off.
    pub(crate) fn add(&mut self, totals: &Totals, lanes: usize, first_byte: Option<Duration>) {
        self.files += totals.files.get();
        self.bytes += totals.whole_bytes.get();
        self.partial_bytes += totals.bytes.get().saturating_sub(totals.whole_bytes.get());
        self.removed += totals.removed.get();
        self.doomed = totals.doomed.get();
        self.resent += totals.resent.get();
        self.repeated += totals.repeated.get();
        self.lanes = self.lanes.max(lanes);
        self.first_byte = self.first_byte.or(first_byte);
    }

    /// Where all sessions are together, when this one is at `now`.
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

    /// Nobody knows what has gone of what was asked for when the connection was lost.
    #[test]
    fn what_a_session_asked_to_be_removed_counts_in_the_next_one() {
        let mut earlier = Earlier::default();
        let totals = Totals { doomed: 5.into(), removed: 3.into(), ..Totals::default() };
        earlier.add(&totals, 1, None);
        // the next one begins with what the first had asked for
        let totals = Totals { doomed: (earlier.doomed + 2).into(), removed: 2.into(), ..Totals::default() };
        earlier.add(&totals, 1, None);
        assert_eq!((earlier.doomed, earlier.removed), (7, 5));
    }

    #[test]
    fn leave_is_not_forgotten_and_each_answer_counts() {
        let mut run = Run::begin(None, Instant::now());
        assert!(!run.was_up());
        for heard in [Heard::Answer, Heard::Nothing, Heard::Leave, Heard::Answer] {
            run.note(heard);
        }
        assert_eq!((run.was_up(), run.answered()), (true, 2));
        assert_eq!(run.reconnects(), 2, "also after a session in which nothing more was said");
    }
}
