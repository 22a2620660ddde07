//! A receiver on a host without a daemon: ssh starts `zmove receive` there, as the user. It is the daemon's own code
//! with one key to let in and the rights of its user.
//!
//! A [`ReceiveRequest`] and the answer [`ReceiveReply`], with which both sides find and trust each other, go over ssh's
//! standard input and output: fingerprints and a port, nothing secret, and nothing in an argument. Data takes lanes of
//! its own beside ssh, which would carry it on one TCP connection with a window of 2 MiB.
//!
//! In a copy between two other hosts ssh may have started the one that has the sources, the one that has the target, or
//! both; such receivers stay until this side lets them go.
//!
//! Each session of a push that reconnects has an ssh of its own. The new receiver finds what an earlier one left
//! unfinished, because such receivers and local pushes have the same owner in the journals, the user.
//!
//! **Invariant:** both keys are made for this one session and stay in the memory of their processes.

use std::net::IpAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use zmove_transport::{Fingerprint, Identity};
use zmove_wire::Cipher;

use crate::error::SshError;
use crate::location::{Login, Remote};
use crate::settings::{DialSettings, SshSettings};

mod messages;

pub(crate) use messages::fuzzing as ssh_messages_fuzzing;
pub use messages::{RECEIVE_REQUEST_BYTES_MAX, ReceiveReply, ReceiveRequest};

/// A receiver that ssh has started, and that ends when this is dropped.
pub(crate) struct SshReceiver {
    /// This side's key.
    pub(crate) identity: Identity,
    /// The receiver's key.
    pub(crate) key: Fingerprint,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) session: SshSession,
}

/// A running ssh, with a receiver at its other end.
#[derive(Debug)]
pub(crate) struct SshSession {
    child: Child,
    /// The pipe to ssh; the receiver ends when it is closed.
    input: ChildStdin,
}

/// What a receiver is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// One session with this side.
    Session,
    /// A copy, to or from another host.
    Copy,
}

/// Has ssh start a receiver. The messages and questions of ssh itself go to the terminal.
///
/// # Errors
/// ssh cannot be started or does not reach the host ([`SshError::NotReached`]), or there is no such zmove.
pub(crate) async fn start(
    remote: &Remote,
    login: &Login,
    settings: &DialSettings,
    duty: Duty,
) -> Result<SshReceiver, SshError> {
    let identity = Identity::for_once()?;
    let mut child = ssh(&settings.ssh, remote, login)
        .args([
            "-T",
            &remote_name(remote, login),
            &format!("{} receive", settings.ssh.remote_zmove),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| SshError::Start {
            program: settings.ssh.program.clone(),
            source,
        })?;
    let mut input = child.stdin.take().expect("a pipe was asked for");
    let output = child.stdout.take().expect("a pipe was asked for");
    let allow_clear = settings.cipher == Cipher::None;
    let mut request = ReceiveRequest::new(
        identity.fingerprint(),
        settings.reach.transport,
        settings.ssh.ports,
        allow_clear,
    );
    request.copies = duty == Duty::Copy;
    // An ssh that ends before it has read the request gives its reason by its exit status.
    let _unheard = input.write_all(request.line().as_bytes()).await;
    let (answer, name) = tokio::join!(answer(output), host_name(&settings.ssh, remote, login));
    let Some(ReceiveReply {
        key, port, address, ..
    }) = answer?
    else {
        drop(input);
        // A program that goes on writing something else is not waited for.
        let ended = tokio::time::timeout(END_TIMEOUT, child.wait()).await;
        let ended = ended.ok().transpose().map_err(SshError::Wait)?;
        return Err(no_answer(remote, &settings.ssh, ended));
    };
    let host = address_of(&name.unwrap_or_else(|| remote.host.clone()), address).await;
    let key = key.parse().map_err(SshError::Key)?;
    Ok(SshReceiver {
        identity,
        key,
        host,
        port,
        session: SshSession { child, input },
    })
}

impl SshSession {
    /// Lets a receiver that has done its work, and ssh, come to their ends.
    pub(crate) async fn end(self) {
        let Self { mut child, input } = self;
        drop(input);
        // An ssh that takes longer is killed when it is dropped.
        let _in_time = tokio::time::timeout(END_TIMEOUT, child.wait()).await;
    }
}

/// The beginning of each command: ssh with the user's options and the port.
fn ssh(settings: &SshSettings, remote: &Remote, login: &Login) -> Command {
    let mut command = Command::new(&settings.program);
    command.args(&settings.arguments).kill_on_drop(true);
    if let Some(port) = login.port {
        command.args(["-p", &port.to_string()]);
    }
    debug_assert!(!remote.host.starts_with('-'), "it would be an option");
    command
}

fn remote_name(remote: &Remote, login: &Login) -> String {
    login.user.as_ref().map_or_else(
        || remote.host.clone(),
        |user| format!("{user}@{}", remote.host),
    )
}

/// The answer in the output of the remote shell; `None` when the output ends without one.
async fn answer(output: ChildStdout) -> Result<Option<ReceiveReply>, SshError> {
    let mut lines = BufReader::new(output).take(SHELL_BYTES_MAX).split(b'\n');
    while let Some(line) = lines.next_segment().await.map_err(SshError::Read)? {
        if let Some(ready) = ReceiveReply::read(&line)? {
            return Ok(Some(ready));
        }
    }
    Ok(None)
}

fn no_answer(remote: &Remote, settings: &SshSettings, ended: Option<ExitStatus>) -> SshError {
    let zmove = settings.remote_zmove.clone();
    let remote = remote.to_string();
    let Some(status) = ended else {
        return SshError::Nonsense { remote, zmove };
    };
    match status.code() {
        Some(255) | None => SshError::NotReached { remote, status },
        Some(126 | 127) => SshError::NoProgram { remote, zmove },
        Some(_) => SshError::Early {
            remote,
            zmove,
            status,
        },
    }
}

/// The host name that ssh connects to, which its configuration may have changed.
async fn host_name(settings: &SshSettings, remote: &Remote, login: &Login) -> Option<String> {
    let mut asked = ssh(settings, remote, login);
    asked
        .args(["-G", &remote_name(remote, login)])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let told = tokio::time::timeout(NAME_TIMEOUT, asked.output())
        .await
        .ok()?
        .ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    told.lines()
        .find_map(|line| line.strip_prefix("hostname "))
        .map(str::to_owned)
}

/// The address for data: of the addresses of the name the one that ssh has reached, for a name may have several hosts.
/// An address that is none of them is only known behind a gateway, so the name is used then, unless it has no address
/// here.
async fn address_of(name: &str, reached: Option<IpAddr>) -> String {
    let Some(reached) = reached else {
        return name.to_owned();
    };
    let found = tokio::net::lookup_host((name, 0)).await;
    let known = found.map_or(true, |mut found| {
        found.any(|address| address.ip() == reached)
    });
    if known {
        reached.to_string()
    } else {
        name.to_owned()
    }
}

/// How long ssh may take to end when all is done.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long ssh may take to read its configuration.
const NAME_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes that a remote shell may write before the receiver answers.
const SHELL_BYTES_MAX: u64 = 64 << 10;
