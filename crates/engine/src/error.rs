//! The errors of this library: one enum for each public operation.
//!
//! Messages are fragments for the user. **Invariant:** an error that wraps another has it in its chain of sources, but
//! for [`PushError::GivenUp`], [`PushError::InVain`] and [`PushError::StillBusy`], whose messages hold all causes.

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
use zmove_types::Escaped;
use zmove_wire::{GreetingError, Refusal, WireError};

use crate::backoff::Timeout;

/// Any error of the program that uses this library.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The reason why a text is no location. Each variant holds the part of the text at fault, escaped to be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// There is no text at all.
    #[error("a path is empty: is a variable not set? ('.' is this directory)")]
    Empty,
    /// Nothing stands before the colon.
    #[error("'{0}' names no host: write HOST:PATH (a local name is written './NAME')")]
    NoHost(String),
    /// Several receivers, of which one is to be started by ssh.
    #[error("'{0}': several receivers share a target only where each is a daemon ('zmove serve')")]
    SeveralOverSsh(String),
    /// Several receivers, each with the path.
    #[error("'{0}': the path of several receivers stands once, behind the last: HOST,HOST:PATH")]
    PathTwice(String),
    /// A bracket opens and does not close.
    #[error("'{0}': the bracket of the IPv6 address is not closed")]
    BracketOpen(String),
    /// Something else than a port stands behind the host.
    #[error("'{0}' is no HOST:PORT")]
    NotHostPort(String),
    /// A URL names a daemon, and ssh was asked for.
    #[error("'zmove://…' is a daemon: for ssh write USER@HOST:PATH")]
    UrlOverSsh,
    /// A URL of another program.
    #[error(
        "'{0}': this scheme is not supported: write HOST:PATH, USER@HOST:PATH (over ssh) or zmove://HOST:PORT/PATH"
    )]
    Scheme(String),
    /// An address in brackets has no colon behind it.
    #[error("'{0}': write an IPv6 target as [ADDRESS]:PATH")]
    BracketAlone(String),
    /// An IPv6 address has no brackets, so that its colons could be anything.
    #[error(
        "'{0}': an IPv6 address stands in brackets, as [ADDRESS]:PATH (a local name is written './NAME')"
    )]
    Unbracketed(String),
    /// The path begins with a colon, as the modules of rsync's daemon do.
    #[error(
        "'{0}': there are no modules as rsync has them: write HOST:PATH (a path with a colon is './:NAME')"
    )]
    Module(String),
    /// The path begins with somebody's home directory, which a daemon does not know.
    #[error(
        "'{0}': a daemon knows no home directories: leave '~' out for a path below your first root there, or have ssh \
         start the receiver (USER@HOST:~/PATH)"
    )]
    HomeAtDaemon(String),
    /// The path begins with the home directory of another user.
    #[error("'{0}': of home directories only your own can be named by '~/': write the whole path")]
    HomeOfAnother(String),
    /// The part before the `@` is no user.
    #[error("'{0}' is no user's name")]
    User(String),
    /// The digits are no port.
    #[error("'{0}' is no port: it must be 1 to 65535")]
    Port(String),
    /// A URL ends with its host.
    #[error("'zmove://{0}' has no path: write zmove://HOST:PORT/PATH")]
    UrlWithoutPath(String),
    /// A user is named where a daemon is meant.
    #[error("'{0}': a daemon knows users by their keys; write the host without 'USER@'")]
    UserAtDaemon(String),
    /// The host has no name, or one that no host can have.
    #[error("'{0}' is no host name")]
    Host(String),
}

/// The reason why the sources cannot be pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourcesError {
    /// A source is written as a path on another host.
    #[error(
        "'{}' is on another host: 'zmove pull' fetches from there (a local name with a colon is written './NAME')",
        Escaped::path(path)
    )]
    OnAnotherHost {
        /// The source.
        path: OsString,
    },
    /// None of the sources exists.
    #[error("nothing to send: no source is there")]
    Nothing,
    /// Two sources would get one name at the target.
    #[error(
        "'{}' and '{}' would both become '{}' at the target: push them one after the other",
        Escaped::path(first),
        Escaped::path(second),
        Escaped::path(name)
    )]
    SameName {
        /// The source that was named first.
        first: PathBuf,
        /// The source that was named later.
        second: PathBuf,
        /// The name that both would get.
        name: OsString,
    },
    /// A directory could not be listed to its end.
    #[error(transparent)]
    List(#[from] io::Error),
}

/// The reason why a push within this host would write into its own sources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlapError {
    /// A tree copied into itself would never end.
    #[error("the target lies inside the source '{}'", source_path.display())]
    TargetInside {
        /// The source.
        source_path: PathBuf,
    },
    /// A part of a source is mounted where another part of it would be written.
    #[error("'{}' is part of the source '{}', mounted there", point.display(), source_path.display())]
    MountedInside {
        /// The mount point below the target.
        point: PathBuf,
        /// The source.
        source_path: PathBuf,
    },
}

/// An error in the conversation over ssh's pipes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshMessageError {
    /// A request cannot be parsed.
    #[error("read what is to be done from standard input")]
    Request(#[source] serde_json::Error),
    /// An answer cannot be parsed.
    #[error("read what the receiver says over ssh")]
    Answer(#[source] serde_json::Error),
    /// The other side speaks another version of the protocol.
    #[error(transparent)]
    Version(#[from] GreetingError),
}

/// The reason why ssh has started no receiver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshError {
    /// No key could be made for the session.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The program does not exist, or cannot be run.
    #[error("start '{program}': {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The answer over ssh's pipe cannot be understood.
    #[error(transparent)]
    Words(#[from] SshMessageError),
    /// The pipe from ssh broke.
    #[error("read what the receiver says over ssh")]
    Read(#[source] io::Error),
    /// The end of the program could not be waited for.
    #[error(transparent)]
    Wait(io::Error),
    /// The receiver's key cannot be parsed.
    #[error("read the key of the receiver that ssh has started")]
    Key(#[source] ParseFingerprintError),
    /// ssh could not reach the host, or was not let in.
    #[error("ssh has not reached {remote}: {status}")]
    NotReached {
        /// The host.
        remote: String,
        /// The exit status of ssh.
        status: ExitStatus,
    },
    /// The host has no zmove that ssh could start.
    #[error(
        "{remote} has no '{zmove}' that ssh could start: install it there, or say where it is with --remote-zmove"
    )]
    NoProgram {
        /// The host.
        remote: String,
        /// The program that was to be started there.
        zmove: String,
    },
    /// The program ended before it was ready.
    #[error("'{zmove} receive' at {remote} ended before it was ready: {status}")]
    Early {
        /// The host.
        remote: String,
        /// The program that was started there.
        zmove: String,
        /// The exit status of the program.
        status: ExitStatus,
    },
    /// The login is complete, but the program has not answered in time.
    #[error(
        "ssh has logged in at {remote}, but '{zmove} receive' has not answered within {} s: \
         a startup file of the login shell there may be waiting",
        waited.as_secs()
    )]
    Silent {
        /// The host.
        remote: String,
        /// The program that was to be started there.
        zmove: String,
        /// The time since the login.
        waited: Duration,
    },
    /// The output of the remote program is not that of a receiver.
    #[error("what {remote} says over ssh is not what '{zmove} receive' says")]
    Nonsense {
        /// The host.
        remote: String,
        /// The program that was to be started there.
        zmove: String,
    },
}

/// The kind of reason why a receiver was not reached, apart from a failed dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// This host lacks something: a key that can be read, a file, a process.
    Local,
    /// The user has not confirmed the host's key.
    Unconfirmed,
    /// ssh, or the program at its other end, started no receiver.
    Unreached,
    /// The program at the other end of ssh speaks another version of the protocol.
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
    /// The connection did not come about.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// ssh has started no receiver.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The host's key was not confirmed.
    #[error(transparent)]
    Unconfirmed(BoxError),
    /// ssh has started a receiver, but no connection to it came about.
    #[error(
        "reach the receiver that ssh has started on {host} \
         (a firewall may need a range of ports, which --ssh-ports names)"
    )]
    BehindSsh {
        /// The host on which the receiver listens.
        host: String,
        /// The error of the connection.
        source: Box<Self>,
    },
    /// No number for the transfer could be drawn.
    #[error("draw a transfer id")]
    TransferId(#[source] io::Error),
    /// The system refuses an option of the control connection.
    #[error("set up the control connection")]
    Control(#[source] io::Error),
}

/// The reason why a push to another host ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The receiver was not reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session broke off.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The session of a pull broke off.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The connections were stuck in a black hole of the path. The next session has small segments.
    #[error(transparent)]
    BlackHole(BlackHole),
    /// The job of another session could not be made.
    #[error(transparent)]
    Job(BoxError),
    /// Connections were lost and have not come back in time.
    #[error("the connection to {remote} was lost and has not come back for {timeout}: {}", Causes(cause.as_ref()))]
    GivenUp {
        /// The receiver.
        remote: String,
        /// How long the connection was dialled again.
        timeout: Timeout,
        /// The last error.
        cause: Box<Self>,
    },
    /// Connections came back, and each time were lost before anything was done.
    #[error(
        "{sessions} sessions in a row with {remote} began and were lost, and nothing was done in them: {}",
        Causes(cause.as_ref())
    )]
    InVain {
        /// The receiver.
        remote: String,
        /// How many sessions.
        sessions: u32,
        /// The last error.
        cause: Box<Self>,
    },
    /// The receiver was busy until the timeout.
    #[error("{}; the receiver was busy for {timeout}", Causes(cause.as_ref()))]
    StillBusy {
        /// How long the receiver was waited for.
        timeout: Timeout,
        /// The last error.
        cause: Box<Self>,
    },
}

/// The reason why a session of a pull ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The host refuses to send, or cannot go on.
    #[error("sender: {}", .0.text)]
    Refused(Refusal),
    /// The host may send, and does not have what it would.
    #[error("sender: {}", .0.text)]
    Sources(Refusal),
    /// A copy between other hosts has come to no good end.
    #[error("copy: {}", .0.text)]
    Ended(Refusal),
    /// What the host with the target is said to have signed is not signed by it, or not of this copy.
    #[error(
        "the copy has ended, but what is shown as the target's receipt is not signed by its key"
    )]
    Receipt,
    /// The host has had no room for the transfer for as long as this side was to wait.
    #[error("sender: {reason}; its turn has not come within {} s", waited.as_secs_f64())]
    StillInLine {
        /// The reason for the wait, in the host's words.
        reason: String,
        /// The time waited.
        waited: Duration,
    },
    /// The host has not answered in time.
    #[error("the sender does not answer")]
    Silent,
    /// The host broke the protocol.
    #[error("the sender broke the protocol: {0}")]
    Misbehaved(#[from] WireError),
    /// The control connection ended.
    #[error("{0}")]
    Control(#[source] ControlError),
    /// No data connection came about.
    #[error("{0}")]
    Lane(#[source] LaneError),
    /// This side does not have the target that its own user asks for.
    #[error("receiver: {}", .0.text)]
    Target(Refusal),
    /// The receiving role ended.
    #[error("receiver: {0}")]
    Receiver(#[source] ReceiverError),
    /// The user stopped to listen to a copy between other hosts.
    #[error(
        "interrupted; the copy goes on: 'zmove result {id} {remote}' says what becomes of it, and ends it with --stop"
    )]
    Left {
        /// The id of the copy, as it is written.
        id: String,
        /// The host that sends.
        remote: String,
    },
    /// A copy between other hosts was to end, and it is not known that it has.
    #[error(
        "interrupted; the copy may go on at {remote}: zmove result --stop {id} {remote} ends it; {why}"
    )]
    NotEnded {
        /// The id of the copy, as it is written.
        id: String,
        /// The host that sends.
        remote: String,
        /// The reason.
        why: String,
    },
}

impl PullError {
    /// Whether the host has had no room for the transfer, and may have some later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_busy())
    }

    /// Whether connections were lost, so that dialling again may help.
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

/// The reason why a push within this process ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// No number for the transfer could be drawn.
    #[error("draw a transfer id")]
    TransferId(#[source] io::Error),
    /// The sending role ended.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The receiving role ended.
    #[error("receiver: {0}")]
    Receiver(#[source] ReceiverError),
    /// The receiving role has panicked.
    #[error("the receiving role")]
    Role(#[source] JoinError),
}

impl ConnectError {
    /// The error of dialling the receiver, if that is what failed.
    #[must_use]
    pub fn dial(&self) -> Option<&DialError> {
        match self {
            Self::Dial(error) => Some(error),
            Self::BehindSsh { source, .. } => source.dial(),
            _ => None,
        }
    }

    /// The kind of reason, apart from a failed [dial](Self::dial). This crate decides it, because here the compiler
    /// knows all errors.
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
            Self::Ssh(error) => error.fault(),
        }
    }

    /// Whether dialling again may help, if the receiver has been reached before.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        if let Some(error) = self.dial() {
            // A network outage takes name resolution down as well, and something else may answer for the host.
            return error.retryable()
                || error.is_of_another()
                || matches!(error, DialError::Resolve { .. });
        }
        matches!(self, Self::Ssh(SshError::NotReached { .. }))
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
            | Self::Early { .. }
            | Self::Silent { .. }
            | Self::Nonsense { .. } => ConnectFault::Unreached,
        }
    }
}

impl PushError {
    /// Whether the receiver has had no room for the transfer, and may have some later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Session(error) => error.is_busy(),
            Self::Pull(error) => error.is_busy(),
            _ => false,
        }
    }

    /// Whether connections were lost, so that dialling again may help.
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

    /// Whether the host has closed the connection before it had proved its key.
    #[must_use]
    pub fn is_closed_early(&self) -> bool {
        match self {
            // This side may take the handshake for complete when the other one does not.
            Self::Session(error) => matches!(error, SessionError::Control(ControlError::Closed)),
            Self::Pull(error) => matches!(error, PullError::Control(ControlError::Closed)),
            Self::Connect(error) => matches!(error.dial(), Some(DialError::Closed { .. })),
            _ => false,
        }
    }
}

/// An error with its causes in one line, each once: some messages already hold their cause.
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
