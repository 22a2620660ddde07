//! The grant that the head of a job signs for one of its nodes.
//!
//! A node presents the grant together with its certificates on each connection. This receiver therefore need not store
//! anything about nodes before they connect. If the head's line is removed, the next connection of its nodes is
//! refused.
//!
//! **Invariant:** a [`NodeGrant`] has been signed by its head, for the key that presents it and for this receiver, and
//! it is valid now.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zmove_receiver::TopNames;
use zmove_transport::{Claim, Fingerprint, job_grant_signer};
use zmove_types::{Beginning, Name};
use zmove_wire::{Open, Refusal, SignedJobGrant, TargetShape};

use crate::access::refusals::{denied, granted_otherwise};

/// A grant that passed all checks of [`NodeGrant::check`].
#[derive(Debug)]
pub(crate) struct NodeGrant {
    /// The key and certificates of the head, which are checked as if the head itself had connected.
    pub(crate) head: Claim,
    /// The opening that was granted.
    open: Open,
    /// The names that may be created directly in the target directory. If empty, all names are allowed.
    tops: Vec<Name>,
    /// End of the grant's validity, in seconds since 1970.
    not_after: u64,
}

/// Maximum validity of a grant, in seconds. The head renews the grant after half of this time.
pub(crate) const VALID_SECS_MAX: u64 = 24 * 60 * 60;
/// Maximum time by which a head's clock may be ahead of this host's clock, in seconds.
pub(crate) const AHEAD_SECS_MAX: u64 = 10 * 60;

impl NodeGrant {
    /// Checks a grant that a peer with this `key` presents to the receiver with the key `own`. The caller must still
    /// check whether the head is authorized on this host.
    ///
    /// # Errors
    /// Returns the reason why the grant is invalid.
    pub(crate) fn check(
        own: Fingerprint,
        key: Fingerprint,
        encoded: &[u8],
        now: u64,
    ) -> Result<Self, String> {
        let signed = SignedJobGrant::decode(encoded);
        let signed = signed.map_err(|error| format!("it cannot be decoded: {error}"))?;
        let grant = &signed.grant;
        if grant.node != key.0 {
            return Err("it is for the key of another node".into());
        }
        if !grant.receivers.contains(&own.0) {
            return Err("it is for other receivers".into());
        }
        if grant.not_before > now.saturating_add(AHEAD_SECS_MAX) {
            let behind = (grant.not_before - now) / 60;
            return Err(format!(
                "the receiver's clock is at least {behind} min behind the clock of the leading node"
            ));
        }
        if now >= grant.not_after {
            let ago = (now - grant.not_after) / 60;
            return Err(format!(
                "it expired {ago} min ago by the receiver's clock, which may be ahead of the clock of the leading node"
            ));
        }
        if grant.not_after.saturating_sub(grant.not_before) > VALID_SECS_MAX {
            return Err("it is valid for more than one day".into());
        }
        let head = job_grant_signer(&signed).ok_or("its signature is invalid")?;
        let not_after = grant.not_after;
        let open = signed.grant.open;
        match (&open.shared_job, &open.shape) {
            (Some(part), TargetShape::Directory { tops })
                if part.beginning == Beginning::UnderWay =>
            {
                Ok(Self {
                    head,
                    tops: tops.clone(),
                    open,
                    not_after,
                })
            }
            _ => Err("it is not for a job".into()),
        }
    }

    /// Resolves when the grant has expired.
    pub(crate) async fn await_expiry(&self) {
        let end = UNIX_EPOCH + Duration::from_secs(self.not_after);
        tokio::time::sleep(end.duration_since(SystemTime::now()).unwrap_or_default()).await;
    }

    /// Refuses an opening other than the granted one. The id of the run, and the names that may be created
    /// directly in the target directory, may differ from the granted opening.
    pub(crate) fn check_opening(&self, open: &Open) -> Result<(), Refusal> {
        let mut asked = Open {
            run: self.open.run,
            ..open.clone()
        };
        if asked.shared_job.is_none() {
            return Err(denied("the grant is only for a part of a job"));
        }
        if asked.shared_job != self.open.shared_job {
            return Err(denied("the grant is for another job"));
        }
        if matches!(asked.shape, TargetShape::Directory { .. }) {
            asked.shape = self.open.shape.clone();
        }
        if asked == self.open {
            Ok(())
        } else {
            Err(granted_otherwise())
        }
    }

    /// Returns the names that may be created directly in the target directory.
    pub(crate) fn top_names(&self) -> TopNames {
        if self.tops.is_empty() {
            return TopNames::default();
        }
        let tops = self.tops.iter().map(|top| top.as_bytes().to_vec());
        let tops: HashSet<_> = tops.collect();
        TopNames::only(move |top| tops.contains(top))
    }
}
