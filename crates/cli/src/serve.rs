//! `zmove serve`: the receiver in the foreground, by hand or as a service.

mod check;
mod settings;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use zmove_receiver::{Daemon, Guests, ReceiverConfig};
use zmove_transport::{AuthorizedKeys, Identity, Listener, SocketConfig};
use zmove_types::ByteCount;

use self::settings::Settings;
use crate::age::Age;
use crate::args::ServeArgs;
use crate::config::{Config, ConfigFault};
use crate::exit::{Exit, usage_error};
use crate::metrics::{self, Counts, Page};
use crate::signals::EndSignals;
use crate::{journal, log, service, terminal};

/// With less, a receiver that has to wait for a core loses packets.
const UDP_BUFFER_BYTES_WANTED: usize = 4 << 20;

/// How often it is looked for journals that nobody has come back for.
const JOURNALS_EVERY: Duration = Duration::from_secs(60 * 60);

/// Runs `zmove serve` until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<Exit> {
    let home = crate::settings::home(crate::settings::Role::Daemon)?;
    if args.check {
        return Ok(check::run(args, &home));
    }
    let config = Config::read(args.config.as_deref(), &home).map_err(|faults| usage_error(list(&faults)))?;
    let settings = Settings::new(args, &config);
    log::start(settings.log_format);
    let identity = Identity::load_or_create(&home)?;
    if AuthorizedKeys::load(&home)?.grants().is_empty() {
        log::warning(
            "no sender may write here yet; run: zmove allow FINGERPRINT --name NAME --root DIR --write",
        );
    }
    if settings.allow_clear {
        log::warning("senders may send names and contents in clear (--allow-clear)");
    }
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(serve(args, settings, &identity, home))?;
    runtime.shutdown_background();
    Ok(Exit::Done)
}

fn list(faults: &[ConfigFault]) -> String {
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    faults.join("; ")
}

async fn serve(args: &ServeArgs, settings: Settings, identity: &Identity, home: PathBuf) -> Result<()> {
    let listener = listen(&settings, identity).await?;
    let address = listener.local_addr().context("read the listening address")?;
    warn_of_small_buffers(&listener);
    let journals = crate::settings::daemon_journals(&home);
    tokio::spawn(expire_journals(journals.clone(), settings.journal_age));
    let counts = Counts::default();
    let counted = counts.clone();
    let config = receiver_config(&settings, &journals);
    let daemon = Daemon::new(listener, Guests::Listed(home.clone()), config, move |event| {
        counted.count(event);
        log::tell(event);
    });
    daemon.set_limits(settings.limits);
    if let Some(listen) = settings.metrics {
        serve_metrics(listen, Page::new(&counts, daemon.meters(), journals)).await;
    }
    let signals = EndSignals::listen().context("handle SIGTERM and SIGINT")?;
    let reloaded = reload(&daemon, args, &home).context("handle SIGHUP")?;
    terminal::print(format_args!("zmove serve: listening on {address}, key {}\n", identity.fingerprint()));
    service::ready();
    service::watch();
    let stop = async {
        tokio::select! {
            () = end(&daemon, signals, settings.drain) => {}
            () = reloaded => {}
        }
    };
    daemon.serve(stop).await;
    Ok(())
}

fn receiver_config(settings: &Settings, journals: &Path) -> ReceiverConfig {
    let storage = crate::settings::storage(settings.storage, |notice| log::warning(notice));
    ReceiverConfig {
        disk: storage.disk,
        direct: storage.direct,
        allow_clear: settings.allow_clear,
        journals: Some(journals.to_owned()),
        ..ReceiverConfig::default()
    }
}

/// Listens on the sockets that the service manager has, else where the settings say.
async fn listen(settings: &Settings, identity: &Identity) -> Result<Listener> {
    let options = SocketConfig::default();
    match service::sockets().context("take the sockets of the service manager")? {
        Some(sockets) => Ok(Listener::on(sockets, identity, &options)?),
        None => Ok(Listener::bind(settings.listen, identity, settings.choice, &options).await?),
    }
}

fn warn_of_small_buffers(listener: &Listener) {
    if let Some(held) = listener.udp_buffer_bytes().filter(|held| *held < UDP_BUFFER_BYTES_WANTED) {
        log::warning(format_args!(
            "QUIC has {} of buffer here and will be slow: raise net.core.rmem_max to 8 MiB",
            ByteCount(held as u64)
        ));
    }
}

/// A port that is taken is no reason not to receive.
async fn serve_metrics(listen: SocketAddr, page: Page) {
    match TcpListener::bind(listen).await {
        Ok(listener) => {
            if let Ok(address) = listener.local_addr() {
                log::note(format_args!("metrics at http://{address}/metrics"));
            }
            tokio::spawn(metrics::serve(listener, page));
        }
        Err(error) => log::warning(format_args!("no metrics at {listen}: {error}")),
    }
}

/// Resolves when transfers are to be cut off: after a first signal they have `drain` to end by themselves.
async fn end(daemon: &Daemon, mut signals: EndSignals, drain: Duration) {
    signals.next().await;
    service::stopping();
    if drain.is_zero() {
        return;
    }
    log::note(format_args!("stopping: transfers that run have {} s", drain.as_secs()));
    tokio::select! {
        () = daemon.drain() => {}
        () = tokio::time::sleep(drain) => {}
        () = signals.next() => {}
    }
}

/// Reads the limits again on each SIGHUP, for ever. Keys are read for each connection anyway.
fn reload(daemon: &Daemon, args: &ServeArgs, home: &Path) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            service::reloading();
            match Config::read(args.config.as_deref(), home) {
                Ok(config) => {
                    let (before, now) = (daemon.limits(), config.limits());
                    daemon.set_limits(now);
                    log::note(reloaded(&format!("{before:?}"), &format!("{now:?}")));
                }
                Err(faults) => log::warning(format_args!("reload: kept as it was: {}", list(&faults))),
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
    let changed = fields(now).into_iter().zip(fields(before)).filter(|(now, before)| now != before);
    let changed: Vec<_> = changed.map(|(now, before)| format!("{now} (was {before})")).collect();
    format!("reloaded: {}", changed.join(", "))
}

/// Removes journals that are too old, now and every hour.
async fn expire_journals(directory: PathBuf, age: Age) {
    let directory: Arc<Path> = directory.into();
    loop {
        let directory = Arc::clone(&directory);
        let expire = move || journal::expire(&directory, age, |line| log::note(line));
        // a panic has been told, and the next hour may have more luck
        let _told = tokio::task::spawn_blocking(expire).await;
        tokio::time::sleep(JOURNALS_EVERY).await;
    }
}
