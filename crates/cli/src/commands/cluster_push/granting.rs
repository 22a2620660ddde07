//! The grants by which the head of a job has its nodes let in at the receivers, which know the head's key alone.
//!
//! Each notice of a node says when its grant ends, and the head answers with another one in time. Nothing is stored,
//! and a notice that a broker loses is sent again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use zmove_cluster::jetstream::{GrantNotice, NodeNotice, Notice};
use zmove_cluster::{Receiver, SharedJob};
use zmove_transport::Identity;

use crate::settings::{self, Role};

/// What grants are made of.
pub(super) struct Granting {
    identity: Identity,
    job: SharedJob,
    receivers: Vec<[u8; 32]>,
}

impl Granting {
    pub(super) fn new(job: &SharedJob, receivers: &[Receiver]) -> Result<Self> {
        let identity = Identity::load_or_create(&settings::home(Role::Client)?)?;
        let receivers = receivers
            .iter()
            .filter_map(|receiver| Some(receiver.settings.key?.0))
            .collect();
        Ok(Self {
            identity,
            job: job.clone(),
            receivers,
        })
    }

    /// The answer to a notice of a node: a grant, if the node has none or one that ends soon.
    pub(super) fn answer(
        &self,
        NodeNotice { key, part, .. }: &NodeNotice,
    ) -> Result<Option<Notice>> {
        let Some(part) = part.as_ref().filter(|part| part.job == self.job.id.0) else {
            return Ok(None);
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let lasts = part
            .granted_until
            .is_some_and(|until| until > (now + RENEW_BEFORE).as_secs());
        if lasts {
            return Ok(None);
        }
        let valid = now.as_secs()..(now + GRANTED_FOR).as_secs();
        let grant = self.job.grant_for(*key, self.receivers.clone(), valid);
        let signed = self
            .identity
            .sign_job_grant(grant)
            .context("sign a grant for a node")?;
        let grant = GrantNotice {
            job: part.job,
            key: *key,
            grant: signed.encode(),
        };
        Ok(Some(Notice::Grant(grant)))
    }
}

/// How long a grant is good. A receiver takes none that is good for longer.
const GRANTED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long before its end a grant is renewed: so much may the clocks of receivers be ahead of the head's.
const RENEW_BEFORE: Duration = Duration::from_secs(12 * 60 * 60);
