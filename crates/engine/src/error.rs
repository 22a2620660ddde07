//! The errors of this library, with one enum for each public operation.
//!
//! Messages are fragments that are shown to the user. **Invariant:** an error that wraps another error has it in its
//! chain of sources. Exceptions are [`PushError::GivenUp`], [`PushError::InVain`] and [`PushError::StillBusy`], whose
//! messages contain all causes.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::task::JoinError;
use zmove_receiver::SessionError as ReceiverError;
use zmove_sender::SessionError;
use zmove_transport::{
    AuthorityError, BlackHole, ControlError, DialError, IdentityError, KnownHostsError, LaneError,
    ParseFingerprintError,
};
use zmove_types::{Escaped, printable};
use zmove_wire::{GreetingError, Refusal, WireError};

use crate::backoff::Timeout;

/// Any error of the program that uses this library.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The reason why a text is not a valid location. Each variant contains the invalid part of the text, escaped for
/// display.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// The text is empty.
    #[error("a path is empty: is a variable unset? (write '.' for the current directory)")]
    Empty,
    /// There is no host before the colon.
    #[error(
        "'{0}' has no host before the colon: write HOST:PATH (for a local name write './NAME')"
    )]
    NoHost(String),
    /// Several receivers are given, but one of them would have to be started with ssh.
    #[error(
        "'{0}': each of several receivers must be a daemon ('zmove serve'), not started over ssh"
    )]
    SeveralOverSsh(String),
    /// The path is given more than once, although several receivers share one path.
    #[error(
        "'{0}': several receivers share one path: write it once, after the last host: HOST,HOST:PATH"
    )]
    PathTwice(String),
    /// An opening bracket is not closed.
    #[error("'{0}': the bracket of the IPv6 address is not closed: write [ADDRESS]:PATH")]
    BracketOpen(String),
    /// The host is followed by text that is not a port.
    #[error("'{0}' is not HOST:PORT")]
    NotHostPort(String),
    /// A URL always refers to a daemon, but ssh was requested.
    #[error("'zmove://…' always refers to a daemon: for ssh write USER@HOST:PATH")]
    UrlOverSsh,
    /// The scheme of the URL is not supported.
    #[error(
        "'{0}': this scheme is not supported: write HOST:PATH, USER@HOST:PATH (over ssh) or zmove://HOST:PORT/PATH"
    )]
    Scheme(String),
    /// An address in brackets is not followed by a colon.
    #[error("'{0}': write an IPv6 target as [ADDRESS]:PATH")]
    BracketAlone(String),
    /// An IPv6 address has no brackets, so that its colons are ambiguous.
    #[error(
        "'{0}': write an IPv6 address in brackets: [ADDRESS]:PATH (for a local name write './NAME')"
    )]
    Unbracketed(String),
    /// The path starts with a colon, like the modules of rsync's daemon.
    #[error(
        "'{0}': rsync modules are not supported: write HOST:PATH (for a local name with a colon write './:NAME')"
    )]
    Module(String),
    /// The path starts with a home directory, which a daemon cannot resolve.
    #[error(
        "'{0}': a daemon cannot resolve '~': omit it for a path below your first root there, or start the receiver \
         over ssh (USER@HOST:~/PATH)"
    )]
    HomeAtDaemon(String),
    /// The path starts with the home directory of another user.
    #[error("'{0}': '~' works only for your own home directory ('~/PATH'): write the full path")]
    HomeOfAnother(String),
    /// The part before the `@` is not a user name.
    #[error("'{0}' is not a valid user name")]
    User(String),
    /// The digits are not a valid port.
    #[error("'{0}' is not a valid port: it must be 1 to 65535")]
    Port(String),
    /// The URL has no path.
    #[error("'zmove://{0}' has no path: write zmove://HOST:PORT/PATH")]
    UrlWithoutPath(String),
    /// The location of a daemon contains a user.
    #[error("'{0}': a daemon identifies users by their keys: write the host without 'USER@'")]
    UserAtDaemon(String),
    /// The host name is missing or invalid.
    #[error("'{0}' is not a valid host name")]
    Host(String),
}

/// The reason why the sources cannot be pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourcesError {
    /// A source is written like a path on another host.
    #[error(
        "'{}' is on another host: use 'zmove pull' to fetch it (for a local name with a colon write './NAME')",
        Escaped::path(path)
    )]
    OnAnotherHost {
        /// The source.
        path: OsString,
    },
    /// None of the sources exists.
    #[error("nothing to send: no source exists (check the paths)")]
    Nothing,
    /// Two sources would have the same name at the target.
    #[error(
        "'{}' and '{}' would both become '{}' at the target: push them one after the other",
        Escaped::path(first),
        Escaped::path(second),
        Escaped::path(name)
    )]
    SameName {
        /// The source that was given first.
        first: PathBuf,
        /// The source that was given later.
        second: PathBuf,
        /// The common name.
        name: OsString,
    },
    /// A directory could not be listed completely.
    #[error(transparent)]
    List(#[from] io::Error),
}

/// The reason why a push on this host would write into its own sources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlapError {
    /// The target is inside a source. Copying a tree into itself would never end.
    #[error("the target lies inside the source '{}': choose a target outside of it", source_path.display())]
    TargetInside {
        /// The source.
        source_path: PathBuf,
    },
    /// Part of a source is mounted below the target, where another part of the same source would be written.
    #[error("'{}' is part of the source '{}', mounted there", point.display(), source_path.display())]
    MountedInside {
        /// The mount point below the target.
        point: PathBuf,
        /// The source.
        source_path: PathBuf,
    },
}

/// An error in the messages over ssh's pipes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshMessageError {
    /// A request cannot be parsed.
    #[error("read the request from standard input")]
    Request(#[source] serde_json::Error),
    /// An answer cannot be parsed.
    #[error("read the receiver's answer over ssh")]
    Answer(#[source] serde_json::Error),
    /// The other side uses another version of the protocol.
    #[error(transparent)]
    Version(#[from] GreetingError),
}

/// The reason why ssh did not start a receiver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshError {
    /// No key could be generated for the session.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The program does not exist or cannot be run.
    #[error("start '{program}' (is ssh installed? -e gives another command)")]
    Start {
        /// The program.
        program: String,
        /// The system error.
        source: io::Error,
    },
    /// The answer over ssh's pipe is invalid.
    #[error(transparent)]
    Words(#[from] SshMessageError),
    /// Reading from ssh's pipe failed.
    #[error("read the receiver's answer over ssh")]
    Read(#[source] io::Error),
    /// Waiting for the end of the program failed.
    #[error(transparent)]
    Wait(io::Error),
    /// The receiver's key cannot be parsed.
    #[error("read the key of the receiver started over ssh")]
    Key(#[source] ParseFingerprintError),
    /// ssh could not reach the host or could not log in.
    #[error("ssh could not connect to {remote}: {status} ('{command} true' must work first)")]
    NotReached {
        /// The host.
        remote: String,
        /// The command that logs in, as a user would type it.
        command: String,
        /// The exit status of ssh.
        status: ExitStatus,
    },
    /// The login of ssh connects neither by a channel nor by a session.
    #[error(
        "send data through ssh: {said} (the server must permit 'AllowTcpForwarding local', or more than two sessions in \
         'MaxSessions')"
    )]
    Forward {
        /// The message of ssh.
        said: String,
    },
    /// The ssh command cannot forward connections.
    #[error(
        "send data through ssh: '{program}' must be OpenSSH, with options only, and needs a directory for sockets in \
         $XDG_RUNTIME_DIR or /tmp"
    )]
    NoMaster {
        /// The ssh program.
        program: String,
    },
    /// ssh could not find zmove on the host.
    #[error(
        "ssh found no program '{zmove}' on {remote}: install it there, or give its path with --remote-zmove{printed}"
    )]
    NoProgram {
        /// The host.
        remote: String,
        /// The program that ssh tried to start on the host.
        zmove: String,
        /// The output of the host.
        printed: RemoteOutput,
    },
    /// The host may not execute zmove.
    #[error(
        "ssh may not execute '{zmove}' on {remote}: check its mode, install it on a file system that is not \
         mounted with noexec, or give another path with --remote-zmove{printed}"
    )]
    NotExecutable {
        /// The host.
        remote: String,
        /// The program that ssh tried to start on the host.
        zmove: String,
        /// The output of the host.
        printed: RemoteOutput,
    },
    /// The host has no zmove, and the helper program was not started.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The remote program ended before the receiver was ready, or the login shell did not start it.
    #[error(
        "ssh logged in to {remote}, but '{zmove} receive' or the account's shell exited before the receiver was ready: \
         {status}{printed} (if zmove gave no reason, check that the account may run commands: \
         '{command} {zmove} --version')"
    )]
    Early {
        /// The host.
        remote: String,
        /// The command that logs in, as a user would type it.
        command: String,
        /// The program that ssh started on the host.
        zmove: String,
        /// The exit status of the program.
        status: ExitStatus,
        /// The output of the host.
        printed: RemoteOutput,
    },
    /// The login is complete, but the program did not answer in time.
    #[error(
        "ssh logged in to {remote}, but '{zmove} receive' did not answer within {} s: a startup file of the login \
         shell there may be waiting for input{printed}",
        waited.as_secs()
    )]
    Silent {
        /// The host.
        remote: String,
        /// The program that ssh tried to start on the host.
        zmove: String,
        /// The time since the login.
        waited: Duration,
        /// The output of the host.
        printed: RemoteOutput,
    },
    /// The remote program is not a zmove receiver, according to its output.
    #[error(
        "the output of {remote} over ssh is not that of '{zmove} receive' (check it with \
         '{command} {zmove} --version'){printed}"
    )]
    Nonsense {
        /// The host.
        remote: String,
        /// The command that logs in, as a user would type it.
        command: String,
        /// The program that ssh tried to start on the host.
        zmove: String,
        /// The output of the host.
        printed: RemoteOutput,
    },
}

/// The reason why the helper program was not started on a host without zmove.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Sending the helper was not confirmed.
    #[error(transparent)]
    Unconfirmed(BoxError),
    /// The helper is for another machine.
    #[error(
        "{remote} has no zmove of this protocol version, and the helper program does not run on '{machine}': install \
         zmove there"
    )]
    Machine {
        /// The host.
        remote: String,
        /// Operating system and processor of the host.
        machine: String,
    },
    /// The host could not store or run the helper.
    #[error(
        "start the helper program on {remote}: {reasons} (give it one of these directories with space and without \
         noexec, or install zmove there and give its path with --remote-zmove)"
    )]
    Refused {
        /// The host.
        remote: String,
        /// A reason for each directory that was tried.
        reasons: String,
    },
    /// The host stopped answering.
    #[error("send the helper program to {remote}: the host does not answer")]
    Stalled {
        /// The host.
        remote: String,
    },
}

/// The last lines that the shell or a program on a host printed before a receiver could answer. They often contain the
/// reason why it did not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteOutput(Vec<String>);

impl RemoteOutput {
    const LINES_MAX: usize = 3;
    const LINE_CHARS_MAX: usize = 200;

    /// Adds a line, without its unprintable characters. Blank lines are skipped.
    pub(crate) fn add(&mut self, line: &[u8]) {
        let line = printable(String::from_utf8_lossy(line).trim());
        if line.is_empty() {
            return;
        }
        if self.0.len() == Self::LINES_MAX {
            self.0.remove(0);
        }
        self.0
            .push(line.chars().take(Self::LINE_CHARS_MAX).collect());
    }
}

/// Writes the lines as the continuation of a message.
impl Display for RemoteOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; the host printed: '{}'", self.0.join(" | "))
    }
}

/// The kind of a failure to reach a receiver. Failed dials are classified separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// A problem on this host, such as an unreadable key, a missing file or a failed process.
    Local,
    /// The user did not confirm the host's key.
    Unconfirmed,
    /// ssh, or the program at its other end, did not start a receiver.
    Unreached,
    /// The program at the other end of ssh uses another version of the protocol.
    OtherVersion,
}

/// The reason why a receiver was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This side's key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The pinned keys cannot be used.
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
    /// The site's authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The connection could not be established.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// ssh did not start a receiver.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The host's key was not confirmed.
    #[error(transparent)]
    Unconfirmed(BoxError),
    /// ssh started a receiver, but connecting to it failed.
    #[error(
        "connect to the receiver started over ssh on {host} (if a firewall blocks its port, give a permitted range \
         with --ssh-ports)"
    )]
    BehindSsh {
        /// The host on which the receiver listens.
        host: String,
        /// The error of the connection attempt.
        source: Box<Self>,
    },
    /// Neither the receiver's port nor ssh led to the receiver that ssh started.
    #[error(
        "connect to the receiver started over ssh on {host}: {}; and through ssh: {}",
        Causes(direct.as_ref()),
        Causes(through_ssh.as_ref())
    )]
    NeitherWay {
        /// The host on which the receiver listens.
        host: String,
        /// The error of the connection to the receiver's port.
        direct: Box<Self>,
        /// The error of the connection through ssh.
        through_ssh: Box<Self>,
    },
    /// No transfer id could be generated.
    #[error("generate a transfer id")]
    TransferId(#[source] io::Error),
    /// The system refused an option of the control connection.
    #[error("set up the control connection")]
    Control(#[source] io::Error),
}

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The receiver was not reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The session failed, and this process receives, or two other hosts copy.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The connections were stuck in a black hole of the path. The next session uses small segments.
    #[error(transparent)]
    BlackHole(BlackHole),
    /// The job for another session could not be created.
    #[error(transparent)]
    Job(BoxError),
    /// The receiver in this process panicked.
    #[error("the receiving role")]
    Role(#[source] JoinError),
    /// Connections were lost and could not be restored in time.
    #[error("the connection to {remote} was lost and not restored within {timeout}: {}", Causes(cause.as_ref()))]
    GivenUp {
        /// The receiver.
        remote: String,
        /// How long reconnecting was attempted.
        timeout: Timeout,
        /// The last error.
        cause: Box<Self>,
    },
    /// Connections were restored repeatedly, but were lost each time before any progress.
    #[error(
        "{sessions} consecutive sessions with {remote} were lost without any progress: {}",
        Causes(cause.as_ref())
    )]
    InVain {
        /// The receiver.
        remote: String,
        /// Number of sessions without progress.
        sessions: u32,
        /// The last error.
        cause: Box<Self>,
    },
    /// The receiver was busy until the timeout.
    #[error("{}; the receiver was busy for {timeout}", Causes(cause.as_ref()))]
    StillBusy {
        /// How long the push waited for the receiver.
        timeout: Timeout,
        /// The last error.
        cause: Box<Self>,
    },
}

/// The reason why a session failed in which this process receives, or in which two other hosts copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The host refuses to send or cannot continue.
    #[error("sender: {}", .0.text)]
    Refused(Refusal),
    /// The host is allowed to send but does not have the requested sources.
    #[error("sender: {}", .0.text)]
    Sources(Refusal),
    /// A copy between other hosts failed.
    #[error("copy: {}", .0.text)]
    Ended(Refusal),
    /// The receipt was not signed by the target host or belongs to another copy.
    #[error("the copy has ended, but the target's receipt is not signed by the target's key")]
    Receipt,
    /// The host was still busy when the maximum waiting time of this side had passed.
    #[error("sender: {reason}; its turn has not come within {} s", waited.as_secs_f64())]
    StillInLine {
        /// The host's reason for the wait.
        reason: String,
        /// The time spent waiting.
        waited: Duration,
    },
    /// The host did not answer in time.
    #[error("the sender did not answer in time")]
    Silent,
    /// The host broke the protocol.
    #[error("the sender broke the protocol: {0}")]
    Misbehaved(#[from] WireError),
    /// The control connection ended.
    #[error("{0}")]
    Control(#[source] ControlError),
    /// No data connection could be established.
    #[error("{0}")]
    Lane(#[source] LaneError),
    /// This side refuses the target path that its own user requested.
    #[error("receiver: {}", .0.text)]
    Target(Refusal),
    /// The receiver of this side failed.
    #[error("receiver: {0}")]
    Receiver(#[source] ReceiverError),
    /// The user interrupted the command. The copy between other hosts continues.
    #[error(
        "interrupted; the copy continues on the hosts: 'zmove result {id} {remote}' shows its result, and --stop ends \
         it"
    )]
    Left {
        /// The id of the copy in hexadecimal digits.
        id: String,
        /// The source host.
        remote: String,
    },
    /// Stopping a copy between other hosts failed, so that it may still be running.
    #[error(
        "interrupted; the copy may still be running on {remote} (end it with 'zmove result --stop {id} {remote}'): \
         {why}"
    )]
    NotEnded {
        /// The id of the copy in hexadecimal digits.
        id: String,
        /// The source host.
        remote: String,
        /// The reason.
        why: String,
    },
}

impl PullError {
    /// Returns whether the host was busy. It may accept the transfer later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_busy())
    }

    /// Returns whether connections were lost, so that another attempt may succeed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.may_pass(),
            Self::Control(error) => error.is_lost(),
            Self::Lane(error) => error.is_lost(),
            Self::Receiver(error) => error.is_lost(),
            Self::Silent => true,
            Self::Sources(_)
            | Self::Target(_)
            | Self::Ended(_)
            | Self::Receipt
            | Self::StillInLine { .. }
            | Self::Misbehaved(_)
            | Self::Left { .. }
            | Self::NotEnded { .. } => false,
        }
    }
}

impl From<ControlError> for PullError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Wire(error) => Self::Misbehaved(error),
            error => Self::Control(error),
        }
    }
}

impl ConnectError {
    /// Returns the error of dialing the receiver if dialing failed.
    #[must_use]
    pub fn dial(&self) -> Option<&DialError> {
        match self {
            Self::Dial(error) => Some(error),
            Self::BehindSsh { source, .. } => source.dial(),
            Self::NeitherWay { direct, .. } => direct.dial(),
            _ => None,
        }
    }

    /// Returns the kind of failure, other than a failed [dial](Self::dial). This crate classifies its own errors so
    /// that the compiler checks that no error is missing.
    #[must_use]
    pub fn fault(&self) -> ConnectFault {
        match self {
            Self::Identity(_)
            | Self::KnownHosts(_)
            | Self::Authority(_)
            | Self::TransferId(_)
            | Self::Control(_) => ConnectFault::Local,
            Self::Unconfirmed(_) => ConnectFault::Unconfirmed,
            Self::Dial(_) => ConnectFault::Unreached,
            Self::BehindSsh { source, .. } => source.fault(),
            Self::NeitherWay { direct, .. } => direct.fault(),
            Self::Ssh(error) => error.fault(),
        }
    }

    /// Returns whether another attempt may succeed. The result is meaningful only if the receiver has been reached
    /// before.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        if let Self::NeitherWay {
            direct,
            through_ssh,
            ..
        } = self
        {
            return direct.is_lost() || through_ssh.is_lost();
        }
        if let Some(error) = self.dial() {
            // A network outage also makes name resolution fail and ends ssh, and an address may temporarily belong to a
            // different host.
            return error.retryable()
                || error.is_other_server()
                || matches!(
                    error,
                    DialError::Resolve { .. } | DialError::NotForwarded { .. }
                );
        }
        matches!(
            self,
            Self::Ssh(SshError::NotReached { .. } | SshError::Forward { .. })
        )
    }
}

impl SshError {
    fn fault(&self) -> ConnectFault {
        match self {
            Self::Identity(_) | Self::Wait(_) => ConnectFault::Local,
            Self::Words(SshMessageError::Version { .. }) => ConnectFault::OtherVersion,
            Self::Start { .. }
            | Self::Words(SshMessageError::Request(_) | SshMessageError::Answer(_))
            | Self::Read(_)
            | Self::Key(_)
            | Self::NotReached { .. }
            | Self::NoProgram { .. }
            | Self::NotExecutable { .. }
            | Self::Early { .. }
            | Self::Silent { .. }
            | Self::Nonsense { .. }
            | Self::Bootstrap(_)
            | Self::Forward { .. }
            | Self::NoMaster { .. } => ConnectFault::Unreached,
        }
    }
}

impl PushError {
    /// Returns whether the receiver was busy. It may accept the transfer later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Session(error) => error.is_busy(),
            Self::Pull(error) => error.is_busy(),
            _ => false,
        }
    }

    /// Returns whether connections were lost, so that another attempt may succeed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Session(error) => error.is_lost(),
            Self::Pull(error) => error.is_lost(),
            Self::Connect(error) => error.is_lost(),
            Self::BlackHole(_) => true,
            _ => false,
        }
    }

    /// Returns whether the host closed the connection before it had proved its key.
    #[must_use]
    pub fn is_closed_early(&self) -> bool {
        match self {
            // The handshake may be complete on this side but not at the host.
            Self::Session(error) => matches!(error, SessionError::Control(ControlError::Closed)),
            Self::Pull(error) => matches!(error, PullError::Control(ControlError::Closed)),
            Self::Connect(error) => matches!(error.dial(), Some(DialError::Closed { .. })),
            _ => false,
        }
    }
}

/// Formats an error and its causes in one line. A cause is omitted if the text before it already ends with the same
/// words.
#[derive(Debug)]
pub struct Causes<'a>(pub &'a (dyn Error + 'static));

impl Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = String::new();
        let chain = std::iter::successors(Some(self.0), |error| (*error).source());
        for cause in chain.map(ToString::to_string) {
            if !told.ends_with(&cause) {
                let separator = if told.is_empty() { "" } else { ": " };
                told.extend([separator, &cause]);
            }
        }
        f.write_str(&told)
    }
}
