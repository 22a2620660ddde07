//! Copies between two daemons: what this one keeps of those that it sends (`copying`), and of the grants by which it
//! receives (`grants`).
//!
//! **Invariant:** what one key can have kept here is bounded, and goes after a day.

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
use zmove_wire::{CopyOrder, CopyResult, EndedCopy};

use crate::relaying::Relaying;
use grants::GrantBook;
use store::Store;

/// What a daemon keeps of copies, on disk and of those that run; see the module.
pub struct Copies {
    /// The directory with this host's memory of paths.
    home: PathBuf,
    /// This host's key.
    identity: Identity,
    pub(crate) grants: GrantBook,
    running: Lock<HashMap<CopyKey, Arc<RunningCopy>>>,
    results: Lock<HashMap<CopyKey, KeptResult>>,
    store: Store,
}

/// A client and the id of a copy that it has ordered.
type CopyKey = (Fingerprint, [u8; 16]);

/// A copy that this daemon sends.
pub(crate) struct RunningCopy {
    pub(crate) id: [u8; 16],
    /// The order without its id, and its list of paths.
    order: (CopyOrder, Option<Arc<[u8]>>),
    pub(crate) relaying: Arc<Relaying>,
    /// Told when the copy is to end.
    pub(crate) stop: Notify,
}

/// A running copy's entry; gone when dropped.
pub(crate) struct Entered {
    copies: Arc<Copies>,
    key: CopyKey,
}

/// The result of a copy that this daemon has sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptResult {
    client: [u8; 32],
    id: [u8; 16],
    /// In seconds since 1970.
    ended: u64,
    result: EndedCopy,
}

/// How long a result is kept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The most results of one key.
const RESULTS_PER_KEY_MAX: usize = 64;
/// The most results in all.
const RESULTS_MAX: usize = 4096;

/// The time in seconds since 1970.
pub(crate) fn now() -> u64 {
    unix_now().as_secs()
}

impl Copies {
    /// What `directory` holds of copies, for a daemon with this key whose memory of paths is in `home`. Damaged files
    /// are left alone; without a directory nothing is kept beyond the end of this process.
    ///
    /// # Errors
    /// The directory cannot be read, or a file in it has another format version.
    pub fn open(
        home: &Path,
        directory: Option<&Path>,
        identity: Identity,
    ) -> io::Result<Arc<Self>> {
        let store = Store::new(directory.map(|directory| directory.join("results")));
        let kept = store.read::<KeptResult>()?.into_iter();
        let results = kept
            .map(|kept| ((Fingerprint(kept.client), kept.id), kept))
            .collect();
        Ok(Arc::new(Self {
            home: home.to_owned(),
            grants: GrantBook::open(directory, identity.clone())?,
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

    /// The copy that runs under this id, or by an equal order.
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

    /// Enters a copy that begins; `None` where one of its id runs already.
    pub(crate) fn enter(
        self: &Arc<Self>,
        client: Fingerprint,
        order: &CopyOrder,
        list: Option<Arc<[u8]>>,
        relaying: Arc<Relaying>,
    ) -> Option<(Arc<RunningCopy>, Entered)> {
        let key = (client, order.id);
        let mut running = self.running.lock();
        let Entry::Vacant(place) = running.entry(key) else {
            return None;
        };
        let copy = place.insert(Arc::new(RunningCopy {
            id: order.id,
            order: (order.anew(), list),
            relaying,
            stop: Notify::new(),
        }));
        let entered = Entered {
            copies: Arc::clone(self),
            key,
        };
        Some((Arc::clone(copy), entered))
    }

    /// Keeps the result of a copy. May block on files.
    ///
    /// # Errors
    /// It cannot be written; it is kept until this process ends.
    pub(crate) fn keep(
        &self,
        client: Fingerprint,
        id: [u8; 16],
        result: EndedCopy,
    ) -> io::Result<()> {
        let kept = KeptResult {
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
            self.write(&key)?;
        }
        self.write(&(client, id))
    }

    fn write(&self, key: &CopyKey) -> io::Result<()> {
        self.store
            .update(&result_name(key), || self.results.lock().get(key).cloned())
    }

    /// The result of a copy that this daemon has sent.
    pub(crate) fn ended(&self, client: Fingerprint, id: [u8; 16]) -> Option<EndedCopy> {
        let oldest = now().saturating_sub(KEPT_FOR.as_secs());
        let results = self.results.lock();
        results
            .get(&(client, id))
            .filter(|kept| kept.ended >= oldest)
            .map(|kept| kept.result.clone())
    }

    /// What has become of a copy of this client; one that runs is told to `stop`, if it shall.
    pub(crate) fn result(
        &self,
        client: Fingerprint,
        id: [u8; 16],
        stop: bool,
    ) -> Option<CopyResult> {
        let running = self.running.lock().get(&(client, id)).cloned();
        if let Some(copy) = running {
            if stop {
                copy.stop.notify_one();
            }
            return Some(CopyResult::Runs);
        }
        if let Some(ended) = self.ended(client, id) {
            return Some(CopyResult::Ended(Box::new(ended)));
        }
        if stop {
            self.grants.revoke(client, id)
        } else {
            self.grants.result(client, id)
        }
    }
}

/// Drops results that are too old, and those of `client`, or of anybody, that are too many; returns which.
fn prune(results: &mut HashMap<CopyKey, KeptResult>, client: Fingerprint) -> Vec<CopyKey> {
    let oldest = now().saturating_sub(KEPT_FOR.as_secs());
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

impl Drop for Entered {
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
    use zmove_wire::{Place, TransferAccount};

    fn ended(port: u16) -> EndedCopy {
        let to = Place {
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
        copies.keep(other, [0; 16], ended(7)).unwrap();
        for number in 0..100 {
            copies.keep(one, [number; 16], ended(8)).unwrap();
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
            .for_each(|kept| kept.ended -= KEPT_FOR.as_secs() + 1);
        assert_eq!(again.ended(other, [0; 16]), None);
    }
}
