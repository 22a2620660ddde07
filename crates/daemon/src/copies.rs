//! Copies between two daemons: the state of copies that this daemon sends (`copying`), and the grants by which it
//! receives (`grants`).
//!
//! **Invariant:** the amount of state that is kept for one key is limited, and the state is discarded after one day.

pub(crate) mod grants;
mod store;
mod tallies;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use zmove_transport::{Fingerprint, Identity};
use zmove_types::{Hex, Lock, unix_now};
use zmove_wire::{CopyOrder, CopyResult, EndedCopy, Refusal};

use crate::sender_relay::SenderRelay;
use grants::GrantStore;
use store::Store;

/// The state of copies, on disk and in memory. The module documentation describes it.
pub struct Copies {
    /// The directory in which this host stores the measured properties of network paths.
    home: PathBuf,
    /// This host's key.
    identity: Identity,
    pub(crate) grants: GrantStore,
    running: Lock<HashMap<CopyKey, Arc<RunningCopy>>>,
    results: Lock<HashMap<CopyKey, StoredResult>>,
    store: Store,
}

/// The key of a client and the id of a copy that it ordered.
type CopyKey = (Fingerprint, [u8; 16]);

/// A copy that this daemon is sending.
pub(crate) struct RunningCopy {
    pub(crate) id: [u8; 16],
    /// The order without its id, and the list of paths that belongs to the order.
    order: (CopyOrder, Option<Arc<[u8]>>),
    pub(crate) sender_relay: Arc<SenderRelay>,
    /// Notified when the copy must end.
    pub(crate) stop: Notify,
}

/// The entry of a running copy. Dropping it removes the entry.
pub(crate) struct RunningCopyEntry {
    copies: Arc<Copies>,
    key: CopyKey,
}

/// The result of a copy that this daemon has sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredResult {
    client: [u8; 32],
    id: [u8; 16],
    /// The time at which the copy ended, in seconds since 1970.
    ended: u64,
    result: EndedCopy,
}

/// Time for which the result of a copy is kept.
const RESULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum number of results that are kept per key.
const RESULTS_PER_KEY_MAX: usize = 64;
/// Maximum number of results that are kept for all keys together.
const RESULTS_MAX: usize = 4096;

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    unix_now().as_secs()
}

impl Copies {
    /// Opens the copies stored in `directory`, for a daemon with the key `identity`. The measured properties of network
    /// paths are stored in `home`. Damaged files are ignored. If `directory` is `None`, all state is lost when this
    /// process ends.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read, or if a file in it has another format version.
    pub fn open(
        home: &Path,
        directory: Option<&Path>,
        identity: Identity,
    ) -> io::Result<Arc<Self>> {
        let store = Store::new(directory.map(|directory| directory.join("results")));
        let kept = store.read::<StoredResult>()?.into_iter();
        let results = kept
            .map(|kept| ((Fingerprint(kept.client), kept.id), kept))
            .collect();
        Ok(Arc::new(Self {
            home: home.to_owned(),
            grants: GrantStore::open(directory, identity.clone())?,
            identity,
            running: Lock::default(),
            results: Lock::new(results),
            store,
        }))
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the client's running copy with the id of `order`. If the client has no such copy, returns one whose
    /// order is equal except for the id.
    pub(crate) fn running(
        &self,
        client: Fingerprint,
        order: &CopyOrder,
        list: Option<&Arc<[u8]>>,
    ) -> Option<Arc<RunningCopy>> {
        let running = self.running.lock();
        if let Some(copy) = running.get(&(client, order.id)) {
            return Some(Arc::clone(copy));
        }
        let anew = order.anew();
        let equal = |copy: &RunningCopy| copy.order.0 == anew && copy.order.1.as_ref() == list;
        running
            .iter()
            .find(|((key, _), copy)| *key == client && equal(copy))
            .map(|(_, copy)| Arc::clone(copy))
    }

    /// Adds a copy that is about to begin. Returns `None` if a copy with its id is already running.
    pub(crate) fn enter(
        self: &Arc<Self>,
        client: Fingerprint,
        order: &CopyOrder,
        list: Option<Arc<[u8]>>,
        sender_relay: Arc<SenderRelay>,
    ) -> Option<(Arc<RunningCopy>, RunningCopyEntry)> {
        let key = (client, order.id);
        let mut running = self.running.lock();
        let Entry::Vacant(place) = running.entry(key) else {
            return None;
        };
        let copy = place.insert(Arc::new(RunningCopy {
            id: order.id,
            order: (order.anew(), list),
            sender_relay,
            stop: Notify::new(),
        }));
        let entered = RunningCopyEntry {
            copies: Arc::clone(self),
            key,
        };
        Some((Arc::clone(copy), entered))
    }

    /// Stores the result of a copy. May block on file I/O.
    ///
    /// # Errors
    /// Returns an error if the result cannot be written. It is then kept until this process ends.
    pub(crate) fn store_result(
        &self,
        client: Fingerprint,
        id: [u8; 16],
        result: EndedCopy,
    ) -> io::Result<()> {
        let kept = StoredResult {
            client: client.0,
            id,
            ended: now(),
            result,
        };
        let gone = {
            let mut results = self.results.lock();
            let gone = prune(&mut results, client);
            results.insert((client, id), kept);
            gone
        };
        for key in gone {
            // If the file of a removed result cannot be deleted, the result is read again after a restart and then
            // removed again.
            let _best_effort = self.write(&key);
        }
        self.write(&(client, id))
    }

    fn write(&self, key: &CopyKey) -> io::Result<()> {
        self.store
            .update(&result_name(key), || self.results.lock().get(key).cloned())
    }

    /// Returns the result of a finished copy that this daemon has sent.
    pub(crate) fn ended(&self, client: Fingerprint, id: [u8; 16]) -> Option<EndedCopy> {
        let oldest = now().saturating_sub(RESULT_RETENTION.as_secs());
        let results = self.results.lock();
        results
            .get(&(client, id))
            .filter(|kept| kept.ended >= oldest)
            .map(|kept| kept.result.clone())
    }

    /// Returns the state or the result of a client's copy. If `stop` is set, stops a running copy and revokes the
    /// grants of a copy that this daemon receives. May block on file I/O.
    ///
    /// # Errors
    /// Returns a refusal if a grant cannot be revoked permanently.
    pub(crate) fn result(
        &self,
        client: Fingerprint,
        id: [u8; 16],
        stop: bool,
    ) -> Result<Option<CopyResult>, Refusal> {
        let running = self.running.lock().get(&(client, id)).cloned();
        if let Some(copy) = running {
            if stop {
                copy.stop.notify_one();
            }
            return Ok(Some(CopyResult::Runs));
        }
        if let Some(ended) = self.ended(client, id) {
            return Ok(Some(CopyResult::Ended(Box::new(ended))));
        }
        if stop {
            self.grants.revoke(client, id)
        } else {
            Ok(self.grants.result(client, id))
        }
    }
}

/// Removes expired results, and the oldest results if `client` or all clients together have too many. Returns the keys
/// of the removed results.
fn prune(results: &mut HashMap<CopyKey, StoredResult>, client: Fingerprint) -> Vec<CopyKey> {
    let oldest = now().saturating_sub(RESULT_RETENTION.as_secs());
    let mut gone: Vec<_> = results
        .iter()
        .filter(|(_, kept)| kept.ended < oldest)
        .map(|(key, _)| *key)
        .collect();
    for (whose, most) in [(Some(client), RESULTS_PER_KEY_MAX), (None, RESULTS_MAX)] {
        let mut of: Vec<_> = results
            .iter()
            .filter(|(key, _)| whose.is_none_or(|client| key.0 == client) && !gone.contains(key))
            .map(|(key, kept)| (kept.ended, *key))
            .collect();
        of.sort_unstable_by_key(|(ended, key)| (*ended, key.1));
        let over = (of.len() + 1).saturating_sub(most);
        gone.extend(of.into_iter().take(over).map(|(_, key)| key));
    }
    for key in &gone {
        results.remove(key);
    }
    gone
}

fn result_name((client, id): &CopyKey) -> String {
    format!("{}-{}", Hex(&client.0), Hex(id))
}

impl Drop for RunningCopyEntry {
    fn drop(&mut self) {
        self.copies.running.lock().remove(&self.key);
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies")
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_wire::{HostAddress, TransferAccount};

    fn ended(port: u16) -> EndedCopy {
        let to = HostAddress {
            host: "h".into(),
            port,
        };
        EndedCopy {
            to,
            ended: Ok(TransferAccount::default()),
            strict: false,
        }
    }

    #[test]
    fn results_are_found_again_are_bounded_and_another_key_s_are_not_told() {
        let home = tempfile::tempdir().unwrap();
        let open = || {
            let identity = Identity::load_or_create(home.path()).unwrap();
            Copies::open(home.path(), Some(&home.path().join("copies")), identity).unwrap()
        };
        let [one, other] = [1, 2].map(|byte| Fingerprint([byte; 32]));
        let copies = open();
        copies.store_result(other, [0; 16], ended(7)).unwrap();
        for number in 0..100 {
            copies.store_result(one, [number; 16], ended(8)).unwrap();
        }
        let again = open();
        let held = |copies: &Copies| {
            (0..100)
                .filter(|id| copies.ended(one, [*id; 16]).is_some())
                .count()
        };
        assert_eq!(
            (held(&copies), held(&again)),
            (RESULTS_PER_KEY_MAX, RESULTS_PER_KEY_MAX)
        );
        assert_eq!(
            again.ended(other, [0; 16]),
            Some(ended(7)),
            "another key's stay"
        );
        assert_eq!(again.ended(one, [0; 16]), None);
        again
            .results
            .lock()
            .values_mut()
            .for_each(|kept| kept.ended -= RESULT_RETENTION.as_secs() + 1);
        assert_eq!(again.ended(other, [0; 16]), None);
    }
}
