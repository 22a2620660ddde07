//! `zmove push SRC HOST,HOST:PATH` and `zmove push --cluster NAME`: pushes to several receivers that share the storage
//! of the target. Each receiver writes a part of the target.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::watch;
use zmove_cluster::{LocalQueue, Receiver, SharedJob};
use zmove_engine::Remote;
use zmove_jobs::host_name;
use zmove_transport::{DialError, KnownHosts};

use crate::commands::cluster_push::{self, ClusterPush};
use crate::commands::participants::Participants;
use crate::commands::shared_job::{
    JobLeader, job, lead_with_restart, new_job_id, print_result, receiver, threads,
};
use crate::commands::transfer::{interrupted, resumable};
use crate::commands::trust::ensure_known_key;
use crate::display::progress::Display;
use crate::display::terminal;
use crate::settings::{self, PushSettings, Role};
use crate::value::exit::Exit;

/// Pushes to several receivers, or from the nodes of a cluster, depending on the settings.
pub(crate) fn push(settings: &PushSettings, started: Instant) -> Result<Exit> {
    let display = Display::new(&settings.args, None);
    let sources = settings.examine_sources(&display)?;
    let mut job = job(settings, &sources, new_job_id()?)?;
    let (cluster, receivers) = match &settings.cluster {
        Some(cluster) => {
            let push = ClusterPush::new(cluster, &mut job, &sources)?;
            (Some(push), cluster_push::receivers(settings, cluster)?)
        }
        None => (None, receivers(settings)?),
    };
    display.start();
    let led = lead_with_restart(receivers.len(), |first_receiver| {
        let id = new_job_id()?;
        let names = receivers.iter().map(|receiver| receiver.remote.to_string());
        let head = cluster.as_ref().map(|_| host_name());
        let participants = Participants::new(head, names, display.observer(), display.nodes());
        settings::block_on(threads(), async {
            let leading = JobLeader {
                job: SharedJob { id, ..job.clone() },
                receivers: receivers.clone(),
                first_receiver,
                patience: settings.args.timeout.0,
                participants: Arc::new(participants),
                phase: watch::Sender::default(),
                stop: Box::pin(interrupted()),
            };
            match &cluster {
                Some(cluster) => Box::pin(cluster.lead(leading)).await,
                None => {
                    let queue = Arc::new(LocalQueue::default());
                    Box::pin(leading.lead(queue, Duration::ZERO, pending())).await
                }
            }
        })
    });
    let took_part = display.end();
    let told = led.and_then(|led| print_result(led, took_part, settings, &sources, started));
    told.map_err(|error| resumable(error, &settings.args))
}

/// Returns the receivers that can be used.
fn receivers(settings: &PushSettings) -> Result<Vec<Receiver>> {
    let remotes = with_known_keys(settings)?;
    let known = KnownHosts::open(&settings::home(Role::Client)?)?;
    let keys = remotes
        .iter()
        .map(|remote| Some((*remote, known.lookup(&remote.host, remote.port)?)));
    settings::refuse_same_key(keys.flatten())?;
    let receiver = |remote| receiver(settings, remote, None);
    remotes.into_iter().map(receiver).collect()
}

/// Returns the receivers with known keys. Asks the user about unknown keys before any session starts, because several
/// sessions would otherwise ask at the same time. A receiver with an unknown key is left out if it cannot be reached or
/// its name cannot be resolved. The user could not be asked about its key later.
fn with_known_keys(settings: &PushSettings) -> Result<Vec<&Remote>> {
    let dial = &settings.args.dial;
    let mut known = Vec::new();
    let mut away = None;
    for remote in settings.receivers() {
        let met = if dial.accept_new {
            Ok(())
        } else {
            ensure_known_key(remote, dial.strict)
        };
        match met {
            Ok(()) => known.push(remote),
            Err(error) if error.downcast_ref().is_some_and(is_away) => {
                let why = terminal::causes(&error).to_string();
                terminal::warn(format_args!(
                    "{remote} is unreachable and its key is not known yet: skipping it ({why})"
                ));
                away.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match away {
        Some(error) if known.is_empty() => Err(error),
        _ => Ok(known),
    }
}

/// Returns whether a dial failed because the receiver cannot be reached now. A failed name resolution counts too,
/// because a network outage also breaks name resolution.
fn is_away(error: &DialError) -> bool {
    error.retryable() || matches!(error, DialError::Resolve { .. })
}
