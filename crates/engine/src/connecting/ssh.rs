//! A receiver on a host without a daemon. ssh starts `zmove receive` on that host, with the permissions of the login's
//! user. The receiver runs the same code as the daemon and allows a single key.
//!
//! A [`ReceiveRequest`] and its answer, a [`ReceiveReply`], are sent over ssh's standard input and output. They let
//! both sides find and authenticate each other. They contain fingerprints and a port but no secrets, and no
//! command-line argument contains any of it. Data travels over separate lanes: directly to the receiver's port, or
//! through the same login (`master`).
//!
//! In a copy between two other hosts, ssh may have started the receiver at the source, at the target, or at both. Such
//! receivers run until this side ends them.
//!
//! Each session of a push that reconnects has its own ssh process. The new receiver can resume unfinished work of an
//! earlier one, because the journals of such receivers and of local pushes have the same owner, the user.
//!
//! **Invariant:** both keys are generated for one session and never leave the memory of their processes.

use std::fs::File;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout, timeout_at};
use zmove_transport::{Fingerprint, Identity, TransportChoice};
use zmove_types::printable;
use zmove_wire::Cipher;

use crate::connecting::location::{Login, Remote};
use crate::connecting::settings::{ConnectionMethod, DialSettings, SshSettings};
use crate::error::{RemoteOutput, SshError};

mod bootstrap;
mod config;
mod master;
mod messages;

use bootstrap::{Bootstrap, Bootstrapped, FoundHelper, Helper};
use config::{LoginDetection, SshConfig};
pub(crate) use master::SshMaster;
pub(crate) use messages::fuzzing as ssh_messages_fuzzing;
pub use messages::{RECEIVE_REQUEST_BYTES_MAX, ReceiveReply, ReceiveRequest};

/// A receiver that ssh started. The receiver ends when this value is dropped.
pub(crate) struct SshReceiver {
    /// This side's key.
    pub(crate) identity: Identity,
    /// The receiver's key.
    pub(crate) key: Fingerprint,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path of the program on the receiver's host, if it has told.
    pub(crate) program: Option<String>,
    pub(crate) session: SshSession,
    /// The master of the login, if data may go through ssh.
    pub(crate) master: Option<SshMaster>,
    /// Whether ssh reaches the host through another host or program. The receiver's port is then probably closed.
    pub(crate) is_behind_proxy: bool,
    /// Time until the receiver answered, if ssh may have asked for a password during that time. Otherwise zero.
    pub(crate) asked: Duration,
}

/// The pipes to the remote shell or receiver.
struct SshPipes {
    input: ChildStdin,
    /// The output, up to a limit.
    output: Take<BufReader<ChildStdout>>,
    /// Lines that are no answer.
    printed: RemoteOutput,
}

/// A running ssh process with a receiver at its other end.
#[derive(Debug)]
pub(crate) struct SshSession {
    child: Child,
    /// Pipe to ssh. The receiver ends when it is closed.
    input: ChildStdin,
}

/// The purpose of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverPurpose {
    /// One session with this side.
    Session,
    /// A copy from or to another host.
    Copy,
}

/// Starts a receiver with ssh. Messages and prompts of ssh itself go to the terminal.
///
/// ssh limits the time to connect, and this function limits the time from the login to the receiver's answer. The login
/// itself has no limit, since ssh may ask the user for a password or code.
///
/// # Errors
/// ssh cannot be started or does not reach the host ([`SshError::NotReached`]), the host has no such zmove, or the
/// receiver does not answer in time ([`SshError::Silent`]).
pub(crate) async fn start(
    remote: &Remote,
    login: &Login,
    settings: &DialSettings,
    duty: ReceiverPurpose,
) -> Result<SshReceiver, SshError> {
    let identity = Identity::for_once()?;
    let (config, helper) = tokio::join!(
        SshConfig::ask(&settings.ssh, remote, login),
        Helper::load(&settings.ssh)
    );
    let mut master = match duty {
        ReceiverPurpose::Session => SshMaster::prepare(settings, &config),
        ReceiverPurpose::Copy => None,
    };
    let began = Instant::now();
    let start = start_command(helper.as_ref(), &settings.ssh);
    let request = request(&identity, settings, duty).line();
    let log_in = async |first: &[&str], master: Option<&SshMaster>| {
        let mut command = ssh(&settings.ssh, remote, login, first);
        command.args(config.options());
        if let Some(master) = master {
            command.args(master.last_options(&config));
        }
        command.args(["-T", &remote_name(remote, login), &start]);
        let child = spawn(command, &settings.ssh)?;
        ask_receiver(child, &request, &config, remote, helper.as_ref()).await
    };
    let first = master
        .as_ref()
        .map_or(&[][..], |master| master.first_options(&config));
    let mut asked_receiver = log_in(first, master.as_ref()).await?;
    if matches!(asked_receiver.answer, Answer::Ended)
        && let Some(refused) = &master
        && refused.may_have_failed(&settings.ssh.program)
        && asked_receiver.has_failed_to_log_in().await
    {
        master = None;
        // The user may have answered a question before the first login failed.
        asked_receiver = log_in(&["-oBatchMode=yes"], None).await?;
    }
    let AskedReceiver {
        child,
        input,
        answer: answered,
        printed,
    } = asked_receiver;
    let Answer::Reply(reply) = answered else {
        drop(input);
        if matches!(answered, Answer::Late) {
            return Err(SshError::Silent {
                remote: remote.to_string(),
                zmove: settings.ssh.remote_zmove().to_owned(),
                waited: config.wait_max(),
                printed,
            });
        }
        let command = typed(&settings.ssh, remote, login);
        return Err(no_answer(remote, &settings.ssh, command, child, printed).await);
    };
    let asked = asked_since(began);
    let host = address_of(config.host_name().unwrap_or(&remote.host), reply.address).await;
    Ok(SshReceiver {
        identity,
        key: reply.key.parse().map_err(SshError::Key)?,
        host,
        port: reply.port,
        program: reply.program,
        session: SshSession { child, input },
        master,
        is_behind_proxy: config.has_proxy(),
        asked,
    })
}

/// Returns the command that starts the receiver.
fn start_command(helper: Option<&Helper>, settings: &SshSettings) -> String {
    match helper {
        Some(helper) => helper.start_command(),
        None => format!("{} receive", settings.remote_zmove()),
    }
}

/// Sends the request and waits for the receiver's answer. Sends the helper first if the host asks for it.
async fn request_receiver(
    pipes: &mut SshPipes,
    request: &str,
    config: &SshConfig,
    remote: &Remote,
    helper: Option<&Helper>,
) -> Result<Answer, SshError> {
    // If ssh ends before it has read the request, its exit status shows the reason.
    let _unheard = pipes.input.write_all(request.as_bytes()).await;
    let answered = answer(pipes, config, config.login_sign()).await?;
    let (Answer::NoProgram(found), Some(helper)) = (&answered, helper) else {
        return Ok(answered);
    };
    let bootstrap = Bootstrap {
        remote,
        helper,
        pipes,
    };
    match bootstrap.run(found).await? {
        Bootstrapped::Started => {
            let _unheard = pipes.input.write_all(request.as_bytes()).await;
            answer(pipes, config, LoginDetection::AlreadyDone).await
        }
        Bootstrapped::Ended => Ok(Answer::Ended),
    }
}

/// Starts ssh.
fn spawn(mut command: Command, settings: &SshSettings) -> Result<Child, SshError> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|source| SshError::Start {
        program: settings.program.clone(),
        source,
    })
}

/// An ssh process that was asked for a receiver.
struct AskedReceiver {
    child: Child,
    input: ChildStdin,
    answer: Answer,
    printed: RemoteOutput,
}

impl AskedReceiver {
    /// Returns whether ssh has ended without a login. It exits with 255 if it or the connection fails.
    async fn has_failed_to_log_in(&mut self) -> bool {
        let ended = timeout(END_TIMEOUT, self.child.wait()).await;
        matches!(ended, Ok(Ok(status)) if status.code() == Some(255))
    }
}

/// Sends the request to the receiver that ssh starts, and waits for its answer.
async fn ask_receiver(
    mut child: Child,
    request: &str,
    config: &SshConfig,
    remote: &Remote,
    helper: Option<&Helper>,
) -> Result<AskedReceiver, SshError> {
    let output = child.stdout.take().expect("a pipe was asked for");
    let mut pipes = SshPipes {
        input: child.stdin.take().expect("a pipe was asked for"),
        output: BufReader::new(output).take(SHELL_BYTES_MAX),
        printed: RemoteOutput::default(),
    };
    let answer = request_receiver(&mut pipes, request, config, remote, helper).await?;
    let SshPipes { input, printed, .. } = pipes;
    Ok(AskedReceiver {
        child,
        input,
        answer,
        printed,
    })
}

/// Returns the request to the receiver.
fn request(
    identity: &Identity,
    settings: &DialSettings,
    purpose: ReceiverPurpose,
) -> ReceiveRequest {
    let is_only_through_ssh = settings.ssh.method == ConnectionMethod::Ssh;
    let transport = if is_only_through_ssh {
        TransportChoice::Tcp
    } else {
        settings.reach.transport
    };
    let allow_clear = settings.cipher == Cipher::None;
    let key = identity.fingerprint();
    let mut request = ReceiveRequest::new(key, transport, settings.ssh.ports, allow_clear);
    request.loopback = is_only_through_ssh;
    request.copies = purpose == ReceiverPurpose::Copy;
    request
}

impl SshSession {
    /// Waits for the end of ssh and of a receiver that has finished its work.
    pub(crate) async fn end(self) {
        let Self { mut child, input } = self;
        drop(input);
        // An ssh process that takes longer is killed when it is dropped.
        let _in_time = timeout(END_TIMEOUT, child.wait()).await;
    }
}

/// Returns the time since `began`, or zero if ssh cannot have asked the user.
fn asked_since(began: Instant) -> Duration {
    if can_ask() {
        began.elapsed()
    } else {
        Duration::ZERO
    }
}

/// Returns whether ssh has a terminal on which it can ask for a password or a code. ssh itself does not report that it
/// asks.
fn can_ask() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Returns the start of each command: ssh with the first options, the user's options and the port.
fn ssh(settings: &SshSettings, remote: &Remote, login: &Login, first: &[&str]) -> Command {
    let mut command = Command::new(&settings.program);
    command.args(first).args(&settings.arguments);
    command.kill_on_drop(true);
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

/// Returns the command that logs in, as a user would type it.
fn typed(settings: &SshSettings, remote: &Remote, login: &Login) -> String {
    let command = ssh(settings, remote, login, &[]);
    let command = command.as_std();
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let mut typed = String::new();
    for word in words {
        let word = printable(&word.to_string_lossy());
        if word.contains(char::is_whitespace) {
            typed += &format!("{word:?} ");
        } else {
            typed += &format!("{word} ");
        }
    }
    typed + &remote_name(remote, login)
}

/// A relevant line of ssh's output.
enum Line {
    LoggedIn,
    NoProgram(FoundHelper),
    Answer(ReceiveReply),
}

/// The result of waiting for the receiver's answer.
enum Answer {
    /// The receiver's answer.
    Reply(ReceiveReply),
    /// The host has no program to start, and waits for scripts.
    NoProgram(FoundHelper),
    /// The answer takes too long after the login.
    Late,
    /// The output ended without an answer.
    Ended,
}

/// Reads the receiver's answer from the output of the remote shell.
async fn answer(
    pipes: &mut SshPipes,
    config: &SshConfig,
    login_end: LoginDetection,
) -> Result<Answer, SshError> {
    let limit = || Some(Instant::now() + config.wait_max());
    let mut due = match login_end {
        LoginDetection::AlreadyDone => limit(),
        LoginDetection::Reported | LoginDetection::Unknown => None,
    };
    loop {
        let next = next_line(pipes);
        let line = match due {
            Some(due) => match timeout_at(due, next).await {
                Ok(line) => line?,
                Err(_) => return Ok(Answer::Late),
            },
            None => next.await?,
        };
        match line {
            Some(Line::LoggedIn) => due = limit(),
            Some(Line::Answer(answer)) => return Ok(Answer::Reply(answer)),
            Some(Line::NoProgram(found)) => return Ok(Answer::NoProgram(found)),
            None => return Ok(Answer::Ended),
        }
    }
}

/// Returns the next relevant line, or `None` at the end of the output.
async fn next_line(pipes: &mut SshPipes) -> Result<Option<Line>, SshError> {
    while let Some(line) = pipes.next_line().await? {
        if line == config::LOGGED_IN.as_bytes() {
            return Ok(Some(Line::LoggedIn));
        }
        if let Some(found) = FoundHelper::parse(&line) {
            return Ok(Some(Line::NoProgram(found)));
        }
        if let Some(answer) = ReceiveReply::read(&line)? {
            return Ok(Some(Line::Answer(answer)));
        }
        pipes.printed.add(&line);
    }
    Ok(None)
}

impl SshPipes {
    /// Returns the next line without its line break, or `None` at the end of the output.
    async fn next_line(&mut self) -> Result<Option<Vec<u8>>, SshError> {
        let mut line = Vec::new();
        let read = self.output.read_until(b'\n', &mut line).await;
        let bytes = read.map_err(SshError::Read)?;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        Ok((bytes > 0).then_some(line))
    }
}

/// Returns the error for an ssh process whose output ended without an answer.
async fn no_answer(
    remote: &Remote,
    settings: &SshSettings,
    command: String,
    mut child: Child,
    printed: RemoteOutput,
) -> SshError {
    let zmove = settings.remote_zmove().to_owned();
    let remote = remote.to_string();
    // Do not wait for a program that keeps writing other output.
    let status = match timeout(END_TIMEOUT, child.wait()).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return SshError::Wait(error),
        Err(_) => {
            return SshError::Nonsense {
                remote,
                command,
                zmove,
                printed,
            };
        }
    };
    match status.code() {
        Some(255) | None => SshError::NotReached {
            remote,
            command,
            status,
        },
        Some(126) => SshError::NotExecutable {
            remote,
            zmove,
            printed,
        },
        Some(127) => SshError::NoProgram {
            remote,
            zmove,
            printed,
        },
        Some(_) => SshError::Early {
            remote,
            command,
            zmove,
            status,
            printed,
        },
    }
}

/// Returns the address for the data connections. Uses the address that ssh reached if `name` resolves to that address,
/// because a name may belong to several hosts. Uses the name if it resolves to other addresses only, because the
/// reached address is then probably valid only behind a gateway. If the name does not resolve on this host, uses the
/// address that ssh reached.
async fn address_of(name: &str, reached: Option<IpAddr>) -> String {
    let Some(reached) = reached else {
        return name.to_owned();
    };
    let found = timeout(LOOKUP_MAX, tokio::net::lookup_host((name, 0))).await;
    let known = match found {
        Ok(Ok(mut found)) => found.any(|address| address.ip() == reached),
        Ok(Err(_)) | Err(_) => true,
    };
    if known {
        reached.to_string()
    } else {
        name.to_owned()
    }
}

/// Time limit for ssh to end after the work is finished.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the lookup of a name that may be known only at a gateway.
const LOOKUP_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes that a remote shell may write before the receiver answers.
const SHELL_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_try_has_the_port_and_the_options_of_the_user() {
        let settings = SshSettings {
            program: "/opt/ssh".into(),
            arguments: vec!["-o".into(), "ProxyCommand nc %h 22".into()],
            ..SshSettings::default()
        };
        let remote = Remote::parse_endpoint("dtn:1").unwrap();
        let login = Login {
            user: Some("alice".into()),
            port: Some(2222),
        };
        assert_eq!(
            typed(&settings, &remote, &login),
            "/opt/ssh -o \"ProxyCommand nc %h 22\" -p 2222 alice@dtn"
        );
        assert_eq!(
            typed(&SshSettings::default(), &remote, &Login::default()),
            "ssh dtn"
        );
    }
}
