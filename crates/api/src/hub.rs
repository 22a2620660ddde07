//! What all streams of events are fed from: one thread looks at the store and at running jobs four times a second, as
//! long as there is a stream, and words are made once for all of them.
//!
//! **Invariant:** a stream that falls behind holds nobody up and keeps a bounded number of words.

mod watch;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use zmove_jobs::Place;

use watch::Watch;
pub(crate) use watch::numbered;

/// A message for all streams.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// An event of the store, with its number: each comes to every stream.
    Numbered(i64, Bytes),
    /// From now on messages come: what has happened before is to be read in the store.
    Begin,
    /// How things are: a later one takes its place.
    Passing(Bytes),
}

/// The sender of messages.
#[derive(Debug)]
pub(crate) struct Hub {
    messages: broadcast::Sender<Message>,
    /// Told of each new stream.
    wanted: Condvar,
    lock: Mutex<()>,
    /// The last words about the daemon. They are sent when something has changed, and a new stream has not had them.
    daemon: Mutex<Option<Bytes>>,
}

impl Hub {
    pub(crate) fn new(
        place: &Place,
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
        // They end with the process, as the runner does.
        Builder::new().spawn(move || for_jobs.watch_jobs(&place))?;
        Builder::new().spawn(move || for_daemon.watch_daemon(daemon))?;
        Ok(hub)
    }

    /// A stream of all messages from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Message> {
        let _changing = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.messages.subscribe();
        self.wanted.notify_all();
        receiver
    }

    /// The last words about the daemon, if any are known.
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
        // Nobody may listen any more.
        let _nobody = self.messages.send(message);
    }

    fn watch_jobs(&self, place: &Place) {
        let mut watch = None;
        loop {
            if self.messages.receiver_count() == 0 {
                // What has happened meanwhile is nobody's: who comes reads the store first.
                watch = None;
                self.wait();
            }
            let looked = match &mut watch {
                Some(watch) => Watch::look(watch, |message| self.send(message)),
                none => Watch::begin(place).map(|begun| {
                    *none = Some(begun);
                    self.send(Message::Begin);
                }),
            };
            // The store may be locked, full or gone for a while; streams go on when it is back.
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
                let words = words("daemon", None, &now);
                *self.lock_daemon() = Some(words.clone());
                self.send(Message::Passing(words));
                before = now;
            }
            std::thread::sleep(pause);
        }
    }
}

/// An event of a stream, as its format has it.
pub(crate) fn words(event: &str, number: Option<i64>, data: &impl serde::Serialize) -> Bytes {
    let id = number.map_or_else(String::new, |number| format!("id: {number}\n"));
    let data = serde_json::to_string(data).expect("what is told has only names for keys");
    // JSON on one line has no line breaks.
    format!("{id}event: {event}\ndata: {data}\n\n").into()
}

/// How often jobs are looked at.
const INTERVAL: Duration = Duration::from_millis(250);
const TROUBLE_INTERVAL: Duration = Duration::from_secs(1);
const DAEMON_INTERVAL: Duration = Duration::from_secs(1);
/// How often a daemon is looked for.
const NO_DAEMON_INTERVAL: Duration = Duration::from_secs(5);
/// How many messages a stream may be behind before it reads the store again.
const BACKLOG_MAX: usize = 256;
