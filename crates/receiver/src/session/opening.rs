//! How a transfer is opened: what the peer asks for, by which right, and the target that it means.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use zmove_disk::{FileSystemMemory, Lease};
use zmove_transport::ControlError;
use zmove_types::{Beginning, TransferId};
use zmove_wire::{Open, Opened, Refusal, RefusalCode, TargetShape, TargetState, ToReceiver};

use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::resume::journal::Begin;
use crate::resume::parts::{PartStore, begin};
use crate::rights::grant::{Leading, Rights, TakenUp};
use crate::rights::quota::messages::{BookedMessage, Messages};
use crate::rights::quota::{Booking, Quota};
use crate::session::connections::{look, opened};
use crate::session::leases::earlier::wait_for_earlier;
use crate::shared_job::other_jobs::OtherJobs;
use crate::shared_job::session::{SharedJobSession, check};
use crate::store::target::{Target, wait_for_jobs_above};

/// Where the opening of a session comes from.
#[derive(Debug)]
pub enum Opening {
    /// The peer sends it, as its first message.
    Sent,
    /// This side has ordered the transfer, so the opening is its own and the peer sends none.
    Ordered {
        /// The opening, whose shape is filled in.
        open: Box<Open>,
        /// The shape of the peer's sources.
        shape: oneshot::Receiver<TargetShape>,
    },
}

impl Opening {
    /// The number of openings that the peer may send.
    pub(super) const fn sent_max(&self) -> usize {
        match self {
            Self::Sent => 1,
            Self::Ordered { .. } => 0,
        }
    }
}

/// Takes up the grant by which an opening is made, if it is by one.
pub(super) async fn take_up(
    config: &ReceiverConfig,
    open: &Open,
) -> Result<Option<TakenUp>, Refusal> {
    match config.grants.clone() {
        Some(grants) if grants.are_for(open) => {
            let open = open.clone();
            look(move || grants.take_up(&open)).await.map(Some)
        }
        None if open.grant.is_some() => Err(Refusal::new(
            RefusalCode::Denied,
            "this receiver gives no grants",
        )),
        Some(_) | None => Ok(None),
    }
}

/// The settings of a session by a grant.
pub(super) fn by_grant(config: ReceiverConfig, grant: TakenUp) -> ReceiverConfig {
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

/// The opening, and the memory that is booked for it on `quota`.
pub(super) async fn take_opening(
    from: Opening,
    inbox: &mut Messages,
    quota: &Quota,
) -> Result<(Open, Booking), SessionError> {
    let opened = async {
        match from {
            Opening::Sent => sent(inbox).await,
            Opening::Ordered { open, shape } => {
                let shape = shape.await.map_err(|_ended| ControlError::Closed)?;
                Ok((Open { shape, ..*open }, quota.book_nothing()))
            }
        }
    };
    let in_time = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
    in_time.unwrap_or(Err(SessionError::Silent))
}

async fn sent(inbox: &mut Messages) -> Result<(Open, Booking), SessionError> {
    match inbox.recv().await {
        Some(Ok(BookedMessage {
            message: ToReceiver::Open(open),
            held,
        })) => Ok((open, held)),
        Some(Ok(_)) => Err(SessionError::out_of_order("the first message")),
        Some(Err(ControlError::Wire(error))) => Err(error.into()),
        Some(Err(error)) => Err(error.into()),
        None => Err(ControlError::Closed.into()),
    }
}

/// A target that has been opened.
pub(super) struct Resolved {
    pub(super) open: Open,
    pub(super) target: Target,
    pub(super) parts: PartStore,
    pub(super) other_jobs: OtherJobs,
    pub(super) file_system: FileSystemMemory,
    /// What the file system of the target has free, if that is known.
    pub(super) free_bytes: Option<u64>,
}

impl Resolved {
    /// What the sender is told of the target.
    pub(super) fn opened(&self, lanes_max: u16) -> Opened {
        let Self { target, parts, .. } = self;
        // Files of which groups are held are only found if the sender asks about them.
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

/// Opens the target. Drops the names at its top, of which there may be very many, since they are of no use after that.
pub(super) async fn resolve(
    mut open: Open,
    transfer: TransferId,
    config: ReceiverConfig,
    lease: Lease,
    other_jobs: OtherJobs,
) -> Result<Resolved, Refusal> {
    // Of a shared job several sessions are at work.
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
            // The right of a node is that of the head that has signed its grant: this covers all sessions of a job.
            if leading == Leading::Denied {
                return Err(Refusal::new(RefusalCode::Denied, MAY_NOT_LEAD));
            }
            check(&open)?;
        }
        let quota = config.quota;
        // A job waits when it begins. One that is under way would be taken for dead if its heart stood still that long.
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
                // people are told the node as well; devices have other numbers on other hosts
                let owner = format!("{owner} {}", part.node);
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
        Ok(Resolved {
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

/// Whether an opening is of a shared job that has begun before.
pub(super) fn is_under_way(open: &Open) -> bool {
    let part = open.shared_job.as_ref();
    part.is_some_and(|part| part.beginning == Beginning::UnderWay)
}

/// How many bytes the process may still store in the file system of a directory; unknown where that has no bounds.
pub(crate) fn free_bytes(directory: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(directory).ok()?;
    (stat.f_blocks > 0).then(|| zmove_disk::free_bytes(&stat))
}

/// How long a peer may take to send its opening.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const MAY_NOT_LEAD: &str = "this key may not lead a job of several receivers here: an operator of this receiver allows \
     that with `zmove allow KEY --lead`";
