//! `zmove push`: from what was typed to a summary.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use zmove_receiver::{Access, ReceiverConfig, Session, Turns, run_session};
use zmove_scan::{PathKind, ScanConfig, ScanRoot, Selection};
use zmove_sender::{AfterErrors, Guard, Link, Manifest, Push, PushJob, Removals, Run, SenderConfig, Summary};
use zmove_transport::{
    QuicCongestion, Reach, SocketConfig, TransportChoice, UnknownCongestion, memory_control, memory_lane,
};
use zmove_types::{Escaped, FileNumber, Name, RelPath};
use zmove_wire::{Cipher, Compare, Durability, Overwrite, Purpose, TargetShape, TopName, Version};

use crate::args::{CipherArg, DeltaArg, DurabilityArg, PushArgs, TransportArg};
use crate::ceiling::{self, Moved, Shares};
use crate::dial::{self, DialOptions, More};
use crate::display::progress::Display;
use crate::display::summary;
use crate::display::terminal;
use crate::display::trace::{self, Trace};
use crate::location::Location;
use crate::overlap::Overlap;
use crate::paths::Paths;
use crate::patience::Timeout;
use crate::reconnect::Sessions;
use crate::settings::{self, Role, Storage};
use crate::signals::EndSignals;
use crate::value::exit::{Exit, Failure, usage_error};

/// Runs `zmove push`.
pub(crate) fn run(args: PushArgs, started: Instant) -> Result<Exit> {
    let (target, sources) = args.paths.split_last().expect("clap demands two");
    let location = Location::parse(target, args.ssh.ssh).map_err(|error| usage_error(error.to_string()))?;
    if args.delete && args.selection.files_from.is_some() {
        return Err(usage_error(
            "--delete cannot be used with --files-from: a list does not say what else may go",
        ));
    }
    let selection = args.selection.selection()?;
    let sources = match args.selection.files_from {
        Some(_) => Sources::look_at_one(sources)?,
        None => Sources::look_at(sources, selection.as_deref())?,
    };
    if let Location::Local(target) = &location {
        if args.limit.is_some() {
            return Err(usage_error("--limit paces connections: it needs a target on another host"));
        }
        let overlap = Overlap::new(sources.roots(), target.into(), args.selection.file_systems());
        overlap.refuse_target_inside()?;
        if let Some(why) = args.delete.then(|| overlap.objection()).flatten() {
            return Err(usage_error(why));
        }
    }
    let trace = args.trace.as_deref().map(Trace::create).transpose()?;
    let sample_interval = trace.as_ref().map(|_| trace::INTERVAL);
    let mut display = Display::new(args.json, args.quiet, trace);
    let job = || job(&args, &sources, &location);
    let manifest = manifest(&args)?;
    let scan = ScanConfig { selection, file_systems: args.selection.file_systems(), ..ScanConfig::default() };
    let mut run = Run::begin(manifest, started);
    let storage = settings::storage(args.storage, |notice| terminal::warn(notice));
    let disk = Arc::clone(&storage.disk);
    let config = SenderConfig {
        disk,
        direct: storage.direct,
        sample_interval,
        scan,
        rate_max: args.limit,
        ..SenderConfig::default()
    };
    let push = Push::start(job()?, config.clone(), &mut run, started);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let pushed: Result<_> = runtime.block_on(async {
        match &location {
            Location::Local(_) => Ok((push_here(push, &mut run, &mut display, storage).await?, None)),
            Location::Remote(remote) => {
                let (options, timeout) = (options(&args)?, args.timeout);
                let timeout = if can_begin_again(&args) { timeout } else { Timeout::NONE };
                let patience = args.timeout;
                let sessions = Sessions { remote, options, job: &job, config, timeout, patience };
                let (summary, transport) = sessions.push(push, &mut run, &mut display, interrupted()).await?;
                Ok((summary, Some(transport)))
            }
        }
    });
    runtime.shutdown_background();
    let moved = display.moved();
    display.end();
    let (mut summary, transport) = pushed?;
    summary.failed += sources.missing;
    let shares = shares(&moved, &summary, &sources, &location);
    summary::print(&summary, &args, (transport, &shares))?;
    Ok(match (summary.failed + summary.kept_by_change, summary.spared) {
        (0, 0) => Exit::Done,
        (0, _) => Exit::MaxDelete,
        _ => Exit::Partial,
    })
}

/// What the push has reached of what its storage gave, as far as that has been swept; of the target where it is local.
fn shares(moved: &Moved, summary: &Summary, sources: &Sources, location: &Location) -> Shares {
    let source = ceiling::known(sources.present.iter().map(|source| source.path.as_path()));
    let target = match location {
        Location::Local(path) => ceiling::known([Path::new(path)]),
        Location::Remote(_) => None,
    };
    Shares::of(moved, summary.elapsed, source.as_ref(), target.as_ref())
}

/// Whether a push may go on by itself when its connections are lost.
fn can_begin_again(args: &PushArgs) -> bool {
    // what a killed receiver has changed in part is newer than the source: it would stay, and all would seem well
    let would_keep_broken = args.inplace && args.update;
    args.selection.can_be_read_again() && !would_keep_broken
}

fn options(args: &PushArgs) -> Result<DialOptions> {
    let cipher = match args.cipher {
        CipherArg::Tls => Cipher::Tls,
        CipherArg::None => Cipher::None,
    };
    let transport = match (args.transport, cipher) {
        (TransportArg::Quic, Cipher::None) => {
            return Err(usage_error("--cipher none needs TCP: QUIC is always encrypted"));
        }
        (TransportArg::Tcp, _) | (TransportArg::Auto, Cipher::None) => TransportChoice::Tcp,
        (TransportArg::Auto, _) => TransportChoice::Auto,
        (TransportArg::Quic, _) => TransportChoice::Quic,
    };
    let reach = reach(transport, args.congestion.as_deref())?;
    let (accept_new, strict, streams, limit) = (args.accept_new, args.strict, args.streams, args.limit);
    let ssh = args.ssh.clone();
    let more = More::Others;
    Ok(DialOptions { accept_new, strict, streams, reach, cipher, limit, ssh, more })
}

/// How a host is reached with the congestion control that was typed.
pub(crate) fn reach(transport: TransportChoice, congestion: Option<&str>) -> Result<Reach> {
    let quic_congestion = match congestion {
        // what only the kernel has is for TCP
        Some(name) if transport == TransportChoice::Quic => name
            .parse()
            .map_err(|error: UnknownCongestion| usage_error(format!("--congestion {name}: {error}")))?,
        Some(name) => name.parse().unwrap_or_default(),
        None => QuicCongestion::default(),
    };
    let socket = SocketConfig { congestion: congestion.map(str::to_owned), ..SocketConfig::default() };
    Ok(Reach { transport, socket, quic_congestion })
}

fn manifest(args: &PushArgs) -> Result<Option<Manifest>> {
    let create = |path: &PathBuf| {
        Manifest::create(path).with_context(|| format!("sender: create '{}'", Escaped::path(&path)))
    };
    args.manifest.as_ref().map(create).transpose()
}

fn job(args: &PushArgs, sources: &Sources, location: &Location) -> Result<PushJob> {
    let target = match location {
        Location::Local(path) => path.as_bytes().to_vec(),
        Location::Remote(remote) => remote.path.clone(),
    };
    let list = args.selection.list(|| sources.roots().swap_remove(0))?;
    let after_errors = if args.ignore_errors { AfterErrors::Remove } else { AfterErrors::Keep };
    let guard = match location {
        Location::Local(path) => {
            let overlap = Overlap::new(sources.roots(), path.into(), args.selection.file_systems());
            Some(Arc::new(overlap) as Arc<dyn Guard>)
        }
        Location::Remote(_) => None,
    };
    let own_directories = own_directories(location);
    let removals = Removals { after_errors, entries_max: args.max_delete, guard, own_directories };
    Ok(PushJob {
        sources: sources.roots(),
        target,
        shape: sources.shape(),
        compare: if args.checksum { Compare::Checksum } else { Compare::Quick },
        delta: pays_delta(args, location),
        durability: durability(args.durability),
        overwrite: overwrite(args),
        inplace: args.inplace,
        purpose: if args.dry_run { Purpose::Preview } else { Purpose::Move },
        list,
        mirror: args.delete.then_some(removals),
        sources_missing: sources.missing,
    })
}

/// Where this process keeps journals while it is the receiver too: they may lie in a source.
fn own_directories(location: &Location) -> Vec<FileNumber> {
    let journals = match location {
        Location::Local(_) => settings::home(Role::Client).ok().map(|home| settings::journals(&home)),
        Location::Remote(_) => None,
    };
    let number = |stat: Metadata| FileNumber { device: stat.dev(), inode: stat.ino() };
    journals.and_then(|path| path.metadata().ok()).map(number).into_iter().collect()
}

/// Whether the target is to look at its old versions of large files, which costs it a read of each.
fn pays_delta(args: &PushArgs, location: &Location) -> bool {
    match (args.delta, location) {
        (DeltaArg::Always, _) => true,
        // there what is the same is to be left as it is
        (DeltaArg::Auto, _) if args.inplace => true,
        (DeltaArg::Never, _) | (DeltaArg::Auto, Location::Local(_)) => false,
        (DeltaArg::Auto, Location::Remote(remote)) => {
            let home = settings::home(Role::Client).ok();
            let rate = home.and_then(|home| Paths::of(&home, remote).last_rate());
            rate.is_none_or(|rate| rate < DELTA_RATE_MAX)
        }
    }
}

/// In bytes per second: about what one thread reads and hashes of storage in use.
const DELTA_RATE_MAX: u64 = 600_000_000;

fn durability(arg: DurabilityArg) -> Durability {
    match arg {
        DurabilityArg::None => Durability::None,
        DurabilityArg::End => Durability::End,
        DurabilityArg::File => Durability::File,
    }
}

fn overwrite(args: &PushArgs) -> Overwrite {
    match (args.ignore_existing, args.update) {
        (true, _) => Overwrite::Nothing,
        (false, true) => Overwrite::Older,
        (false, false) => Overwrite::Differing,
    }
}

/// Runs both roles in this process: the whole pipeline without a network.
async fn push_here(push: Push, run: &mut Run, display: &mut Display, storage: Storage) -> Result<Summary> {
    display.start();
    let transfer = dial::fresh_transfer()?;
    let journals = settings::home(Role::Client).ok().map(|home| settings::journals(&home));
    let (near, (mut far_reader, far_writer)) = memory_control();
    let (sinks_in, sinks) = mpsc::channel(usize::from(LOCAL_LANES));
    let (sources_in, sources) = mpsc::channel(usize::from(LOCAL_LANES));
    for _ in 0..LOCAL_LANES {
        let (sink, source) = memory_lane();
        let room = "the queues hold all lanes";
        sinks_in.try_send(Ok(sink)).expect(room);
        sources_in.try_send(source).expect(room);
    }
    drop((sinks_in, sources_in));
    let receiving = tokio::spawn(async move {
        let version = far_reader.greeting().await?.agree()?;
        let control = (far_reader, far_writer);
        let Storage { disk, direct, .. } = storage;
        let (access, config) =
            (Access::Anywhere, ReceiverConfig { disk, direct, journals, ..ReceiverConfig::default() });
        let (owner, turns) = (String::new(), Turns::default());
        let session = Session { transfer, version, control, lanes: sources, owner, access, turns, config };
        run_session(session, std::future::pending()).await
    });
    let (cipher, version) = (Cipher::default(), Version::NEWEST);
    let link = Link { transfer, cipher, version, control: near, lanes: sinks, supply: None };
    let pushed = push.run(run, link, display.observer(), interrupted()).await;
    let received = receiving.await.context("the receiving role")?;
    match (pushed, received) {
        // a lost connection within one process is only the echo of what the other role says
        (Err(zmove_sender::SessionError::Control(_) | zmove_sender::SessionError::Lane(_)), Err(error)) => {
            Err(Failure(Exit::File, format!("receiver: {error}")).into())
        }
        (pushed, _) => Ok(pushed?),
    }
}

/// Lanes within one process: one for each core that can fill it.
const LOCAL_LANES: u16 = 2;

async fn interrupted() {
    match EndSignals::listen() {
        Ok(signals) => signals.first().await,
        // without a handler a signal ends the process by itself
        Err(_) => std::future::pending().await,
    }
}

/// The sources, looked at once.
struct Sources {
    present: Vec<Source>,
    missing: u64,
}

/// One source and the name it gets at the target; without a name its contents are meant.
struct Source {
    path: PathBuf,
    top: Option<Name>,
    directory: bool,
}

impl Sources {
    /// Finds what is there; each missing source is named, and only when none is there that is the end.
    fn look_at(paths: &[OsString], selection: Option<&Selection>) -> Result<Self> {
        let mut sources = Self { present: Vec::new(), missing: 0 };
        for path in paths {
            if matches!(Location::parse(path, false), Ok(Location::Remote(_))) && !Path::new(path).exists() {
                return Err(usage_error(format!(
                    "'{}' is on another host: run zmove push there (a local name with a colon is written './NAME')",
                    Escaped::path(&path)
                )));
            }
            match Source::look_at(Path::new(path)) {
                Ok(source) => sources.present.push(source),
                Err(error) => {
                    terminal::warn(format_args!("sender: open '{}': {error}", Escaped::path(&path)));
                    sources.missing += 1;
                }
            }
        }
        if sources.present.is_empty() {
            return Err(Failure(Exit::Partial, "nothing to send: no source is there".into()).into());
        }
        sources.refuse_same_names(selection)?;
        Ok(sources)
    }

    /// The one directory that a list of paths is about; its contents are meant, with a trailing slash and without.
    fn look_at_one(paths: &[OsString]) -> Result<Self> {
        let [path] = paths else {
            return Err(usage_error(
                "--files-from takes one SRC, the directory that its paths are relative to",
            ));
        };
        Self::look_at(&[Path::new(path).join("").into()], None)
    }

    /// What two sources bring under one name would be a matter of luck at the target.
    fn refuse_same_names(&self, selection: Option<&Selection>) -> Result<()> {
        if self.present.len() < 2 {
            return Ok(());
        }
        let mut owners = HashMap::new();
        for source in &self.present {
            for name in source.tops(selection)? {
                if let Some(other) = owners.insert(name.clone(), &source.path) {
                    let (one, other) = (Escaped::path(&source.path), Escaped::path(&other));
                    let shown = Escaped::path(Path::new(&name));
                    return Err(usage_error(format!(
                        "'{other}' and '{one}' would both become '{shown}' at the target: push them one after the other"
                    )));
                }
            }
        }
        Ok(())
    }

    fn roots(&self) -> Vec<ScanRoot> {
        let root = |source: &Source| ScanRoot { source: source.path.clone(), prefix: source.prefix() };
        self.present.iter().map(root).collect()
    }

    fn shape(&self) -> TargetShape {
        if let [Source { top: Some(name), directory: false, .. }] = self.present.as_slice() {
            return TargetShape::Single { name: name.clone() };
        }
        let tops: Option<Vec<_>> =
            self.present.iter().map(|source| source.top.clone().map(TopName)).collect();
        let few = |tops: &Vec<_>| tops.len() <= zmove_wire::limits::TOPS_MAX;
        TargetShape::Directory { tops: tops.filter(few).unwrap_or_default() }
    }
}

impl Source {
    fn look_at(path: &Path) -> Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        let contents = bytes.ends_with(b"/")
            || bytes.ends_with(b"/.")
            || matches!(bytes, b"." | b"..")
            || bytes.ends_with(b"/..");
        let directory = if contents { path.metadata() } else { path.symlink_metadata() }?.is_dir();
        if contents && !directory {
            anyhow::bail!("not a directory");
        }
        let name = path.file_name().filter(|_| !contents).map(|name| Name::from_bytes(name.as_bytes()));
        Ok(Self { path: path.to_owned(), top: name.transpose()?, directory })
    }

    /// The names that it will have at the top of the target.
    fn tops(&self, selection: Option<&Selection>) -> Result<Vec<OsString>> {
        let wanted = |name: &OsStr, kind| {
            let path = RelPath::from_bytes(name.as_bytes());
            selection.is_none_or(|selection| path.is_ok_and(|path| selection.admits(&path, kind)))
        };
        let kind_of = |directory| if directory { PathKind::Directory } else { PathKind::Other };
        if let Some(top) = &self.top {
            let top = top.as_os_str();
            let tops = wanted(top, kind_of(self.directory)).then(|| top.to_owned());
            return Ok(tops.into_iter().collect());
        }
        // a directory that cannot be listed brings nothing, and the scan says so
        let Ok(listed) = std::fs::read_dir(&self.path) else { return Ok(Vec::new()) };
        let mut tops = Vec::new();
        for entry in listed {
            let entry = entry?;
            if wanted(&entry.file_name(), kind_of(entry.file_type().is_ok_and(|kind| kind.is_dir()))) {
                tops.push(entry.file_name());
            }
        }
        Ok(tops)
    }

    fn prefix(&self) -> RelPath {
        let prefix = self.top.as_ref().map(|name| RelPath::root().join(name));
        prefix.and_then(Result::ok).unwrap_or_else(RelPath::root)
    }
}
