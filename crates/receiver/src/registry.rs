//! Which transfers are running, so that lanes find theirs.
//!
//! **Invariant:** a lane is handed only to a transfer that was opened by the same key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use zmove_transport::{Fingerprint, LaneSource};
use zmove_types::TransferId;

/// The running transfers of one daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    transfers: Mutex<HashMap<Key, LanesIn>>,
    changed: Notify,
}

type Key = (Fingerprint, TransferId);
type LanesIn = mpsc::Sender<Box<dyn LaneSource>>;

/// A transfer's entry; gone when dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    registry: Registry,
    key: Key,
}

impl Registry {
    /// Enters a transfer; `None` when its owner runs one of that id already.
    pub(crate) fn register(
        &self,
        owner: Fingerprint,
        transfer: TransferId,
        lanes: LanesIn,
    ) -> Option<Registered> {
        let key = (owner, transfer);
        let mut transfers = self.0.lock();
        if transfers.contains_key(&key) {
            return None;
        }
        transfers.insert(key, lanes);
        drop(transfers);
        self.0.changed.notify_waiters();
        Some(Registered { registry: self.clone(), key })
    }

    /// The way to a transfer's lanes; a lane that is early waits for its control, as long as `patience`.
    pub(crate) async fn find(
        &self,
        owner: Fingerprint,
        transfer: TransferId,
        patience: Duration,
    ) -> Option<LanesIn> {
        let found = async {
            loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(lanes) = self.0.lock().get(&(owner, transfer)) {
                    return lanes.clone();
                }
                changed.await;
            }
        };
        tokio::time::timeout(patience, found).await.ok()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, LanesIn>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSFER: TransferId = TransferId([1; 16]);

    #[tokio::test(start_paused = true)]
    async fn an_early_lane_waits_and_a_stranger_finds_nothing() {
        let registry = Registry::default();
        let (owner, stranger) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let early = tokio::spawn({
            let registry = registry.clone();
            async move { registry.find(owner, TRANSFER, Duration::from_secs(9)).await.is_some() }
        });
        tokio::task::yield_now().await;
        let (lanes, _kept) = mpsc::channel(1);
        let registered = registry.register(owner, TRANSFER, lanes.clone()).unwrap();
        assert!(early.await.unwrap());
        assert!(registry.find(stranger, TRANSFER, Duration::from_secs(1)).await.is_none());
        assert!(registry.register(owner, TRANSFER, lanes).is_none());
        drop(registered);
        assert!(registry.find(owner, TRANSFER, Duration::from_secs(1)).await.is_none());
    }
}
