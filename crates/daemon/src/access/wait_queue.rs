//! A queue of waiters that serves one key after the other. The waiters of the same key are served in the order of their
//! arrival.
//!
//! **Invariant:** a key that cannot be served now does not delay other keys and keeps its own position.

use std::collections::VecDeque;

use zmove_transport::Fingerprint;

/// A queue of waiters, grouped by key. The module documentation describes the order.
#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    /// The waiters, grouped by key. The first key is served next. The list of a key is never empty.
    keys: VecDeque<(Fingerprint, VecDeque<Waiter<T>>)>,
    entered: u64,
}

#[derive(Debug)]
struct Waiter<T> {
    number: u64,
    waiting: T,
}

impl<T> Default for WaitQueue<T> {
    fn default() -> Self {
        Self {
            keys: VecDeque::new(),
            entered: 0,
        }
    }
}

impl<T> WaitQueue<T> {
    /// Returns the number of waiters of a key.
    pub(crate) fn len_of(&self, key: Fingerprint) -> usize {
        self.keys
            .iter()
            .find(|(of, _)| *of == key)
            .map_or(0, |(_, waiters)| waiters.len())
    }

    /// Returns the number of waiters of the key ahead of the waiter with this number. Returns `None` if that waiter has
    /// left the queue.
    pub(crate) fn ahead_of(&self, key: Fingerprint, number: u64) -> Option<usize> {
        let (_, waiters) = self.keys.iter().find(|(of, _)| *of == key)?;
        waiters.iter().position(|waiter| waiter.number == number)
    }

    /// Adds a waiter after the other waiters of its key. Returns the number with which it can leave.
    pub(crate) fn enter(&mut self, key: Fingerprint, waiting: T) -> u64 {
        self.entered += 1;
        let waiter = Waiter {
            number: self.entered,
            waiting,
        };
        match self.keys.iter_mut().find(|(of, _)| *of == key) {
            Some((_, waiters)) => waiters.push_back(waiter),
            None => self.keys.push_back((key, VecDeque::from([waiter]))),
        }
        self.entered
    }

    /// Removes a waiter that has been served or no longer wants to wait.
    pub(crate) fn leave(&mut self, key: Fingerprint, number: u64) {
        for (_, waiters) in self.keys.iter_mut().filter(|(of, _)| *of == key) {
            waiters.retain(|waiter| waiter.number != number);
        }
        self.keys.retain(|(_, waiters)| !waiters.is_empty());
    }

    /// Removes and returns the next waiter whose key `admit` accepts. Its key then moves to the end of the queue.
    pub(crate) fn next<A>(
        &mut self,
        mut admit: impl FnMut(Fingerprint) -> Option<A>,
    ) -> Option<(T, A)> {
        let (place, admitted) = self
            .keys
            .iter()
            .enumerate()
            .find_map(|(place, (key, _))| Some((place, admit(*key)?)))?;
        let (key, mut waiters) = self.keys.remove(place)?;
        let Waiter { waiting, .. } = waiters.pop_front()?;
        if !waiters.is_empty() {
            self.keys.push_back((key, waiters));
        }
        Some((waiting, admitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [Fingerprint; 3] {
        [1, 2, 3].map(|byte| Fingerprint([byte; 32]))
    }

    fn all<T>(queue: &mut WaitQueue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.next(|_| Some(())))
            .map(|(waiting, ())| waiting)
            .collect()
    }

    #[test]
    fn keys_take_turns_and_each_keeps_its_order() {
        let [one, two, three] = keys();
        let mut queue = WaitQueue::default();
        for (key, name) in [
            (one, "a1"),
            (one, "a2"),
            (one, "a3"),
            (two, "b1"),
            (three, "c1"),
            (two, "b2"),
        ] {
            queue.enter(key, name);
        }
        assert_eq!([one, two, three].map(|key| queue.len_of(key)), [3, 2, 1]);
        assert_eq!(all(&mut queue), ["a1", "b1", "c1", "a2", "b2", "a3"]);
        assert_eq!(queue.len_of(one), 0);
    }

    #[test]
    fn a_key_at_its_limit_is_passed_and_keeps_its_place() {
        let [one, two, _] = keys();
        let mut queue = WaitQueue::default();
        for (key, name) in [(one, "a1"), (two, "b1"), (two, "b2")] {
            queue.enter(key, name);
        }
        let only = |allowed| move |key| (key == allowed).then_some(());
        assert_eq!(queue.next(only(two)), Some(("b1", ())));
        assert_eq!(all(&mut queue), ["a1", "b2"]);
        assert_eq!(queue.next(only(two)), None);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let [one, two, _] = keys();
        let mut queue = WaitQueue::default();
        let first = queue.enter(one, "a1");
        queue.enter(one, "a2");
        let alone = queue.enter(two, "b1");
        queue.leave(one, first);
        queue.leave(two, alone);
        assert_eq!(
            (queue.ahead_of(one, first), queue.ahead_of(one, first + 1)),
            (None, Some(0))
        );
        assert_eq!(all(&mut queue), ["a2"]);
    }
}
