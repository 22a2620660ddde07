//! A session that lists the leftovers of ended sessions below a target, or removes them.
//!
//! **Invariant:** nothing is stored or renamed. When [`run`] returns, its threads have ended.

mod cleaner;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zmove_disk::Tree;
use zmove_transport::ControlError;
use zmove_types::Escaped;
use zmove_wire::{Finished, Intent, Open, Refusal, RefusalCode, TargetState, ToSender};

use crate::cleaning::cleaner::Cleaner;
use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::resume::journal::CleanMode;
use crate::session::connections::{Connections, InspectionKind, SessionReport, opened};
use crate::session::leases::keeping::KeptLease;
use crate::store::target::{InspectedTarget, WriteAccess};

/// Maximum number of results queued for a peer that does not read its control connection. When the queue is full, the
/// threads wait.
const RESULTS_WAITING_MAX: usize = 256;

/// Cleans the whole tree. Even a preview requires a key that may write to the target.
pub(crate) async fn run(
    connections: Connections,
    open: Open,
    config: &ReceiverConfig,
    kept: KeptLease,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let access = config.rights.access.clone();
    let mode = match open.intent {
        Intent::Clean => CleanMode::Remove,
        _ => CleanMode::DryRun,
    };
    let opened = opened(TargetState::Populated, config.lanes_max);
    tokio::pin!(stop);
    let look_at = move || target_tree(&open, &access);
    let (mut connections, tree) = connections
        .open_after(stop.as_mut(), look_at, |_| opened)
        .await?;
    let tree = tree.under(kept.sender.lease.clone());
    let stopping = Arc::<AtomicBool>::default();
    let (told, results) = mpsc::channel(RESULTS_WAITING_MAX);
    let cleaner = Cleaner::new(tree, mode, config, Arc::clone(&stopping), told);
    let mut cleaning = tokio::task::spawn_blocking(move || cleaner.clean());
    let mut report = SessionReport {
        looked: Some(InspectionKind::Cleaning),
        ..SessionReport::default()
    };
    let ended = tokio::select! {
        ended = handle_messages(&mut connections, results, &mut cleaning, &mut report) => ended,
        error = stop => Err(error),
    };
    if ended.is_err() {
        // The flag makes the threads stop waiting for echoes and stop watching jobs.
        stopping.store(true, Ordering::Relaxed);
        drop(kept);
        if !cleaning.is_finished() {
            let _has_no_result = cleaning.await;
        }
    }
    connections.end_session(&ended).await;
    ended.map(|()| report)
}

/// Opens the tree of an existing target.
fn target_tree(open: &Open, access: &WriteAccess) -> Result<Tree, Refusal> {
    let seen = InspectedTarget::inspect(open, access)?;
    let why = if seen.is_closed {
        "its mode denies access to its owner"
    } else {
        "no such directory"
    };
    seen.tree.ok_or_else(|| {
        let target = Escaped(&open.target);
        Refusal::new(RefusalCode::Target, format!("clean '{target}': {why}"))
    })
}

/// Sends the results of a cleanup until it ends.
async fn handle_messages(
    connections: &mut Connections,
    mut results: mpsc::Receiver<ToSender>,
    cleaning: &mut JoinHandle<()>,
    report: &mut SessionReport,
) -> Result<(), SessionError> {
    loop {
        tokio::select! {
            result = results.recv() => {
                let Some(message) = result else { break };
                match message {
                    ToSender::Leftover(_) => report.items += 1,
                    ToSender::Fault(_) => report.faults += 1,
                    _ => {}
                }
                connections.send(&message).await?;
            }
            message = connections.inbox.recv() => {
                message.ok_or(ControlError::Closed)??;
                return Err(SessionError::out_of_order("a message during a cleanup"));
            }
            Some(lane) = connections.lanes.recv() => drop(lane),
        }
    }
    cleaning.await.map_err(|_panic| SessionError::Panicked)?;
    let finished = ToSender::Finished(Finished::default());
    Ok(connections.send_last(&finished).await?)
}
