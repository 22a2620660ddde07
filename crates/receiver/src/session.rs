//! One transfer at the receiver: the control connection, and the threads that it starts and stops.
//!
//! **Invariant:** when [`run_session`] returns, all its threads have ended, whichever way the transfer went, and
//! nothing temporary is left but the parts of large files that a journal lists.

pub(crate) mod connections;
pub(crate) mod finish;
pub(crate) mod lanes;
pub(crate) mod lost_lanes;
mod opening;
pub(crate) mod run_leases;
mod running;
pub(crate) mod target_leases;
pub(crate) mod threads;
pub(crate) mod verify;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc;
use zmove_transport::{ChannelHandle, ControlReader, ControlWriter, LaneSource};
use zmove_types::TransferId;
use zmove_wire::{Greeting, Intent, Open, Opened, Role, TargetState, ToSender, TopName};

use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::quota::Booking;
use crate::quota::messages::{CurrentQuota, messages};
use crate::session::connections::{Connections, SessionReport, cpu_time};
use crate::session::opening::{Resolved, by_grant, opening, refuse_opening, resolve, take_up};
use crate::session::run_leases::{RunLease, RunLeases};
use crate::session::running::Running;
use crate::shared_job::session::not_in_a_job;
use crate::store::target::WriteAccess;
use crate::store::transfer::Transfer;
use crate::{preview, probe};

/// One transfer about to be received; its greeting has been read.
#[derive(Debug)]
pub struct Session {
    /// The transfer.
    pub transfer: TransferId,
    /// The control connection.
    pub control: (ControlReader, ControlWriter),
    /// The lanes, as they arrive.
    pub lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    /// Where this side has dialled: a word for each lane that has not come up.
    pub failed_lanes: Option<mpsc::UnboundedReceiver<()>>,
    /// The owner: the fingerprint of the peer's key, empty within one process.
    pub owner: String,
    /// A way to ask whether the peer is still there.
    pub pulse: ChannelHandle,
    /// Where the peer may write.
    pub access: WriteAccess,
    /// The leases of the runs that the peer has under way here.
    pub run_leases: RunLeases,
    /// The settings.
    pub config: ReceiverConfig,
}

impl Session {
    /// A session of a sender of the same user, which has dialled and may write anywhere.
    #[must_use]
    pub fn new(
        transfer: TransferId,
        control: (ControlReader, ControlWriter),
        lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    ) -> Self {
        Self {
            transfer,
            control,
            lanes,
            failed_lanes: None,
            owner: String::new(),
            pulse: ChannelHandle::default(),
            access: WriteAccess::Anywhere,
            run_leases: RunLeases::default(),
            config: ReceiverConfig::default(),
        }
    }
}

/// Receives one transfer; cuts it off with the error to which `stop` resolves.
///
/// # Errors
/// [`SessionError`] when it did not come to its end; what was committed before stays, whole and verified.
pub async fn run_session(
    session: Session,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    // A caller that has to wait for more than this is not to take the room of a whole session.
    Box::pin(run(session, stop)).await
}

async fn run(
    session: Session,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let Session {
        transfer,
        control: (reader, mut writer),
        lanes,
        mut owner,
        ..
    } = session;
    let Session {
        failed_lanes,
        pulse,
        mut access,
        run_leases,
        mut config,
        ..
    } = session;
    writer
        .greet(&Greeting::new(Role::Control, transfer))
        .await?;
    let booked_on = CurrentQuota::new(config.quota.clone());
    let inbox = messages(reader, booked_on.clone());
    let mut connections = Connections {
        writer,
        inbox,
        lanes,
        failed_lanes,
    };
    // what the opening takes counts until it is done with
    let (open, held) = match opening(&mut connections.inbox).await {
        Ok(opening) => opening,
        Err(error) => return Err(refuse_opening(connections, error).await),
    };
    config.meter.opened(&open.target);
    let lease = run_leases.acquire(open.run).await;
    // only now, when the session before has counted what it has stored
    match take_up(&config, &open).await {
        Ok(Some(grant)) => {
            config = by_grant(config, &grant);
            booked_on.replace(grant.quota);
            (access, owner) = (grant.access, grant.owner);
        }
        Ok(None) => {}
        Err(refusal) => return connections.refuse(refusal).await,
    }
    config.top_names = config.top_names.of_shape(&open.shape);
    if let Some(limit) = config.rate_max {
        connections
            .send(&ToSender::RateMax {
                bytes_per_second: limit.bytes_per_second(),
            })
            .await?;
    }
    let asked = Asked {
        transfer,
        open,
        held,
        access,
        owner,
    };
    serve(connections, asked, config, (lease, pulse), stop).await
}

/// Does what the intent of the opening permits. Only [`Intent::Write`] leads to code that changes names at the target.
async fn serve(
    connections: Connections,
    asked: Asked,
    config: ReceiverConfig,
    (lease, pulse): (RunLease, ChannelHandle),
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let intent = asked.open.intent;
    if asked.open.shared_job.is_some() && intent != Intent::Write {
        return connections
            .refuse(not_in_a_job("a preview or a probe"))
            .await;
    }
    // a list is nowhere
    if intent != Intent::Measure
        && config.listed.is_none()
        && let Err(refusal) = config
            .target_leases
            .wait_until_free(&asked.owner, &asked.open.target)
            .await
    {
        return connections.refuse(refusal).await;
    }
    match intent {
        Intent::Write => receive(connections, asked, config, (lease, pulse), stop).await,
        Intent::Inspect => {
            let stop = first_of(stop, &lease);
            preview::run(connections, asked.open, asked.access, &config, stop).await
        }
        Intent::Measure => {
            let stop = first_of(stop, &lease);
            probe::run(connections, asked.open, asked.access, &config, stop).await
        }
    }
}

/// An opening, and the right to do what it asks for.
struct Asked {
    transfer: TransferId,
    open: Open,
    /// What is booked for the opening.
    held: Booking,
    access: WriteAccess,
    owner: String,
}

/// Receives what was asked for.
async fn receive(
    mut connections: Connections,
    Asked {
        transfer,
        open,
        held,
        access,
        owner,
    }: Asked,
    config: ReceiverConfig,
    (lease, pulse): (RunLease, ChannelHandle),
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let place = config.target_leases.work_at(&owner, &open.target);
    let Resolved {
        open,
        target,
        parts,
        file_system,
        free_bytes,
    } = match resolve(open, access, (transfer, owner.clone()), &config).await {
        Ok(resolved) => resolved,
        Err(refusal) => return connections.refuse(refusal).await,
    };
    let quota = config.quota.clone();
    drop(held);
    let single_name = target.rename.as_ref().map(|(_, to)| TopName(to.clone()));
    // Files of which groups are held are only found if they are offered.
    let state = if parts.has_earlier() {
        TargetState::Populated
    } else {
        target.state
    };
    let opened = Opened {
        state,
        lanes_max: config.lanes_max,
        single_name,
        free_bytes,
    };
    connections.send(&ToSender::Opened(opened)).await?;
    let (outcomes_in, outcomes) = mpsc::channel(OUTCOMES_WAITING_MAX);
    let transfer = Arc::new(Transfer::new(
        transfer,
        &open,
        (target, parts),
        &config,
        outcomes_in,
    ));
    let started = cpu_time();
    let mut running = Running::begin(connections, outcomes, transfer, (open, owner), config)?;
    let ended = tokio::select! {
        ended = running.drive(started) => ended,
        error = stop => Err(error),
        () = lease.superseded() => Err(SessionError::Superseded),
        lost = place.is_in_the_way_of_others(pulse) => Err(lost.into()),
    };
    let (grants, meter) = (running.grants.clone(), Arc::clone(&running.transfer.meter));
    let ended = running.close(ended).await;
    let remember = move || {
        quota.keep_threads(&file_system);
        grants
            .into_iter()
            .for_each(|grants| grants.ended(meter.named()));
    };
    // a panic has been reported, and then less is counted
    let _best_effort = tokio::task::spawn_blocking(remember).await;
    // whoever waits for this session begins
    drop(place);
    ended
}

/// Resolves when the session is to stop or a later transfer of its run has come.
async fn first_of(stop: impl Future<Output = SessionError>, lease: &RunLease) -> SessionError {
    tokio::select! {
        error = stop => error,
        () = lease.superseded() => SessionError::Superseded,
    }
}

/// Outcomes that wait for a control connection whose peer does not read; beyond that the writers wait.
const OUTCOMES_WAITING_MAX: usize = 4096;

#[cfg(test)]
mod tests;
