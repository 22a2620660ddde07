//! `zmove push SRC HOST,HOST:PATH`: a push to several receivers that share the storage of the target, each of which
//! writes a part of it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use zmove_cluster::{Head, LocalQueue, Node, Receiver, SharedJob};
use zmove_engine::Remote;
use zmove_transport::{DialError, KnownHosts};
use zmove_types::Observer;

use crate::commands::participants::Participants;
use crate::commands::shared_job::{
    self, By, Led, SessionWarnings, fresh, lead_again, tell_end, threads,
};
use crate::commands::transfer::interrupted;
use crate::commands::trust::get_to_know;
use crate::display::progress::Display;
use crate::display::terminal;
use crate::settings::{self, PushSettings, Role};
use crate::value::exit::Exit;

/// Pushes to the receivers of these settings.
pub(crate) fn push(settings: &PushSettings, started: Instant) -> Result<Exit> {
    let args = &settings.args;
    let display = Display::new(args, None);
    let sources = settings.look_at_sources(&display)?;
    let receivers = receivers(settings)?;
    let job = shared_job::job(settings, &sources, fresh()?)?;
    display.start();
    let led = lead_again(receivers.len(), |begins_at| {
        lead(
            shared_job::anew(&job)?,
            receivers.clone(),
            begins_at,
            settings,
            &display,
        )
    });
    let by = By {
        noun: "receiver",
        took_part: display.end(),
    };
    tell_end(led?, &by, settings, &sources, started)
}

/// Leads a job to its end.
fn lead(
    job: SharedJob,
    receivers: Vec<Receiver>,
    begins_at: usize,
    settings: &PushSettings,
    display: &Display,
) -> Result<Led> {
    let names = receivers.iter().map(|receiver| receiver.remote.to_string());
    let participants = Arc::new(Participants::of_receivers(
        names.collect(),
        display.observer(),
    ));
    let (id, count) = (job.id, receivers.len());
    let queue = Arc::new(LocalQueue::new(id));
    let args = &settings.args;
    let node = Node::new(job, Arc::clone(&queue), receivers, count, args.timeout.0);
    let head = Head {
        begins_at,
        ..Head::new(node)
    };
    let served = &head.node.served;
    let stored = || served.by_receiver();
    let ended = settings::block_on(threads(), async {
        let observer = Arc::clone(&participants) as Arc<dyn Observer>;
        tokio::select! {
            ended = Box::pin(head.run(observer, Arc::new(SessionWarnings), interrupted())) => Ok(ended),
            never = participants.tell(queue, stored) => match never {},
        }
    });
    participants.tell_now(Some(0), &stored());
    let ended = ended?;
    let (served, has_lost_sessions) = (served.by_receiver().len(), served.has_lost_sessions());
    Ok(Led {
        id,
        ended,
        served,
        has_lost_sessions,
    })
}

/// The receivers that can be used.
fn receivers(settings: &PushSettings) -> Result<Vec<Receiver>> {
    let home = settings::home(Role::Client)?;
    let remotes = with_known_keys(settings)?;
    let known = KnownHosts::open(&home)?;
    let keys = remotes
        .iter()
        .map(|remote| Some((*remote, known.lookup(&remote.host, remote.port)?)));
    settings::refuse_same_key(keys.flatten())?;
    let receiver = |remote: &Remote| {
        let (home, remote, settings) = (home.clone(), remote.clone(), settings.dial_to(remote)?);
        Ok(Receiver {
            home,
            remote,
            settings,
        })
    };
    remotes.into_iter().map(receiver).collect()
}

/// The receivers, the keys of which are known from here on: several sessions would ask at once. One that is away, or
/// whose name has no address, and has an unknown key is left out, since nobody could be asked when it comes back.
fn with_known_keys(settings: &PushSettings) -> Result<Vec<&Remote>> {
    let dial = &settings.args.dial;
    let (mut known, mut away) = (Vec::new(), None);
    for remote in settings.receivers() {
        match if dial.accept_new {
            Ok(())
        } else {
            get_to_know(remote, dial.strict)
        } {
            Ok(()) => known.push(remote),
            Err(error) if error.downcast_ref().is_some_and(is_away) => {
                let why = terminal::causes(&error).to_string();
                terminal::warn(format_args!(
                    "{remote} is away, and its key not known yet: left out ({why})"
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

/// Whether the receiver cannot be reached now. An outage takes the resolution of names down as well.
fn is_away(error: &DialError) -> bool {
    error.retryable() || matches!(error, DialError::Resolve { .. })
}
