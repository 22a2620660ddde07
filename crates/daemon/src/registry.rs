//! The registry of running transfers, in which lanes find their transfer.
//!
//! **Invariant:** a lane is handed only to a transfer that was opened by the same key.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use zmove_transport::{Fingerprint, LaneError, LaneSink, LaneSource, SharedRate};
use zmove_types::TransferId;

use zmove_types::Lock;

/// The running transfers of one daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The channel for each transfer's lanes. `None` while the transfer is queued and its sender has been notified.
    transfers: Lock<HashMap<Key, Option<LanesIn>>>,
    /// The most recently ended transfers, each with the time of its end. Lanes that were dialed for these transfers may
    /// still arrive.
    ended: Lock<VecDeque<(Instant, Key)>>,
    changed: Notify,
}

type Key = (Fingerprint, TransferId);

/// The channel that passes new lanes to the session of their transfer. This side either receives or sends on these
/// lanes.
#[derive(Clone, Debug)]
pub(crate) enum LanesIn {
    /// Lanes to receive on. The lanes share this rate, unless their key has its own rate limit.
    Receiving(mpsc::Sender<Box<dyn LaneSource>>, SharedRate),
    Sending(mpsc::Sender<Result<Box<dyn LaneSink>, LaneError>>),
}

/// The result of looking for a lane's transfer.
#[derive(Debug)]
pub(crate) enum LaneLookup {
    Lanes(LanesIn),
    /// The transfer is queued. When the transfer begins, its sender dials new lanes.
    Queued,
    /// The transfer has just ended and needs no more lanes.
    Ended,
    Nothing,
}

/// The entry of a transfer. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Registered {
    registry: Registry,
    key: Key,
}

impl Registry {
    /// Adds a transfer to the registry. `lanes` is the channel for its lanes, or `None` while the transfer is queued.
    /// Returns `None` if the same key already has a transfer with this id.
    pub(crate) fn enter(
        &self,
        owner: Fingerprint,
        transfer: TransferId,
        lanes: Option<LanesIn>,
    ) -> Option<Registered> {
        let key = (owner, transfer);
        let mut transfers = self.0.transfers.lock();
        if transfers.contains_key(&key) {
            return None;
        }
        transfers.insert(key, lanes);
        drop(transfers);
        self.0.changed.notify_waiters();
        Some(Registered {
            registry: self.clone(),
            key,
        })
    }

    /// Returns the channel for a transfer's lanes. A lane may arrive before the control connection of its transfer, so
    /// this function waits up to `patience` for the transfer.
    pub(crate) async fn find(
        &self,
        owner: Fingerprint,
        transfer: TransferId,
        patience: Duration,
    ) -> LaneLookup {
        let found = async {
            loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                match self.0.transfers.lock().get(&(owner, transfer)) {
                    Some(Some(lanes)) => return LaneLookup::Lanes(lanes.clone()),
                    Some(None) => return LaneLookup::Queued,
                    None if self.has_ended(&(owner, transfer)) => return LaneLookup::Ended,
                    None => {}
                }
                changed.await;
            }
        };
        tokio::time::timeout(patience, found)
            .await
            .unwrap_or(LaneLookup::Nothing)
    }
}

impl Registry {
    fn has_ended(&self, key: &Key) -> bool {
        self.0
            .ended
            .lock()
            .iter()
            .any(|(at, ended)| ended == key && at.elapsed() < ENDED_KNOWN)
    }
}

/// Maximum age of the entries for ended transfers. At most `ENDED_MAX` such entries are kept.
const ENDED_KNOWN: Duration = Duration::from_secs(60);
const ENDED_MAX: usize = 256;

impl Registered {
    /// Sets the channel for the lanes of a queued transfer that now begins.
    pub(crate) fn begin(&self, lanes: LanesIn) {
        self.registry
            .0
            .transfers
            .lock()
            .insert(self.key, Some(lanes));
        self.registry.0.changed.notify_waiters();
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut ended = self.registry.0.ended.lock();
        ended.truncate(ENDED_MAX - 1);
        ended.push_front((Instant::now(), self.key));
        drop(ended);
        self.registry.0.transfers.lock().remove(&self.key);
        self.registry.0.changed.notify_waiters();
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
            async move { registry.find(owner, TRANSFER, Duration::from_secs(9)).await }
        });
        tokio::task::yield_now().await;
        let (lanes, _kept) = mpsc::channel(1);
        let lanes = LanesIn::Receiving(lanes, SharedRate::default());
        let registered = registry
            .enter(owner, TRANSFER, Some(lanes.clone()))
            .unwrap();
        assert!(matches!(early.await.unwrap(), LaneLookup::Lanes(_)));
        let found = registry
            .find(stranger, TRANSFER, Duration::from_secs(1))
            .await;
        assert!(matches!(found, LaneLookup::Nothing));
        assert!(registry.enter(owner, TRANSFER, Some(lanes)).is_none());
        drop(registered);
        let found = registry.find(owner, TRANSFER, Duration::from_secs(1)).await;
        assert!(
            matches!(found, LaneLookup::Ended),
            "a lane that comes late is no stranger's"
        );
        tokio::time::advance(ENDED_KNOWN).await;
        let found = registry.find(owner, TRANSFER, Duration::from_secs(1)).await;
        assert!(matches!(found, LaneLookup::Nothing));
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_of_a_transfer_in_line_are_sent_away_until_it_begins() {
        let (registry, owner) = (Registry::default(), Fingerprint([1; 32]));
        let registered = registry.enter(owner, TRANSFER, None).unwrap();
        let find = || registry.find(owner, TRANSFER, Duration::from_secs(1));
        assert!(matches!(find().await, LaneLookup::Queued));
        let (lanes, _kept) = mpsc::channel(1);
        let lanes = LanesIn::Receiving(lanes, SharedRate::default());
        assert!(
            registry
                .enter(owner, TRANSFER, Some(lanes.clone()))
                .is_none()
        );
        registered.begin(lanes);
        assert!(matches!(find().await, LaneLookup::Lanes(_)));
        drop(registered);
        assert!(matches!(find().await, LaneLookup::Ended));
    }
}
