//! The grants by which the head of a job has its nodes let in at the receivers, which know the head's key alone. A node
//! that comes by another node's invitation gets none.
//!
//! A node tells with each notice when its grant ends, and the head answers with another one in time: nothing is kept,
//! and a notice that a broker loses is told again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use zmove_cluster::jetstream::{GrantNotice, Heard, NodeFailure, NodeNotice, Notice};
use zmove_cluster::{Receiver, SharedJob};
use zmove_transport::{Fingerprint, Identity};

use crate::settings::cluster::Cluster;
use crate::settings::{self, Role};

/// What grants are made of.
pub(super) struct Granting {
    identity: Identity,
    job: SharedJob,
    receivers: Vec<[u8; 32]>,
    /// What is known of invitations.
    cluster: Cluster,
}

/// What a node is answered.
pub(super) enum Answer {
    /// Nothing: it needs no grant now.
    Nothing,
    Grant(Notice),
    /// The node has no part in the job.
    Refusal(Notice),
}

impl Granting {
    pub(super) fn new(job: &SharedJob, receivers: &[Receiver], cluster: &Cluster) -> Result<Self> {
        let identity = Identity::load_or_create(&settings::home(Role::Client)?)?;
        let receivers = receivers
            .iter()
            .filter_map(|receiver| Some(receiver.settings.key?.0))
            .collect();
        Ok(Self {
            identity,
            job: job.clone(),
            receivers,
            cluster: cluster.clone(),
        })
    }

    /// The answer to a notice: a grant, where a node of the job has none, or one that ends soon.
    pub(super) fn answer(&mut self, Heard { notice, nkey }: &Heard) -> Result<Answer> {
        let Ok(Notice::Node(NodeNotice {
            node: name,
            key,
            part,
        })) = notice
        else {
            return Ok(Answer::Nothing);
        };
        let Some(part) = part.as_ref().filter(|part| part.job == self.job.id.0) else {
            return Ok(Answer::Nothing);
        };
        if let Some(nkey) = nkey
            && !self.cluster.admits(nkey, &Fingerprint(*key))?
        {
            let message = format!(
                "another node has come by its invitation: make one more with 'zmove cluster invite {}'",
                self.cluster.name
            );
            let refused = NodeFailure {
                job: part.job,
                node: name.clone(),
                message,
            };
            return Ok(Answer::Refusal(Notice::Refused(refused)));
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let lasts = part
            .granted_until
            .is_some_and(|until| until > (now + RENEW_BEFORE).as_secs());
        if lasts {
            return Ok(Answer::Nothing);
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
        Ok(Answer::Grant(Notice::Grant(grant)))
    }
}

/// How long a grant is good. A receiver takes none that is good for longer.
const GRANTED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long before its end a grant is renewed: so much may the clocks of receivers be ahead of the head's.
const RENEW_BEFORE: Duration = Duration::from_secs(12 * 60 * 60);
