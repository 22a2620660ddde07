//! The rate limits of keys. All connections of a key share its limit.
//!
//! **Invariant:** while any lane of a key is rate limited, all lanes of the key share one [`SharedRate`].

use std::collections::HashMap;

use zmove_transport::{Fingerprint, SharedRate};
use zmove_types::RateLimit;

use zmove_types::Lock;

/// The rates in use at one daemon.
#[derive(Debug, Default)]
pub(crate) struct Rates(Lock<HashMap<Fingerprint, SharedRate>>);

impl Rates {
    /// Returns the shared rate of a key and sets it to `limit`.
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
