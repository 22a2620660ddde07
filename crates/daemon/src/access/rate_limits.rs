//! The rate limits of keys, each for all connections of its key together.
//!
//! **Invariant:** as long as a lane of a key is held to a rate, every other lane of that key shares it.

use std::collections::HashMap;

use zmove_transport::{Fingerprint, SharedRate};
use zmove_types::RateLimit;

use zmove_types::Lock;

/// The rates in use at one daemon.
#[derive(Debug, Default)]
pub(crate) struct Rates(Lock<HashMap<Fingerprint, SharedRate>>);

impl Rates {
    /// The rate of a key, which is `limit` from now on.
    pub(crate) fn of(&self, key: Fingerprint, limit: RateLimit) -> SharedRate {
        let mut rates = self.0.lock();
        rates.retain(|_, rate| rate.in_use());
        let rate = rates.entry(key).or_insert_with(|| SharedRate::new(limit));
        rate.set(limit);
        rate.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn keys_have_rates_of_their_own_which_go_when_nobody_uses_them() {
        let (rates, limit) = (Rates::default(), "1Gbit".parse().unwrap());
        let one = rates.of(Fingerprint([1; 32]), limit);
        let other = rates.of(Fingerprint([2; 32]), limit);
        let held = || rates.0.lock().len();
        assert_eq!(held(), 2);
        let now = Instant::now();
        assert!(one.wait_to_begin(now).is_none());
        assert!(one.wait_to_begin(now).is_some(), "the rate is in use");
        assert!(other.wait_to_begin(now).is_none());
        drop(other);
        drop(rates.of(Fingerprint([1; 32]), limit));
        assert_eq!(held(), 1);
        drop(one);
        drop(rates.of(Fingerprint([2; 32]), limit));
        let anew = rates.of(Fingerprint([1; 32]), limit);
        assert!(anew.wait_to_begin(now).is_none());
    }
}
