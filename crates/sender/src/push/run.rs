//! The state shared by the sessions of one run.
//!
//! When a session loses its connections, another may follow. It walks the sources again and learns from the receiver
//! which data the target already has.
//!
//! - Files and bytes moved: the counts of earlier sessions are added. Files that the last session found equal because
//!   an earlier session had moved them are subtracted. Groups of a large file that an earlier session sent count as if
//!   the session that completes the file had sent them. [`FileLedger`] records the state of single files and groups.
//! - Entries removed: the counts of earlier sessions are added. The walk for names begins again, and no removal is
//!   still in progress when the next session begins.
//! - Failures: those of the last session count, because it has tried everything again.
//! - The bottleneck and the path come from the last session. The summary's duration covers the whole run.
//!
//! **Invariant:** a file that any session has moved counts as moved once and appears in the manifest once. A failure is
//! reported once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zmove_scan::WalkRecord;
use zmove_types::{Counters, Sample, TransferId};
use zmove_wire::EarlierSession;

use crate::account::file_ledger::FileLedger;
use crate::account::manifest::Manifest;
use crate::account::totals::Totals;
use crate::mirror::Removals;
use crate::push::echoes::UnendedSession;

/// One run of a push, which consists of one or more sessions.
#[derive(Debug)]
pub struct Run {
    pub(crate) started: Instant,
    cpu_started: Duration,
    /// ID of the first session's transfer, or of the run that this process continues.
    id: Option<TransferId>,
    /// The results of the sessions so far.
    pub standing: RunState,
    pub(crate) earlier: EarlierResults,
    pub(crate) files: FileLedger,
    /// The last interrupted session that may still publish. Any earlier session stops publishing before this one.
    unended: Option<UnendedSession>,
    /// A record of the sources from the first walk. Later walks are checked against this record.
    walk_record: Option<Arc<WalkRecord>>,
}

/// The results of the sessions of a run so far, and how long the next session may wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunState {
    /// Number of sessions that the peer has begun.
    pub begun: u64,
    /// Whether the run only inspects. An interrupted inspection is not followed by another session, which would either
    /// report everything again or omit entries that were already reported.
    pub inspects: bool,
    /// Result of the last session.
    pub fate: SessionProgress,
    /// Maximum time that the next session waits in the queue of a busy host. Default: the session does not wait.
    pub patience: Duration,
    /// Largest amount of data that an interrupted session found at the target.
    pub found_most: u64,
}

/// The result of an interrupted session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionProgress {
    /// The peer has not begun the session.
    #[default]
    NotBegun,
    /// The session made no more progress than the sessions before it.
    NoProgress {
        /// Time from the peer's first answer to the end of the session. Zero if the peer did not answer.
        answered: Duration,
    },
    /// The session made progress beyond earlier sessions.
    Progressed,
}

impl RunState {
    /// Records that the peer has begun a session. The session has made no progress yet.
    pub fn begin_session(&mut self) {
        self.begun += 1;
        self.note_answered(Duration::ZERO);
    }

    /// Records the time from the peer's first answer to the end of a session that has made no progress so far.
    pub fn note_answered(&mut self, answered: Duration) {
        self.fate = SessionProgress::NoProgress { answered };
    }

    /// Records the amount of data that an interrupted session found at the target. The session has made progress if it
    /// found more than each earlier session.
    pub fn note_found(&mut self, found: u64) {
        if found > self.found_most {
            self.found_most = found;
            self.fate = SessionProgress::Progressed;
        }
    }

    /// Returns how often the run has reconnected after losing its connections.
    #[must_use]
    pub const fn reconnects(&self) -> u64 {
        self.begun.saturating_sub(1)
    }
}

/// The combined results of all sessions before the current one.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlierResults {
    /// Counters for the report. Bytes are counted only for complete files. If a file is incomplete, the next session
    /// finds its bytes at the target and counts them.
    pub(crate) counters: Counters,
    /// Number of entries that these sessions have requested to remove.
    pub(crate) extraneous: u64,
    pub(crate) first_byte: Option<Duration>,
    /// Progress of the stages, combined over these sessions.
    pub(crate) reached: Sample,
}

impl Run {
    /// Begins a run. `started` is the time at which the user began to wait.
    #[must_use]
    pub fn begin(manifest: Option<Manifest>, started: Instant) -> Self {
        Self {
            started,
            cpu_started: cpu_time(),
            id: None,
            standing: RunState::default(),
            earlier: EarlierResults::default(),
            files: FileLedger::new(manifest),
            unended: None,
            walk_record: None,
        }
    }

    /// Continues the run with this ID, which an earlier process may have begun.
    pub fn join(&mut self, id: TransferId) {
        self.id = Some(id);
    }

    /// Excludes the time of a prompt before a session from the duration of the run. `asked` is the length of that time.
    pub fn exclude_prompt_time(&mut self, asked: Duration) {
        self.started += asked;
    }

    /// Returns the record by which all walks check that the sources have not changed since the first walk began. The
    /// first call creates the record.
    pub(crate) fn walk_record(&mut self, removals: Option<&Removals>) -> Arc<WalkRecord> {
        let own = removals.map(|removals| removals.own_directories.clone());
        let begin = || Arc::new(WalkRecord::begin(own.unwrap_or_default()));
        Arc::clone(self.walk_record.get_or_insert_with(begin))
    }

    /// Returns the ID by which the receiver recognizes the run. Unless an earlier process has begun the run, it is the
    /// ID of the run's first transfer, which may be `transfer` itself.
    pub(crate) fn id(&mut self, transfer: TransferId) -> [u8; 16] {
        self.id.get_or_insert(transfer).0
    }

    /// Returns the earlier session of the run whose receiver may still publish, for an opening that is sent now.
    pub(crate) fn earlier_session(&self) -> Option<EarlierSession> {
        self.unended.as_ref().and_then(UnendedSession::in_opening)
    }

    /// Records that the receiver has opened a session. Before a receiver opens a session, it waits until no earlier
    /// session can publish.
    pub(crate) fn note_opened(&mut self) {
        self.unended = None;
        self.standing.begin_session();
    }

    /// Records an interrupted session whose end the receiver has not confirmed. `process` is the receiver's process, if
    /// it was reported. `last_echo` is the time at which the last echoed ping was received. Without an echo, a receiver
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

    /// Adds an interrupted session. The session has made progress in any of these cases:
    ///
    /// - The receiver has confirmed a removal.
    /// - The receiver has confirmed a file, or a group of a large file, that no earlier session had sent.
    /// - The session found more bytes at the target than each earlier session.
    pub(crate) fn add(&mut self, totals: &Totals, lanes: usize, first_byte: Option<Duration>) {
        self.standing.note_found(totals.skipped_bytes.get());
        if self.files.delivery_log.take_new() || totals.counters.removed.get() > 0 {
            self.standing.fate = SessionProgress::Progressed;
        }
        self.earlier.add(totals, lanes, first_byte);
    }
}

impl EarlierResults {
    /// Adds the results of an interrupted session.
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

    /// Returns the counters of the whole run, whose last session counted `last`.
    pub(crate) fn counters_with(&self, last: Counters) -> Counters {
        self.counters.then(&Counters {
            // Files that earlier sessions of this run have moved are found equal by the last session, which counts them
            // as skipped.
            skipped: last.skipped.saturating_sub(self.counters.files),
            ..last
        })
    }

    /// Returns the progress of all sessions combined. `now` is the progress of the current session.
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

/// Returns the CPU time used by the whole process so far.
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
    use zmove_types::{AtomicCounters, BytesByOrigin, Lock};

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
            whole: Lock::new(BytesByOrigin {
                sent: 30,
                matched: 8,
                resumed: 7,
            }),
            ..Totals::default()
        };
        let mut earlier = EarlierResults::default();
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
        let mut earlier = EarlierResults::default();
        let totals = Totals {
            extraneous: 5.into(),
            ..removed(3)
        };
        earlier.add(&totals, 1, None);
        // The next session begins with the number that the first session requested.
        let totals = Totals {
            extraneous: (earlier.extraneous + 2).into(),
            ..removed(2)
        };
        earlier.add(&totals, 1, None);
        assert_eq!((earlier.extraneous, earlier.counters.removed), (7, 5));
    }

    /// Returns the fate of a session that finds `bytes_found` bytes at the target and sends the files in
    /// `delivery_log`.
    fn fate_of(run: &mut Run, bytes_found: u64, delivery_log: &[&str]) -> SessionProgress {
        run.note_opened();
        delivery_log
            .iter()
            .for_each(|thing| run.files.delivery_log.note(thing));
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

    const IN_VAIN: SessionProgress = SessionProgress::NoProgress {
        answered: Duration::ZERO,
    };

    #[test]
    fn sessions_that_bring_the_same_again_come_no_further() {
        let mut run = Run::begin(None, Instant::now());
        let mut fate = |found, delivery_log: &[&str]| fate_of(&mut run, found, delivery_log);
        assert_eq!(fate(0, &[]), IN_VAIN);
        assert_eq!(fate(0, &["group", "log"]), SessionProgress::Progressed);
        assert_eq!(
            fate(0, &["group"]),
            IN_VAIN,
            "a group that was not kept comes again"
        );
        assert_eq!(fate(9, &["log"]), SessionProgress::Progressed);
        assert_eq!(
            fate(9, &["log"]),
            IN_VAIN,
            "a file that changes all the time"
        );
        assert_eq!(fate(9, &["log", "other"]), SessionProgress::Progressed);
    }

    #[test]
    fn a_session_that_finds_no_more_than_an_earlier_one_is_in_vain() {
        let mut standing = RunState::default();
        let fates = [0, 5, 5, 3, 6].map(|found| {
            standing.begin_session();
            standing.note_found(found);
            standing.fate
        });
        let further = SessionProgress::Progressed;
        assert_eq!(fates, [IN_VAIN, further, IN_VAIN, IN_VAIN, further]);
    }

    #[test]
    fn sessions_that_bring_something_come_further_while_what_is_equal_gets_less() {
        let mut run = Run::begin(None, Instant::now());
        let names: Vec<_> = (0..9).map(|number| number.to_string()).collect();
        for (left, name) in (0..9).rev().zip(&names) {
            assert_eq!(
                fate_of(&mut run, 1 + left, &[name]),
                SessionProgress::Progressed
            );
        }
        assert_eq!(fate_of(&mut run, 1, &[]), IN_VAIN);
    }

    #[test]
    fn entries_that_are_removed_are_further() {
        let mut run = Run::begin(None, Instant::now());
        run.note_opened();
        run.add(&removed(1), 1, None);
        assert_eq!(
            std::mem::take(&mut run.standing.fate),
            SessionProgress::Progressed
        );
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the last echo of a session that receives a ping now and then ends.
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
        // One session was lost before it received a ping, and another before it was opened.
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
        run.standing.note_answered(SECOND);
        let SessionProgress::NoProgress { answered } = std::mem::take(&mut run.standing.fate)
        else {
            panic!("it has begun")
        };
        assert!(answered >= SECOND && run.standing.begun > 0);
        assert_eq!(
            (
                std::mem::take(&mut run.standing.fate),
                run.standing.begun > 0
            ),
            (SessionProgress::NotBegun, true)
        );
        run.note_opened();
        assert_eq!(
            (
                std::mem::take(&mut run.standing.fate),
                std::mem::take(&mut run.standing.fate)
            ),
            (IN_VAIN, SessionProgress::NotBegun)
        );
        assert_eq!(
            run.standing.reconnects(),
            1,
            "also after a session in which nothing more was said"
        );
    }
}
