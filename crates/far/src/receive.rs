//! `receive`: one side of a single transfer, started over ssh by a command on another host. It serves a push or a pull
//! of that command, or it is one of the two hosts of a copy.
//!
//! The program reads its request from standard input, and writes its listening address to standard output. It admits
//! one key, which has all permissions of this user. **Invariant:** the program exits when its transfer ends, when
//! standard input ends, or when no client connects in time. In a copy, the program continues after a session, because
//! the other host may lose its connections.

use std::io::{self, BufRead, BufReader, Read, Stdin, Write};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use zmove_daemon::{Authorizer, Copies, Daemon, DaemonEvent};
use zmove_disk::cores;
use zmove_engine::{
    RECEIVE_REQUEST_BYTES_MAX, ReceiveReply, ReceiveRequest, ReceiverConfig, SshMessageError,
};
use zmove_transport::{BindError, Fingerprint, Identity, Listener, SocketConfig};

use crate::runtime;
use crate::signals::EndSignals;

/// The settings of this end.
#[derive(Debug)]
pub struct FarEnd {
    /// The settings of the receiver.
    pub config: ReceiverConfig,
    /// Directory of the user's keys and of the records of copies. `None` if the user has no home directory.
    pub home: Option<PathBuf>,
}

/// The result of [`receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The transfer has ended. The other side has its result.
    Ended,
    /// The other side speaks another version of the protocol.
    OtherVersion,
}

/// Reads a request from standard input and serves one transfer.
///
/// # Errors
/// The request cannot be read, the limits of this process are too low, or the system refuses a socket.
pub fn receive(end: FarEnd) -> Result<Received> {
    let mut input = BufReader::new(io::stdin());
    let mut line = String::new();
    input
        .by_ref()
        .take(RECEIVE_REQUEST_BYTES_MAX)
        .read_line(&mut line)
        .context("read standard input")?;
    let request = match ReceiveRequest::read(&line) {
        Err(SshMessageError::Version(_)) => {
            // The sender reports the versions of both sides.
            print(&ReceiveReply::other_version_line())?;
            return Ok(Received::OtherVersion);
        }
        request => request?,
    };
    let key = request.key.parse().context("read the sender's key")?;
    let runtime = runtime::build(&mut Builder::new_multi_thread(), cores())?;
    // The runtime is never shut down. If a write is stuck, its transfer therefore keeps its lease, and later pushes
    // wait, until this process exits.
    let runtime = ManuallyDrop::new(runtime);
    runtime.block_on(serve(end, &request, key, input))?;
    Ok(Received::Ended)
}

fn print(line: &str) -> Result<()> {
    let mut output = io::stdout();
    let printed = output.write_all(line.as_bytes());
    printed
        .and_then(|()| output.flush())
        .context("write the output")
}

async fn serve(
    FarEnd { config, home }: FarEnd,
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
    let copies = home.as_deref().filter(|_| request.copies);
    let copies = copies
        .map(|home| Copies::open(home, None, identity.clone()))
        .transpose()?;
    let config = ReceiverConfig {
        allow_clear: request.allow_clear,
        ..config
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
            // The sender itself reports problems of this push. Its user does not need reports about other connections.
            _ => {}
        },
    );
    let daemon = copies.into_iter().fold(daemon, Daemon::with_copies);
    // Resolves at the end of standard input or on a read error. In both cases, the process that started this one has
    // exited.
    let closed = tokio::task::spawn_blocking(move || io::copy(&mut input, &mut io::sink()));
    print(&ReceiveReply::new(identity.fingerprint(), port, reached).line())?;
    let stop = async {
        tokio::select! {
            () = wait_until_idle(&begun, &ended, request.copies) => {}
            _ = closed => {}
            () = signals.next() => {}
        }
    };
    // If a transfer does not end, it keeps its lease until this process exits.
    let _all_ended = daemon.serve(stop).await;
    Ok(())
}

/// Resolves when no client has connected in time, or when the transfer has ended. In a copy, resolves when no client
/// has reconnected in time.
async fn wait_until_idle(begun: &Notify, ended: &Notify, stays: bool) {
    loop {
        tokio::select! {
            came = tokio::time::timeout(CONNECT_TIMEOUT, begun.notified()) => if came.is_err() { return },
            () = ended.notified(), if !stays => return,
        }
        ended.notified().await;
        if !stays {
            return;
        }
    }
}

/// Listens on a port of the requested range: on the loopback interface if the data goes through ssh only, otherwise on
/// all addresses of the address family that ssh used.
async fn bind(
    request: &ReceiveRequest,
    identity: &Identity,
    reached: Option<IpAddr>,
) -> Result<Listener> {
    let choice = request.carriers;
    let listening = match reached {
        _ if request.loopback => IpAddr::from(Ipv4Addr::LOCALHOST),
        Some(IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        Some(IpAddr::V6(_)) | None => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bind = async |port| {
        Listener::bind(
            SocketAddr::new(listening, port),
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

/// Returns the address of this host to which ssh connected.
fn reached() -> Option<IpAddr> {
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    connection.split(' ').nth(2)?.parse().ok()
}

/// Maximum time to wait for a transfer to start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
