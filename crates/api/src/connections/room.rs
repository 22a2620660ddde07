//! The connection slots of one listener. If all slots are taken, a new connection replaces the connection that has been
//! idle for the longest time.
//!
//! **Invariant:** a connection with a request keeps its slot until the client has received the last byte of the
//! response.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

/// The connection slots of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    places_max: usize,
    taken: Mutex<TakenPlaces>,
    /// Notified whenever a slot may be free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    places: Vec<Place>,
    /// The last number that was assigned to a slot or to the start of an idle period.
    last: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    state: State,
    /// Dropped with the slot, which ends the connection.
    _held: oneshot::Sender<Infallible>,
}

/// The state of a connection.
///
/// ```text
/// Waiting ──work──► Serving ──end of the response──► Sending ──all sent──► Waiting
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The client has to send a request. A lower number means that the connection has been idle for longer.
    Waiting { since: u64 },
    /// A request is being answered.
    Serving,
    /// The response is complete, but not all of it has been sent.
    Sending,
}

impl ConnectionSlots {
    pub(crate) fn new(places_max: usize) -> Arc<Self> {
        Arc::new(Self {
            places_max,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Takes a slot for a new connection. Waits until one is available.
    pub(crate) async fn acquire(self: &Arc<Self>) -> SlotHolder {
        loop {
            let freed = self.freed.notified();
            if let Some(holder) = self.try_acquire() {
                return holder;
            }
            freed.await;
        }
    }

    fn try_acquire(self: &Arc<Self>) -> Option<SlotHolder> {
        let mut taken = self.lock();
        if taken.places.len() >= self.places_max {
            let waits = taken.places.iter().filter_map(Place::waits_since);
            let first = waits.min()?;
            taken
                .places
                .retain(|place| place.waits_since() != Some(first));
        }
        let (held, given_up) = oneshot::channel();
        let number = taken.next();
        taken.places.push(Place {
            number,
            state: State::Waiting { since: number },
            _held: held,
        });
        Some(SlotHolder {
            slot: Arc::new(ConnectionSlot {
                room: Arc::clone(self),
                number,
            }),
            given_up,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenPlaces {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Place {
    fn waits_since(&self) -> Option<u64> {
        match self.state {
            State::Waiting { since } => Some(since),
            State::Serving | State::Sending => None,
        }
    }
}

/// A connection that has a slot.
#[derive(Debug)]
pub(crate) struct SlotHolder {
    pub(crate) slot: Arc<ConnectionSlot>,
    /// Resolves when the slot was given to another connection.
    pub(crate) given_up: oneshot::Receiver<Infallible>,
}

/// A handle of a slot. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    room: Arc<ConnectionSlots>,
    number: u64,
}

impl ConnectionSlot {
    /// Protects the slot from reuse until the returned guard is dropped and all data has been sent.
    pub(crate) fn work(self: &Arc<Self>) -> AnswerInProgress {
        self.change(|_, _| Some(State::Serving));
        AnswerInProgress(Arc::clone(self))
    }

    /// Records that no data is left to send.
    pub(crate) fn mark_idle(&self) {
        self.change(|state, now| {
            (state == State::Sending).then_some(State::Waiting { since: now })
        });
    }

    fn change(&self, next: impl FnOnce(State, u64) -> Option<State>) {
        let mut taken = self.room.lock();
        let now = taken.next();
        let own = taken
            .places
            .iter_mut()
            .find(|place| place.number == self.number);
        let Some((own, state)) = own.and_then(|own| next(own.state, now).map(|state| (own, state)))
        else {
            return;
        };
        own.state = state;
        drop(taken);
        if matches!(state, State::Waiting { .. }) {
            self.room.freed.notify_waiters();
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.room
            .lock()
            .places
            .retain(|place| place.number != self.number);
        self.room.freed.notify_waiters();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct AnswerInProgress(Arc<ConnectionSlot>);

impl Drop for AnswerInProgress {
    fn drop(&mut self) {
        self.0.change(|_, _| Some(State::Sending));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot::error::TryRecvError;
    use tokio::time::timeout;

    use super::*;

    const PLACES_MAX: usize = 4;

    fn has_place(holder: &mut SlotHolder) -> bool {
        holder.given_up.try_recv() == Err(TryRecvError::Empty)
    }

    fn full() -> (Arc<ConnectionSlots>, Vec<SlotHolder>) {
        let room = ConnectionSlots::new(PLACES_MAX);
        let guests = (0..PLACES_MAX)
            .map(|_| room.try_acquire().unwrap())
            .collect();
        (room, guests)
    }

    #[test]
    fn the_connection_that_has_waited_longest_gives_way() {
        let (room, mut guests) = full();
        // The first connection is served and becomes idle again, so it is now the most recently idle one.
        drop(guests[0].slot.work());
        guests[0].slot.mark_idle();
        let _new = room.try_acquire().unwrap();
        let have_place: Vec<_> = guests.iter_mut().map(has_place).collect();
        assert_eq!(have_place, [true, false, true, true]);
    }

    #[test]
    fn a_connection_with_a_request_keeps_its_place_until_all_is_sent() {
        let (room, guests) = full();
        let mut work: Vec<_> = guests.iter().map(|holder| holder.slot.work()).collect();
        guests[0].slot.mark_idle();
        assert!(
            room.try_acquire().is_none(),
            "what was sent is not the end of the answer"
        );
        work.remove(0);
        assert!(room.try_acquire().is_none(), "the end is not sent");
        guests[0].slot.mark_idle();
        assert!(room.try_acquire().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_gets_the_first_place_that_is_free() {
        let room = ConnectionSlots::new(1);
        let holder = room.try_acquire().unwrap();
        let work = holder.slot.work();
        let enter = || timeout(Duration::from_secs(1), room.acquire());
        let (second, ()) = tokio::join!(enter(), async {
            drop(holder);
            drop(work);
        });
        let second = second.unwrap();
        drop(second.slot.work());
        let (third, ()) = tokio::join!(enter(), async { second.slot.mark_idle() });
        third.unwrap();
    }
}
