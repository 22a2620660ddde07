//! The teller: a thread of the runner that deals what is in the outbox to the channels, and has each tell.
//!
//! It has a connection to the store of its own, and for each channel that has something to tell a thread, which tells
//! one event after the other and ends with the first that cannot be told now. What has become of each comes back here
//! and is noted: a runner that is killed before has it told again, with the same id.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::config::{Channel, Channels};
use super::message::Message;
use crate::error::StoreError;
use crate::moment::Moment;
use crate::place::Place;
use crate::runner::wake;
use crate::store::{Delivery, Store, Try};

/// The runner's side of its teller.
#[derive(Debug)]
pub(crate) struct Teller {
    look: SyncSender<()>,
    warnings: Receiver<String>,
    stalled_after_millis: Arc<AtomicU64>,
}

impl Teller {
    /// Begins to tell what is in the store of a place, by the channels that this file names.
    ///
    /// # Errors
    /// The store cannot be opened, or no thread begun.
    pub(crate) fn begin(place: &Place, file: PathBuf) -> Result<Self, StoreError> {
        let (look, looks) = sync_channel(1);
        let (warn, warnings) = channel();
        let (note, notes) = channel();
        let stalled_after_millis = Arc::new(AtomicU64::new(u64::MAX));
        let store = Store::open(place)?;
        let telling = Telling {
            place: place.clone(),
            id: store.id()?,
            store,
            file,
            warn,
            trouble: None,
            stalled_after_millis: Arc::clone(&stalled_after_millis),
            note,
            notes,
            unnoted: Vec::new(),
            busy: HashSet::new(),
        };
        let begun = Builder::new()
            .name("tell".to_owned())
            .spawn(move || telling.run(&looks));
        begun.map_err(StoreError::io("begin to tell of", place.path()))?;
        Ok(Self {
            look,
            warnings,
            stalled_after_millis,
        })
    }

    /// Has it look at the outbox.
    pub(crate) fn look(&self) {
        // It has not looked since the last time, or is gone.
        let _looks_anyway = self.look.try_send(());
    }

    /// What went wrong, for people.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.warnings.try_iter()
    }

    /// How long a job moves nothing before that is told.
    pub(crate) fn stalled_after(&self) -> Duration {
        Duration::from_millis(self.stalled_after_millis.load(Ordering::Relaxed))
    }
}

/// What has become of a delivery; none where the thread of the channel is at its end.
type Note = (String, Option<(Delivery, Try)>);

struct Telling {
    place: Place,
    store: Store,
    id: String,
    file: PathBuf,
    warn: Sender<String>,
    /// What went wrong last, which is told once.
    trouble: Option<String>,
    stalled_after_millis: Arc<AtomicU64>,
    note: Sender<Note>,
    notes: Receiver<Note>,
    /// What could not be noted yet.
    unnoted: Vec<(Delivery, Try)>,
    /// The channels whose threads are at work.
    busy: HashSet<String>,
}

impl Telling {
    fn run(mut self, looks: &Receiver<()>) {
        let mut had_work = false;
        loop {
            let trouble = self.work(Moment::now()).err();
            let is_news = trouble.is_some() && trouble != self.trouble;
            if let Some(why) = trouble.clone().filter(|_| is_news) {
                let _runner_gone = self.warn.send(why);
            }
            self.trouble = trouble;
            let has_work = self.has_work();
            // The runner looks now: it may be to end when there is nothing more to do, and it says the warnings.
            if had_work && !has_work || is_news {
                let _runner_gone = wake(&self.place);
            }
            had_work = has_work;
            let waits = self.busy.is_empty() && self.trouble.is_none() && !self.is_in_the_making();
            let pause = if waits { self.pause() } else { TURN };
            match looks.recv_timeout(pause) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what is to be done now.
    fn work(&mut self, now: Moment) -> Result<(), String> {
        while let Ok((channel, told)) = self.notes.try_recv() {
            match told {
                Some(told) => self.unnoted.push(told),
                None => drop(self.busy.remove(&channel)),
            }
        }
        let why = |error: StoreError| format!("{error}: what was told may be told again");
        while let Some((delivery, end)) = self.unnoted.first() {
            self.store.note(delivery, end, now).map_err(why)?;
            self.unnoted.remove(0);
        }
        if self.is_in_the_making() {
            return Ok(());
        }
        let channels =
            Channels::read(&self.file).map_err(|error| format!("{error}: nobody is told"))?;
        let stalled_after = u64::try_from(channels.stalled_after.as_millis()).unwrap_or(u64::MAX);
        self.stalled_after_millis
            .store(stalled_after, Ordering::Relaxed);
        self.tell(&channels, now).map_err(|error| error.to_string())
    }

    fn tell(&mut self, channels: &Channels, now: Moment) -> Result<(), StoreError> {
        loop {
            let outbox = self.store.outbox()?;
            if outbox.is_empty() {
                break;
            }
            let dealt: Vec<_> = outbox
                .iter()
                .map(|entry| (entry.number, channels.of(entry)))
                .collect();
            self.store.deal(&dealt, now)?;
        }
        for name in self.store.channels_due(now)? {
            if self.busy.contains(&name) {
                continue;
            }
            let due = self.store.due(&name, now)?;
            let Some(channel) = channels.named(&name) else {
                let gone = Try::Never(format!("there is no channel '{name}' any more"));
                due.iter()
                    .try_for_each(|delivery| self.store.note(delivery, &gone, now))?;
                continue;
            };
            let mut messages = Vec::new();
            for delivery in due {
                let job = self.store.job(delivery.event.job)?;
                messages.push((Message::of(&delivery.event, job, &self.id), delivery));
            }
            let began = begin(channel.clone(), messages, self.note.clone());
            if began.map_err(StoreError::io("begin to tell of", self.place.path()))? {
                self.busy.insert(name);
            }
        }
        Ok(())
    }

    /// Whether the file was changed just now: half of it may be there, which would tell nobody.
    fn is_in_the_making(&self) -> bool {
        let changed = std::fs::metadata(&self.file).and_then(|metadata| metadata.modified());
        changed.is_ok_and(|changed| {
            changed
                .elapsed()
                .is_ok_and(|elapsed| elapsed < SETTLED_AFTER)
        })
    }

    fn has_work(&self) -> bool {
        self.store.has_work().unwrap_or(true)
    }

    /// How long there is nothing to do, unless something happens.
    fn pause(&self) -> Duration {
        let now = Moment::now();
        let next = self.store.next_telling(now).ok().flatten();
        next.map_or(PAUSE_MAX, |next| next.since(now).clamp(TURN, PAUSE_MAX))
    }
}

/// Begins the thread of a channel; returns whether there was anything to tell.
fn begin(
    channel: Channel,
    messages: Vec<(Message, Delivery)>,
    note: Sender<Note>,
) -> io::Result<bool> {
    if messages.is_empty() {
        return Ok(false);
    }
    let tell = move || {
        for (message, delivery) in messages {
            let end = channel.tell(&message);
            let goes_on = !matches!(end, Try::NotNow(_));
            let has_runner = note
                .send((channel.name.clone(), Some((delivery, end))))
                .is_ok();
            if !goes_on || !has_runner {
                break;
            }
        }
        let _runner_gone = note.send((channel.name.clone(), None));
    };
    Builder::new().name("tell-channel".to_owned()).spawn(tell)?;
    Ok(true)
}

/// How often it looks whether a channel has told.
const TURN: Duration = Duration::from_millis(100);
/// How long the file has to be as it is.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// How often it looks where nothing is due: the clock may have been set, and the file changed.
const PAUSE_MAX: Duration = Duration::from_secs(10);
