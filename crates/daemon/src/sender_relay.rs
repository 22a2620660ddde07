//! Relays a sending session's events, file hashes and final report (`Relay::Account`) to the receiver that requested
//! the transfer.
//!
//! Counts are accumulated and sent ten times a second; all other messages are sent immediately. Messages that the
//! receiver has not read are queued and charged to its key's quota. When too many bytes are queued, a thread that sends
//! a message must wait. The scan or preview that runs on this thread then waits too. Tasks of the runtime never wait.
//! If far too many bytes are queued, the session is ended or the listener is dropped ([`Listeners`]).
//!
//! **Invariant:** queued messages are bounded and charged, and no message follows the final report.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch;
use zmove_receiver::{Charge, Quota, TransferMeter};
use zmove_sender::{PeerQuota, ProofMethod, RelayMessage, Reservation, SessionError, Summary};
use zmove_types::{Event, LISTED_MAX, Lock, Observer, RelPath, Root};
use zmove_wire::limits::HASHED_MAX;
use zmove_wire::{
    FileHash, Refusal, RefusalCode, Relay, ToReceiver, TransferProgress, WireError, encode_message,
};

use crate::access::refusals::denied;

/// The relay of one session. The module documentation describes it.
pub(crate) struct SenderRelay {
    quota: Quota,
    /// The channel to the writer. `None` once the final report has been sent.
    messages: Lock<Option<UnboundedSender<RelayMessage>>>,
    backlog: Arc<Waiting>,
    /// Progress that has not been sent.
    unsent: Lock<TransferProgress>,
    hashed: Lock<Vec<FileHash>>,
    /// Hashes of files that already existed at the receiver.
    existing: Lock<Vec<FileHash>>,
    /// Progress since the session began, without the progress in `unsent`.
    totals: Lock<TransferProgress>,
    listeners: Listeners,
    /// The daemon's own counters of the transfer.
    meter: Arc<TransferMeter>,
    /// The reason why the daemon or its operator ended the transfer.
    cut_off: OnceLock<Refusal>,
    /// True when the receiver has far too many unread bytes, or its key has no memory left.
    over: watch::Sender<bool>,
}

/// Whether the session requires a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listeners {
    /// A receiver that does not read its messages ends the session.
    Needed,
    /// Listeners may come and go. A listener that does not read its messages is dropped.
    Optional,
}

/// The number of bytes that are queued for the writer.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    lock: Mutex<()>,
    less: Condvar,
}

/// The number of queued bytes that belong to one message, and the reservation for them.
#[derive(Debug)]
struct QueuedMessage {
    backlog: Arc<Waiting>,
    bytes: usize,
    _booked: Charge,
}

/// Number of queued bytes above which a sending thread must wait.
const BACKLOG_BYTES_MAX: usize = 4 << 20;
/// Number of queued bytes above which the listener is dropped.
const OVERFLOW_BYTES_MIN: usize = 32 << 20;
/// Interval at which a waiting thread checks whether the session has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which counts are sent.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Memory that a queued message takes in addition to its bytes, in bytes.
const MESSAGE_BYTES: usize = 128;

impl SenderRelay {
    /// Creates a relay that charges `quota`, and the receiving end of its messages.
    pub(crate) fn new(
        quota: Quota,
        listeners: Listeners,
        meter: Arc<TransferMeter>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<RelayMessage>) {
        let (messages_in, messages) = mpsc::unbounded_channel();
        let sender_relay = Self {
            quota,
            messages: Lock::new(Some(messages_in)),
            backlog: Arc::default(),
            unsent: Lock::default(),
            hashed: Lock::default(),
            existing: Lock::default(),
            totals: Lock::default(),
            listeners,
            meter,
            cut_off: OnceLock::new(),
            over: watch::Sender::new(false),
        };
        (Arc::new(sender_relay), messages)
    }

    /// Resolves when the session must end because too many bytes are queued.
    pub(crate) async fn is_over(&self) {
        let mut over = self.over.subscribe();
        // The wait cannot fail, because `self` owns the sending end.
        drop(over.wait_for(|over| *over).await);
    }

    /// Sends the accumulated counts and hashes.
    pub(crate) fn flush(&self) {
        let mut totals = self.totals.lock();
        let progress = mem::take(&mut *self.unsent.lock());
        totals.add(&progress);
        // A listener that attaches after this point receives these counts as part of the totals.
        let messages = self.messages.lock().clone();
        drop(totals);
        if progress != TransferProgress::default() {
            self.send_to(messages.as_ref(), Relay::Told(progress.events().collect()));
        }
        self.flush_hashes(mem::take(&mut *self.hashed.lock()), Relay::Hashed);
        self.flush_hashes(mem::take(&mut *self.existing.lock()), Relay::Looked);
    }

    /// Sends the hash of a file that is complete at the target.
    pub(crate) fn hash(&self, path: &RelPath, root: &Root, known: ProofMethod) {
        let (hashed, relay): (_, fn(Vec<FileHash>) -> Relay) = match known {
            ProofMethod::Received | ProofMethod::Compared => (&self.hashed, Relay::Hashed),
            ProofMethod::SizeAndTime => (&self.existing, Relay::Looked),
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
            self.send(relay(part.to_vec()));
        }
    }

    /// Attaches a new listener, which receives all messages from now on. The new listener replaces the previous one.
    pub(crate) fn attach(&self) -> mpsc::UnboundedReceiver<RelayMessage> {
        let (messages_in, messages) = mpsc::unbounded_channel();
        let totals = self.totals.lock();
        let before = self.messages.lock().replace(messages_in.clone());
        self.send_to(Some(&messages_in), Relay::Told(totals.events().collect()));
        drop(totals);
        if before.is_some() {
            let refusal = denied("another client now follows this copy");
            self.send_to(before.as_ref(), Relay::Broken(refusal));
        }
        messages
    }

    /// Reports that another session begins and that the counts start again at zero.
    pub(crate) fn report_restart(&self) {
        self.flush();
        let mut totals = self.totals.lock();
        *totals = TransferProgress::default();
        let messages = self.messages.lock().clone();
        drop(totals);
        self.send_to(messages.as_ref(), Relay::SessionBegins);
    }

    /// Sends the final message, after which no more messages are sent.
    pub(crate) fn send_last(&self, last: Relay) {
        self.flush();
        self.send(last);
        self.messages.lock().take();
        self.backlog.less.notify_all();
    }

    /// Records why the daemon or its operator is about to end the transfer. The final message contains this reason.
    pub(crate) fn cut_off(&self, refusal: Refusal) {
        let _first = self.cut_off.set(refusal);
    }

    /// Reports to the receiver which sources cannot be opened.
    pub(crate) fn fail_all(&self, missing: Vec<String>) {
        for message in missing {
            self.on(&Event::Failed { message });
        }
    }

    /// Sends a warning.
    pub(crate) fn warn(&self, message: String) {
        self.send_event(Event::Warned { message });
    }

    /// Requests more lanes from the receiver.
    pub(crate) fn want_lanes(&self, more: u16) {
        self.send(Relay::Lanes(more));
    }

    /// Reports the end of the session, after which no more messages are sent. The `missing` sources are counted as
    /// failed.
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
        self.send_last(last);
    }

    fn send_event(&self, event: Event) {
        self.send(Relay::Told(vec![event]));
    }

    fn send(&self, relay: Relay) {
        let messages = self.messages.lock().clone();
        self.send_to(messages.as_ref(), relay);
    }

    fn send_to(&self, messages: Option<&UnboundedSender<RelayMessage>>, relay: Relay) {
        let Some(messages) = messages.filter(|messages| !messages.is_closed()) else {
            return;
        };
        let bytes = encode_message(&ToReceiver::Relay(relay));
        let amount = bytes.len() + MESSAGE_BYTES;
        self.wait_for_room();
        if self.backlog.bytes.load(Ordering::Relaxed) > OVERFLOW_BYTES_MIN {
            return self.give_up_listener();
        }
        let Ok(booked) = self.quota.charge_memory(amount) else {
            return self.give_up_listener();
        };
        self.backlog.bytes.fetch_add(amount, Ordering::Relaxed);
        let message = QueuedMessage {
            backlog: Arc::clone(&self.backlog),
            bytes: amount,
            _booked: booked,
        };
        // Sending fails only if the session has ended or the listener has disconnected.
        let _over = messages.send(RelayMessage {
            bytes,
            held: Box::new(message),
        });
    }

    /// Drops a listener that does not read its messages.
    fn give_up_listener(&self) {
        match self.listeners {
            Listeners::Needed => drop(self.over.send_replace(true)),
            Listeners::Optional => drop(self.messages.lock().take()),
        }
    }

    /// Blocks a thread while too many bytes are queued. The runtime's own threads do not wait.
    fn wait_for_room(&self) {
        let is_full = || self.backlog.bytes.load(Ordering::Relaxed) > BACKLOG_BYTES_MAX;
        if !is_full() || Handle::try_current().is_ok() {
            return;
        }
        let mut guard = self
            .backlog
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while is_full() && !*self.over.borrow() && !self.has_ended() {
            let waited = self.backlog.less.wait_timeout(guard, CHECK_INTERVAL);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether the writer has ended or the final report has been sent.
    fn has_ended(&self) -> bool {
        self.messages
            .lock()
            .as_ref()
            .is_none_or(UnboundedSender::is_closed)
    }
}

/// Number of hashes that are sent without waiting for the next flush.
const HASHED_AT_ONCE: usize = 256;

impl Observer for SenderRelay {
    fn on(&self, event: &Event) {
        self.meter.record_event(event);
        match event {
            event if self.unsent.lock().hear(event) => {}
            Event::ScanEnded | Event::Flushing => {
                self.flush();
                self.send_event(event.clone());
            }
            Event::Waiting { message } | Event::HeldUp { by: message } => {
                self.warn(message.clone());
            }
            Event::Listed { changes } => {
                for part in changes.chunks(LISTED_MAX) {
                    let changes = part.to_vec();
                    self.send_event(Event::Listed { changes });
                }
            }
            event => self.send_event(event.clone()),
        }
    }
}

/// Returns the refusal that reports to the receiver why its sender cannot continue.
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

impl Drop for QueuedMessage {
    fn drop(&mut self) {
        self.backlog.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.backlog.less.notify_all();
    }
}

/// The quota of a key, charged for its receiver's messages and for the threads that read on its behalf.
#[derive(Debug)]
pub(crate) struct KeyQuota(pub(crate) Quota);

impl PeerQuota for KeyQuota {
    fn charge_memory(&self, bytes: usize) -> Result<Reservation, WireError> {
        Ok(Box::new(self.0.charge_memory(bytes)?))
    }

    fn charge_helper(&self) -> Option<Reservation> {
        self.0
            .charge_helper()
            .map(|helper| Box::new(helper) as Reservation)
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
        let (sender_relay, mut messages) =
            SenderRelay::new(Quota::default(), Listeners::Needed, Arc::default());
        for _ in 0..3 {
            sender_relay.on(&Event::Found { files: 1, bytes: 2 });
        }
        sender_relay.on(&Event::ScanEnded);
        let heard: Vec<_> = std::iter::from_fn(|| messages.try_recv().ok())
            .map(|RelayMessage { bytes, .. }| decode_message::<ToReceiver>(&bytes[4..]).unwrap())
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
        let (sender_relay, mut messages) =
            SenderRelay::new(quota.clone(), Listeners::Needed, Arc::default());
        let telling = Arc::clone(&sender_relay);
        let thread = std::thread::spawn(move || (0..20_000).for_each(|_| telling.on(&failed())));
        let waiting_bytes = || sender_relay.backlog.bytes.load(Ordering::Relaxed);
        // The test reads no messages until the maximum number of bytes is queued.
        while waiting_bytes() < BACKLOG_BYTES_MAX {
            assert!(!thread.is_finished());
            std::thread::yield_now();
        }
        assert!(
            quota.charge_memory(5 << 20).is_err(),
            "what waits is booked"
        );
        let mut heard = 0;
        while !thread.is_finished() || !messages.is_empty() {
            assert!(waiting_bytes() < BACKLOG_BYTES_MAX + (1 << 20));
            heard += usize::from(messages.try_recv().is_ok());
        }
        thread.join().unwrap();
        assert_eq!(heard, 20_000);
        assert!(
            quota.charge_memory(8 << 20).is_ok(),
            "all has been given back"
        );
        assert!(!*sender_relay.over.borrow());
    }

    #[tokio::test]
    async fn a_listener_who_does_not_read_is_left_and_the_next_hears_the_totals() {
        let limits = Limits {
            memory_per_identity: ByteCount(1 << 20),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let (sender_relay, mut messages) =
            SenderRelay::new(quota.clone(), Listeners::Optional, Arc::default());
        sender_relay.on(&Event::Found { files: 1, bytes: 2 });
        sender_relay.flush();
        (0..2_000).for_each(|_| sender_relay.on(&failed()));
        let ended = async { while messages.recv().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(60), ended)
            .await
            .expect("what is told comes to its end");
        assert!(!*sender_relay.over.borrow());
        sender_relay.on(&Event::Found { files: 1, bytes: 2 });
        sender_relay.flush();
        let mut messages = sender_relay.attach();
        sender_relay.send_last(Relay::Lanes(0));
        let RelayMessage { bytes, .. } = messages.recv().await.unwrap();
        let found = Event::Found { files: 2, bytes: 4 };
        let told = ToReceiver::Relay(Relay::Told(vec![found]));
        assert_eq!(decode_message::<ToReceiver>(&bytes[4..]), Ok(told));
        assert!(messages.recv().await.is_some() && messages.recv().await.is_none());
    }

    #[tokio::test]
    async fn the_runtime_does_not_wait_and_ends_the_session() {
        let limits = Limits {
            memory_per_identity: ByteCount(1 << 20),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let (sender_relay, _words) = SenderRelay::new(quota, Listeners::Needed, Arc::default());
        (0..2_000).for_each(|_| sender_relay.on(&failed()));
        sender_relay.is_over().await;
    }
}
