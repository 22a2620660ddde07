//! The active transfers and connections of each key, checked against the limits before any work begins.
//!
//! **Invariant:** an admission ends when its [`Slot`] or [`Permit`] is dropped, and not before. While transfers are
//! [queued](Queued), no other transfer gets a slot that the first transfer in the queue could use.

use std::collections::HashMap;
use std::fmt;
use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use zmove_transport::Fingerprint;
use zmove_wire::limits::LANES_UNREQUESTED_MAX;

use crate::access::wait_queue::WaitQueue;
use zmove_receiver::{Limits, Portion};
use zmove_types::Lock;

/// The admissions of one daemon. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Admissions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Lock<AdmissionState>,
    transfers: watch::Sender<usize>,
}

#[derive(Debug)]
struct AdmissionState {
    limits: Limits,
    all: Use,
    each: HashMap<Fingerprint, Use>,
    queue: WaitQueue<oneshot::Sender<Slot>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    transfers: usize,
    lanes: usize,
    waiting: usize,
    /// Number of connections to which a refusal is being sent.
    refusals: usize,
}

/// An admitted transfer.
#[derive(Debug)]
pub(crate) struct Slot {
    permit: Permit,
    pub(crate) portion: Portion,
}

/// A position in the queue for a [`Slot`]. Dropping this value removes the transfer from the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    admissions: Admissions,
    key: Fingerprint,
    number: u64,
    slot: oneshot::Receiver<Slot>,
    /// Number of transfers of the same key that were ahead of this one at the last check.
    pub(crate) ahead: usize,
    /// The limit that delays the transfer. `None` if a slot was free when the transfer entered the queue.
    pub(crate) full: Option<LimitReached>,
}

/// A change of a position in the queue.
#[derive(Debug)]
pub(crate) enum QueueStep {
    Admitted(Slot),
    /// The number of transfers of the same key that are now ahead of this one.
    MovedUp(usize),
}

/// A reservation against the limits of a key. Dropping it releases the reservation.
#[derive(Debug)]
pub(crate) struct Permit {
    admissions: Admissions,
    key: Fingerprint,
    what: Use,
}

/// Interval at which a position in the queue is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of refusals that are sent to one key at a time.
const REFUSALS_PER_KEY_MAX: usize = 8;
/// Maximum number of refusals that are sent to all keys at a time.
const REFUSALS_MAX: usize = 128;

/// A limit that has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitReached {
    what: &'static str,
    limit: &'static str,
    value: usize,
}

impl Admissions {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared {
            state: Lock::new(AdmissionState {
                limits,
                all: Use::default(),
                each: HashMap::new(),
                queue: WaitQueue::default(),
            }),
            transfers: watch::Sender::new(0),
        }))
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.state.lock().limits
    }

    /// Replaces the limits. Admitted transfers and connections stay admitted.
    pub(crate) fn set_limits(&self, limits: Limits) {
        self.0.state.lock().limits = limits;
        self.assign_slots();
    }

    /// Waits until no transfer is running.
    pub(crate) async fn idle(&self) {
        let mut transfers = self.0.transfers.subscribe();
        // The wait cannot fail, because `self` owns the sending end.
        drop(transfers.wait_for(|transfers| *transfers == 0).await);
    }

    /// Admits an authenticated connection that does not belong to a transfer yet.
    pub(crate) fn wait(&self, key: Fingerprint) -> Result<Permit, LimitReached> {
        let mut state = self.0.state.lock();
        let full = LimitReached {
            what: "connections without a transfer",
            limit: "waiting_per_identity",
            value: state.limits.waiting_per_identity,
        };
        full.unless_above(state.of(key).waiting)?;
        Ok(self.hold(
            &mut state,
            key,
            Use {
                waiting: 1,
                ..Use::default()
            },
        ))
    }

    /// Returns the key with the fewest active transfers. A key for which `is_crowded` is true is returned only if it is
    /// true for all keys.
    pub(crate) fn least_used(
        &self,
        keys: impl Iterator<Item = Fingerprint>,
        is_crowded: impl Fn(Fingerprint) -> bool,
    ) -> Option<Fingerprint> {
        let state = self.0.state.lock();
        keys.min_by_key(|key| {
            let own = state.of(*key);
            (
                is_crowded(*key),
                own.transfers + state.queue.len_of(*key),
                own.waiting,
            )
        })
    }

    /// Admits the sending of a refusal. If this returns `None`, too many refusals are being sent, and the caller must
    /// close the connection without a refusal.
    pub(crate) fn admit_refusal(&self, key: Fingerprint) -> Option<Permit> {
        let mut state = self.0.state.lock();
        let few =
            state.all.refusals < REFUSALS_MAX && state.of(key).refusals < REFUSALS_PER_KEY_MAX;
        few.then(|| {
            self.hold(
                &mut state,
                key,
                Use {
                    refusals: 1,
                    ..Use::default()
                },
            )
        })
    }

    /// Adds a transfer to the queue for a slot.
    pub(crate) fn enqueue(&self, key: Fingerprint) -> Result<Queued, LimitReached> {
        let mut state = self.0.state.lock();
        let ahead = state.queue.len_of(key);
        let full = LimitReached {
            what: "waiting transfers",
            limit: "queued_per_identity",
            value: state.limits.queued_per_identity,
        };
        full.unless_above(ahead)?;
        let full = state.portion(key).err();
        let (slot_in, slot) = oneshot::channel();
        let number = state.queue.enter(key, slot_in);
        drop(state);
        self.assign_slots();
        Ok(Queued {
            admissions: self.clone(),
            key,
            number,
            slot,
            ahead,
            full,
        })
    }

    /// Gives slots to queued transfers in their order, while the limits permit it.
    fn assign_slots(&self) {
        let mut admitted = Vec::new();
        let mut state = self.0.state.lock();
        let mut queue = std::mem::take(&mut state.queue);
        while let Some(next) = queue.next(|key| self.occupy(&mut state, key).ok()) {
            admitted.push(next);
        }
        state.queue = queue;
        drop(state);
        for (waiter, slot) in admitted {
            // The send fails if the waiting transfer has just left the queue. The slot is then dropped and thereby
            // freed.
            drop(waiter.send(slot));
        }
    }

    fn occupy(&self, state: &mut AdmissionState, key: Fingerprint) -> Result<Slot, LimitReached> {
        let portion = state.portion(key)?;
        let what = Use {
            transfers: 1,
            lanes: usize::from(portion.lanes),
            ..Use::default()
        };
        Ok(Slot {
            permit: self.hold(state, key, what),
            portion,
        })
    }

    fn hold(&self, state: &mut AdmissionState, key: Fingerprint, what: Use) -> Permit {
        state.change(key, |used| used.change(what, usize::add_assign));
        self.0.transfers.send_replace(state.all.transfers);
        Permit {
            admissions: self.clone(),
            key,
            what,
        }
    }
}

impl Slot {
    /// Returns the key that the slot is charged to.
    pub(crate) fn key(&self) -> Fingerprint {
        self.permit.key
    }
}

impl Queued {
    /// Returns the slot if it has already been assigned.
    pub(crate) fn take_if_assigned(&mut self) -> Option<Slot> {
        self.slot.try_recv().ok()
    }

    /// Waits for the slot, or until fewer transfers of the same key are ahead of this one.
    pub(crate) async fn next_step(&mut self) -> Option<QueueStep> {
        let mut looks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                slot = &mut self.slot => return slot.ok().map(QueueStep::Admitted),
                _ = looks.tick() => {
                    let ahead = self.admissions.0.state.lock().queue.ahead_of(self.key, self.number);
                    if let Some(ahead) = ahead.filter(|ahead| *ahead < self.ahead) {
                        self.ahead = ahead;
                        return Some(QueueStep::MovedUp(ahead));
                    }
                }
            }
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.admissions
            .0
            .state
            .lock()
            .queue
            .leave(self.key, self.number);
    }
}

impl AdmissionState {
    /// Returns the share of lanes and buffers that a transfer of this key would get now, or the limit that prevents the
    /// transfer.
    fn portion(&self, key: Fingerprint) -> Result<Portion, LimitReached> {
        let Self { all, limits, .. } = self;
        let own = self.of(key);
        let transfers = |limit, value| LimitReached {
            what: "transfers",
            limit,
            value,
        };
        transfers("transfers", limits.transfers).unless_above(all.transfers)?;
        transfers("transfers_per_identity", limits.transfers_per_identity)
            .unless_above(own.transfers)?;
        let left = |value: usize, used: usize, limit| {
            let full = LimitReached {
                what: "data connections",
                limit,
                value,
            };
            full.unless_above(used + usize::from(LANES_UNREQUESTED_MAX) - 1)?;
            Ok(value - used)
        };
        let of_all = left(limits.lanes, all.lanes, "lanes")?;
        let of_own = left(limits.lanes_per_identity, own.lanes, "lanes_per_identity")?;
        Ok(limits.portion(of_all.min(of_own)))
    }

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
    fn change(&mut self, by: Self, change: impl Fn(&mut usize, usize)) {
        change(&mut self.transfers, by.transfers);
        change(&mut self.lanes, by.lanes);
        change(&mut self.waiting, by.waiting);
        change(&mut self.refusals, by.refusals);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admissions.0.state.lock();
        state.change(self.key, |used| used.change(self.what, usize::sub_assign));
        self.admissions
            .0
            .transfers
            .send_replace(state.all.transfers);
        drop(state);
        if self.what.transfers > 0 {
            self.admissions.assign_slots();
        }
    }
}

impl LimitReached {
    /// Returns an error if `used` plus one would exceed the limit.
    fn unless_above(self, used: usize) -> Result<(), Self> {
        if used < self.value { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, limit, value } = self;
        write!(
            f,
            "the maximum number of {what} is reached (limits.{limit} = {value})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [Fingerprint; 2] {
        [1, 2].map(|byte| Fingerprint([byte; 32]))
    }

    fn slot(admissions: &Admissions, key: Fingerprint) -> Slot {
        admissions.enqueue(key).unwrap().take_if_assigned().unwrap()
    }

    /// Returns the limit that prevents another transfer of a key.
    fn full(admissions: &Admissions, key: Fingerprint) -> LimitReached {
        let mut place = admissions.enqueue(key).unwrap();
        assert!(place.take_if_assigned().is_none());
        place.full.unwrap()
    }

    #[test]
    fn each_limit_is_held_and_what_is_dropped_makes_room() {
        let [one, other] = keys();
        let limits = Limits {
            transfers: 3,
            transfers_per_identity: 2,
            ..Limits::default()
        };
        let admissions = Admissions::new(limits);
        let slots = [slot(&admissions, one), slot(&admissions, one)];
        assert_eq!(full(&admissions, one).limit, "transfers_per_identity");
        let third = slot(&admissions, other);
        assert_eq!(full(&admissions, other).limit, "transfers");
        drop((slots, third));
        assert_eq!(admissions.0.state.lock().all, Use::default());
        assert!(admissions.0.state.lock().each.is_empty());
        slot(&admissions, one);
    }

    #[test]
    fn lanes_are_shared_out_and_eight_are_the_least() {
        let [one, other] = keys();
        let limits = Limits {
            lanes: 400,
            lanes_per_identity: 200,
            ..Limits::default()
        };
        let admissions = Admissions::new(limits);
        let slots = [25, 21, 19].map(|lanes| {
            let slot = slot(&admissions, one);
            assert_eq!(slot.portion.lanes, lanes);
            slot
        });
        admissions.set_limits(Limits {
            lanes_per_identity: 70,
            ..limits
        });
        let full = full(&admissions, one);
        assert_eq!(
            full.to_string(),
            "the maximum number of data connections is reached (limits.lanes_per_identity = 70)"
        );
        assert_eq!(slot(&admissions, other).portion.lanes, 8);
        drop(slots);
    }

    /// With the default limits, a key reaches the limit on transfers before the limit on lanes.
    #[test]
    fn lanes_are_enough_for_as_many_transfers_as_a_key_may_have() {
        let (admissions, [one, _]) = (Admissions::new(Limits::default()), keys());
        let slots: Vec<_> = (0..Limits::default().transfers_per_identity)
            .map(|_| slot(&admissions, one))
            .collect();
        assert_eq!(full(&admissions, one).limit, "transfers_per_identity");
        drop(slots);
    }

    #[test]
    fn keys_are_seated_in_turn_and_who_has_gone_is_passed() {
        let [one, other] = keys();
        let limits = Limits {
            transfers: 1,
            ..Limits::default()
        };
        let admissions = Admissions::new(limits);
        let permit = slot(&admissions, one);
        let mut first = admissions.enqueue(one).unwrap();
        let gone = admissions.enqueue(one).unwrap();
        let mut second = admissions.enqueue(one).unwrap();
        let mut late = admissions.enqueue(other).unwrap();
        assert_eq!([&first, &second, &late].map(|place| place.ahead), [0, 2, 0]);
        drop((gone, permit));
        assert!(late.take_if_assigned().is_none() && second.take_if_assigned().is_none());
        drop(first.take_if_assigned().unwrap());
        assert!(
            second.take_if_assigned().is_none(),
            "the other key is first"
        );
        drop(late.take_if_assigned().unwrap());
        drop(second.take_if_assigned().unwrap());
        assert_eq!(admissions.0.state.lock().all, Use::default());
    }

    #[test]
    fn the_least_used_key_is_taken_unless_it_is_crowded() {
        let (admissions, [one, other]) = (Admissions::new(Limits::default()), keys());
        let _slot = slot(&admissions, one);
        let least = |crowded: &[Fingerprint]| {
            admissions.least_used([one, other].into_iter(), |key| crowded.contains(&key))
        };
        assert_eq!(least(&[]), Some(other));
        assert_eq!(least(&[other]), Some(one));
        assert_eq!(least(&[one, other]), Some(other));
    }

    #[test]
    fn the_line_of_a_key_is_bounded_and_other_limits_move_it() {
        let [one, other] = keys();
        let limits = Limits {
            transfers: 1,
            queued_per_identity: 1,
            ..Limits::default()
        };
        let admissions = Admissions::new(limits);
        let _held = slot(&admissions, one);
        let mut waiting = admissions.enqueue(one).unwrap();
        assert_eq!(
            admissions.enqueue(one).unwrap_err().limit,
            "queued_per_identity"
        );
        let _other = admissions.enqueue(other).unwrap();
        admissions.set_limits(Limits {
            transfers: 2,
            ..limits
        });
        assert!(waiting.take_if_assigned().is_some());
    }

    /// A slot that was assigned but never taken becomes free again.
    #[test]
    fn a_dropped_slot_makes_room() {
        let [one, other] = keys();
        let admissions = Admissions::new(Limits {
            transfers: 1,
            ..Limits::default()
        });
        let permit = slot(&admissions, one);
        let (admitted, mut next) = (
            admissions.enqueue(one).unwrap(),
            admissions.enqueue(other).unwrap(),
        );
        drop(permit);
        drop(admitted);
        assert!(next.take_if_assigned().is_some());
    }

    #[test]
    fn connections_without_a_transfer_are_few() {
        let [one, other] = keys();
        let admissions = Admissions::new(Limits {
            waiting_per_identity: 1,
            ..Limits::default()
        });
        let waiting = admissions.wait(one).unwrap();
        assert_eq!(
            admissions.wait(one).unwrap_err().limit,
            "waiting_per_identity"
        );
        admissions.wait(other).unwrap();
        drop(waiting);
        admissions.wait(one).unwrap();
    }

    #[test]
    fn few_are_told_of_each_key_and_in_all() {
        let admissions = Admissions::new(Limits::default());
        let admit_refusal = |key| admissions.admit_refusal(Fingerprint([key; 32]));
        let all: Vec<_> = (0..64)
            .flat_map(|key| [(); 9].map(|()| key))
            .filter_map(admit_refusal)
            .collect();
        assert_eq!(all.len(), REFUSALS_MAX);
        assert_eq!(
            admissions.0.state.lock().each.len(),
            REFUSALS_MAX / REFUSALS_PER_KEY_MAX
        );
        drop(all);
        assert!(admissions.0.state.lock().each.is_empty());
        assert!(admit_refusal(1).is_some());
    }

    #[tokio::test]
    async fn it_is_idle_when_the_last_transfer_has_ended() {
        let admissions = Admissions::new(Limits::default());
        let slot = slot(&admissions, keys()[0]);
        assert_eq!(slot.key(), keys()[0]);
        let idle = tokio::spawn({
            let admissions = admissions.clone();
            async move { admissions.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!idle.is_finished());
        drop(slot);
        idle.await.unwrap();
    }
}
