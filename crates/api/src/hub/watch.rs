//! One look after another at the store and at running jobs: what is new becomes messages.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde::Serialize;
use zmove_jobs::{Follower, JobEvent, JobId, Moved, Place, Store, StoreError, Wish};

use super::{Message, words};
use crate::view::{EventView, JobView, ProgressView};

/// What was seen last.
#[derive(Debug)]
pub(super) struct Watch {
    place: Place,
    store: Store,
    /// The last event that was told.
    last: i64,
    /// Of the store, when it was last read.
    version: Option<i64>,
    running: BTreeMap<JobId, Seen>,
    /// When jobs were last counted; none if they never were.
    counted: Option<Instant>,
    /// Of the store, when jobs were last counted.
    counted_version: Option<i64>,
}

/// A running job.
#[derive(Debug)]
struct Seen {
    attempt: u32,
    wish: Option<Wish>,
    /// What attempts before have moved.
    moved: Moved,
    follower: Follower,
}

/// What a numbered event tells, and one without a number of a job that is asked something.
#[derive(Serialize)]
struct Change {
    /// Null: nothing but what the job is asked has changed.
    event: Option<EventView>,
    /// The job as it is when this is told; null: it is forgotten.
    job: Option<JobView>,
}

impl Watch {
    /// Begins with what is there now.
    pub(super) fn begin(place: &Place) -> Result<Self, StoreError> {
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

    /// Tells what is new.
    pub(super) fn look(&mut self, mut tell: impl FnMut(Message)) -> Result<(), StoreError> {
        let version = self.store.version_of_data()?;
        if self.version != Some(version) {
            self.tell_events(&mut tell)?;
            self.look_at_running(&mut tell)?;
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
            tell(Message::Passing(words("counts", None, &counts)));
        }
        let moved = self.running.iter_mut().filter_map(|(id, seen)| {
            let progress = seen.follower.look()?;
            Some(ProgressView::new(*id, &seen.moved, &progress))
        });
        let moved: Vec<_> = moved.collect();
        if !moved.is_empty() {
            tell(Message::Passing(words("progress", None, &moved)));
        }
        Ok(())
    }

    fn tell_events(&mut self, tell: &mut impl FnMut(Message)) -> Result<(), StoreError> {
        loop {
            let events = numbered(&self.place, &self.store, self.last, EVENTS_AT_ONCE)?;
            let is_more = events.len() == EVENTS_AT_ONCE as usize;
            for (number, words) in events {
                self.last = number;
                tell(Message::Numbered(number, words));
            }
            if !is_more {
                return Ok(());
            }
        }
    }

    fn look_at_running(&mut self, tell: &mut impl FnMut(Message)) -> Result<(), StoreError> {
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
                Seen {
                    attempt,
                    wish: job.wish,
                    moved: job.moved,
                    follower,
                },
            );
            if is_asked {
                let change = change(&self.place, &self.store, id, None)?;
                tell(Message::Passing(words("job", None, &change)));
            }
        }
        self.running = running;
        Ok(())
    }
}

/// Events of the store after this number, and each job as it is now.
pub(crate) fn numbered(
    place: &Place,
    store: &Store,
    after: i64,
    length_max: u32,
) -> Result<Vec<(i64, Bytes)>, StoreError> {
    let told = |event: JobEvent| {
        let number = event.number;
        let change = change(place, store, event.job, Some(event.into()))?;
        Ok((number, words("job", Some(number), &change)))
    };
    store
        .events_after(after, length_max)?
        .into_iter()
        .map(told)
        .collect()
}

fn change(
    place: &Place,
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

/// How often jobs are counted while their number changes: of 100,000 that takes milliseconds.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
const EVENTS_AT_ONCE: u32 = 500;
