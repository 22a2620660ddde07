//! The events of a job's sessions, for all observers of the job.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;
use std::mem::{replace, take};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use zmove_engine::{DIAL_TIMEOUT, Listener, SessionProgress};
use zmove_types::{Counters, Event, Lock, Observer, WorkId};
use zmove_wire::{FaultCode, FileTotal, NotKept};

use crate::error::SessionEnd;
use crate::job::{Receiver, Tally};
use crate::queue::LEASE;
use crate::session::SeenMessages;

/// The observers of session events, and the state that concerns the whole job.
pub(crate) struct JobEvents {
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) listener: Arc<dyn Listener + Send + Sync>,
    pub(crate) served: Arc<SessionResults>,
    /// Failures that this node or, at the head, another node has reported.
    told: Arc<SeenMessages>,
    /// The large files of which a range has failed, identified by the items that commit them.
    failed_ranges: Lock<HashSet<WorkId>>,
    /// State of the receivers, by number.
    known: Lock<BTreeMap<usize, ReceiverState>>,
    /// Files and bytes that lost sessions found but did not settle. Later sessions will find the same files again.
    unsettled: Lock<FileTotal>,
}

/// The state of a receiver.
#[derive(Default)]
pub(super) struct ReceiverState {
    /// Name of the receiver, once for each connected session.
    pub(super) up_at: Vec<String>,
    /// Whether a session of the job has been opened at the receiver.
    has_seen_job: bool,
    /// Whether the receiver has reported that the job is not running there.
    has_missed_job: bool,
    /// Whether the last session with the receiver failed.
    is_useless: bool,
    /// Warnings reported since the last successful session. The empty string stands for "cannot be reached".
    told: BTreeSet<String>,
}

impl JobEvents {
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
        served: Arc<SessionResults>,
        told: Arc<SeenMessages>,
    ) -> Arc<Self> {
        Arc::new(Self {
            observer,
            listener,
            served,
            told,
            failed_ranges: Lock::default(),
            known: Lock::default(),
            unsettled: Lock::default(),
        })
    }

    /// Records a failed session. Returns whether its cause is new for this receiver. A successful session clears the
    /// reported causes.
    pub(crate) fn mark_useless(&self, receiver: usize, why: &SessionEnd) -> bool {
        let line = if why.is_away() {
            String::new()
        } else {
            why.to_string()
        };
        let mut known = self.known.lock();
        let known = known.entry(receiver).or_default();
        known.is_useless = true;
        known.told.insert(line)
    }

    /// Returns whether the last session with each of `receivers` receivers failed.
    pub(crate) fn is_every_receiver_useless(&self, receivers: usize) -> bool {
        (0..receivers).all(|number| self.knows(number, |known| known.is_useless))
    }

    /// Returns whether this receiver has answered in a session of the job, which shows that it sees the job.
    pub(crate) fn has_seen_job(&self, receiver: usize) -> bool {
        self.knows(receiver, |known| known.has_seen_job)
    }

    /// Returns whether this receiver has reported that the job is not running there.
    pub(crate) fn has_missed_job(&self, receiver: usize) -> bool {
        self.knows(receiver, |known| known.has_missed_job)
    }

    pub(super) fn knows(&self, receiver: usize, what: impl Fn(&ReceiverState) -> bool) -> bool {
        self.known.lock().get(&receiver).is_some_and(what)
    }

    /// Creates the events of a session with this receiver.
    pub(crate) fn within(
        self: &Arc<Self>,
        number: usize,
        receiver: &Receiver,
    ) -> Arc<SessionEvents> {
        Arc::new(SessionEvents {
            events: Arc::clone(self),
            number,
            receiver: receiver.remote.to_string(),
            state: Lock::default(),
        })
    }
}

/// The events of a single session, for all observers of the job.
pub(crate) struct SessionEvents {
    pub(crate) events: Arc<JobEvents>,
    /// Number of the receiver.
    pub(crate) number: usize,
    pub(crate) receiver: String,
    pub(super) state: Lock<SessionState>,
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says something of its own"
)]
pub(super) struct SessionState {
    /// When the receiver answered for the first time, or when a session without an answer ended after the target was
    /// opened.
    pub(super) answered: Option<Instant>,
    has_come_further: bool,
    /// Whether data was stored since the last report of the session's limit.
    has_stored: bool,
    /// Whether the user has been warned that an item is stalled in this session.
    has_warned: bool,
    /// Whether the reason why the receiver has not opened the target was already reported, by the receiver or by this
    /// side.
    has_told_why: bool,
    /// Whether the work of the session is complete and the user waits for the session's end.
    pub(super) is_awaited: bool,
    /// Files and bytes that the session found but has not settled yet.
    unsettled: FileTotal,
}

impl SessionEvents {
    /// Records that work was completed, in this session or, since the previous session, by another mover.
    pub(crate) fn record_progress(&self) {
        self.state.lock().has_come_further = true;
        self.update_receiver(|known| {
            known.is_useless = false;
            known.told.clear();
        });
    }

    /// Updates the state of the receiver.
    pub(super) fn update_receiver<T>(&self, what: impl FnOnce(&mut ReceiverState) -> T) -> T {
        what(self.events.known.lock().entry(self.number).or_default())
    }

    /// Records that the work of the session is complete and that the user waits for its end.
    pub(crate) fn await_end(&self) {
        self.state.lock().is_awaited = true;
    }

    /// Counts a completed item of pass `pass`, which has put `announced` further items into the queue.
    pub(crate) fn count(&self, pass: u32, counts: &Counters, announced: u64) {
        let mut tally = self.events.served.tally.lock();
        tally.add(pass, counts, announced);
    }

    /// Counts metadata of this session's entries that could not be preserved.
    pub(crate) fn add_not_preserved(&self, not_kept: Vec<NotKept>) {
        self.events.served.tally.lock().add_not_preserved(not_kept);
    }

    /// Warns once that an item has made no progress for the duration of its lease.
    pub(crate) fn warn_of_a_stop(&self) {
        if !replace(&mut self.state.lock().has_warned, true) {
            let receiver = &self.receiver;
            let seconds = LEASE.as_secs();
            let message = format!(
                "{receiver}: some work there has made no progress for {seconds} s (its storage may be hanging) and is \
                 reassigned"
            );
            self.on(&Event::Warned { message });
        }
    }

    /// Warns that the receiver does not answer a connection. The warning is given once per receiver.
    pub(super) fn warn_of_no_answer(&self) {
        let seconds = ANSWERS_WITHIN.as_secs();
        let most = DIAL_TIMEOUT.as_secs();
        self.warn_of_wait(&format!(
            "no answer for {seconds} s; waiting for up to {most} s"
        ));
    }

    /// Warns if the receiver has not opened the target after [`OPENS_WITHIN`]. The warning is given once per receiver.
    /// The future never resolves.
    pub(super) async fn warn_of_no_opening(&self) -> Infallible {
        sleep(OPENS_WITHIN).await;
        let is_silent = {
            let state = self.state.lock();
            state.answered.is_none() && !state.has_told_why
        };
        if is_silent {
            let seconds = OPENS_WITHIN.as_secs();
            self.warn_of_wait(&format!(
                "the target is still not open after {seconds} s (its storage may be hanging)"
            ));
        }
        std::future::pending().await
    }

    fn warn_of_wait(&self, what: &str) {
        self.state.lock().has_told_why = true;
        self.warn_once(format!("{}: {what}", self.receiver));
    }

    /// Reports a warning unless it was reported for the receiver since the last successful session.
    fn warn_once(&self, message: String) {
        if self.update_receiver(|known| known.told.insert(message.clone())) {
            self.events.observer.on(&Event::Warned { message });
        }
    }

    /// Warns about each receiver at which a session is still connected after all work is done. The caller interrupts
    /// these sessions.
    pub(crate) fn warn_of_hanging(&self) {
        let mut up_at: Vec<_> = {
            let known = self.events.known.lock();
            let up_at = known.values().flat_map(|known| known.up_at.clone());
            up_at.collect()
        };
        if let Some(own) = up_at.iter().position(|receiver| *receiver == self.receiver) {
            up_at.swap_remove(own);
        }
        for receiver in BTreeSet::from_iter(up_at) {
            let seconds = ENDS_WITHIN.as_secs();
            let message = format!(
                "{receiver}: a session with no remaining work did not end within {seconds} s (its storage may be \
                 hanging): aborting the session"
            );
            self.on(&Event::Warned { message });
        }
    }

    /// Returns whether a session that has ended made progress. Completed work counts as progress.
    pub(crate) fn outcome(&self) -> SessionProgress {
        let state = self.state.lock();
        match state.answered {
            _ if state.has_come_further => SessionProgress::Progressed,
            Some(first) => SessionProgress::NoProgress {
                answered: first.elapsed(),
            },
            None => SessionProgress::NotBegun,
        }
    }

    /// Records a session that ended with an error. A session that the receiver refused from the start is ignored.
    pub(crate) fn note_lost(&self, error: &SessionEnd) {
        self.update_receiver(|known| known.has_missed_job |= error.is_absent());
        let unsettled = take(&mut self.state.lock().unsettled);
        self.events.unsettled.lock().add(unsettled);
        if self.outcome() != SessionProgress::NotBegun || !error.is_refusal() {
            self.events.served.record_lost_session();
        }
    }

    /// Adds the name of the receiver to a message of the receiver.
    fn with_receiver(&self, message: &str) -> String {
        if message.starts_with(OF_RECEIVER) {
            format!("{message} (at {})", self.receiver)
        } else {
            message.to_owned()
        }
    }

    /// Returns whether a failure with this message was reported, by this node or by others.
    pub(crate) fn has_reported(&self, message: &str) -> bool {
        self.events.told.has(message)
    }

    /// Returns whether a failure of this path was reported, by this node or by others.
    pub(crate) fn has_failed(&self, path: &str) -> bool {
        self.events.told.names(path)
    }

    /// Reports a directory whose mode and time could not be set. It counts once, even if another session tries again.
    pub(crate) fn fail_directory(&self, message: String) {
        if !self.has_reported(&message) {
            self.events.served.tally.lock().failed_directories += 1;
            self.on(&Event::Failed { message });
        }
    }

    /// Records that a range of a large file could not be sent or stored. `file` is the item that commits the file.
    pub(crate) fn note_failed_range(&self, file: WorkId) {
        self.events.failed_ranges.lock().insert(file);
    }

    /// Returns whether a range of this file has failed on this node.
    pub(crate) fn has_failed_range(&self, file: WorkId) -> bool {
        self.events.failed_ranges.lock().contains(&file)
    }
}

impl Observer for SessionEvents {
    fn on(&self, event: &Event) {
        match event {
            Event::Failed { message } => {
                // If the receiver was excluded from the job, all entries fail there, so the file is not the cause.
                let is_shut_out = message.ends_with(&FaultCode::JobEnded.to_string());
                if !is_shut_out && self.events.told.report_once(message) {
                    let message = self.with_receiver(message);
                    self.events.observer.on(&Event::Failed { message });
                }
                return;
            }
            &Event::Found { files, bytes } => {
                let found = FileTotal { files, bytes };
                self.state.lock().unsettled.add(found);
                let FileTotal { files, bytes } = self.events.unsettled.lock().subtract_found(found);
                return self.events.observer.on(&Event::Found { files, bytes });
            }
            &Event::Stored { files, bytes } => {
                let stored = FileTotal { files, bytes };
                let mut state = self.state.lock();
                state.has_stored = true;
                state.unsettled.take(stored);
                self.events.served.add(self.number, stored);
            }
            &Event::Skipped { files, bytes } => {
                let skipped = FileTotal { files, bytes };
                self.state.lock().unsettled.take(skipped);
            }
            // Ignore the limit of an idle session: it waits for work and does not limit the sessions that have work.
            Event::Limited { .. } if !take(&mut self.state.lock().has_stored) => return,
            Event::Warned { message } if message.starts_with(OF_RECEIVER) => {
                return self.warn_once(self.with_receiver(message));
            }
            Event::Resent { .. } | Event::NotKept { .. } | Event::Limited { .. } => {}
            Event::Warned { .. } | Event::HeldUp { .. } => self.state.lock().has_told_why = true,
            Event::Answered => {
                let mut state = self.state.lock();
                state.answered.get_or_insert_with(Instant::now);
                drop(state);
                self.update_receiver(|known| known.has_seen_job = true);
                return;
            }
            // These events concern only the session. This includes `ScanEnded`: a session's feed ends with the job, so
            // the total amount of work is not known earlier and no remaining time is shown.
            _ => return,
        }
        self.events.observer.on(event);
    }
}

/// The sessions of this process, the work completed in them, and the data that the receivers stored.
#[derive(Debug, Default)]
pub struct SessionResults {
    tally: Lock<Tally>,
    /// When the last session was lost.
    lost: Lock<Option<Instant>>,
    stored: Lock<BTreeMap<usize, FileTotal>>,
}

impl SessionResults {
    fn add(&self, receiver: usize, stored: FileTotal) {
        if stored.files > 0 || stored.bytes > 0 {
            self.stored.lock().entry(receiver).or_default().add(stored);
        }
    }

    /// Records that a session did not end properly.
    pub(crate) fn record_lost_session(&self) {
        *self.lost.lock() = Some(Instant::now());
    }

    /// Returns whether a session did not end properly, so that it may still be active at its receiver.
    #[must_use]
    pub fn has_lost_sessions(&self) -> bool {
        self.last_lost().is_some()
    }

    /// Returns when the last session was lost.
    pub(crate) fn last_lost(&self) -> Option<Instant> {
        *self.lost.lock()
    }

    /// Returns the work that the movers of this process have completed.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }

    /// Returns the data that each receiver has stored, by receiver number. Receivers that have stored nothing are
    /// omitted.
    #[must_use]
    pub fn by_receiver(&self) -> BTreeMap<usize, FileTotal> {
        self.stored.lock().clone()
    }
}

/// Prefix of messages that come from a receiver.
const OF_RECEIVER: &str = "receiver: ";
/// How long a receiver may take to answer a connection before the user is warned.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long a receiver may take to open the target before the user is warned.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for the end of a session that the user waits for.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use zmove_engine::NoListener;
    use zmove_types::NoObserver;

    use super::*;
    use crate::session::ConnectedSession;

    use crate::lab::{job_events, receiver, session_events};

    #[derive(Default)]
    struct Heard {
        limits: Lock<Vec<String>>,
        warnings: Lock<Vec<String>>,
        failures: Lock<Vec<String>>,
        found: Lock<Vec<(u64, u64)>>,
    }

    impl Observer for Heard {
        fn on(&self, event: &Event) {
            match event {
                Event::Limited { by } => self.limits.lock().push(by.to_string()),
                Event::Warned { message } => self.warnings.lock().push(message.clone()),
                Event::Failed { message } => self.failures.lock().push(message.clone()),
                Event::Found { files, bytes } => self.found.lock().push((*files, *bytes)),
                _ => {}
            }
        }
    }

    #[test]
    fn messages_that_another_node_reported_count_as_reported() {
        let elsewhere = Arc::new(SeenMessages::default());
        let events = JobEvents::new(
            Arc::new(NoObserver),
            Arc::new(NoListener),
            Arc::default(),
            Arc::clone(&elsewhere),
        );
        let session = events.within(0, &receiver());
        assert!(!session.has_reported("sender: x"));
        elsewhere.report_once("sender: x");
        session.on(&Event::Failed {
            message: "sender: y".into(),
        });
        assert!(
            session.has_reported("sender: x")
                && session.has_reported("sender: y")
                && !session.has_reported("sender: z")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_vain_says_for_how_long_its_receiver_answered() {
        let session = session_events();
        assert_eq!(session.outcome(), SessionProgress::NotBegun);
        session.on(&Event::Answered);
        tokio::time::advance(Duration::from_secs(5)).await;
        session.on(&Event::Answered);
        assert_eq!(
            session.outcome(),
            SessionProgress::NoProgress {
                answered: Duration::from_secs(5)
            }
        );
        session.record_progress();
        assert_eq!(session.outcome(), SessionProgress::Progressed);
    }

    #[test]
    fn a_session_warns_once_of_a_standstill_and_names_its_receiver() {
        for warn in [
            SessionEvents::warn_of_a_stop,
            SessionEvents::warn_of_no_answer,
        ] {
            let heard = Arc::new(Heard::default());
            let session =
                job_events(Arc::clone(&heard) as Arc<dyn Observer>).within(0, &receiver());
            (0..2).for_each(|_| warn(&session));
            let told = heard.warnings.lock();
            assert!(told.len() == 1 && told[0].starts_with("h:1: "), "{told:?}");
        }
    }

    #[test]
    fn unsettled_finds_of_a_lost_session_are_not_counted_twice() {
        let heard = Arc::new(Heard::default());
        let events = job_events(Arc::clone(&heard) as Arc<dyn Observer>);
        let [lost, next] = [0, 1].map(|number| events.within(number, &receiver()));
        lost.on(&Event::Found {
            files: 9,
            bytes: 900,
        });
        lost.on(&Event::Stored {
            files: 2,
            bytes: 200,
        });
        lost.on(&Event::Skipped {
            files: 1,
            bytes: 100,
        });
        (0..2).for_each(|_| lost.note_lost(&SessionEnd::OrderTimeout(LEASE)));
        next.on(&Event::Found {
            files: 4,
            bytes: 400,
        });
        next.on(&Event::Found {
            files: 4,
            bytes: 400,
        });
        let found = heard.found.lock();
        assert_eq!(
            found
                .iter()
                .fold((0, 0), |sum, (files, bytes)| (sum.0 + files, sum.1 + bytes)),
            (11, 1100)
        );
    }

    #[test]
    fn the_warning_about_hanging_sessions_names_their_receivers() {
        let heard = Arc::new(Heard::default());
        let events = job_events(Arc::clone(&heard) as Arc<dyn Observer>);
        let at = |host: &str| {
            let mut receiver = receiver();
            receiver.remote.host = host.into();
            events.within(0, &receiver)
        };
        let [head, ended, hangs, hangs_too] = ["a", "b", "c", "c"].map(at);
        let up = [&head, &hangs, &hangs_too].map(|session| ConnectedSession::new(session));
        ConnectedSession::new(&ended).has_ended = true;
        assert!(!events.served.has_lost_sessions());
        head.warn_of_hanging();
        let told = heard.warnings.lock();
        assert!(
            told.len() == 1 && told[0].starts_with("c:1: a session"),
            "{told:?}"
        );
        drop(up);
        let is_up = events.knows(0, |known| !known.up_at.is_empty());
        assert!(events.served.has_lost_sessions() && !is_up);
    }

    #[test]
    fn a_session_that_is_shut_out_tells_of_no_file_that_it_has_failed() {
        let heard = Arc::new(Heard::default());
        let session = job_events(Arc::clone(&heard) as Arc<dyn Observer>).within(0, &receiver());
        for (file, why) in [("x", FaultCode::JobEnded), ("y", FaultCode::Os(28))] {
            session.on(&Event::Failed {
                message: format!("receiver: name '{file}': {why}"),
            });
        }
        let told = heard.failures.lock();
        assert!(
            told.len() == 1 && told[0].starts_with("receiver: name 'y': "),
            "{told:?}"
        );
        assert!(!session.has_failed("x"));
    }

    #[test]
    fn a_session_that_moves_nothing_does_not_say_what_limits_the_job() {
        let heard = Arc::new(Heard::default());
        let events = job_events(Arc::clone(&heard) as Arc<dyn Observer>);
        let [idle, busy] = [0, 1].map(|number| events.within(number, &receiver()));
        for by in ["path", "target"] {
            busy.on(&Event::Stored { files: 0, bytes: 9 });
            idle.on(&Event::Limited {
                by: "waiting for replies".into(),
            });
            busy.on(&Event::Limited { by: by.into() });
        }
        busy.on(&Event::Limited {
            by: "waiting for replies".into(),
        });
        assert_eq!(*heard.limits.lock(), ["path", "target"]);
    }
}
