//! Ensures that only one transfer of each run is active. A sender that has lost its connections starts a new transfer,
//! possibly before this side has detected the loss.
//!
//! **Invariant:** only the latest of the transfers that a key has started for a run is active. It begins only after the
//! threads of all earlier transfers have ended.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;
use zmove_transport::Fingerprint;

use zmove_types::Lock;

/// The leases of the runs of one key.
#[derive(Clone, Debug, Default)]
pub struct RunLeases {
    runs: RunLeasesByKey,
    owner: Option<Fingerprint>,
}

/// The leases of the runs of all keys.
#[derive(Clone, Debug, Default)]
pub struct RunLeasesByKey(Arc<Lock<Latest>>);

/// The channel that ends the latest transfer of each run. It has no receivers after that transfer has ended.
type Latest = HashMap<Key, Arc<watch::Sender<bool>>>;
type Key = (Option<Fingerprint>, [u8; 16]);

/// A transfer's lease of its run. It is released on drop.
#[derive(Debug)]
pub struct RunLease {
    runs: RunLeasesByKey,
    key: Key,
    own: Arc<watch::Sender<bool>>,
    over: watch::Receiver<bool>,
}

impl RunLeasesByKey {
    /// Returns the leases of one key's runs.
    #[must_use]
    pub fn of(&self, owner: Fingerprint) -> RunLeases {
        RunLeases {
            runs: self.clone(),
            owner: Some(owner),
        }
    }
}

impl RunLeases {
    /// Acquires the lease of a run. If another transfer holds the lease, requests its end and waits for it.
    pub async fn acquire(&self, run: [u8; 16]) -> RunLease {
        let key = (self.owner, run);
        let (own, over) = watch::channel(false);
        let own = Arc::new(own);
        let lease = RunLease {
            runs: self.runs.clone(),
            key,
            own: Arc::clone(&own),
            over,
        };
        let before = self.runs.0.lock().insert(key, own);
        if let Some(before) = before {
            before.send_replace(true);
            before.closed().await;
        }
        lease
    }
}

impl RunLease {
    /// Waits until a newer transfer of this run has started.
    pub async fn superseded(&self) {
        let mut over = self.over.clone();
        // This lease holds the sending half of the channel, so the wait ends only when the flag is set.
        let _over = over.wait_for(|over| *over).await;
    }
}

impl Drop for RunLease {
    fn drop(&mut self) {
        let mut runs = self.runs.0.lock();
        if runs
            .get(&self.key)
            .is_some_and(|latest| Arc::ptr_eq(latest, &self.own))
        {
            runs.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: [u8; 16] = [1; 16];

    #[tokio::test]
    async fn the_last_waits_for_all_before_it() {
        let leases = RunLeasesByKey::default().of(Fingerprint([1; 32]));
        let first = leases.acquire(RUN).await;
        let acquire = |leases: &RunLeases| {
            tokio::spawn({
                let leases = leases.clone();
                async move { leases.acquire(RUN).await }
            })
        };
        let second = acquire(&leases);
        first.superseded().await;
        let third = acquire(&leases);
        tokio::task::yield_now().await;
        assert!(!second.is_finished() && !third.is_finished());
        drop(first);
        let second = second.await.unwrap();
        second.superseded().await;
        assert!(!third.is_finished());
        drop(second);
        let third = third.await.unwrap();
        assert_eq!(leases.runs.0.lock().len(), 1);
        drop(third);
        assert!(leases.runs.0.lock().is_empty());
    }

    #[tokio::test]
    async fn other_runs_and_other_keys_go_on() {
        let runs = RunLeasesByKey::default();
        let [one, other] = [1, 2].map(|byte| runs.of(Fingerprint([byte; 32])));
        let _held = (
            one.acquire(RUN).await,
            one.acquire([2; 16]).await,
            other.acquire(RUN).await,
        );
        assert_eq!(runs.0.lock().len(), 3);
    }
}
