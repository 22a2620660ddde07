//! Compares the store and the running jobs with their previous state, and sends a message for each change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde::Serialize;
use zmove_jobs::{
    Follower, JobEvent, JobId, JobsDirectory, Store, StoreError, TransferTotals, Wish,
};

use super::{Message, encode_event};
use crate::view::{EventView, JobView, ProgressView};

/// The state at the last check.
#[derive(Debug)]
pub(super) struct Watch {
    place: JobsDirectory,
    store: Store,
    /// The number of the last event that was sent.
    last: i64,
    /// The data version of the store at the last check.
    version: Option<i64>,
    running: BTreeMap<JobId, SeenJob>,
    /// When jobs were last counted. `None` if they were not counted yet.
    counted: Option<Instant>,
    /// The data version of the store when jobs were last counted.
    counted_version: Option<i64>,
}

/// The last known state of a running job.
#[derive(Debug)]
struct SeenJob {
    attempt: u32,
    wish: Option<Wish>,
    /// Data that earlier attempts have moved.
    moved: TransferTotals,
    follower: Follower,
}

/// The content of a `job` event. It has a number if it reports an event of the store, and none if only the pending
/// request for a job has changed.
#[derive(Serialize)]
struct Change {
    /// The event. `None` if only the pending request has changed.
    event: Option<EventView>,
    /// The current state of the job. `None` if the job was deleted.
    job: Option<JobView>,
}

impl Watch {
    /// Starts from the current state of the store.
    pub(super) fn begin(place: &JobsDirectory) -> Result<Self, StoreError> {
        let store = Store::open(place)?;
        let last = store.last_event()?;
        let running = BTreeMap::new();
        Ok(Self {
            place: place.clone(),
            store,
            last,
            version: None,
            running,
            counted: None,
            counted_version: None,
        })
    }

    /// Sends messages for all changes since the last call.
    pub(super) fn poll(&mut self, mut send: impl FnMut(Message)) -> Result<(), StoreError> {
        let version = self.store.version_of_data()?;
        if self.version != Some(version) {
            self.send_events(&mut send)?;
            self.update_running(&mut send)?;
            self.version = Some(version);
        }
        let is_time = self
            .counted
            .is_none_or(|counted| counted.elapsed() >= COUNT_INTERVAL);
        if is_time && self.counted_version != self.version {
            (self.counted, self.counted_version) = (Some(Instant::now()), self.version);
            let counts = self.store.counts()?;
            let counts: BTreeMap<_, _> = counts
                .into_iter()
                .map(|(state, count)| (state.to_string(), count))
                .collect();
            send(Message::Snapshot(encode_event("counts", None, &counts)));
        }
        let moved = self.running.iter_mut().filter_map(|(id, seen)| {
            let progress = seen.follower.poll()?;
            Some(ProgressView::new(*id, &seen.moved, &progress))
        });
        let moved: Vec<_> = moved.collect();
        if !moved.is_empty() {
            send(Message::Snapshot(encode_event("progress", None, &moved)));
        }
        Ok(())
    }

    fn send_events(&mut self, send: &mut impl FnMut(Message)) -> Result<(), StoreError> {
        loop {
            let events = numbered(&self.place, &self.store, self.last, EVENTS_AT_ONCE)?;
            let is_more = events.len() == EVENTS_AT_ONCE as usize;
            for (number, words) in events {
                self.last = number;
                send(Message::Numbered(number, words));
            }
            if !is_more {
                return Ok(());
            }
        }
    }

    fn update_running(&mut self, send: &mut impl FnMut(Message)) -> Result<(), StoreError> {
        let now = self.store.running()?;
        let mut running = BTreeMap::new();
        for job in now {
            let id = job.job.id;
            let attempt = job.attempt;
            let known = self
                .running
                .remove(&id)
                .filter(|seen| seen.attempt == attempt);
            let is_asked = known.as_ref().is_some_and(|seen| seen.wish != job.wish);
            let follower = known.map_or_else(
                || Follower::new(&self.place, id, attempt),
                |seen| seen.follower,
            );
            running.insert(
                id,
                SeenJob {
                    attempt,
                    wish: job.wish,
                    moved: job.moved,
                    follower,
                },
            );
            if is_asked {
                let change = change(&self.place, &self.store, id, None)?;
                send(Message::Snapshot(encode_event("job", None, &change)));
            }
        }
        self.running = running;
        Ok(())
    }
}

/// Returns the events of the store after the event `after`, encoded with the current state of their jobs.
pub(crate) fn numbered(
    place: &JobsDirectory,
    store: &Store,
    after: i64,
    length_max: u32,
) -> Result<Vec<(i64, Bytes)>, StoreError> {
    let told = |event: JobEvent| {
        let number = event.number;
        let change = change(place, store, event.job, Some(event.into()))?;
        Ok((number, encode_event("job", Some(number), &change)))
    };
    store
        .events_after(after, length_max)?
        .into_iter()
        .map(told)
        .collect()
}

fn change(
    place: &JobsDirectory,
    store: &Store,
    id: JobId,
    event: Option<EventView>,
) -> Result<Change, StoreError> {
    let job = match store.job(id) {
        Err(StoreError::NoJob(_)) => None,
        job => Some(JobView::of(place, &job?)),
    };
    Ok(Change { event, job })
}

/// Minimum time between two counts of the jobs. Counting 100,000 jobs takes milliseconds.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
const EVENTS_AT_ONCE: u32 = 500;
