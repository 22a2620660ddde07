//! `zmove receive`: one side of one transfer, started over ssh by a command elsewhere: that of a push or a pull, or one
//! of the two hosts of a copy.
//!
//! The program reads its request from standard input, writes to standard output where it listens, and lets one key in,
//! which may do what this user may. **Invariant:** it ends when its transfer ends, when standard input does, or when
//! nobody comes. In a copy it stays beyond a session, since the other host may lose its connections.

use std::io::{BufRead, BufReader, Read, Stdin};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use zmove_daemon::{Authorizer, Copies, Daemon, DaemonEvent};
use zmove_disk::{StorageMemory, cores};
use zmove_engine::{RECEIVE_REQUEST_BYTES_MAX, ReceiveReply, ReceiveRequest, SshMessageError};
use zmove_receiver::ReceiverConfig;
use zmove_tools::sweep::measure_target;
use zmove_transport::{BindError, Fingerprint, Identity, Listener, SocketConfig};

use crate::display::terminal;
use crate::runtime;
use crate::settings::{self, Role};
use crate::signals::EndSignals;
use crate::value::account::SystemAccounts;
use crate::value::exit::Exit;

/// Runs `zmove receive`.
pub(crate) fn run() -> Result<Exit> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input
        .by_ref()
        .take(RECEIVE_REQUEST_BYTES_MAX)
        .read_line(&mut line)
        .context("read standard input")?;
    let request = match ReceiveRequest::read(&line) {
        Err(SshMessageError::Version(_)) => {
            // the sender reports both versions
            terminal::print(ReceiveReply::other_version_line());
            return Ok(Exit::Incompatible);
        }
        request => request?,
    };
    let key = request.key.parse().context("read the sender's key")?;
    let runtime = runtime::build(&mut Builder::new_multi_thread(), cores())?;
    // The runtime is never shut down: a store that is stuck then keeps later pushes waiting until the process ends.
    let runtime = ManuallyDrop::new(runtime);
    runtime.block_on(receive(&request, key, input))?;
    Ok(Exit::Done)
}

async fn receive(
    request: &ReceiveRequest,
    key: Fingerprint,
    mut input: BufReader<Stdin>,
) -> Result<()> {
    let identity = Identity::for_once()?;
    let reached = reached();
    let mut signals = EndSignals::listen().context("handle SIGTERM and SIGINT")?;
    let listener = bind(request, &identity, reached).await?;
    let port = listener
        .local_addr()
        .context("read the listening address")?
        .port();
    let home = settings::home(Role::Client).ok();
    let copies = home.as_deref().filter(|_| request.copies);
    let copies = copies
        .map(|home| Copies::open(home, None, identity.clone()))
        .transpose()?;
    let config = ReceiverConfig {
        journals: home.as_deref().map(settings::journals),
        storage: home
            .as_deref()
            .map(StorageMemory::in_home)
            .unwrap_or_default(),
        allow_clear: request.allow_clear,
        accounts: Arc::new(SystemAccounts),
        measure_storage: Some(measure_target),
        ..ReceiverConfig::default()
    };
    let begun = Arc::new(Notify::new());
    let ended = Arc::new(Notify::new());
    let came = Arc::clone(&begun);
    let told = Arc::clone(&ended);
    let daemon = Daemon::new(
        listener,
        Authorizer::Only(key),
        config,
        move |event| match event {
            DaemonEvent::Begun { .. } => came.notify_one(),
            DaemonEvent::Ended(_) | DaemonEvent::Granted { .. } => told.notify_one(),
            // The sender reports what concerns this push; other connections are not its user's business.
            _ => {}
        },
    );
    let daemon = copies.into_iter().fold(daemon, Daemon::with_copies);
    // This resolves at the end of input, or when it cannot be read: whoever has started this is gone.
    let closed =
        tokio::task::spawn_blocking(move || std::io::copy(&mut input, &mut std::io::sink()));
    terminal::print(ReceiveReply::new(identity.fingerprint(), port, reached).line());
    let stop = async {
        tokio::select! {
            () = nobody_comes(&begun, &ended, request.copies) => {}
            _ = closed => {}
            () = signals.next() => {}
        }
    };
    // A transfer that does not end keeps its lease until this process ends.
    let _all_ended = daemon.serve(stop).await;
    Ok(())
}

/// Resolves when nobody has come in time, or the transfer has ended; in a copy, when nobody has come since.
async fn nobody_comes(begun: &Notify, ended: &Notify, stays: bool) {
    loop {
        tokio::select! {
            came = tokio::time::timeout(COME_TIMEOUT, begun.notified()) => if came.is_err() { return },
            () = ended.notified(), if !stays => return,
        }
        ended.notified().await;
        if !stays {
            return;
        }
    }
}

/// Listens at a port of the range, on all addresses of the family by which ssh has come.
async fn bind(
    request: &ReceiveRequest,
    identity: &Identity,
    reached: Option<IpAddr>,
) -> Result<Listener> {
    let choice = request.carriers;
    let any = match reached {
        Some(IpAddr::V4(_)) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Some(IpAddr::V6(_)) | None => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bind = async |port| {
        Listener::bind(
            SocketAddr::new(any, port),
            identity,
            choice,
            &SocketConfig::default(),
        )
        .await
    };
    let Some(range) = request.ports else {
        return Ok(bind(0).await?);
    };
    let mut refused: Option<BindError> = None;
    for port in range.ports() {
        match bind(port).await {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.context("--ssh-ports is empty")?).context("no port of --ssh-ports is free")
}

/// The address of this host that ssh has reached.
fn reached() -> Option<IpAddr> {
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    connection.split(' ').nth(2)?.parse().ok()
}

/// How long to wait for a transfer to begin.
const COME_TIMEOUT: Duration = Duration::from_secs(120);
