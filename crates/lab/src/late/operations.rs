//! How many operations of each kind storage has been asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Counts by name of the operation.
#[derive(Debug, Default)]
pub(super) struct Operations(Mutex<BTreeMap<&'static str, u64>>);

impl Operations {
    pub(super) fn count(&self, name: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u64 = counts.values().sum();
        write!(f, "{all} operations:")?;
        counts.iter().try_for_each(|(name, count)| write!(f, " {name} {count}"))
    }
}
