//! The account of what each key has under way, held against the limits before anything begins.
//!
//! **Invariant:** what was admitted is given back when its [`Seat`] or [`Wait`] is dropped, and only then.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use zmove_transport::Fingerprint;
use zmove_wire::limits::LANES_UNASKED_MAX;

use crate::limits::{Limits, Portion};

/// The account of one daemon; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Admissions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    book: Mutex<Book>,
    transfers: watch::Sender<usize>,
}

#[derive(Debug)]
struct Book {
    limits: Limits,
    all: Use,
    each: HashMap<Fingerprint, Use>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    transfers: usize,
    lanes: usize,
    waiting: usize,
}

/// A transfer that was admitted.
#[derive(Debug)]
pub(crate) struct Seat {
    held: Held,
    pub(crate) portion: Portion,
}

/// A connection that belongs to no transfer yet.
#[derive(Debug)]
pub(crate) struct Wait(#[expect(dead_code, reason = "it gives back what it holds when dropped")] Held);

#[derive(Debug)]
struct Held {
    admissions: Admissions,
    key: Fingerprint,
    what: Use,
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    what: &'static str,
    limit: &'static str,
    value: usize,
}

impl Admissions {
    pub(crate) fn new(limits: Limits) -> Self {
        let book = Book { limits, all: Use::default(), each: HashMap::new() };
        Self(Arc::new(Shared { book: Mutex::new(book), transfers: watch::Sender::new(0) }))
    }

    pub(crate) fn limits(&self) -> Limits {
        self.book().limits
    }

    /// From now on; what was admitted stays.
    pub(crate) fn set_limits(&self, limits: Limits) {
        self.book().limits = limits;
    }

    /// Waits until no transfer is running.
    pub(crate) async fn idle(&self) {
        let mut transfers = self.0.transfers.subscribe();
        // the sending end is here
        drop(transfers.wait_for(|transfers| *transfers == 0).await);
    }

    /// Admits a connection whose key is proved.
    pub(crate) fn wait(&self, key: Fingerprint) -> Result<Wait, Full> {
        let mut book = self.book();
        let (own, limits) = (book.of(key), book.limits);
        let (limit, value) = ("waiting_per_identity", limits.waiting_per_identity);
        check(own.waiting < value, Full { what: "connections without a transfer", limit, value })?;
        Ok(Wait(self.hold(&mut book, key, Use { waiting: 1, ..Use::default() })))
    }

    /// Admits a transfer with its share of lanes.
    pub(crate) fn sit(&self, key: Fingerprint) -> Result<Seat, Full> {
        let mut book = self.book();
        let (own, all, limits) = (book.of(key), book.all, book.limits);
        let full = |limit, value| Full { what: "transfers", limit, value };
        check(all.transfers < limits.transfers, full("transfers", limits.transfers))?;
        let value = limits.transfers_per_identity;
        check(own.transfers < value, full("transfers_per_identity", value))?;
        let left = |max: usize, used: usize, limit| {
            let left = max.saturating_sub(used);
            let full = Full { what: "data connections", limit, value: max };
            check(left >= usize::from(LANES_UNASKED_MAX), full).map(|()| left)
        };
        let of_all = left(limits.lanes, all.lanes, "lanes")?;
        let of_own = left(limits.lanes_per_identity, own.lanes, "lanes_per_identity")?;
        let portion = limits.portion(of_all.min(of_own));
        let what = Use { transfers: 1, lanes: usize::from(portion.lanes), waiting: 0 };
        Ok(Seat { held: self.hold(&mut book, key, what), portion })
    }

    fn hold(&self, book: &mut Book, key: Fingerprint, what: Use) -> Held {
        book.change(key, |held| held.add(what));
        self.0.transfers.send_replace(book.all.transfers);
        Held { admissions: self.clone(), key, what }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Whose it is.
    pub(crate) fn key(&self) -> Fingerprint {
        self.held.key
    }
}

impl Book {
    fn of(&self, key: Fingerprint) -> Use {
        self.each.get(&key).copied().unwrap_or_default()
    }

    fn change(&mut self, key: Fingerprint, change: impl Fn(&mut Use)) {
        change(&mut self.all);
        let own = self.each.entry(key).or_default();
        change(own);
        if *own == Use::default() {
            self.each.remove(&key);
        }
    }
}

impl Use {
    fn add(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.lanes += other.lanes;
        self.waiting += other.waiting;
    }

    fn subtract(&mut self, other: Self) {
        self.transfers -= other.transfers;
        self.lanes -= other.lanes;
        self.waiting -= other.waiting;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut book = self.admissions.book();
        book.change(self.key, |held| held.subtract(self.what));
        self.admissions.0.transfers.send_replace(book.all.transfers);
    }
}

fn check(fits: bool, full: Full) -> Result<(), Full> {
    if fits { Ok(()) } else { Err(full) }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, limit, value } = self;
        write!(f, "as many {what} as there may be are under way (limits.{limit} = {value})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [Fingerprint; 2] {
        [1, 2].map(|byte| Fingerprint([byte; 32]))
    }

    #[test]
    fn each_limit_is_held_and_what_is_dropped_makes_room() {
        let [one, other] = keys();
        let limits = Limits { transfers: 3, transfers_per_identity: 2, ..Limits::default() };
        let admissions = Admissions::new(limits);
        let seats = [admissions.sit(one).unwrap(), admissions.sit(one).unwrap()];
        assert_eq!(admissions.sit(one).unwrap_err().limit, "transfers_per_identity");
        let third = admissions.sit(other).unwrap();
        assert_eq!(admissions.sit(other).unwrap_err().limit, "transfers");
        drop((seats, third));
        assert_eq!(admissions.book().all, Use::default());
        assert!(admissions.book().each.is_empty());
        admissions.sit(one).unwrap();
    }

    #[test]
    fn lanes_are_shared_out_and_eight_are_the_least() {
        let [one, other] = keys();
        let limits = Limits { lanes: 400, lanes_per_identity: 200, ..Limits::default() };
        let admissions = Admissions::new(limits);
        let seats = [25, 21, 19].map(|lanes| {
            let seat = admissions.sit(one).unwrap();
            assert_eq!(seat.portion.lanes, lanes);
            seat
        });
        admissions.set_limits(Limits { lanes_per_identity: 70, ..limits });
        let full = admissions.sit(one).unwrap_err();
        assert_eq!(
            full.to_string(),
            "as many data connections as there may be are under way (limits.lanes_per_identity = 70)"
        );
        assert_eq!(admissions.sit(other).unwrap().portion.lanes, 8);
        drop(seats);
    }

    #[test]
    fn connections_without_a_transfer_are_few() {
        let [one, other] = keys();
        let admissions = Admissions::new(Limits { waiting_per_identity: 1, ..Limits::default() });
        let waiting = admissions.wait(one).unwrap();
        assert_eq!(admissions.wait(one).unwrap_err().limit, "waiting_per_identity");
        admissions.wait(other).unwrap();
        drop(waiting);
        admissions.wait(one).unwrap();
    }

    #[tokio::test]
    async fn it_is_idle_when_the_last_transfer_has_ended() {
        let admissions = Admissions::new(Limits::default());
        let seat = admissions.sit(keys()[0]).unwrap();
        assert_eq!(seat.key(), keys()[0]);
        let idle = tokio::spawn({
            let admissions = admissions.clone();
            async move { admissions.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!idle.is_finished());
        drop(seat);
        idle.await.unwrap();
    }
}
