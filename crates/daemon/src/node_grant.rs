//! The grant that the head of a job has signed for one of its nodes.
//!
//! A node shows it with the certificates of each connection, so nothing is kept here of nodes that may come, and a node
//! whose head's line is gone is a stranger to the next connection.
//!
//! **Invariant:** a grant that exists has been signed by its head, for the key that shows it, for this receiver and for
//! now.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zmove_receiver::TopNames;
use zmove_transport::{Claim, Fingerprint, job_grant_signer};
use zmove_types::Beginning;
use zmove_wire::{JobGrant, Open, Refusal, SharedJobOpening, SignedJobGrant, TargetShape};

use crate::refusals::{denied, granted_otherwise};

/// A grant that has been found good.
#[derive(Debug)]
pub(crate) struct NodeGrant {
    /// The head, by what it would show itself.
    head: Claim,
    /// The opening that was granted.
    open: Open,
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
    ) -> Result<Self, Cow<'static, str>> {
        let signed = SignedJobGrant::decode(encoded)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        let JobGrant {
            node,
            receivers,
            open,
            not_before,
            not_after,
        } = &signed.grant;
        if *node != key.0 {
            return Err("it is for the key of another node".into());
        }
        if !receivers.contains(&own.0) {
            return Err("it is for other receivers".into());
        }
        if *not_before > now.saturating_add(AHEAD_SECS_MAX) {
            let behind = (not_before - now) / 60;
            return Err(format!(
                "the receiver's clock is {behind} min or more behind that of the node that leads"
            )
            .into());
        }
        if now >= *not_after {
            let ago = (now - not_after) / 60;
            return Err(format!(
                "it ended {ago} min ago by the receiver's clock, which may be ahead of that of the node that leads"
            )
            .into());
        }
        if not_after.saturating_sub(*not_before) > VALID_SECS_MAX {
            return Err("it is for longer than a day".into());
        }
        let head = job_grant_signer(&signed).ok_or("its signature is not right")?;
        let open = open.clone();
        let is_of_a_node = open
            .shared_job
            .as_ref()
            .is_some_and(|part| part.beginning == Beginning::UnderWay);
        is_of_a_node
            .then_some(Self {
                head,
                open,
                not_after: *not_after,
            })
            .ok_or("it is not for a job".into())
    }

    /// The key of the head.
    pub(crate) const fn head(&self) -> Fingerprint {
        self.head.key
    }

    /// The head, by what it would show itself.
    pub(crate) const fn claim(&self) -> &Claim {
        &self.head
    }

    /// Resolves when the grant has ended.
    pub(crate) async fn over(&self) {
        let end = UNIX_EPOCH + Duration::from_secs(self.not_after);
        tokio::time::sleep(end.duration_since(SystemTime::now()).unwrap_or_default()).await;
    }

    /// Refuses an opening that is not the one that was granted.
    pub(crate) fn check_opening(&self, open: &Open) -> Result<(), Refusal> {
        let (Some(granted), Some(asked)) = (&self.open.shared_job, &open.shared_job) else {
            return Err(denied("the grant is for a part in a job"));
        };
        if **granted
            != (SharedJobOpening {
                node: granted.node.clone(),
                ..(**asked).clone()
            })
        {
            return Err(denied("the grant is for another job"));
        }
        let shape = match &open.shape {
            TargetShape::Directory { .. } => self.open.shape.clone(),
            shape @ TargetShape::Single { .. } => shape.clone(),
        };
        if self.open
            != (Open {
                run: self.open.run,
                shape,
                shared_job: self.open.shared_job.clone(),
                ..open.clone()
            })
        {
            return Err(granted_otherwise());
        }
        Ok(())
    }

    /// The names that may come to the top of the target.
    pub(crate) fn top_names(&self) -> TopNames {
        match &self.open.shape {
            TargetShape::Directory { tops } if tops.is_empty() => TopNames::default(),
            TargetShape::Directory { tops } => {
                let tops: HashSet<_> = tops.iter().map(|top| top.0.as_bytes().to_vec()).collect();
                TopNames::only(move |top| tops.contains(top))
            }
            TargetShape::Single { name } => {
                let name = name.clone();
                TopNames::only(move |top| top == name.as_bytes())
            }
        }
    }
}
