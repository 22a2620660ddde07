//! `zmove push`: from what was typed to a summary.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use zmove_engine::{
    Connector, LocalReceiver, Location, Push, Remote, RemotePush, Run, SenderConfig, Sources, Summary,
    push_locally,
};
use zmove_sender::Manifest;
use zmove_transport::Transport;
use zmove_types::Escaped;

use crate::args::PushArgs;
use crate::ceiling::{self, Moved, Shares};
use crate::display::progress::Display;
use crate::display::prompt::Prompt;
use crate::display::trace::{self, Trace};
use crate::display::{summary, terminal};
use crate::settings::{self, PushSettings, Role, Storage, timeout};
use crate::signals::EndSignals;
use crate::value::exit::Exit;

/// Runs `zmove push`.
pub(crate) fn run(args: PushArgs, started: Instant) -> Result<Exit> {
    let settings = PushSettings::new(&args, Arc::new(Prompt))?;
    let sources = settings.look_at_sources(&args, &terminal::Notices)?;
    let trace = args.trace.as_deref().map(Trace::create).transpose()?;
    let sample_interval = trace.as_ref().map(|_| trace::INTERVAL);
    let display = Display::new(args.json, args.quiet, trace);
    let manifest = manifest(&args)?;
    let mut run = Run::begin(manifest, started);
    let storage = settings::storage(args.storage, |notice| terminal::warn(notice));
    let config = SenderConfig {
        file_io: Arc::clone(&storage.file_io),
        direct: storage.direct,
        sample_interval,
        scan: settings.scan(&args),
        rate_max: args.limit,
        ..SenderConfig::default()
    };
    let push = Push::start(settings.job(&args, &sources)?, config.clone(), &mut run, started);
    let runtime = settings::runtime(2)?;
    let pushed: Result<_> = runtime.block_on(async {
        match &settings.location {
            Location::Local(_) => Ok((push_here(push, &mut run, &display, storage).await?, None)),
            Location::Remote(remote) => {
                let there = There { remote, settings: &settings, args: &args, sources: &sources, config };
                let (summary, transport) = there.push(push, &mut run, &display).await?;
                Ok((summary, Some(transport)))
            }
        }
    });
    runtime.shutdown_background();
    let moved = display.moved();
    display.end();
    let (mut summary, transport) = pushed?;
    summary.failed += sources.missing;
    let shares = shares(&moved, &summary, &sources, &settings.location);
    summary::print(&summary, &args, transport, &shares)?;
    Ok(match (summary.failed + summary.kept_by_change, summary.spared) {
        (0, 0) => Exit::Done,
        (0, _) => Exit::MaxDelete,
        _ => Exit::Partial,
    })
}

/// A push to another host.
struct There<'a> {
    remote: &'a Remote,
    settings: &'a PushSettings,
    args: &'a PushArgs,
    sources: &'a Sources,
    config: SenderConfig,
}

impl There<'_> {
    async fn push(self, push: Push, run: &mut Run, display: &Display) -> Result<(Summary, Transport)> {
        let home = settings::home(Role::Client)?;
        let job = || Ok(self.settings.job(self.args, self.sources)?);
        let settings = self.settings.dial.clone().unwrap_or_default();
        let pushing = RemotePush {
            connector: Connector { home: &home, remote: self.remote, settings: &settings, listener: display },
            job: &job,
            config: self.config,
            timeout: timeout(self.args),
            busy_timeout: self.args.timeout,
            observer: display.observer(),
        };
        let pushed = pushing.push(push, run, interrupted()).await?;
        Ok((pushed.summary, pushed.transport))
    }
}

/// Runs both roles in this process.
async fn push_here(push: Push, run: &mut Run, display: &Display, storage: Storage) -> Result<Summary> {
    display.start();
    let journals = settings::home(Role::Client).ok().map(|home| settings::journals(&home));
    let receiver = LocalReceiver { file_io: storage.file_io, direct: storage.direct, journals };
    Ok(push_locally(push, run, receiver, display.observer(), interrupted()).await?)
}

/// What the push has reached of what its storage gave, as far as that has been swept; of the target where it is local.
fn shares(moved: &Moved, summary: &Summary, sources: &Sources, location: &Location) -> Shares {
    let source = ceiling::known(sources.paths());
    let target = match location {
        Location::Local(path) => ceiling::known([Path::new(path)]),
        Location::Remote(_) => None,
    };
    Shares::of(moved, summary.elapsed, source.as_ref(), target.as_ref())
}

fn manifest(args: &PushArgs) -> Result<Option<Manifest>> {
    let create = |path: &PathBuf| {
        Manifest::create(path).with_context(|| format!("sender: create '{}'", Escaped::path(&path)))
    };
    args.manifest.as_ref().map(create).transpose()
}

async fn interrupted() {
    match EndSignals::listen() {
        Ok(signals) => signals.first().await,
        // without a handler a signal ends the process by itself
        Err(_) => std::future::pending().await,
    }
}
