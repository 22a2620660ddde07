//! Rooms with a number of places: one for handshakes, one for connections and one for streams of events at each door.
//! Where all places are taken, who keeps the runner waiting gives way, the one that has done so longest first. No
//! client that is known has more than half of the places, so that one with many does not keep out another.
//!
//! **Invariant:** who is being served keeps its place until the last byte of the answer is taken.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, oneshot};

/// The certificate by which a client is known. At the socket and over the loopback all clients are the user, and so are
/// counted as none: an address of the loopback tells nobody from another.
pub(crate) type Client = Option<CertificateDer<'static>>;

/// A room.
#[derive(Debug)]
pub(crate) struct Room {
    places_max: usize,
    taken: Mutex<Taken>,
    /// Told whenever there may be a place.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    places: Vec<Place>,
    /// What is numbered next: a place, or the beginning of a wait.
    next: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    client: Client,
    state: State,
    /// Dropped with the place.
    _held: oneshot::Sender<Infallible>,
}

/// What is going on at a place.
///
/// ```text
/// Waiting ──work──► Serving ──end of the answer──► Sending ──all taken──► Waiting
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The client has to say something, since the moment of this number.
    Waiting { since: u64 },
    /// A request is being answered.
    Serving,
    /// The whole answer is known, and not yet sent.
    Sending,
}

impl Room {
    pub(crate) fn new(places_max: usize) -> Arc<Self> {
        Arc::new(Self {
            places_max,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A place for a client that has to say something first. Waits until there is one.
    pub(crate) async fn enter(self: &Arc<Self>, client: &Client) -> Guest {
        loop {
            let freed = self.freed.notified();
            if let Some(guest) = self.take(client, |since| State::Waiting { since }) {
                return guest;
            }
            freed.await;
        }
    }

    /// A place for a client that is served from the first on, if there is one.
    pub(crate) fn serve(self: &Arc<Self>, client: &Client) -> Option<Guest> {
        self.take(client, |_| State::Serving)
    }

    fn take(self: &Arc<Self>, client: &Client, state: impl FnOnce(u64) -> State) -> Option<Guest> {
        let mut taken = self.lock();
        let is_own = |place: &Place| place.client == *client;
        let own = taken.places.iter().filter(|place| is_own(place)).count();
        let has_share = client.is_some() && own >= self.places_max / 2;
        if has_share || taken.places.len() >= self.places_max {
            let waits = |(at, place): (usize, &Place)| match place.state {
                State::Waiting { since } if !has_share || is_own(place) => Some((since, at)),
                _ => None,
            };
            let (_, longest) = taken.places.iter().enumerate().filter_map(waits).min()?;
            taken.places.swap_remove(longest);
        }
        let (held, given_up) = oneshot::channel();
        let number = taken.number();
        taken.places.push(Place {
            number,
            client: client.clone(),
            state: state(number),
            _held: held,
        });
        Some(Guest {
            seat: Arc::new(Seat {
                room: Arc::clone(self),
                number,
            }),
            given_up,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A client that has a place.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) seat: Arc<Seat>,
    /// Ends when somebody else has got the place.
    pub(crate) given_up: oneshot::Receiver<Infallible>,
}

/// A place, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    room: Arc<Room>,
    number: u64,
}

impl Seat {
    /// Keeps the place until what is returned is dropped, and then until all that was to be sent is taken.
    pub(crate) fn work(self: &Arc<Self>) -> Work {
        self.change(|_, _| Some(State::Serving));
        Work(Arc::clone(self))
    }

    /// To be called when nothing is left to be sent.
    pub(crate) fn sent(&self) {
        self.change(|state, now| {
            (state == State::Sending).then_some(State::Waiting { since: now })
        });
    }

    fn change(&self, next: impl FnOnce(State, u64) -> Option<State>) {
        let mut taken = self.room.lock();
        let now = taken.number();
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

impl Drop for Seat {
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
pub(crate) struct Work(Arc<Seat>);

impl Drop for Work {
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

    fn client(name: u8) -> Client {
        Some(vec![name].into())
    }

    fn has_place(guest: &mut Guest) -> bool {
        guest.given_up.try_recv() == Err(TryRecvError::Empty)
    }

    fn entered(room: &Arc<Room>, client: &Client) -> Option<Guest> {
        room.take(client, |since| State::Waiting { since })
    }

    #[test]
    fn who_has_been_waited_for_longest_gives_way() {
        let room = Room::new(PLACES_MAX);
        let mut guests: Vec<_> = (0..PLACES_MAX)
            .map(|_| entered(&room, &None).unwrap())
            .collect();
        // The first is served, and waited for again from then on.
        drop(guests[0].seat.work());
        guests[0].seat.sent();
        let _new = entered(&room, &None).unwrap();
        let have_place: Vec<_> = guests.iter_mut().map(has_place).collect();
        assert_eq!(have_place, [true, false, true, true]);
    }

    #[test]
    fn who_is_served_keeps_its_place_until_all_is_sent() {
        let room = Room::new(PLACES_MAX);
        let guests: Vec<_> = (0..PLACES_MAX)
            .map(|_| room.serve(&None).unwrap())
            .collect();
        let work = guests[0].seat.work();
        guests[0].seat.sent();
        assert!(
            entered(&room, &None).is_none(),
            "what was sent is not the end of the answer"
        );
        drop(work);
        assert!(entered(&room, &None).is_none(), "the end is not sent");
        guests[0].seat.sent();
        assert!(entered(&room, &None).is_some());
    }

    #[test]
    fn no_client_has_more_than_half() {
        let room = Room::new(PLACES_MAX);
        let [alice, bob] = [client(1), client(2)];
        let mut first = entered(&room, &alice).unwrap();
        let second = room.serve(&alice).unwrap();
        let third = entered(&room, &alice).unwrap();
        assert!(
            !has_place(&mut first),
            "its own gives way to its own, although others are free"
        );
        let _work = third.seat.work();
        assert!(entered(&room, &alice).is_none());
        let _others = [&bob, &bob].map(|client| room.serve(client).unwrap());
        assert!(entered(&room, &client(3)).is_none(), "the room is full");
        drop(second);
        assert!(entered(&room, &client(3)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_place_gets_the_first_that_is_free() {
        let room = Room::new(1);
        let guest = room.serve(&None).unwrap();
        let enter = || timeout(Duration::from_secs(1), room.enter(&None));
        let (second, ()) = tokio::join!(enter(), async { drop(guest) });
        let second = second.unwrap();
        drop(second.seat.work());
        let (third, ()) = tokio::join!(enter(), async { second.seat.sent() });
        third.unwrap();
    }
}
