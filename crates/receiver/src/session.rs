//! One session of a receiver: its control connection, and the threads that it starts and stops.
//!
//! **Invariant:** when [`run_session`] returns, all threads of the session have ended, whether or not the transfer has
//! succeeded. The only remaining temporary files are parts of large files that a journal lists.

pub(crate) mod connections;
pub(crate) mod finish;
mod inspecting;
pub(crate) mod lanes;
pub(crate) mod leases;
pub(crate) mod lost_lanes;
pub(crate) mod opening;
pub(crate) mod requests;
mod running;
pub(crate) mod threads;
pub(crate) mod verify;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use zmove_disk::Lease;
use zmove_transport::{ControlError, ControlReader, ControlWriter, LaneSource, PathProbe};
use zmove_types::{Lock, TransferId};
use zmove_wire::{Greeting, Intent, Open, Role, ToSender};

use crate::comparison::selection::charge_rules;
use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::rights::grant::Rights;
use crate::rights::quota::messages::messages;
use crate::rights::quota::{Charge, Quota};
use crate::session::connections::{Connections, SessionReport, cpu_time, next, unless_stopped};
use crate::session::leases::keeping::KeptLease;
pub use crate::session::leases::keeping::SenderLocation;
use crate::session::leases::run_leases::{RunLease, RunLeases};
pub use crate::session::opening::Opening;
use crate::session::opening::{OpenTarget, by_grant, is_under_way, resolve, take_opening, take_up};
use crate::session::running::{RunningSession, SessionThreads};
use crate::shared_job::other_jobs::OtherJobs;
use crate::shared_job::session::not_in_a_job;
use crate::store::transfer::Transfer;
use crate::{cleaning, probe};

/// A session that is ready to run. Its greeting has already been read.
#[derive(Debug)]
pub struct Session {
    /// The ID of the transfer.
    pub transfer: TransferId,
    /// The control connection.
    pub control: (ControlReader, ControlWriter),
    /// The source of the opening.
    pub opening: Opening,
    /// Lanes, in the order in which they are established.
    pub lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    /// If this side has dialed: a notification for each lane that could not be established.
    pub failed_lanes: Option<mpsc::UnboundedReceiver<()>>,
    /// Whether the sender runs in this process.
    pub sender: SenderLocation,
    /// Access to the state of the control connection.
    pub connection: PathProbe,
    /// The leases of the runs of which the peer has transfers in progress at this receiver.
    pub run_leases: RunLeases,
    /// The configuration of the session.
    pub config: ReceiverConfig,
}

impl Session {
    /// Creates a session for a sender of the same user. The sender has dialed and may write anywhere.
    #[must_use]
    pub fn new(
        transfer: TransferId,
        control: (ControlReader, ControlWriter),
        lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    ) -> Self {
        Self {
            transfer,
            control,
            opening: Opening::Sent,
            lanes,
            failed_lanes: None,
            sender: SenderLocation::OtherProcess,
            connection: PathProbe::default(),
            run_leases: RunLeases::default(),
            config: ReceiverConfig::default(),
        }
    }
}

/// Receives one transfer. If `stop` resolves first, the session ends with that error.
///
/// # Errors
/// [`SessionError`] if the transfer did not complete. Files that were committed before that stay at the target,
/// complete and verified.
pub async fn run_session(
    session: Session,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    // The future is boxed, so that a caller's future does not contain the state of a whole session.
    Box::pin(run(session, stop)).await
}

async fn run(
    session: Session,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let Session {
        transfer,
        control: (reader, writer),
        opening,
        lanes,
        failed_lanes,
        sender,
        connection,
        run_leases,
        config,
    } = session;
    let kept = KeptLease::begin(sender, writer.pinger(), connection);
    let booked_on = Arc::new(Lock::new(config.quota.clone()));
    let mut connections = Connections {
        writer,
        inbox: messages(reader, Arc::clone(&booked_on), opening.sent_max()),
        lanes,
        failed_lanes,
        wait_notices: None,
    };
    tokio::pin!(stop);
    let begun = begin(
        &mut connections,
        transfer,
        opening,
        run_leases,
        &booked_on,
        config,
    );
    let BegunSession {
        open,
        held,
        rules_held,
        lease,
        config,
    } = match unless_stopped(stop.as_mut(), begun)
        .await
        .unwrap_or_else(Err)
    {
        Ok(begun) => begun,
        Err(error) => return Err(connections.refuse(error).await),
    };
    let stop = async {
        tokio::select! {
            error = stop => error,
            () = lease.superseded() => SessionError::Superseded,
        }
    };
    let opened = OpenedSession {
        transfer,
        connections,
        open,
        held,
        kept,
    };
    let ended = serve(opened, config, stop).await;
    drop(rules_held);
    ended
}

/// A session whose opening has been accepted.
struct BegunSession {
    open: Open,
    /// Memory reserved for the opening until the target is open.
    held: Charge,
    /// Memory reserved for the opening's rules until the session ends.
    rules_held: Charge,
    lease: RunLease,
    /// The settings of the session, including the permissions from the grant if the opening uses one.
    config: ReceiverConfig,
}

/// Greets the peer, reads its opening, acquires the lease of its run and determines its permissions. The quota in
/// `booked_on` is charged for the memory of messages.
async fn begin(
    connections: &mut Connections,
    transfer: TransferId,
    opening: Opening,
    run_leases: RunLeases,
    booked_on: &Lock<Quota>,
    mut config: ReceiverConfig,
) -> Result<BegunSession, SessionError> {
    let greeting = Greeting::new(Role::Control, transfer);
    connections.writer.greet(&greeting).await?;
    let (open, held) = take_opening(opening, &mut connections.inbox, &config.quota).await?;
    let mut rules_held = config.quota.empty_charge();
    charge_rules(&open.protected, &mut rules_held)?;
    config.meter.set_target(&open.target);
    let lease = run_leases.acquire(open.run).await;
    // The lease is acquired before the grant is redeemed, so that the previous session has recorded everything that it
    // stored under the grant.
    let taken_up = take_up(&config, &open).await;
    if let Some(grant) = taken_up.map_err(SessionError::Refused)? {
        config = by_grant(config, grant);
        *booked_on.lock() = config.quota.clone();
    }
    config.top_names = config.top_names.of_shape(&open.shape);
    if let Some(limit) = config.rights.rate_max {
        let bytes_per_second = limit.bytes_per_second();
        connections
            .send(&ToSender::RateMax { bytes_per_second })
            .await?;
    }
    if open.shared_job.is_some() && open.intent != Intent::Write {
        return Err(SessionError::Refused(not_in_a_job(
            "a preview, probe or cleanup",
        )));
    }
    Ok(BegunSession {
        open,
        held,
        rules_held,
        lease,
        config,
    })
}

/// A session whose opening was read and is within the peer's permissions.
struct OpenedSession {
    transfer: TransferId,
    connections: Connections,
    open: Open,
    /// Memory reserved for the opening.
    held: Charge,
    kept: KeptLease,
}

/// Runs the kind of session that the opening's intent requests.
///
/// Only code for [`Intent::Write`] creates visible names at the target. [`Intent::Clean`] removes hidden names, and the
/// sweep of a probe works in its own hidden directory.
async fn serve(
    session: OpenedSession,
    config: ReceiverConfig,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    match session.open.intent {
        Intent::Write => receive(session, config, stop).await,
        Intent::Inspect => inspecting::run(session.connections, session.open, &config, stop).await,
        Intent::Measure => probe::run(session.connections, session.open, &config, stop).await,
        Intent::Clean | Intent::CleanPreview => {
            let OpenedSession {
                connections,
                open,
                kept,
                ..
            } = session;
            cleaning::run(connections, open, &config, kept, stop).await
        }
    }
}

/// Receives files, and registers the session with the other sessions at the target.
async fn receive(
    session: OpenedSession,
    config: ReceiverConfig,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let Rights { access, owner, .. } = &config.rights;
    let path = access.path_of(&session.open.target);
    let sessions = config.target_sessions.clone();
    // Dropping this value lets sessions that wait for this one continue.
    let working = sessions.begin(owner, path, &session.kept).await;
    let stop = async {
        tokio::select! {
            error = stop => error,
            () = working.wait_until_lost() => ControlError::from(io::Error::from(io::ErrorKind::TimedOut)).into(),
        }
    };
    receive_files(session, config, stop).await
}

async fn receive_files(
    session: OpenedSession,
    config: ReceiverConfig,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let OpenedSession {
        transfer,
        mut connections,
        open,
        held,
        kept,
    } = session;
    tokio::pin!(stop);
    let lease = kept.sender.lease.clone();
    let opening = open_target(
        &mut connections,
        open,
        transfer,
        config.clone(),
        lease,
        stop.as_mut(),
    );
    let resolved = match Box::pin(opening).await {
        Ok(resolved) => resolved,
        Err(error) => return Err(connections.refuse(error).await),
    };
    let quota = config.quota.clone();
    drop(held);
    let opened = resolved.opened(config.lanes_max);
    let said = unless_stopped(stop.as_mut(), connections.open(opened)).await;
    if let Err(error) = said.unwrap_or_else(Err) {
        return Err(connections.refuse(error).await);
    }
    let OpenTarget {
        open,
        target,
        parts,
        other_jobs,
        file_system,
        ..
    } = resolved;
    let (outcomes_in, outcomes) = mpsc::channel(OUTCOMES_WAITING_MAX);
    let transfer = Transfer::new(transfer, &open, target, parts, &config, outcomes_in);
    let transfer = Arc::new(transfer.with_other_jobs(other_jobs));
    if !is_under_way(&open) {
        transfer.note_entered();
    }
    let _unlocked = UnlockJournals(Arc::downgrade(&transfer));
    let threads = match SessionThreads::start(&transfer, &config) {
        Ok(threads) => threads,
        Err(error) => return Err(connections.refuse(error).await),
    };
    let mut running = RunningSession::new(connections, outcomes, transfer, threads, &open, config);
    // `kept` is moved here, so that it is dropped before the transfer. After that, code that drops files does not wait
    // for an echo of the sender.
    let kept = kept;
    let ended = tokio::select! {
        ended = running.drive(cpu_time()) => ended,
        error = &mut stop => Err(error),
    };
    let grants = running.grants.clone();
    let meter = Arc::clone(&running.transfer.meter);
    let ended = running.close(ended, kept).await;
    let remember = move || {
        quota.keep_threads(&file_system);
        grants
            .into_iter()
            .for_each(|grants| grants.ended(meter.stored_total()));
    };
    // A panic has already been reported. It only means that some measurements are not stored.
    let _best_effort = tokio::task::spawn_blocking(remember).await;
    ended
}

/// Opens the target. While it waits, reports the reason to the sender.
///
/// If `stop` resolves, this function ends the lease, so that threads stop waiting for an echo of the sender. It returns
/// only after the threads have stopped opening the target, because the next session may begin as soon as it returns.
async fn open_target(
    connections: &mut Connections,
    open: Open,
    transfer: TransferId,
    config: ReceiverConfig,
    lease: Lease,
    mut stop: Pin<&mut impl Future<Output = SessionError>>,
) -> Result<OpenTarget, SessionError> {
    let (told, wait_notices) = mpsc::unbounded_channel();
    connections.wait_notices = Some(wait_notices);
    let own = open.shared_job.as_ref().map(|part| part.job);
    let other_jobs = OtherJobs::new(own, &lease, Some(told));
    let is_over = other_jobs.over_flag();
    let resolving = resolve(open, transfer, config, lease.clone(), other_jobs);
    tokio::pin!(resolving);
    let mut looks = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            _ = looks.tick() => is_over.store(connections.inbox.is_closed(), Ordering::Relaxed),
            resolved = &mut resolving => return resolved.map_err(SessionError::Refused),
            error = stop.as_mut() => {
                lease.end();
                is_over.store(true, Ordering::Relaxed);
                let _given_up = resolving.await;
                return Err(error);
            }
            Some(text) = next(&mut connections.wait_notices) => {
                connections.send(&ToSender::HeldUp { text }).await?;
            }
        }
    }
}

/// Unlocks the journals of a transfer on drop. This is needed if the session is dropped before it has ended, because
/// its threads may hang and keep the locks.
struct UnlockJournals(Weak<Transfer>);

impl Drop for UnlockJournals {
    fn drop(&mut self) {
        if let Some(transfer) = self.0.upgrade() {
            transfer.parts.unlock_journals();
        }
    }
}

/// Interval at which a waiting session checks whether its sender has disconnected.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of outcomes that are queued for a peer that does not read its control connection. At this limit, the
/// writers wait.
const OUTCOMES_WAITING_MAX: usize = 4096;

#[cfg(test)]
mod tests;
