//! `zmove serve`: the daemon in the foreground, started by hand or as a service. This module connects settings,
//! sockets, signals and the service manager with the [`Daemon`].
//!
//! The process gives up its privileges before it starts a second thread. Root reads settings only from a directory that
//! no other user can change. A process that will become another user first detaches from the terminal, which its parent
//! keeps. The process then binds the network sockets with the privileges of the user who started it, and becomes
//! `--user`, with the environment of that user and the working directory `/`. Only after that does it open the log, the
//! control socket, keys and state. Finally, `--confine` denies access to everything else, without exception.
//!
//! On SIGTERM, the daemon refuses new transfers. Running transfers may finish, but are interrupted at the drain
//! timeout.

pub(crate) mod check;
pub(crate) mod config;
mod confinement;
mod connections;
mod control;
mod http;
mod metrics;
mod privileges;
mod service;

use std::fs::DirBuilder;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::User;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use zmove_daemon::{Authorizer, Copies, Daemon, Limits};
use zmove_disk::{RootGuard, ThreadCountCache, cores};
use zmove_jobs::bind_socket;
use zmove_receiver::ReceiverConfig;
use zmove_tools::sweep::measure_target;
use zmove_transport::{
    AuthorizedKeys, Fingerprint, Grant, Identity, Inherited, KeyList, Listener, SocketConfig,
};
use zmove_types::ByteCount;

use self::config::{Config, ConfigFault};
use self::control::Control;
use self::metrics::{Counts, Page};
use self::privileges::DaemonPaths;
use crate::args::{ConfineArg, LogFormat, ServeArgs, StorageArgs};
use crate::commands::journal;
use crate::display::log::LogFile;
use crate::display::{log, terminal};
use crate::ownership::{
    adopt_environment, become_user, close_inherited, end_with, is_root, run_apart,
};
use crate::silent_paths::SilentPaths;
use crate::value::account::SystemAccounts;
use crate::value::age::Age;
use crate::value::exit::{Exit, usage_error};
use zmove_far::EndSignals;
use zmove_far::runtime;

/// Minimum useful size of the UDP buffer, in bytes. With less, a receiver that waits for a CPU core loses packets.
const UDP_BUFFER_BYTES_WANTED: usize = 4 << 20;

/// Maximum time to drop the daemon's tasks when the daemon exits before all transfers have ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between searches for abandoned journals.
const JOURNALS_EVERY: Duration = Duration::from_secs(60 * 60);

/// Runs `zmove serve` until a signal ends it. Returns the exit code.
pub(crate) fn run(mut args: ServeArgs) -> Result<u8> {
    if is_root() {
        close_inherited(service::sockets_count())?;
    }
    args.config = whole(args.config)?;
    let args = &args;
    let home = crate::settings::home(crate::settings::Role::Daemon)?;
    let own = daemon_paths(
        args,
        std::path::absolute(home).context("find the daemon's home")?,
    );
    if args.check {
        return check::run(args, &own);
    }
    own.require_root_settings()?;
    let config = Config::read(args.config.as_deref(), &own.home)
        .map_err(|faults| usage_error(list(&faults)))?;
    let mut config = config.with(args);
    config.log.file = whole(config.log.file)?;
    let user = config
        .user
        .as_deref()
        .map_or(Ok(None), privileges::to_become)?;
    let Some(user) = user else {
        own.require_root_state(config.log.file.as_deref())?;
        let bound = Bound::new(&config);
        return start(args, &config, own, None, bound).map(Exit::into);
    };
    adopt_environment(&user)?;
    if let Some(code) = run_apart(args.apart_from)? {
        return Ok(code);
    }
    let bound = Bound::new(&config);
    become_user(&user)?;
    // The user may not be allowed to use the directory in which root started the daemon.
    std::env::set_current_dir("/").context("change to the directory '/'")?;
    args.apart_from.map_or(Ok(()), end_with)?;
    start(args, &config, own, Some(&user), bound).map(Exit::into)
}

/// Makes a path absolute, because a daemon of another user changes its working directory.
fn whole(path: Option<PathBuf>) -> Result<Option<PathBuf>> {
    let whole = |path: PathBuf| {
        std::path::absolute(&path).with_context(|| format!("find '{}'", path.display()))
    };
    path.map(whole).transpose()
}

/// Runs the daemon with the privileges that this process will keep.
fn start(
    args: &ServeArgs,
    config: &Config,
    own: DaemonPaths,
    user: Option<&User>,
    bound: Result<Bound>,
) -> Result<Exit> {
    let file = config.log.file.as_deref().map(|path| {
        LogFile::open(path).with_context(|| format!("open the log '{}'", path.display()))
    });
    let file = file.transpose()?;
    log::start(config.log.format, file.as_ref());
    match begin(args, file.as_ref(), config, own, user, bound) {
        // The error is logged like any other event, so that log monitoring detects it.
        Err(error) if file.is_some() || config.log.format == LogFormat::Json => {
            log::failed(terminal::causes(&error));
            Ok(Exit::of(&error))
        }
        ended => ended,
    }
}

/// The network sockets, which may need root's privileges.
struct Bound {
    senders: Inherited,
    metrics: Option<io::Result<TcpListener>>,
    /// The control socket for the operator of this host. It is bound with the daemon's privileges.
    control: Option<UnixListener>,
}

impl Bound {
    fn new(config: &Config) -> Result<Self> {
        Ok(Self {
            senders: bind(config)?,
            metrics: config.metrics.listen.0.map(bind_metrics),
            control: None,
        })
    }
}

fn begin(
    args: &ServeArgs,
    file: Option<&Arc<LogFile>>,
    config: &Config,
    own: DaemonPaths,
    user: Option<&User>,
    bound: Result<Bound>,
) -> Result<Exit> {
    let mut bound = bound?;
    if let Some(user) = user {
        own.check(user)?;
    }
    own.warn_of_shared_settings();
    bound.control = bind_control(&own);
    let reader = rustix::process::geteuid().as_raw();
    let identity = Identity::load_or_create_guarded(&own.state, reader)?;
    let keys = AuthorizedKeys::load_guarded(&own.home, reader)?;
    if keys.grants().is_empty() {
        log::warning(
            "no sender may write here yet; run: zmove allow FINGERPRINT --name NAME --root DIR --write",
        );
    }
    if config.allow_clear {
        log::warning("senders may send names and contents in clear (--allow-clear)");
    }
    // A root that does not answer must not keep the daemon from serving the others.
    let silent = if user.is_some() || config.confine != ConfineArg::Off {
        let roots = keys.grants().iter().flat_map(Grant::every_root);
        SilentPaths::find(roots, log::warning)
    } else {
        SilentPaths::default()
    };
    silent.faults().for_each(log::warning);
    if let Some(user) = user {
        privileges::warn_of_closed_roots(user, &keys, &silent.roots);
    }
    let log = config.log.file.as_deref();
    let closed = confinement::confine(config.confine, &own, &keys, &silent.roots, log)?;
    silent.reap_later();
    let guard = RootGuard::new(Arc::default(), own.own_paths(log)).without(closed);
    let runtime = runtime::build(&mut Builder::new_multi_thread(), cores())?;
    let all_ended = runtime.block_on(serve(args, file, config, &identity, bound, own, guard))?;
    if all_ended {
        runtime.shutdown_background();
    } else {
        // Tasks hold sockets until they are dropped. If this process cannot be reaped, its tasks would keep those
        // sockets open.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    }
    Ok(Exit::Done)
}

fn list(faults: &[ConfigFault]) -> String {
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    faults.join("; ")
}

fn daemon_paths(args: &ServeArgs, home: PathBuf) -> DaemonPaths {
    let config = args.config.clone().unwrap_or_else(|| Config::usual(&home));
    DaemonPaths {
        config,
        state: crate::settings::state(&home),
        journals: crate::settings::daemon_journals(&home),
        home,
    }
}

async fn serve(
    args: &ServeArgs,
    file: Option<&Arc<LogFile>>,
    config: &Config,
    identity: &Identity,
    bound: Bound,
    own: DaemonPaths,
    guard: RootGuard,
) -> Result<bool> {
    let DaemonPaths { home, journals, .. } = own;
    let listener = Listener::on(bound.senders, identity, &SocketConfig::default())?;
    let address = listener
        .local_addr()
        .context("read the listening address")?;
    warn_of_small_buffers(&listener);
    tokio::spawn(expire_journals(journals.clone(), config.journal_age));
    let counts = Counts::default();
    let counted = counts.clone();
    let log_limit = log::LogRateLimit::default();
    let authorizer = Authorizer::Listed(KeyList::new(home.clone()), guard.with_threads());
    let daemon = Daemon::new(
        listener,
        authorizer,
        receiver_config(config, &journals),
        move |event| {
            counted.count(event);
            log_limit.log(event);
        },
    );
    let daemon = match Copies::open(
        &home,
        Some(&crate::settings::copies(&journals)),
        identity.clone(),
    ) {
        Ok(copies) => daemon.with_copies(copies),
        Err(error) => {
            log::warning(format_args!(
                "copies between hosts are disabled: read their records: {error}"
            ));
            daemon
        }
    };
    set_limits(&daemon, config.limits);
    let metrics = bound
        .metrics
        .and_then(|bound| serve_metrics(bound, Page::new(&counts, daemon.transfers(), journals)));
    let operator = Control::new(
        daemon.transfers(),
        identity.fingerprint(),
        address.to_string(),
    );
    let control = bound.control;
    let control = control.and_then(|bound| tokio::net::UnixListener::from_std(bound).ok());
    let control = control.map(|listener| tokio::spawn(Arc::clone(&operator).serve(listener)));
    let signals = EndSignals::listen().context("handle SIGTERM and SIGINT")?;
    let reloaded = reload(&daemon, args, file, &home).context("handle SIGHUP")?;
    say_ready(config, address, identity.fingerprint());
    service::ready();
    service::watch();
    let stop = async {
        tokio::select! {
            () = end(&daemon, signals, config.drain.0, &operator) => {}
            () = reloaded => {}
        }
        // Another daemon may bind these sockets while the last transfers of this daemon clean up.
        control.iter().chain(&metrics).for_each(JoinHandle::abort);
    };
    let all_ended = daemon.serve(stop).await;
    if !all_ended {
        daemon.abandon_transfers().await;
    }
    Ok(all_ended)
}

/// Reports that the daemon accepts connections. Writes to standard output in the format of the log, and to the log file
/// if one is configured.
fn say_ready(config: &Config, address: SocketAddr, key: Fingerprint) {
    match config.log.format {
        LogFormat::Text => terminal::print(format_args!(
            "zmove serve: listening on {address}, key {key}\n"
        )),
        LogFormat::Json => {
            let said = json!({ "event": "listening", "address": address.to_string(), "key": key.to_string() });
            terminal::print(format_args!("{said}\n"));
        }
    }
    if config.log.file.is_some() {
        log::listening(address, key);
    }
}

fn receiver_config(config: &Config, journals: &Path) -> ReceiverConfig {
    let storage = StorageArgs {
        io_engine: config.io_engine,
        direct: config.direct,
    };
    let storage = crate::settings::storage(storage, |notice| log::warning(notice));
    ReceiverConfig {
        file_io: storage.file_io,
        direct: storage.direct,
        storage: ThreadCountCache::in_home(&crate::settings::storage_records(journals)),
        allow_clear: config.allow_clear,
        accounts: Arc::new(SystemAccounts),
        journals: Some(journals.to_owned()),
        parts_kept: config.journal_age.0,
        measure_storage: Some(measure_target),
        ..ReceiverConfig::default()
    }
}

/// Sets the limits. Lowers the limits for which the process has too few file descriptors.
fn set_limits(daemon: &Daemon, limits: Limits) {
    let (limits, lowered) = limits.within_process();
    daemon.set_limits(limits);
    if !lowered.is_empty() {
        let lowered: Vec<_> = lowered
            .iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        log::warning(format_args!(
            "this process may not open enough files for its limits; the limits are reduced to: {} (raise LimitNOFILE= \
             of the unit, or 'ulimit -n')",
            lowered.join(", ")
        ));
    }
}

/// Takes the sockets that the service manager passed, or binds new ones from the settings.
fn bind(config: &Config) -> Result<Inherited> {
    match service::sockets().context("take the sockets of the service manager")? {
        Some(sockets) => Ok(sockets),
        None => Ok(Inherited::bind(
            config.listen,
            config.transport.choice(),
            &SocketConfig::default(),
        )?),
    }
}

fn warn_of_small_buffers(listener: &Listener) {
    if let Some(held) = listener
        .udp_buffer_bytes()
        .filter(|held| *held < UDP_BUFFER_BYTES_WANTED)
    {
        log::warning(format_args!(
            "QUIC has a buffer of only {} and will be slow: raise net.core.rmem_max to 8 MiB",
            ByteCount(held as u64)
        ));
    }
}

fn bind_metrics(listen: SocketAddr) -> io::Result<TcpListener> {
    let told = |error| io::Error::other(format!("{listen}: {error}"));
    let listener = TcpListener::bind(listen).map_err(told)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Binds the control socket for the operator of this host. If this fails, the daemon runs without the socket.
fn bind_control(own: &DaemonPaths) -> Option<UnixListener> {
    let path = crate::settings::control_socket(&own.home);
    // The daemon's key is created in this directory later. If the directory cannot be created, binding the socket
    // reports the error.
    let _shown = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&own.state);
    bind_socket(&path, "another daemon is listening there")
        .inspect_err(|error| {
            let path = path.display();
            log::warning(format_args!(
                "'zmove status' and 'zmove stop' are not available: listen on '{path}': {error}"
            ));
        })
        .ok()
}

/// Serves the metrics. If the port is in use, the daemon runs without the metrics.
fn serve_metrics(bound: io::Result<TcpListener>, page: Page) -> Option<JoinHandle<()>> {
    match bound.and_then(tokio::net::TcpListener::from_std) {
        Ok(listener) => {
            if let Ok(address) = listener.local_addr() {
                log::note(format_args!("metrics at http://{address}/metrics"));
            }
            Some(tokio::spawn(http::serve(listener, page)))
        }
        Err(error) => {
            log::warning(format_args!("no metrics at {error}"));
            None
        }
    }
}

/// Resolves when transfers must be interrupted. After the first signal, transfers have the time `drain` to end. If the
/// operator drains the daemon, transfers have unlimited time until a signal arrives.
async fn end(daemon: &Daemon, mut signals: EndSignals, drain: Duration, operator: &Control) {
    let asked = tokio::select! {
        () = signals.next() => false,
        () = operator.drains() => true,
    };
    if asked {
        log::note("draining: running transfers continue, new transfers are refused");
        let transfers = daemon.transfers();
        // The service manager is not notified yet, because it would limit the remaining time to TimeoutStopSec=.
        tokio::select! {
            () = control::drained(&transfers, daemon.drain()) => return service::stopping(),
            () = signals.next() => {}
        }
    }
    service::stopping();
    if drain.is_zero() {
        return;
    }
    log::note(format_args!(
        "stopping: running transfers have {} s to finish",
        drain.as_secs()
    ));
    tokio::select! {
        () = daemon.drain() => {}
        () = tokio::time::sleep(drain) => {}
        () = signals.next() => {}
    }
}

/// Reloads the limits after each SIGHUP, forever. Keys need no reload, because each connection reads them.
fn reload(
    daemon: &Daemon,
    args: &ServeArgs,
    file: Option<&Arc<LogFile>>,
    home: &Path,
) -> io::Result<impl Future<Output = ()>> {
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            service::reloading();
            if let Some(Err(error)) = file.map(|file| file.reopen()) {
                log::warning(format_args!("open the log again: {error}"));
            }
            match Config::read(args.config.as_deref(), home) {
                Ok(config) => {
                    let before = daemon.limits();
                    set_limits(daemon, config.limits);
                    log::note(reloaded(
                        &format!("{before:?}"),
                        &format!("{:?}", daemon.limits()),
                    ));
                }
                Err(faults) => log::warning(format_args!("reload: not changed: {}", list(&faults))),
            }
            service::ready();
        }
    })
}

fn reloaded(before: &str, now: &str) -> String {
    if before == now {
        return "reloaded: the limits are the same".to_owned();
    }
    let fields = |text: &str| text.split(", ").map(str::to_owned).collect::<Vec<_>>();
    let changed = fields(now)
        .into_iter()
        .zip(fields(before))
        .filter(|(now, before)| now != before);
    let changed: Vec<_> = changed
        .map(|(now, before)| format!("{now} (was {before})"))
        .collect();
    format!("reloaded: {}", changed.join(", "))
}

/// Removes journals that are too old, now and every hour.
async fn expire_journals(directory: PathBuf, age: Age) {
    let directory: Arc<Path> = directory.into();
    loop {
        let directory = Arc::clone(&directory);
        let expire = move || journal::expire(&directory, age, |line| log::note(line));
        // If the cleanup panicked, the panic was already reported. The next attempt may succeed.
        let _told = tokio::task::spawn_blocking(expire).await;
        tokio::time::sleep(JOURNALS_EVERY).await;
    }
}
