//! The grant that the head of a job has signed for one of its nodes.
//!
//! A node shows it with the certificates of each connection, so nothing is kept here of nodes that may come, and a node
//! whose head's line is gone is a stranger to the next connection.
//!
//! **Invariant:** a grant that exists has been signed by its head, for the key that shows it, for this receiver and for
//! now.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zmove_receiver::TopNames;
use zmove_transport::{Claim, Fingerprint, job_grant_signer};
use zmove_types::{Beginning, Name};
use zmove_wire::{Open, Refusal, SignedJobGrant, TargetShape};

use crate::access::refusals::{denied, granted_otherwise};

/// A grant that has been found good.
#[derive(Debug)]
pub(crate) struct NodeGrant {
    /// The head, by what it would show itself.
    pub(crate) head: Claim,
    /// The opening that was granted.
    open: Open,
    /// The names that may come to the top of the target; none: any.
    tops: Vec<Name>,
    /// When it ends, in seconds since 1970.
    not_after: u64,
}

/// The longest time for which a grant is good, in seconds. The head renews it when half of that is over.
pub(crate) const VALID_SECS_MAX: u64 = 24 * 60 * 60;
/// How much a head's clock may be ahead of this one, in seconds.
pub(crate) const AHEAD_SECS_MAX: u64 = 10 * 60;

impl NodeGrant {
    /// Checks all of a grant that a peer of this `key` shows but whether its head is let in here, whose key is `own`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(
        own: Fingerprint,
        key: Fingerprint,
        encoded: &[u8],
        now: u64,
    ) -> Result<Self, String> {
        let signed = SignedJobGrant::decode(encoded);
        let signed = signed.map_err(|error| format!("it cannot be read: {error}"))?;
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
                "the receiver's clock is {behind} min or more behind that of the node that leads"
            ));
        }
        if now >= grant.not_after {
            let ago = (now - grant.not_after) / 60;
            return Err(format!(
                "it ended {ago} min ago by the receiver's clock, which may be ahead of that of the node that leads"
            ));
        }
        if grant.not_after.saturating_sub(grant.not_before) > VALID_SECS_MAX {
            return Err("it is for longer than a day".into());
        }
        let head = job_grant_signer(&signed).ok_or("its signature is not right")?;
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

    /// Resolves when the grant has ended.
    pub(crate) async fn over(&self) {
        let end = UNIX_EPOCH + Duration::from_secs(self.not_after);
        tokio::time::sleep(end.duration_since(SystemTime::now()).unwrap_or_default()).await;
    }

    /// Refuses an opening that is not the one that was granted, but for the name of the node, the run and names at the
    /// top.
    pub(crate) fn check_opening(&self, open: &Open) -> Result<(), Refusal> {
        let mut asked = Open {
            run: self.open.run,
            ..open.clone()
        };
        let granted = self.open.shared_job.as_ref();
        let Some((granted, part)) = granted.zip(asked.shared_job.as_mut()) else {
            return Err(denied("the grant is for a part in a job"));
        };
        part.node = granted.node.clone();
        if part != granted {
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

    /// The names that may come to the top of the target.
    pub(crate) fn top_names(&self) -> TopNames {
        if self.tops.is_empty() {
            return TopNames::default();
        }
        let tops = self.tops.iter().map(|top| top.as_bytes().to_vec());
        let tops: HashSet<_> = tops.collect();
        TopNames::only(move |top| tops.contains(top))
    }
}
