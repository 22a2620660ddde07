//! The transfers of one run take turns: a sender that lost its connections begins anew, perhaps before this
//! side has noticed.
//!
//! **Invariant:** of the transfers that one key has begun for one run, only the last works, and it begins
//! when the threads of all others have ended.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;
use zmove_transport::Fingerprint;

use crate::sharing::Lock;

/// The runs that one key has under way.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    runs: Runs,
    owner: Option<Fingerprint>,
}

/// The runs of all keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Lock<Latest>>);

/// The channel that ends the latest transfer of each run; it has no receivers once that transfer has ended.
type Latest = HashMap<Key, Arc<watch::Sender<bool>>>;
type Key = (Option<Fingerprint>, [u8; 16]);

/// A transfer's turn; over when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    runs: Runs,
    key: Key,
    own: Arc<watch::Sender<bool>>,
    over: watch::Receiver<bool>,
}

impl Runs {
    pub(crate) fn of(&self, owner: Fingerprint) -> Turns {
        Turns { runs: self.clone(), owner: Some(owner) }
    }
}

impl Turns {
    /// Ends the transfer of this run that is under way, if there is one, and waits until it is gone.
    pub(crate) async fn take(&self, run: [u8; 16]) -> Turn {
        let key = (self.owner, run);
        let (own, over) = watch::channel(false);
        let own = Arc::new(own);
        let turn = Turn { runs: self.runs.clone(), key, own: Arc::clone(&own), over };
        let before = self.runs.0.lock().insert(key, own);
        if let Some(before) = before {
            before.send_replace(true);
            before.closed().await;
        }
        turn
    }
}

impl Turn {
    /// Waits until the next transfer of this run has come.
    pub(crate) async fn is_over(&self) {
        let mut over = self.over.clone();
        // This turn holds the sending end, so the wait ends no other way.
        let _over = over.wait_for(|over| *over).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut runs = self.runs.0.lock();
        if runs.get(&self.key).is_some_and(|latest| Arc::ptr_eq(latest, &self.own)) {
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
        let turns = Runs::default().of(Fingerprint([1; 32]));
        let first = turns.take(RUN).await;
        let take = |turns: &Turns| {
            tokio::spawn({
                let turns = turns.clone();
                async move { turns.take(RUN).await }
            })
        };
        let second = take(&turns);
        first.is_over().await;
        let third = take(&turns);
        tokio::task::yield_now().await;
        assert!(!second.is_finished() && !third.is_finished());
        drop(first);
        let second = second.await.unwrap();
        second.is_over().await;
        assert!(!third.is_finished());
        drop(second);
        let third = third.await.unwrap();
        assert_eq!(turns.runs.0.lock().len(), 1);
        drop(third);
        assert!(turns.runs.0.lock().is_empty());
    }

    #[tokio::test]
    async fn other_runs_and_other_keys_go_on() {
        let runs = Runs::default();
        let [one, other] = [1, 2].map(|byte| runs.of(Fingerprint([byte; 32])));
        let _held = (one.take(RUN).await, one.take([2; 16]).await, other.take(RUN).await);
        assert_eq!(runs.0.lock().len(), 3);
    }
}
