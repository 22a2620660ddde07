//! What a sending session tells the receiver who has asked for it: its events, hashes of files, and its account.
//!
//! Counts are added up and told ten times a second; everything else is told as it happens. What the receiver does not
//! read waits, booked on its key: a thread that tells more then waits, and so does the scan or preview behind it. A
//! task of the runtime never waits, and ends the session where far too much is waiting.
//!
//! **Invariant:** what waits is bounded and booked, and nothing is told after the account.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch;
use zmove_receiver::{Booking, Quota, TransferMeter};
use zmove_sender::{Beside, Held, Known, PeerQuota, SessionError, Summary};
use zmove_types::{Event, LISTED_MAX, Lock, Observer, RelPath, Root};
use zmove_wire::limits::HASHED_MAX;
use zmove_wire::{
    FileHash, Refusal, RefusalCode, Relay, ToReceiver, TransferProgress, WireError, encode_message,
};

use crate::access::refusals::denied;

/// The teller of one session; see the module.
pub(crate) struct Relaying {
    quota: Quota,
    /// The way to the writer; `None` once the account has been told.
    words: Lock<Option<UnboundedSender<Beside>>>,
    waiting: Arc<Waiting>,
    /// The progress that has not been told.
    untold: Lock<TransferProgress>,
    hashed: Lock<Vec<FileHash>>,
    /// The hashes of files that were at the receiver.
    looked: Lock<Vec<FileHash>>,
    /// All that has been counted and told since the session began.
    totals: Lock<TransferProgress>,
    listeners: Listeners,
    /// The daemon's own count of the transfer.
    meter: Arc<TransferMeter>,
    /// Why the transfer was ended from outside.
    cut_off: OnceLock<Refusal>,
    /// Turns true where the receiver reads far too little, or its key has no memory left.
    over: watch::Sender<bool>,
}

/// Whether the session needs somebody who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listeners {
    /// A receiver that does not read ends the session.
    Needed,
    /// Listeners come and go: one that does not read is left.
    Optional,
}

/// The bytes that wait for the writer.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    lock: Mutex<()>,
    less: Condvar,
}

/// A word's share of what waits, and its booking.
#[derive(Debug)]
struct Word {
    waiting: Arc<Waiting>,
    bytes: usize,
    _booked: Booking,
}

/// The most bytes that wait before a thread that tells more has to wait.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// The most bytes that wait at all.
const OVERFLOW_BYTES: usize = 32 << 20;
/// How often a waiting thread sees whether the session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often counts are told.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(100);
/// What a word takes beside its bytes.
const WORD_BYTES: usize = 128;

impl Relaying {
    /// A teller that books on `quota`, and the words that it tells.
    pub(crate) fn new(
        quota: Quota,
        listeners: Listeners,
        meter: Arc<TransferMeter>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Beside>) {
        let (words_in, words) = mpsc::unbounded_channel();
        let relaying = Self {
            quota,
            words: Lock::new(Some(words_in)),
            waiting: Arc::default(),
            untold: Lock::default(),
            hashed: Lock::default(),
            looked: Lock::default(),
            totals: Lock::default(),
            listeners,
            meter,
            cut_off: OnceLock::new(),
            over: watch::Sender::new(false),
        };
        (Arc::new(relaying), words)
    }

    /// Resolves when the session has to end because too much waits.
    pub(crate) async fn is_over(&self) {
        let mut over = self.over.subscribe();
        // Cannot fail: `self` owns the sending end.
        drop(over.wait_for(|over| *over).await);
    }

    /// Tells the counts and hashes that have gathered.
    pub(crate) fn flush(&self) {
        let mut totals = self.totals.lock();
        let progress = mem::take(&mut *self.untold.lock());
        totals.add(&progress);
        // a listener who comes now has heard of these counts in the totals
        let words = self.words.lock().clone();
        drop(totals);
        if progress != TransferProgress::default() {
            self.say_to(words.as_ref(), Relay::Told(progress.events().collect()));
        }
        self.flush_hashes(mem::take(&mut *self.hashed.lock()), Relay::Hashed);
        self.flush_hashes(mem::take(&mut *self.looked.lock()), Relay::Looked);
    }

    /// Tells the hash of a file that is whole at the target.
    pub(crate) fn hash(&self, path: &RelPath, root: &Root, known: Known) {
        let (hashed, relay): (_, fn(Vec<FileHash>) -> Relay) = match known {
            Known::Received | Known::Compared => (&self.hashed, Relay::Hashed),
            Known::Looked => (&self.looked, Relay::Looked),
        };
        let mut hashed = hashed.lock();
        hashed.push(FileHash {
            path: path.clone(),
            root: *root,
        });
        if hashed.len() >= HASHED_AT_ONCE {
            let full = mem::take(&mut *hashed);
            drop(hashed);
            self.flush_hashes(full, relay);
        }
    }

    fn flush_hashes(&self, hashed: Vec<FileHash>, relay: impl Fn(Vec<FileHash>) -> Relay) {
        for part in hashed.chunks(HASHED_MAX) {
            self.say(relay(part.to_vec()));
        }
    }

    /// Lets another listener hear what is told from now on, instead of the one before.
    pub(crate) fn attach(&self) -> mpsc::UnboundedReceiver<Beside> {
        let (words_in, words) = mpsc::unbounded_channel();
        let totals = self.totals.lock();
        let before = self.words.lock().replace(words_in.clone());
        self.say_to(Some(&words_in), Relay::Told(totals.events().collect()));
        drop(totals);
        if before.is_some() {
            let refusal = denied("another client listens to this copy now");
            self.say_to(before.as_ref(), Relay::Broken(refusal));
        }
        words
    }

    /// Tells that another session begins, in which all is counted anew.
    pub(crate) fn begin_again(&self) {
        self.flush();
        let mut totals = self.totals.lock();
        *totals = TransferProgress::default();
        let words = self.words.lock().clone();
        drop(totals);
        self.say_to(words.as_ref(), Relay::SessionBegins);
    }

    /// Tells the last word, after which nothing more is told.
    pub(crate) fn end_with(&self, last: Relay) {
        self.flush();
        self.say(last);
        self.words.lock().take();
        self.waiting.less.notify_all();
    }

    /// Notes why the transfer is about to be ended from outside, for the last word.
    pub(crate) fn cut_off(&self, refusal: Refusal) {
        let _first = self.cut_off.set(refusal);
    }

    /// Tells of sources that cannot be opened.
    pub(crate) fn fail_all(&self, missing: Vec<String>) {
        for message in missing {
            self.on(&Event::Failed { message });
        }
    }

    /// Tells a warning.
    pub(crate) fn warn(&self, message: String) {
        self.tell(Event::Warned { message });
    }

    /// Asks the receiver for more lanes.
    pub(crate) fn want_lanes(&self, more: u16) {
        self.say(Relay::Lanes(more));
    }

    /// Tells the end of the session, after which nothing more is told. Sources that are `missing` count as failed.
    pub(crate) fn end(&self, ended: Result<&Summary, &SessionError>, missing: u64) {
        let last = match ended {
            Ok(summary) => {
                let mut summary = summary.clone();
                summary.counters.failed += missing;
                Relay::Account(Box::new(summary.into()))
            }
            Err(error) => Relay::Broken(
                self.cut_off
                    .get()
                    .cloned()
                    .unwrap_or_else(|| refusal_of(error)),
            ),
        };
        self.end_with(last);
    }

    fn tell(&self, event: Event) {
        self.say(Relay::Told(vec![event]));
    }

    fn say(&self, relay: Relay) {
        let words = self.words.lock().clone();
        self.say_to(words.as_ref(), relay);
    }

    fn say_to(&self, words: Option<&UnboundedSender<Beside>>, relay: Relay) {
        let Some(words) = words.filter(|words| !words.is_closed()) else {
            return;
        };
        let bytes = encode_message(&ToReceiver::Relay(relay));
        let amount = bytes.len() + WORD_BYTES;
        self.wait_for_room();
        if self.waiting.bytes.load(Ordering::Relaxed) > OVERFLOW_BYTES {
            return self.overflow();
        }
        let Ok(booked) = self.quota.book_memory(amount) else {
            return self.overflow();
        };
        self.waiting.bytes.fetch_add(amount, Ordering::Relaxed);
        let word = Word {
            waiting: Arc::clone(&self.waiting),
            bytes: amount,
            _booked: booked,
        };
        // Sending fails only when the session is over, or the listener has gone.
        let _over = words.send(Beside {
            bytes,
            held: Box::new(word),
        });
    }

    /// Too much waits for a listener who does not read.
    fn overflow(&self) {
        match self.listeners {
            Listeners::Needed => drop(self.over.send_replace(true)),
            Listeners::Optional => drop(self.words.lock().take()),
        }
    }

    /// Lets a thread wait while too much does; the runtime's own threads do not wait.
    fn wait_for_room(&self) {
        let is_full = || self.waiting.bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX;
        if !is_full() || Handle::try_current().is_ok() {
            return;
        }
        let mut guard = self
            .waiting
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while is_full() && !*self.over.borrow() && !self.has_ended() {
            let waited = self.waiting.less.wait_timeout(guard, LOOK_EVERY);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the writer has gone, or the account has been told.
    fn has_ended(&self) -> bool {
        self.words
            .lock()
            .as_ref()
            .is_none_or(UnboundedSender::is_closed)
    }
}

/// How many hashes are told at once, if not as many have come by the next time.
const HASHED_AT_ONCE: usize = 256;

impl Observer for Relaying {
    fn on(&self, event: &Event) {
        self.meter.hear(event);
        match event {
            event if self.untold.lock().hear(event) => {}
            Event::ScanEnded | Event::Flushing => {
                self.flush();
                self.tell(event.clone());
            }
            Event::Waiting { message } | Event::HeldUp { by: message } => {
                self.warn(message.clone());
            }
            Event::Listed { changes } => {
                for part in changes.chunks(LISTED_MAX) {
                    let changes = part.to_vec();
                    self.tell(Event::Listed { changes });
                }
            }
            event => self.tell(event.clone()),
        }
    }
}

/// The refusal that tells the receiver why its sender cannot go on.
pub(crate) fn refusal_of(error: &SessionError) -> Refusal {
    let code = match error {
        SessionError::Interrupted => RefusalCode::Stopping,
        error if error.is_lost() => RefusalCode::Broken,
        SessionError::PeerMisbehaved(_) | SessionError::Control(_) | SessionError::Lane(_) => {
            RefusalCode::Protocol
        }
        _ => RefusalCode::Failed,
    };
    Refusal::new(code, error.to_string())
}

impl Drop for Word {
    fn drop(&mut self) {
        self.waiting.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.waiting.less.notify_all();
    }
}

/// The quota of a key, for what its receiver says and the threads that read for it.
#[derive(Debug)]
pub(crate) struct KeyQuota(pub(crate) Quota);

impl PeerQuota for KeyQuota {
    fn book_memory(&self, bytes: usize) -> Result<Held, WireError> {
        Ok(Box::new(self.0.book_memory(bytes)?))
    }

    fn book_helper(&self) -> Option<Held> {
        self.0.book_helper().map(|helper| Box::new(helper) as Held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_receiver::{Limits, Quotas};
    use zmove_transport::Fingerprint;
    use zmove_types::ByteCount;
    use zmove_wire::decode_message;

    fn failed() -> Event {
        Event::Failed {
            message: "x".repeat(1000),
        }
    }

    #[test]
    fn counts_are_added_up_and_come_before_the_end_of_the_scan() {
        let (relaying, mut words) =
            Relaying::new(Quota::default(), Listeners::Needed, Arc::default());
        for _ in 0..3 {
            relaying.on(&Event::Found { files: 1, bytes: 2 });
        }
        relaying.on(&Event::ScanEnded);
        let heard: Vec<_> = std::iter::from_fn(|| words.try_recv().ok())
            .map(|Beside { bytes, .. }| decode_message::<ToReceiver>(&bytes[4..]).unwrap())
            .collect();
        let told = |event| ToReceiver::Relay(Relay::Told(vec![event]));
        let found = Event::Found { files: 3, bytes: 6 };
        assert_eq!(heard, [told(found), told(Event::ScanEnded)]);
    }

    #[test]
    fn a_thread_waits_for_a_receiver_that_does_not_read_and_what_waits_is_booked() {
        let limits = Limits {
            memory_per_identity: ByteCount(8 << 20),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let (relaying, mut words) = Relaying::new(quota.clone(), Listeners::Needed, Arc::default());
        let telling = Arc::clone(&relaying);
        let thread = std::thread::spawn(move || (0..20_000).for_each(|_| telling.on(&failed())));
        let waiting_bytes = || relaying.waiting.bytes.load(Ordering::Relaxed);
        // Nobody reads until as much waits as may.
        while waiting_bytes() < WAITING_BYTES_MAX {
            assert!(!thread.is_finished());
            std::thread::yield_now();
        }
        assert!(quota.book_memory(5 << 20).is_err(), "what waits is booked");
        let mut heard = 0;
        while !thread.is_finished() || !words.is_empty() {
            assert!(waiting_bytes() < WAITING_BYTES_MAX + (1 << 20));
            heard += usize::from(words.try_recv().is_ok());
        }
        thread.join().unwrap();
        assert_eq!(heard, 20_000);
        assert!(
            quota.book_memory(8 << 20).is_ok(),
            "all has been given back"
        );
        assert!(!*relaying.over.borrow());
    }

    #[tokio::test]
    async fn a_listener_who_does_not_read_is_left_and_the_next_hears_the_totals() {
        let limits = Limits {
            memory_per_identity: ByteCount(1 << 20),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let (relaying, mut words) =
            Relaying::new(quota.clone(), Listeners::Optional, Arc::default());
        relaying.on(&Event::Found { files: 1, bytes: 2 });
        relaying.flush();
        (0..2_000).for_each(|_| relaying.on(&failed()));
        let ended = async { while words.recv().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(60), ended)
            .await
            .expect("what is told comes to its end");
        assert!(!*relaying.over.borrow());
        relaying.on(&Event::Found { files: 1, bytes: 2 });
        relaying.flush();
        let mut words = relaying.attach();
        relaying.end_with(Relay::Lanes(0));
        let Beside { bytes, .. } = words.recv().await.unwrap();
        let found = Event::Found { files: 2, bytes: 4 };
        let told = ToReceiver::Relay(Relay::Told(vec![found]));
        assert_eq!(decode_message::<ToReceiver>(&bytes[4..]), Ok(told));
        assert!(words.recv().await.is_some() && words.recv().await.is_none());
    }

    #[tokio::test]
    async fn the_runtime_does_not_wait_and_ends_the_session() {
        let limits = Limits {
            memory_per_identity: ByteCount(1 << 20),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let (relaying, _words) = Relaying::new(quota, Listeners::Needed, Arc::default());
        (0..2_000).for_each(|_| relaying.on(&failed()));
        relaying.is_over().await;
    }
}
