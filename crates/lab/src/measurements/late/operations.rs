//! Counts the operations of each kind, and how many of them are in flight.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts by the name of the operation.
#[derive(Debug, Default)]
pub(super) struct Operations(Mutex<BTreeMap<&'static str, Count>>);

#[derive(Debug, Default)]
struct Count {
    all: u64,
    under_way: u64,
    at_once: u64,
}

/// An operation in flight. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    operations: &'a Operations,
    name: &'static str,
}

impl Operations {
    pub(super) fn begin(&self, name: &'static str) -> UnderWay<'_> {
        let mut counts = self.lock();
        let count = counts.entry(name).or_default();
        count.all += 1;
        count.under_way += 1;
        count.at_once = count.at_once.max(count.under_way);
        UnderWay {
            operations: self,
            name,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.operations.lock().get_mut(self.name) {
            count.under_way -= 1;
        }
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.lock();
        let all: u64 = counts.values().map(|count| count.all).sum();
        write!(f, "{all} operations:")?;
        counts
            .iter()
            .try_for_each(|(name, count)| match count.at_once {
                1 => write!(f, " {name} {}", count.all),
                at_once => write!(f, " {name} {} ({at_once} at once)", count.all),
            })
    }
}
