//! The opening of a transfer: the request of the peer, the grant that it uses, and the target.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use zmove_disk::{FileSystemThreadCounts, Lease};
use zmove_transport::ControlError;
use zmove_types::{Beginning, TransferId};
use zmove_wire::{Open, Opened, Refusal, RefusalCode, TargetShape, TargetState, ToReceiver};

use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::resume::journal::Begin;
use crate::resume::parts::{PartStore, begin};
use crate::rights::grant::{LeaderPermission, RedeemedGrant, Rights};
use crate::rights::quota::messages::{ChargedMessage, Messages};
use crate::rights::quota::{Charge, Quota};
use crate::session::connections::{look, opened};
use crate::session::leases::earlier::wait_for_earlier;
use crate::shared_job::other_jobs::OtherJobs;
use crate::shared_job::session::{SharedJobSession, check};
use crate::store::target::{Target, wait_for_jobs_above};

/// The source of a session's opening.
#[derive(Debug)]
pub enum Opening {
    /// The peer sends the opening as its first message.
    Sent,
    /// This side has ordered the transfer and supplies the opening. The peer must not send one.
    Ordered {
        /// The opening. Its `shape` is replaced by the shape from the channel below.
        open: Box<Open>,
        /// The shape of the peer's sources.
        shape: oneshot::Receiver<TargetShape>,
    },
}

impl Opening {
    /// Maximum number of openings that the peer may send.
    pub(super) const fn sent_max(&self) -> usize {
        match self {
            Self::Sent => 1,
            Self::Ordered { .. } => 0,
        }
    }
}

/// Redeems the grant that an opening uses, if any.
pub(super) async fn take_up(
    config: &ReceiverConfig,
    open: &Open,
) -> Result<Option<RedeemedGrant>, Refusal> {
    match config.grants.clone() {
        Some(grants) if grants.covers(open) => {
            let open = open.clone();
            look(move || grants.redeem(&open)).await.map(Some)
        }
        None if open.grant.is_some() => Err(Refusal::new(
            RefusalCode::Denied,
            "this receiver does not accept grants",
        )),
        Some(_) | None => Ok(None),
    }
}

/// Returns the settings of a session that was opened by a grant.
pub(super) fn by_grant(config: ReceiverConfig, grant: RedeemedGrant) -> ReceiverConfig {
    ReceiverConfig {
        rights: grant.rights,
        top_names: grant.top_names,
        allowance: grant.allowance,
        removals: Some(grant.removals),
        file_io: grant.quota.file_io(&config.file_io),
        quota: grant.quota,
        ..config
    }
}

/// Returns the opening and the reservation of its memory in `quota`.
pub(super) async fn take_opening(
    from: Opening,
    inbox: &mut Messages,
    quota: &Quota,
) -> Result<(Open, Charge), SessionError> {
    let opened = async {
        match from {
            Opening::Sent => sent(inbox).await,
            Opening::Ordered { open, shape } => {
                let shape = shape.await.map_err(|_ended| ControlError::Closed)?;
                Ok((Open { shape, ..*open }, quota.empty_charge()))
            }
        }
    };
    let in_time = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
    in_time.unwrap_or(Err(SessionError::Silent))
}

async fn sent(inbox: &mut Messages) -> Result<(Open, Charge), SessionError> {
    match inbox.recv().await {
        Some(Ok(ChargedMessage {
            message: ToReceiver::Open(open),
            held,
        })) => Ok((open, held)),
        Some(Ok(_)) => Err(SessionError::out_of_order("the first message")),
        Some(Err(ControlError::Wire(error))) => Err(error.into()),
        Some(Err(error)) => Err(error.into()),
        None => Err(ControlError::Closed.into()),
    }
}

/// An open target.
pub(super) struct OpenTarget {
    pub(super) open: Open,
    pub(super) target: Target,
    pub(super) parts: PartStore,
    pub(super) other_jobs: OtherJobs,
    pub(super) file_system: FileSystemThreadCounts,
    /// Free bytes in the file system of the target, if known.
    pub(super) free_bytes: Option<u64>,
}

impl OpenTarget {
    /// Returns the description of the target that is sent to the sender.
    pub(super) fn opened(&self, lanes_max: u16) -> Opened {
        let Self { target, parts, .. } = self;
        // A sender asks about files only if the target is reported as populated. The replies also report groups of
        // earlier transfers, so the target is reported as populated if such groups exist.
        let state = if parts.has_earlier() {
            TargetState::Populated
        } else {
            target.state
        };
        Opened {
            single_name: target.rename.as_ref().map(|(_, to)| to.clone()),
            free_bytes: self.free_bytes,
            ..opened(state, lanes_max)
        }
    }
}

/// Opens the target. Then drops the opening's list of top names (first components of paths), which may be very long and
/// is no longer needed.
pub(super) async fn resolve(
    mut open: Open,
    transfer: TransferId,
    config: ReceiverConfig,
    lease: Lease,
    other_jobs: OtherJobs,
) -> Result<OpenTarget, Refusal> {
    // The sessions of a shared job run concurrently, so they do not wait for earlier sessions.
    if let Some(earlier) = open.earlier.as_ref().filter(|_| open.shared_job.is_none()) {
        wait_for_earlier(earlier, &other_jobs).await?;
    }
    look(move || {
        let Rights {
            access,
            owner,
            leading,
            ..
        } = config.rights;
        if open.shared_job.is_some() {
            // A node has the permissions of the head (the node that leads the job), which has signed its grant. So this
            // check covers all sessions of a job.
            if leading == LeaderPermission::Denied {
                return Err(Refusal::new(RefusalCode::Denied, LEADING_DENIED));
            }
            check(&open)?;
        }
        let quota = config.quota;
        // A job waits only before it begins. If a running job stopped its heartbeat during the wait, other receivers
        // would assume that the job is dead.
        let waits = !is_under_way(&open);
        if waits {
            wait_for_jobs_above(&open, &access, &other_jobs)?;
        }
        let mut target = Target::resolve(&open, &access, &lease)?;
        let dead = if waits {
            target.enter(&open, &other_jobs)?
        } else {
            Vec::new()
        };
        let parts = match open.shared_job.clone() {
            None => {
                other_jobs.end(dead);
                PartStore::new(config.journals, transfer, owner, &target.tree, &quota)
            }
            Some(part) => {
                // The device is left out because device numbers differ between hosts.
                let begin = Begin {
                    device: 0,
                    ..begin(transfer, owner, &target.tree)
                };
                let (session, journal) =
                    SharedJobSession::begin(&target.tree, &part, &begin, &quota)?;
                session.take_over(&dead, &journal, &quota);
                other_jobs.end(dead);
                let own = Arc::clone(&session.session);
                let parts = PartStore::in_job(&lease, own, journal, begin, &quota);
                target.shared_job = Some(session);
                parts
            }
        };
        let file_system = config.storage.of(target.tree.fd());
        quota.recall_threads(&file_system);
        if let TargetShape::Directory { tops } = &mut open.shape {
            *tops = Vec::new();
        }
        Ok(OpenTarget {
            free_bytes: free_bytes(target.tree.fd()),
            open,
            target,
            parts,
            other_jobs,
            file_system,
        })
    })
    .await
}

/// Returns whether an opening belongs to a shared job that has already begun.
pub(super) fn is_under_way(open: &Open) -> bool {
    let part = open.shared_job.as_ref();
    part.is_some_and(|part| part.beginning == Beginning::UnderWay)
}

/// Returns the number of bytes that this process can still store in a directory's file system, or `None` if it is
/// unknown or unlimited.
pub(crate) fn free_bytes(directory: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(directory).ok()?;
    (stat.f_blocks > 0).then(|| zmove_disk::free_bytes(&stat))
}

/// Time limit for a peer to send its opening.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const LEADING_DENIED: &str = "this key may not lead a job of several receivers here (ask an operator of this receiver \
    to run 'zmove allow KEY --lead')";
