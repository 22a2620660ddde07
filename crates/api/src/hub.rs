//! The source of all event streams. While there is a stream, one thread checks the store and the running jobs four
//! times a second. It encodes each message once for all streams.
//!
//! **Invariant:** a slow stream never delays others, and its backlog is bounded.

mod watch;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use zmove_jobs::JobsDirectory;

use watch::Watch;
pub(crate) use watch::numbered;

/// A message to all streams.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// An event of the store and its number. Every stream sends it.
    Numbered(i64, Bytes),
    /// The thread has started to watch. A stream must read earlier events from the store.
    Begin,
    /// A snapshot of the current state. A later one replaces it.
    Snapshot(Bytes),
}

/// Sends messages to all streams.
#[derive(Debug)]
pub(crate) struct Hub {
    messages: broadcast::Sender<Message>,
    /// Notified of each new stream.
    wanted: Condvar,
    lock: Mutex<()>,
    /// The last message about the daemon. It is sent only when the status changes, so a new stream receives this copy.
    daemon: Mutex<Option<Bytes>>,
}

impl Hub {
    pub(crate) fn new(
        place: &JobsDirectory,
        daemon: fn() -> Result<Value, String>,
    ) -> io::Result<Arc<Self>> {
        let hub = Arc::new(Self {
            messages: broadcast::channel(BACKLOG_MAX).0,
            wanted: Condvar::new(),
            lock: Mutex::new(()),
            daemon: Mutex::default(),
        });
        let for_jobs = Arc::clone(&hub);
        let for_daemon = Arc::clone(&hub);
        let place = place.clone();
        // The threads are never joined. They end with the process, as the runner does.
        Builder::new().spawn(move || for_jobs.watch_jobs(&place))?;
        Builder::new().spawn(move || for_daemon.watch_daemon(daemon))?;
        Ok(hub)
    }

    /// Returns a receiver of all messages from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Message> {
        let _changing = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.messages.subscribe();
        self.wanted.notify_all();
        receiver
    }

    /// Returns the last message about the daemon, if there is one.
    pub(crate) fn daemon(&self) -> Option<Bytes> {
        self.lock_daemon().clone()
    }

    fn lock_daemon(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a stream.
    fn wait(&self) {
        let mut changing = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.messages.receiver_count() == 0 {
            changing = self
                .wanted
                .wait(changing)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, message: Message) {
        // There may be no stream any more.
        let _nobody = self.messages.send(message);
    }

    fn watch_jobs(&self, place: &JobsDirectory) {
        let mut watch = None;
        loop {
            if self.messages.receiver_count() == 0 {
                // Events that occurred while no stream existed need no message: each new stream reads the store first.
                watch = None;
                self.wait();
            }
            let looked = match &mut watch {
                Some(watch) => Watch::poll(watch, |message| self.send(message)),
                none => Watch::begin(place).map(|begun| {
                    *none = Some(begun);
                    self.send(Message::Begin);
                }),
            };
            // The store may be locked, full or missing for a while. Streams continue when it is available again.
            std::thread::sleep(if looked.is_ok() {
                INTERVAL
            } else {
                TROUBLE_INTERVAL
            });
        }
    }

    fn watch_daemon(&self, daemon: fn() -> Result<Value, String>) {
        let mut before = Value::Null;
        loop {
            if self.messages.receiver_count() == 0 {
                before = Value::Null;
                *self.lock_daemon() = None;
                self.wait();
            }
            let (now, pause) = match daemon() {
                Ok(status) => (json!({ "status": status, "why": null }), DAEMON_INTERVAL),
                Err(why) => (json!({ "status": null, "why": why }), NO_DAEMON_INTERVAL),
            };
            if now != before {
                let words = encode_event("daemon", None, &now);
                *self.lock_daemon() = Some(words.clone());
                self.send(Message::Snapshot(words));
                before = now;
            }
            std::thread::sleep(pause);
        }
    }
}

/// Encodes an event in the format of server-sent events.
pub(crate) fn encode_event(
    event: &str,
    number: Option<i64>,
    data: &impl serde::Serialize,
) -> Bytes {
    let id = number.map_or_else(String::new, |number| format!("id: {number}\n"));
    let data = serde_json::to_string(data).expect("what is told has only names for keys");
    // JSON on one line contains no line breaks.
    format!("{id}event: {event}\ndata: {data}\n\n").into()
}

/// Interval between checks of the jobs.
const INTERVAL: Duration = Duration::from_millis(250);
const TROUBLE_INTERVAL: Duration = Duration::from_secs(1);
const DAEMON_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to reach a daemon that did not respond.
const NO_DAEMON_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of messages in the backlog of a stream. A stream that is further behind reads the store again.
const BACKLOG_MAX: usize = 256;
