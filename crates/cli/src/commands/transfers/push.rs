//! `zmove push`, from the arguments to the summary. `zmove verify` is a push that only compares contents.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use zmove_disk::{StorageWork, ThreadCountCache};
use zmove_engine::{
    Connector, Location, Remote, RemotePush, RetryPolicy, SenderConfig, Sources, StartedPush,
    Summary, Transferred, push_locally,
};
use zmove_jobs::host_name;
use zmove_receiver::ListedFiles;
use zmove_scan::ScanConfig;
use zmove_sender::{Manifest, NoQuota, PackSizes, Prover};
use zmove_tools::sweep::{MovedSizes, Shares};
use zmove_types::Escaped;

use crate::args::PushArgs;
use crate::commands::scan::report_unmatched;
use crate::commands::transfer::{
    TransferEnd, display, exit_of, interrupted, local_receiver, resumable,
};
use crate::commands::{mount, runner, spread};
use crate::display::progress::Display;
use crate::display::prompt::Prompt;
use crate::display::summary::proofs;
use crate::display::terminal;
use crate::display::trace;
use crate::saved_sweeps;
use crate::settings::{self, PushSettings, Role, Storage};
use crate::value::exit::Exit;

/// Runs `zmove push`.
pub(crate) fn run(args: PushArgs, started: Instant) -> Result<Exit> {
    push(&PushSettings::new(args, Arc::new(Prompt))?, started)
}

/// Runs a push with these settings.
pub(crate) fn push(settings: &PushSettings, started: Instant) -> Result<Exit> {
    let args = &settings.args;
    mount::require(args)?;
    let bare_name = bare_name(settings);
    if settings.cluster.is_some() || !settings.also.is_empty() {
        return spread::push(settings, started);
    }
    let host = host_of(&settings.location);
    let display = display(args, &host_name(), &host)?;
    let sources = settings.examine_sources(&display)?;
    let manifest = manifest(args, host, proofs(args))?;
    let storage = settings::storage(args.storage, |notice| terminal::warn(notice));
    let config = SenderConfig {
        sample_interval: args.trace.as_ref().map(|_| trace::INTERVAL),
        ..sender_config(settings, &sources, &storage)
    };
    let mut push = StartedPush::new(settings.job(&sources)?, config, manifest, started);
    if let Some(run) = runner::run_of_job() {
        push.join_run(run);
    }
    let pushed = settings::block_on(2, async {
        match &settings.location {
            Location::Local(_) => push_here(push, &display, storage, args.listed.clone()).await,
            Location::Remote(remote) => {
                Box::pin(push_there(remote, settings, &sources, push, &display)).await
            }
        }
    });
    let pushed = pushed.map_err(|error| resumable(error, args));
    let mut ended = TransferEnd::of(display, args, pushed)?;
    if !args.verify && (args.dry_run || args.keeping.verbose) {
        report_unmatched(settings.selection.as_deref());
    }
    let summary = &mut ended.result.summary;
    summary.counters.failed += sources.missing;
    let shares = shares(&ended.moved, summary, &sources, &settings.location);
    let exit = exit_of(summary, args);
    let exit = ended.print(args, &shares, exit);
    bare_name.into_iter().for_each(report_created);
    Ok(exit)
}

/// Returns the target if it is a name without slashes that does not exist on this host yet, and if the summary is
/// printed for a person. The user may have meant the name as a host.
fn bare_name(settings: &PushSettings) -> Option<&Path> {
    let PushSettings { location, args, .. } = settings;
    let Location::Local(target) = location else {
        return None;
    };
    let target = Path::new(target);
    let is_bare = !target.as_os_str().as_bytes().contains(&b'/');
    let is_shown = !args.json && !args.quiet && !args.dry_run;
    (is_bare && is_shown && !target.exists()).then_some(target)
}

/// Informs the user that a directory with this name was created. Does nothing if the push created a file with this
/// name.
fn report_created(name: &Path) {
    if name.is_dir() {
        terminal::say(format_args!(
            "made the local directory '{}'",
            Escaped::path(name)
        ));
    }
}

fn host_of(location: &Location) -> String {
    match location {
        Location::Local(_) => host_name(),
        Location::Remote(remote) => remote.host.clone(),
    }
}

fn sender_config(settings: &PushSettings, sources: &Sources, storage: &Storage) -> SenderConfig {
    let memory = settings::thread_counts();
    let config = settings.sender(storage);
    SenderConfig {
        scan: scan_config(config.scan, sources, &memory),
        storage: memory,
        rate_max: settings.args.limit(),
        pack_sizes: match &settings.location {
            Location::Local(_) => PackSizes::LocalCopy,
            Location::Remote(_) => PackSizes::ForLanes,
        },
        ..config
    }
}

/// Runs the sender, and reconnects if connections are lost.
async fn push_there(
    remote: &Remote,
    settings: &PushSettings,
    sources: &Sources,
    push: StartedPush,
    display: &Display,
) -> Result<Transferred> {
    let home = settings::home(Role::Client)?;
    let dial = settings.dial.clone().unwrap_or_default();
    let pushing = RemotePush {
        receiver: RetryPolicy {
            connector: Connector {
                home: &home,
                remote,
                settings: &dial,
                listener: display,
            },
            timeout: settings.timeout(),
            busy_timeout: settings.args.busy_timeout(),
        },
        job: &|| {
            let job = settings.job(sources);
            Box::pin(async { Ok(job?) })
        },
        quota: Arc::new(NoQuota),
        observer: display.observer(),
    };
    Ok(Box::pin(pushing.push(push, interrupted())).await?)
}

/// Runs the sender and the receiver in this process.
async fn push_here(
    push: StartedPush,
    display: &Display,
    storage: Storage,
    listed: Option<Arc<ListedFiles>>,
) -> Result<Transferred> {
    display.start();
    let receiver = local_receiver(storage, listed);
    Ok(push_locally(push, receiver, display.observer(), interrupted()).await?)
}

/// Returns the settings of the scan. Uses as many threads as were useful for reading the same sources in earlier
/// transfers.
fn scan_config(usual: ScanConfig, sources: &Sources, memory: &ThreadCountCache) -> ScanConfig {
    let known = sources
        .paths()
        .next()
        .and_then(|first| memory.at(first).threads(StorageWork::Read));
    let threads = known
        .unwrap_or_default()
        .min(SCAN_THREADS_MAX)
        .max(usual.threads);
    ScanConfig { threads, ..usual }
}

/// Maximum number of scan threads. Scanning is only part of the work, because each file is then opened, read and
/// inspected again.
const SCAN_THREADS_MAX: usize = 64;

/// Returns the speed of the push as shares of the measured storage speeds. The share of the target is known only if
/// the target is local.
fn shares(moved: &MovedSizes, summary: &Summary, sources: &Sources, location: &Location) -> Shares {
    let source = saved_sweeps::of_paths(sources.paths());
    let target = match location {
        Location::Local(path) => saved_sweeps::of_paths([Path::new(path)]),
        Location::Remote(_) => None,
    };
    Shares::of(moved, summary.elapsed, source.as_ref(), target.as_ref())
}

/// Creates the requested manifest, with the proofs that the receiver on `host` provides.
pub(crate) fn manifest(
    args: &PushArgs,
    host: String,
    received: &'static [&'static str],
) -> Result<Option<Manifest>> {
    let named = |path: &PathBuf| format!("sender: create '{}'", Escaped::path(path));
    let create = |path: &PathBuf| Manifest::create(path).with_context(|| named(path));
    let prover = Prover { host, received };
    let create_proofs =
        |path: &PathBuf| Manifest::create_proofs(path, prover).with_context(|| named(path));
    let manifest = args.manifest.as_ref().map(create).transpose()?;
    let proofs = args.proofs.as_ref().map(create_proofs).transpose()?;
    Ok(match (manifest, proofs) {
        (Some(manifest), Some(proofs)) => Some(manifest.with(proofs)),
        (manifest, proofs) => manifest.or(proofs),
    })
}
