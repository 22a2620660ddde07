//! Grants that allow another daemon to send files to this host on behalf of a client.
//!
//! A client with write access requests a grant. The grant names one key, whose holder may use the grant for one
//! opening. The grant then belongs to the run that used it first. If connections are lost, later sessions of that run
//! may use the grant too, but no other run may. A grant expires if its run does not begin within ten minutes, when its
//! end time is reached, when its client is no longer authorized, and ten minutes after its run has ended. During these
//! last ten minutes, a sender that did not receive the result of the run can ask for it again.
//!
//! **Invariant:** a grant is on disk before the client receives it, and is marked as used on disk before its opening is
//! answered.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_disk::RemovalBudget;
use zmove_engine::{RemoteSources, fresh_transfer};
use zmove_receiver::{
    Allowance, Amount, Grants, Limits, Quota, Quotas, RedeemedGrant, Rights, Stored,
};
use zmove_transport::{Claim, Fingerprint, Identity, SharedRate, Signed};
use zmove_types::{Hex, Lock, RateLimit, RelPath};
use zmove_wire::{
    CopyResult, GrantOrder, GrantToken, Open, Receipt, Refusal, RefusalCode, SignedReceipt,
    TargetShape, WireError, encode_message,
};

use super::store::Store;
use super::tallies::{Counts, Tallies, Tally};
use super::{RESULT_RETENTION, now};
use crate::access::authorizer::{Authorized, Authorizer, Granter};
use crate::access::rate_limits::Rates;
use crate::access::refusals::{denied, granted_otherwise, rights_unreadable};
use crate::transfers::{GranterStatus, TransferGranter};

/// The grants of one daemon.
pub(crate) struct GrantStore {
    grants: Lock<HashMap<GrantToken, StoredGrant>>,
    store: Store,
    tallies: Tallies,
    identity: Identity,
}

/// A grant as stored on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredGrant {
    token: GrantToken,
    order: GrantOrder,
    /// The client's key and the certificates it presented, by which the client is authorized again.
    client: [u8; 32],
    certificates: Vec<Vec<u8>>,
    name: String,
    /// The client's rate limit when the grant was issued, in bytes per second. Sessions do not use this value but the
    /// client's current limit.
    rate_max: Option<u64>,
    /// The latest time at which the run may begin, in seconds since 1970. The next field is the latest time at which it
    /// may end.
    begin_by: u64,
    end_by: u64,
    /// The run that has used the grant.
    run: Option<[u8; 16]>,
    ended: Option<u64>,
    /// Total counts of the completed sessions.
    counts: Counts,
    receipt: Option<SignedReceipt>,
    /// Number of running sessions that use the grant.
    #[serde(skip)]
    sessions: usize,
    /// The time at which the last session began or ended, in seconds since 1970. If there was no session since the
    /// start of this process, the time at which it read the grant.
    #[serde(skip)]
    used_last: u64,
}

/// The order in which grants may be dropped to make room for a new grant. The grant with the lowest priority is dropped
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionPriority {
    /// The run ended at this time, and its receipt is stored.
    Ended(u64),
    /// The run has had no session since this time.
    Unused(u64),
}

/// The grants that one peer may use in one session.
pub(crate) struct PeerGrants {
    all_copies: Arc<super::Copies>,
    authorizer: Arc<Authorizer>,
    source: Fingerprint,
    resources: SessionResources,
    taken: OnceLock<GrantUse>,
}

/// The grant of a session and its counters.
struct GrantUse {
    token: GrantToken,
    before: Counts,
    allowance: Arc<Allowance>,
    removals: Arc<RemovalBudget>,
    removals_max: u64,
    tally: Option<Tally>,
}

/// Resources of a session that are charged to the client once the session uses the client's grant.
#[derive(Debug)]
pub(crate) struct SessionResources {
    /// The rate of the session's lanes, which becomes part of the client's rate.
    pub(crate) rate: SharedRate,
    pub(crate) rates: Arc<Rates>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) limits: Limits,
    /// The granter that the list of transfers shows for this transfer.
    pub(crate) granter: TransferGranter,
}

impl SessionResources {
    /// Makes the session's rate part of the client's rate, and returns the client's quota.
    pub(crate) fn charge(&self, client: Fingerprint, rights: &Rights) -> Quota {
        if let Some(limit) = rights.rate_max {
            self.rate.set_parent(self.rates.of(client, limit));
        }
        self.quotas.of(client, &self.limits)
    }
}

/// Maximum time between the issue of a grant and the start of its run.
const BEGIN_WITHIN: Duration = Duration::from_secs(10 * 60);
/// Maximum duration of a run.
const END_WITHIN: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Time after the end of a run during which its sender may ask for the result again.
const ASK_AGAIN_WITHIN: Duration = Duration::from_secs(10 * 60);
/// Time for which a grant keeps its slot while its run has no session, for example because the sending daemon was
/// killed.
const UNUSED_FOR: Duration = Duration::from_secs(60 * 60);
/// Maximum number of grants of one key, including ended grants with a stored receipt.
const GRANTS_PER_KEY_MAX: usize = 64;
/// Maximum size of the order of a grant in bytes. All orders of one key together stay below 8 MiB.
const ORDER_BYTES_MAX: usize = 128 << 10;
/// Maximum number of grants of all keys.
const GRANTS_MAX: usize = 4096;

impl StoredGrant {
    fn is_over(&self, now: u64) -> bool {
        let not_begun = self.run.is_none() && now >= self.begin_by;
        let ended = self
            .ended
            .is_some_and(|ended| now >= ended + ASK_AGAIN_WITHIN.as_secs());
        not_begun || ended || now >= self.end_by
    }

    /// Returns the number of bytes and entries that sessions may still store with this grant.
    fn allowance(&self) -> Allowance {
        let GrantOrder {
            bytes_max,
            entries_max,
            ..
        } = self.order;
        let most = Amount {
            bytes: bytes_max.unwrap_or(u64::MAX),
            entries: entries_max.unwrap_or(u64::MAX),
        };
        let Counts {
            taken_bytes: bytes,
            entries,
            ..
        } = self.counts;
        Allowance::new(most, Amount { bytes, entries })
    }

    /// Returns the priority of the grant and its token, or `None` if the grant must not be dropped. Grants whose run
    /// has ended are dropped first, in the order of their end. Grants whose run has had no session for [`UNUSED_FOR`]
    /// follow.
    fn eviction_priority(&self, now: u64) -> Option<(EvictionPriority, GrantToken)> {
        let is_unused = self.run.is_some()
            && self.sessions == 0
            && now >= self.used_last + UNUSED_FOR.as_secs();
        let need = match self.ended {
            Some(ended) => EvictionPriority::Ended(ended),
            None if is_unused => EvictionPriority::Unused(self.used_last),
            None => return None,
        };
        Some((need, self.token))
    }

    fn is_forgotten(&self, now: u64) -> bool {
        self.is_over(now)
            && self
                .ended
                .is_none_or(|ended| now >= ended + RESULT_RETENTION.as_secs())
    }
}

fn failed(error: &io::Error) -> Refusal {
    Refusal::new(RefusalCode::Failed, format!("store a grant: {error}"))
}

fn not_revoked(error: &io::Error) -> Refusal {
    let text = format!(
        "the file of a revoked grant cannot be removed: {error} (stop the copy again, or the grant is valid again when \
         this daemon restarts)"
    );
    Refusal::new(RefusalCode::Failed, text)
}

impl GrantStore {
    pub(super) fn open(directory: Option<&Path>, identity: Identity) -> io::Result<Self> {
        let below = |name| directory.map(|directory| directory.join(name));
        let store = Store::new(below("grants"));
        let tallies = Tallies::new(below("tallies"));
        let now = now();
        let with_tally = |kept: StoredGrant| StoredGrant {
            counts: kept.counts.most(tallies.read(&kept.token)),
            used_last: now,
            ..kept
        };
        let grants = store
            .read::<StoredGrant>()?
            .into_iter()
            .map(|kept| (kept.token, with_tally(kept)))
            .collect();
        Ok(Self {
            grants: Lock::new(grants),
            store,
            tallies,
            identity,
        })
    }

    /// Issues a grant to a client with write access. May block on file I/O.
    ///
    /// # Errors
    /// Returns a refusal if the client may not write, has too many grants, or if the grant cannot be stored.
    pub(crate) fn give(
        &self,
        claim: &Claim,
        authorized: &Authorized,
        order: GrantOrder,
    ) -> Result<GrantToken, Refusal> {
        if !authorized.may_write() {
            return Err(denied("this key may not write here"));
        }
        let protocol = |error: WireError| Refusal::new(RefusalCode::Protocol, error.to_string());
        if !order.open.intent.is_of_transfer() || order.open.grant.is_some() {
            return Err(protocol(WireError::OutOfOrder {
                what: "a grant for that",
            }));
        }
        if encode_message(&order).len() > ORDER_BYTES_MAX {
            let text =
                format!("the order is larger than {ORDER_BYTES_MAX} bytes: name fewer sources");
            return Err(denied(text));
        }
        let random = || fresh_transfer().map_err(|error| failed(&error));
        let token = [random()?.0, random()?.0]
            .concat()
            .try_into()
            .expect("twice 16 bytes");
        let now = now();
        let kept = StoredGrant {
            token,
            order,
            client: claim.key.0,
            certificates: claim.certificates(),
            name: authorized.name.clone(),
            rate_max: authorized.rights.rate_max.map(RateLimit::bytes_per_second),
            begin_by: now + BEGIN_WITHIN.as_secs(),
            end_by: now + END_WITHIN.as_secs(),
            run: None,
            ended: None,
            counts: Counts::default(),
            receipt: None,
            sessions: 0,
            used_last: now,
        };
        let mut gone = Vec::new();
        let room = {
            let mut grants = self.grants.lock();
            make_room(&mut grants, claim.key, now, &mut gone)
                .map(|()| drop(grants.insert(token, kept)))
        };
        for token in gone {
            // If the file of a removed grant cannot be deleted, the grant is read again after a restart and then
            // removed again.
            let _best_effort = self.write(&token);
        }
        room?;
        self.write(&token).map_err(|error| {
            self.grants.lock().remove(&token);
            failed(&error)
        })?;
        Ok(token)
    }

    /// Writes the current state of a grant to its file, or removes the file of a grant that no longer exists.
    fn write(&self, token: &GrantToken) -> io::Result<()> {
        self.store.update(&Hex(token).to_string(), || {
            let kept = self.grants.lock().get(token).cloned();
            if kept.is_none() {
                self.tallies.forget(token);
            }
            kept
        })
    }

    /// Returns the clients whose grants the holder of the key `source` may use now.
    pub(crate) fn clients_for(&self, source: Fingerprint) -> Vec<Granter> {
        let now = now();
        let grants = self.grants.lock();
        let live = grants
            .values()
            .filter(|kept| kept.order.source == source.0 && !kept.is_over(now));
        live.map(|kept| Granter {
            key: Fingerprint(kept.client),
            name: kept.name.clone(),
        })
        .collect()
    }

    /// Returns the state of a client's copy at this daemon. A copy that may still begin counts as running, because the
    /// sending host may still be trying to connect.
    pub(crate) fn result(&self, client: Fingerprint, id: [u8; 16]) -> Option<CopyResult> {
        let now = now();
        let grants = self.grants.lock();
        let mut of_copy = grants.values().filter(|kept| {
            let is_known = kept.run.is_some() || !kept.is_over(now);
            kept.client == client.0 && kept.order.id == id && !kept.is_forgotten(now) && is_known
        });
        let runs = of_copy.clone().any(|kept| kept.ended.is_none());
        match of_copy.find_map(|kept| kept.receipt.clone()) {
            Some(receipt) => Some(CopyResult::Received(receipt)),
            None => runs.then_some(CopyResult::Runs),
        }
    }

    /// Revokes the grants of a client's copy. They no longer authorize connections. May block on file I/O.
    ///
    /// # Errors
    /// Returns a refusal if the file of a grant cannot be removed, because the grant would be valid again after a
    /// restart. Until then it authorizes nothing, and another call tries again.
    pub(crate) fn revoke(
        &self,
        client: Fingerprint,
        id: [u8; 16],
    ) -> Result<Option<CopyResult>, Refusal> {
        let told = self.result(client, id);
        let is_it = |kept: &StoredGrant| {
            kept.client == client.0 && kept.order.id == id && kept.receipt.is_none()
        };
        let revoked: Vec<_> = self
            .grants
            .lock()
            .extract_if(|_, kept| is_it(kept))
            .collect();
        let mut removed = Ok(());
        for (token, kept) in revoked {
            if let Err(error) = self.write(&token) {
                let expired = StoredGrant { end_by: 0, ..kept };
                self.grants.lock().insert(token, expired);
                removed = Err(not_revoked(&error));
            }
        }
        removed.map(|()| told)
    }

    /// Assigns a grant to a session and returns the client's rights for the session. The module documentation explains
    /// when a grant may be used.
    fn redeem(
        &self,
        token: &GrantToken,
        source: Fingerprint,
        open: &Open,
        authorizer: &Authorizer,
        resources: &SessionResources,
    ) -> Result<(RedeemedGrant, GrantUse), Refusal> {
        let kept = self.grants.lock().get(token).cloned();
        // The error has the same text for a grant that does not exist and for a grant of another key. A peer therefore
        // cannot find out which grants exist.
        let kept = kept.filter(|kept| kept.order.source == source.0);
        let kept = kept.ok_or_else(|| denied("no such grant exists for this key"))?;
        // The transfer is listed under the client before the client's rights are read. If the key is removed, either
        // this reading fails or the removal finds the transfer and ends it.
        let client = GranterStatus {
            name: kept.name.clone(),
            key: Fingerprint(kept.client).to_string(),
        };
        resources.granter.get_or_init(|| client);
        let authorized = current_rights(&kept, authorizer)?;
        check_opening(&kept.order, open)?;
        let top_names = allowed_top_names(&kept.order, open)?;
        let (allowance, before, first_use) = {
            let mut grants = self.grants.lock();
            let kept = grants
                .get_mut(token)
                .ok_or_else(|| denied("the grant has ended"))?;
            if kept.is_over(now()) {
                return Err(denied("the grant has ended, or was not used in time"));
            }
            if kept.run.is_some_and(|run| run != open.run) {
                return Err(denied("the grant was already used by another run"));
            }
            let first_use = kept.run.replace(open.run).is_none();
            kept.sessions += 1;
            kept.used_last = now();
            (Arc::new(kept.allowance()), kept.counts, first_use)
        };
        if first_use && let Err(error) = self.write(token) {
            if let Some(kept) = self.grants.lock().get_mut(token) {
                kept.run = None;
            }
            self.end_use(token);
            return Err(failed(&error));
        }
        let removals_max = open.removals_max.unwrap_or(u64::MAX);
        let removals = Arc::new(RemovalBudget::new(
            removals_max.saturating_sub(before.removed),
        ));
        let taken_up = RedeemedGrant {
            quota: resources.charge(Fingerprint(kept.client), &authorized.rights),
            rights: authorized.rights,
            top_names,
            allowance: Some(Arc::clone(&allowance)),
            removals: Arc::clone(&removals),
        };
        let taken = GrantUse {
            token: *token,
            before,
            allowance,
            removals,
            removals_max,
            tally: self.tallies.open(token),
        };
        Ok((taken_up, taken))
    }

    /// Records that a session that used a grant has ended.
    fn end_use(&self, token: &GrantToken) {
        if let Some(kept) = self.grants.lock().get_mut(token) {
            kept.sessions = kept.sessions.saturating_sub(1);
            kept.used_last = now();
        }
    }

    /// Stores the counts of a session. May block on file I/O.
    fn count(&self, token: &GrantToken, counts: Counts) {
        if let Some(kept) = self.grants.lock().get_mut(token) {
            kept.counts = counts;
        }
        // If the write fails, the counts are too low after a restart.
        let _best_effort = self.write(token);
    }

    /// Signs a receipt for the received files at the end of the run. May block on file I/O.
    fn receipt(&self, token: &GrantToken, counts: Counts, faults: u64) -> Option<SignedReceipt> {
        let kept = self.grants.lock().get(token).cloned()?;
        let receipt = Receipt {
            id: kept.order.id,
            client: kept.client,
            source: kept.order.source,
            target: kept.order.open.target.clone(),
            files: counts.files,
            bytes: counts.bytes,
            faults,
            ended: now(),
        };
        let receipt = encode_message(&receipt)[4..].to_vec();
        let Signed {
            certificate,
            signature,
        } = self.identity.sign(&receipt).ok()?;
        let signed = SignedReceipt {
            receipt,
            certificate,
            signature,
        };
        if let Some(kept) = self.grants.lock().get_mut(token) {
            (kept.ended, kept.receipt) = (Some(now()), Some(signed.clone()));
        }
        // If the receipt cannot be stored here, it is still stored by the sender.
        let _best_effort = self.write(token);
        Some(signed)
    }
}

/// Removes expired grants. Also removes one grant if the client, or all clients together, have the maximum number of
/// grants. Adds the removed grants to `gone`.
fn make_room(
    grants: &mut HashMap<GrantToken, StoredGrant>,
    client: Fingerprint,
    now: u64,
    gone: &mut Vec<GrantToken>,
) -> Result<(), Refusal> {
    gone.extend(
        grants
            .extract_if(|_, kept| kept.is_forgotten(now))
            .map(|(token, _)| token),
    );
    let limits = [
        (Some(client.0), GRANTS_PER_KEY_MAX, "this key"),
        (None, GRANTS_MAX, "the receiving daemon"),
    ];
    for (client, max, whose) in limits {
        let counted = || {
            grants
                .values()
                .filter(|kept| client.is_none_or(|client| kept.client == client))
        };
        if counted().count() >= max {
            let dropped = counted()
                .filter_map(|kept| kept.eviction_priority(now))
                .min();
            let (_, token) = dropped.ok_or_else(|| too_many(whose))?;
            grants.remove(&token);
            gone.push(token);
        }
    }
    Ok(())
}

fn too_many(whose: &str) -> Refusal {
    let text = format!("{whose} has the maximum number of grants; try again later");
    Refusal::new(RefusalCode::Full, text)
}

/// Returns the current rights of the client of a grant.
fn current_rights(kept: &StoredGrant, authorizer: &Authorizer) -> Result<Authorized, Refusal> {
    let claim = Claim::again(Fingerprint(kept.client), kept.certificates.clone());
    let authorized = authorizer
        .authorize(&claim)
        .map_err(|_| rights_unreadable())?
        .map_err(|_| {
            denied("the key of the client that had this grant is no longer allowed here")
        })?;
    if authorized.may_write() {
        Ok(authorized)
    } else {
        Err(denied("the key of the client may no longer write here"))
    }
}

/// Refuses an opening other than the granted one.
fn check_opening(order: &GrantOrder, open: &Open) -> Result<(), Refusal> {
    let granted = &order.open;
    let asked = Open {
        run: granted.run,
        earlier: granted.earlier.clone(),
        shape: granted.shape.clone(),
        grant: None,
        ..open.clone()
    };
    if asked == *granted {
        Ok(())
    } else {
        Err(granted_otherwise())
    }
}

/// Returns the names that may be created directly in the target directory. The names in the opening must be among them.
fn allowed_top_names(order: &GrantOrder, open: &Open) -> Result<zmove_receiver::TopNames, Refusal> {
    if order.sources.is_empty() {
        return Ok(zmove_receiver::TopNames::default());
    }
    let paths = order
        .sources
        .iter()
        .map(|source| source.0.clone())
        .collect();
    let names = RemoteSources::new(paths, None).top_names();
    let check = |name| names.check(&RelPath::root().join(name).map_err(WireError::Path)?);
    let checked = match &open.shape {
        TargetShape::Single { name } => check(name),
        TargetShape::Directory { tops } => tops.iter().try_for_each(check),
    };
    checked.map_err(|error| denied(error.to_string()))?;
    Ok(names)
}

impl PeerGrants {
    pub(crate) fn new(
        all_copies: Arc<super::Copies>,
        authorizer: Arc<Authorizer>,
        source: Fingerprint,
        resources: SessionResources,
    ) -> Arc<Self> {
        Arc::new(Self {
            all_copies,
            authorizer,
            source,
            resources,
            taken: OnceLock::new(),
        })
    }
}

impl Grants for PeerGrants {
    fn redeem(&self, open: &Open) -> Result<RedeemedGrant, Refusal> {
        let token = open
            .grant
            .as_ref()
            .ok_or_else(|| denied("the opening names no grant"))?;
        let all_copies = &self.all_copies.grants;
        let (taken, session) =
            all_copies.redeem(token, self.source, open, &self.authorizer, &self.resources)?;
        if let Err(second) = self.taken.set(session) {
            // A session can have only one opening, so the second use of a grant ends here.
            all_copies.end_use(&second.token);
        }
        Ok(taken)
    }

    fn note(&self, stored: Stored) {
        if let Some(taken) = self.taken.get()
            && let Some(tally) = &taken.tally
        {
            // If the write fails, the counts are too low after the daemon was killed.
            let _best_effort = tally.write(taken.counts(stored));
        }
    }

    fn receipt(&self, stored: Stored, faults: u64) -> Option<SignedReceipt> {
        let taken = self.taken.get()?;
        self.all_copies
            .grants
            .receipt(&taken.token, taken.counts(stored), faults)
    }

    fn ended(&self, stored: Stored) {
        if let Some(taken) = self.taken.get() {
            self.all_copies
                .grants
                .count(&taken.token, taken.counts(stored));
        }
    }
}

impl Drop for PeerGrants {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.get() {
            self.all_copies.grants.end_use(&taken.token);
        }
    }
}

impl GrantUse {
    /// Returns the counts of all sessions that used the grant, including the data that the present session has stored.
    fn counts(&self, Stored { files, bytes }: Stored) -> Counts {
        let taken = self.allowance.stored();
        Counts {
            files: self.before.files + files,
            bytes: self.before.bytes + bytes,
            taken_bytes: taken.bytes,
            entries: taken.entries,
            removed: self.removals_max - self.removals.left(),
        }
    }
}

impl fmt::Debug for PeerGrants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerGrants")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
