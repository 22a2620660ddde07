//! A receiver on a host without a daemon: ssh starts `zmove receive` there, as the user.
//!
//! What both need to find and to trust each other, an [`Order`] and the answer [`Ready`], goes over ssh's standard input and
//! output; data takes connections of its own. **Invariant:** both keys are made for this one session and stay in the
//! memory of their processes; what passes is fingerprints.

use std::net::IpAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use zmove_transport::{Fingerprint, Identity, TransportChoice};
use zmove_wire::Cipher;

use crate::args::{ListenArg, SshArgs};
use crate::dial::DialOptions;
use crate::location::{Login, Remote};
use crate::value::exit::{Exit, Failure, usage_error};

mod order;
mod ports;

#[cfg(feature = "fuzzing")]
pub(crate) use order::fuzzing as order_fuzzing;
pub(crate) use order::{ORDER_BYTES_MAX, Order, Ready};
pub(crate) use ports::PortRange;

/// A receiver that ssh has started; it ends with this.
pub(crate) struct SshReceiver {
    /// This side's key.
    pub(crate) identity: Identity,
    /// The receiver's.
    pub(crate) key: Fingerprint,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) session: SshSession,
}

/// A running ssh.
#[derive(Debug)]
pub(crate) struct SshSession {
    child: Child,
    /// With it the receiver ends.
    input: ChildStdin,
}

/// ssh could not reach the host, or was not let in.
#[derive(Debug, thiserror::Error)]
#[error("ssh has not reached {host}: {status}")]
pub(crate) struct SshFailed {
    host: String,
    status: ExitStatus,
}

/// Has ssh start a receiver. What ssh itself has to say or to ask goes to the terminal.
///
/// # Errors
/// ssh cannot be started or does not get there ([`SshFailed`]), or there is no such zmove.
pub(crate) async fn start(remote: &Remote, login: &Login, options: &DialOptions) -> Result<SshReceiver> {
    let identity = Identity::for_once()?;
    let words = words(&options.ssh)?;
    let mut child = ssh(&words, remote, login)
        .args(["-T", &remote_name(remote, login), &format!("{} receive", options.ssh.remote_zmove)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure(Exit::Connection, format!("start '{}': {error}", words[0])))?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        anyhow::bail!("start '{}': it has no pipes", words[0]);
    };
    let order = order(&identity, options);
    // one that ends before it has read that says why
    let _unheard = input.write_all(order.line()?.as_bytes()).await;
    let (answer, name) = tokio::join!(answer(output), host_name(&words, remote, login));
    let Some(Ready { key, port, address, .. }) = answer? else {
        drop(input);
        // who goes on saying something else is not waited for
        let ended = tokio::time::timeout(END_TIMEOUT, child.wait()).await;
        return Err(no_answer(remote, &options.ssh, ended.ok().transpose()?));
    };
    let host = address_of(&name.unwrap_or_else(|| remote.host.clone()), address).await;
    let key = key.parse().context("read the key of the receiver that ssh has started")?;
    Ok(SshReceiver { identity, key, host, port, session: SshSession { child, input } })
}

impl SshSession {
    /// Lets a receiver that has done its work, and ssh, come to their ends.
    pub(crate) async fn end(self) {
        let Self { mut child, input } = self;
        drop(input);
        // later it is killed
        let _in_time = tokio::time::timeout(END_TIMEOUT, child.wait()).await;
    }
}

fn order(identity: &Identity, options: &DialOptions) -> Order {
    let carriers = match options.reach.transport {
        TransportChoice::Auto => ListenArg::Both,
        TransportChoice::Tcp => ListenArg::Tcp,
        TransportChoice::Quic => ListenArg::Quic,
    };
    let (ports, allow_clear) = (options.ssh.ssh_ports, options.cipher == Cipher::None);
    Order::new(identity.fingerprint(), carriers, ports, allow_clear)
}

fn words(args: &SshArgs) -> Result<Vec<String>> {
    let words = shlex::split(&args.ssh_command).unwrap_or_default();
    if words.is_empty() {
        return Err(usage_error(format!("--ssh-command: '{}' is no command", args.ssh_command)));
    }
    Ok(words)
}

/// The beginning of each command: ssh with the user's options and the port.
fn ssh(words: &[String], remote: &Remote, login: &Login) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).kill_on_drop(true);
    if let Some(port) = login.port {
        command.args(["-p", &port.to_string()]);
    }
    debug_assert!(!remote.host.starts_with('-'), "it would be an option");
    command
}

fn remote_name(remote: &Remote, login: &Login) -> String {
    login.user.as_ref().map_or_else(|| remote.host.clone(), |user| format!("{user}@{}", remote.host))
}

/// The answer in what the remote shell says; `None` when it ends without one.
async fn answer(output: ChildStdout) -> Result<Option<Ready>> {
    let mut lines = BufReader::new(output).take(SHELL_BYTES_MAX).split(b'\n');
    while let Some(line) = lines.next_segment().await.context("read what the receiver says over ssh")? {
        if let Some(ready) = Ready::read(&line)? {
            return Ok(Some(ready));
        }
    }
    Ok(None)
}

fn no_answer(remote: &Remote, args: &SshArgs, ended: Option<ExitStatus>) -> anyhow::Error {
    let zmove = &args.remote_zmove;
    let Some(status) = ended else {
        let text = format!("what {remote} says over ssh is not what '{zmove} receive' says");
        return Failure(Exit::Connection, text).into();
    };
    let text = match status.code() {
        Some(255) | None => return SshFailed { host: remote.to_string(), status }.into(),
        Some(126 | 127) => format!(
            "{remote} has no '{zmove}' that ssh could start: install it there, or say where it is with --remote-zmove"
        ),
        Some(_) => format!("'{zmove} receive' at {remote} ended before it was ready: {status}"),
    };
    Failure(Exit::Connection, text).into()
}

/// The name that ssh goes to, which its configuration may have changed.
async fn host_name(words: &[String], remote: &Remote, login: &Login) -> Option<String> {
    let mut asked = ssh(words, remote, login);
    asked.args(["-G", &remote_name(remote, login)]).stdin(Stdio::null()).stderr(Stdio::null());
    let told = tokio::time::timeout(NAME_TIMEOUT, asked.output()).await.ok()?.ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    told.lines().find_map(|line| line.strip_prefix("hostname ")).map(str::to_owned)
}

/// Where data goes: of the addresses of the name the one that ssh has come to, for a name may have several hosts. An address
/// that is none of them is only known behind a gateway, unless the name has none here.
async fn address_of(name: &str, reached: Option<IpAddr>) -> String {
    let Some(reached) = reached else { return name.to_owned() };
    let found = tokio::net::lookup_host((name, 0)).await;
    let known = found.map_or(true, |mut found| found.any(|address| address.ip() == reached));
    if known { reached.to_string() } else { name.to_owned() }
}

/// How long ssh may take to end when all is done.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long ssh may take to read its configuration.
const NAME_TIMEOUT: Duration = Duration::from_secs(5);
/// What a remote shell may say before the receiver does.
const SHELL_BYTES_MAX: u64 = 64 << 10;
