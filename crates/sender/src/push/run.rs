//! The state that the sessions of one run share.
//!
//! A session that loses its connections can be followed by another, which walks the sources again and is informed by
//! the receiver of what is there.
//!
//! - Files and bytes moved: those of earlier sessions are added. Files that the last session found equal because of
//!   them are taken off. Groups of a large file that an earlier session has brought count as if the session that makes
//!   the file whole had sent them. [`FileLedger`] keeps what is known of single files and groups.
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
use zmove_types::{Counters, Sample, TransferId};
use zmove_wire::EarlierSession;

use crate::account::file_ledger::FileLedger;
use crate::account::manifest::Manifest;
use crate::account::totals::Totals;
use crate::mirror::Removals;
use crate::push::echoes::UnendedSession;

/// One run of a push, of as many sessions as it takes.
#[derive(Debug)]
pub struct Run {
    pub(crate) started: Instant,
    cpu_started: Duration,
    /// The id of the first session's transfer.
    id: Option<TransferId>,
    /// What its sessions have come to.
    pub standing: Standing,
    /// The most bytes that a session that broke off has found at the target.
    bytes_found_most: u64,
    pub(crate) earlier: Earlier,
    pub(crate) files: FileLedger,
    /// The last session that broke off and may still publish. All others before it are over before it is.
    unended: Option<UnendedSession>,
    /// The sources as the first walk found them, where the target becomes a mirror of them.
    first_walk: Option<Arc<FirstWalk>>,
}

/// What the sessions of a run have come to, and how long the next one may wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// The number of sessions that the other host has begun.
    pub begun: u64,
    /// Whether no session follows one that has begun and lost its connections. None follows an inspection, which would
    /// report all of it again, or leave out what was reported meanwhile.
    pub inspects: bool,
    /// What the last session has come to.
    pub fate: SessionFate,
    /// The longest wait of the next session for its turn at a busy host. Default: not at all.
    pub patience: Duration,
}

/// What a session has come to that broke off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionFate {
    /// The peer has not begun it.
    #[default]
    NotBegun,
    /// No progress: the session has come no further than those before.
    InVain {
        /// The time from the peer's first answer to the end; zero where there was none.
        answered: Duration,
    },
    /// Progress: the session has come further.
    OfUse,
}

/// The results of all sessions before this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    /// The report counters. Their bytes are those of files that are whole; the next session counts what these have
    /// brought of other files, since it finds that at the target.
    pub(crate) counters: Counters,
    /// Entries that any of these sessions asked to be removed.
    pub(crate) extraneous: u64,
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
            standing: Standing::default(),
            bytes_found_most: 0,
            earlier: Earlier::default(),
            files: FileLedger::new(manifest),
            unended: None,
            first_walk: None,
        }
    }

    /// Leaves a time before a session out of the time that the run has taken: a user was asked for something.
    pub fn leave_out(&mut self, asked: Duration) {
        self.started += asked;
    }

    /// The record by which all walks check that the sources are what they were when the first walk began, which is
    /// now unless there has been one.
    pub(crate) fn first_walk(&mut self, removals: Option<&Removals>) -> Arc<FirstWalk> {
        let begin = || match removals {
            Some(removals) => FirstWalk::begin(removals.own_directories.clone()),
            None => FirstWalk::begin(Vec::new()).with_few_descriptors(),
        };
        Arc::clone(self.first_walk.get_or_insert_with(|| Arc::new(begin())))
    }

    /// The number of times that the run went on after its connections were lost.
    pub(crate) fn reconnects(&self) -> u64 {
        self.standing.begun.saturating_sub(1)
    }

    /// The id by which the receiver recognizes the run that this `transfer` belongs to.
    pub(crate) fn id(&mut self, transfer: TransferId) -> [u8; 16] {
        self.id.get_or_insert(transfer).0
    }

    /// The earlier session of the run whose receiver may still publish, for an opening that is sent now.
    pub(crate) fn earlier_session(&self) -> Option<EarlierSession> {
        self.unended.as_ref().and_then(UnendedSession::in_opening)
    }

    /// Notes that the receiver has opened a session: it has waited until no earlier one could publish.
    pub(crate) fn note_opened(&mut self) {
        self.unended = None;
        self.standing.begun += 1;
        self.standing.fate = SessionFate::InVain {
            answered: Duration::ZERO,
        };
    }

    /// Notes that a session has broken off whose receiver has not confirmed the end. `process` is the receiver's, if it
    /// has said so, and `last_echo` is when the last ping was received that was echoed. Without an echo a receiver
    /// publishes nothing.
    pub(crate) fn note_unended(
        &mut self,
        process: Option<String>,
        last_echo: Option<tokio::time::Instant>,
    ) {
        if let Some(last_echo) = last_echo {
            self.unended = Some(UnendedSession::new(process, last_echo));
        }
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_started)
    }

    /// Notes that a session has ended whose receiver answered to something that was sent, first at this moment.
    pub(crate) fn note_answered(&mut self, first: Instant) {
        self.standing.fate = SessionFate::InVain {
            answered: first.elapsed(),
        };
    }

    /// Adds a session that broke off. It has come further if the receiver has confirmed a file, or a group of a large
    /// one, that none before has brought, or a removal, or if it has found more bytes at the target than each of these.
    pub(crate) fn add(&mut self, totals: &Totals, lanes: usize, first_byte: Option<Duration>) {
        let bytes_found = totals.skipped_bytes.get();
        let has_changed = self.files.brought.take_new() || totals.counters.removed.get() > 0;
        if has_changed || bytes_found > self.bytes_found_most {
            self.standing.fate = SessionFate::OfUse;
        }
        self.bytes_found_most = self.bytes_found_most.max(bytes_found);
        self.earlier.add(totals, lanes, first_byte);
    }
}

impl Earlier {
    /// Adds the results of a session that broke off.
    pub(crate) fn add(&mut self, totals: &Totals, lanes: usize, first_byte: Option<Duration>) {
        let whole = *totals.whole.lock();
        let session = Counters {
            bytes: whole.sent,
            bytes_matched: whole.matched,
            bytes_resumed: whole.resumed,
            lanes: lanes as u64,
            ..totals.counters.read()
        };
        self.counters = self.counters.then(&session);
        self.extraneous = totals.extraneous.get();
        self.first_byte = self.first_byte.or(first_byte);
    }

    /// The counters of the whole run when it has ended with a session that counted `last`.
    pub(crate) fn counters_with(&self, last: Counters) -> Counters {
        self.counters.then(&Counters {
            // The last session finds equal what this run has moved before.
            skipped: last.skipped.saturating_sub(self.counters.files),
            ..last
        })
    }

    /// The progress of all sessions together, when this one is at `now`.
    pub(crate) fn with(&self, now: Sample) -> Sample {
        let sum = |now: Option<u64>, before: Option<u64>| now.map(|now| now + before.unwrap_or(0));
        Sample {
            bytes_read: now.bytes_read + self.reached.bytes_read,
            bytes_handed_over: now.bytes_handed_over + self.reached.bytes_handed_over,
            bytes_acked: sum(now.bytes_acked, self.reached.bytes_acked),
            bytes_stored: now.bytes_stored + self.reached.bytes_stored,
            segments_retransmitted: sum(
                now.segments_retransmitted,
                self.reached.segments_retransmitted,
            ),
            ..now
        }
    }
}

/// CPU time of the whole process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use zmove_types::{AtomicCounters, ByteOrigins, Lock};

    use super::*;
    use crate::push::echoes::Echoes;

    fn removed(entries: u64) -> Totals {
        Totals {
            counters: AtomicCounters {
                removed: entries.into(),
                ..AtomicCounters::default()
            },
            ..Totals::default()
        }
    }

    #[test]
    fn what_earlier_sessions_brought_counts_as_moved_once() {
        let broken_off = Totals {
            counters: AtomicCounters {
                files: 3.into(),
                bytes: 50.into(),
                bytes_matched: 9.into(),
                resent: 1.into(),
                failed: 4.into(),
                ..AtomicCounters::default()
            },
            whole: Lock::new(ByteOrigins {
                sent: 30,
                matched: 8,
                resumed: 7,
            }),
            ..Totals::default()
        };
        let mut earlier = Earlier::default();
        earlier.add(&broken_off, 8, None);
        let last = Counters {
            files: 2,
            bytes: 30,
            bytes_matched: 1,
            bytes_resumed: 5,
            skipped: 4,
            resent: 1,
            lanes: 2,
            ..Counters::default()
        };
        let whole = Counters {
            files: 5,
            bytes: 60,
            bytes_matched: 9,
            bytes_resumed: 12,
            skipped: 1,
            resent: 2,
            lanes: 8,
            ..Counters::default()
        };
        assert_eq!(earlier.counters_with(last), whole);
    }

    /// The sender does not know which of the entries were removed before the connection was lost.
    #[test]
    fn what_a_session_asked_to_be_removed_counts_in_the_next_one() {
        let mut earlier = Earlier::default();
        let totals = Totals {
            extraneous: 5.into(),
            ..removed(3)
        };
        earlier.add(&totals, 1, None);
        // The next session begins with the number that the first had asked for.
        let totals = Totals {
            extraneous: (earlier.extraneous + 2).into(),
            ..removed(2)
        };
        earlier.add(&totals, 1, None);
        assert_eq!((earlier.extraneous, earlier.counters.removed), (7, 5));
    }

    /// What a session comes to that finds so many bytes at the target, and brings these.
    fn fate_of(run: &mut Run, bytes_found: u64, brought: &[&str]) -> SessionFate {
        run.note_opened();
        brought
            .iter()
            .for_each(|thing| run.files.brought.note(thing));
        run.add(
            &Totals {
                skipped_bytes: bytes_found.into(),
                ..Totals::default()
            },
            1,
            None,
        );
        std::mem::take(&mut run.standing.fate)
    }

    const IN_VAIN: SessionFate = SessionFate::InVain {
        answered: Duration::ZERO,
    };

    #[test]
    fn sessions_that_bring_the_same_again_come_no_further() {
        let mut run = Run::begin(None, Instant::now());
        let mut fate = |found, brought: &[&str]| fate_of(&mut run, found, brought);
        assert_eq!(fate(0, &[]), IN_VAIN);
        assert_eq!(fate(0, &["group", "log"]), SessionFate::OfUse);
        assert_eq!(
            fate(0, &["group"]),
            IN_VAIN,
            "a group that was not kept comes again"
        );
        assert_eq!(fate(9, &["log"]), SessionFate::OfUse);
        assert_eq!(
            fate(9, &["log"]),
            IN_VAIN,
            "a file that changes all the time"
        );
        assert_eq!(fate(9, &["log", "other"]), SessionFate::OfUse);
    }

    #[test]
    fn sessions_that_bring_something_come_further_while_what_is_equal_gets_less() {
        let mut run = Run::begin(None, Instant::now());
        let names: Vec<_> = (0..9).map(|number| number.to_string()).collect();
        for (left, name) in (0..9).rev().zip(&names) {
            assert_eq!(fate_of(&mut run, 1 + left, &[name]), SessionFate::OfUse);
        }
        assert_eq!(fate_of(&mut run, 1, &[]), IN_VAIN);
    }

    #[test]
    fn entries_that_are_removed_are_further() {
        let mut run = Run::begin(None, Instant::now());
        run.note_opened();
        run.add(&removed(1), 1, None);
        assert_eq!(std::mem::take(&mut run.standing.fate), SessionFate::OfUse);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The echoes of a session whose pings come now, and have ended.
    fn echoes() -> Option<tokio::time::Instant> {
        let echoes = Echoes::default();
        assert!(echoes.note());
        echoes.end()
    }

    fn earlier(process: &str, lease_left_ms: u16) -> Option<EarlierSession> {
        let process = process.to_owned();
        Some(EarlierSession {
            process,
            lease_left_ms,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_broke_off_may_publish_until_ten_seconds_after_the_last_ping_came() {
        let mut run = Run::begin(None, Instant::now());
        assert_eq!(run.earlier_session(), None);
        let echoes = Echoes::default();
        assert!(echoes.note());
        advance(2 * SECOND).await;
        assert!(echoes.note());
        advance(3 * SECOND).await;
        run.note_unended(Some("p".into()), echoes.end());
        assert!(!echoes.note(), "it is over, and nothing more is echoed");
        assert_eq!(run.earlier_session(), earlier("p", 7_000));
        advance(Duration::from_micros(6_999_999)).await;
        assert_eq!(run.earlier_session(), earlier("p", 1));
        advance(Duration::from_micros(1)).await;
        assert_eq!(run.earlier_session(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_session_that_may_publish_counts() {
        let mut run = Run::begin(None, Instant::now());
        run.note_unended(Some("p".into()), echoes());
        advance(SECOND).await;
        // a session that was lost before a ping came, and one that was lost before it was opened
        run.note_unended(None, None);
        assert_eq!(run.earlier_session(), earlier("p", 9_000));
        run.note_unended(None, echoes());
        assert_eq!(run.earlier_session(), earlier("", 10_000));
        run.note_opened();
        assert_eq!(run.earlier_session(), None);
    }

    #[test]
    fn leave_is_not_forgotten_and_the_time_of_answers_is_known() {
        let mut run = Run::begin(None, Instant::now());
        assert!(run.standing.begun == 0);
        run.note_opened();
        run.note_answered(Instant::now() - SECOND);
        let SessionFate::InVain { answered } = std::mem::take(&mut run.standing.fate) else {
            panic!("it has begun")
        };
        assert!(answered >= SECOND && run.standing.begun > 0);
        assert_eq!(
            (
                std::mem::take(&mut run.standing.fate),
                run.standing.begun > 0
            ),
            (SessionFate::NotBegun, true)
        );
        run.note_opened();
        assert_eq!(
            (
                std::mem::take(&mut run.standing.fate),
                std::mem::take(&mut run.standing.fate)
            ),
            (IN_VAIN, SessionFate::NotBegun)
        );
        assert_eq!(
            run.reconnects(),
            1,
            "also after a session in which nothing more was said"
        );
    }
}
