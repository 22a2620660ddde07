//! Notices of the engine that are not [`Event`](zmove_types::Event)s of a session.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

use zmove_disk::PathCause;
use zmove_transport::{BlackHole, Fingerprint};
use zmove_types::{Escaped, TransferId};

use crate::backoff::Timeout;
use crate::connecting::location::Remote;
use crate::error::{Causes, PushError};

/// A notice to the caller of a push.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// The receiver did not answer immediately and is still being dialed.
    Dialling {
        /// The receiver.
        remote: &'a Remote,
    },
    /// The receiver cannot be reached, and the path in its location is a valid port number that the user may have meant
    /// as the port.
    PathLikePort {
        /// The receiver.
        remote: &'a Remote,
    },
    /// A session begins. From now on, the user is asked no further questions, and event counts restart at zero.
    SessionBegins {
        /// The transfer id, which the other host also uses. `None` for a copy between two other hosts.
        transfer: Option<TransferId>,
    },
    /// The connection was lost. The engine tries to reconnect.
    ConnectionLost {
        /// The receiver.
        remote: &'a Remote,
        /// The reason.
        cause: &'a PushError,
        /// How long the engine tries to reconnect.
        timeout: Timeout,
    },
    /// The ssh server forwards no connections, so the lanes are sessions of the login.
    LanesAreSessions {
        /// The host.
        remote: &'a Remote,
    },
    /// The receiver's port does not answer, and the data goes through ssh.
    ThroughSsh {
        /// The receiver.
        remote: &'a Remote,
    },
    /// Full-size packets vanish on the path. Only small packets are sent from now on.
    BlackHole {
        /// The reason.
        cause: &'a BlackHole,
    },
    /// The receiver is busy, and the engine waits for it. Reported for each attempt.
    ReceiverBusy {
        /// The reason.
        cause: &'a PushError,
    },
    /// The key of an unknown host was pinned.
    KeyPinned {
        /// The host.
        remote: &'a Remote,
        /// The host's key.
        key: Fingerprint,
    },
    /// A copy between two other hosts has started. It continues without this process.
    CopyRuns {
        /// The id of the copy in hexadecimal digits.
        id: &'a str,
        /// The source host.
        remote: &'a Remote,
    },
    /// The path memory cannot be read or parsed, and is ignored.
    PathsUnread {
        /// The file of the path memory.
        file: &'a Path,
        /// The reason.
        source: io::Error,
    },
    /// The path memory cannot be written.
    PathsUnwritten {
        /// The file of the path memory.
        file: &'a Path,
        /// The reason.
        source: io::Error,
    },
    /// A source cannot be opened. The other sources are pushed.
    SourceMissing {
        /// The source.
        path: &'a Path,
        /// The reason.
        source: io::Error,
    },
}

/// A consumer of notices.
pub trait Listener: Sync {
    /// Handles a notice. Must not block for long.
    fn hear(&self, notice: &Notice<'_>);
}

/// A listener that ignores all notices.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoListener;

impl Listener for NoListener {
    fn hear(&self, _notice: &Notice<'_>) {}
}

impl Display for Notice<'_> {
    /// Formats the notice as one line for the user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dialling { remote } => write!(f, "connecting to {remote} ..."),
            Self::PathLikePort {
                remote: Remote { host, path, .. },
            } => {
                let number = Escaped(path);
                write!(
                    f,
                    "'{number}' is taken as a path; if it is the port, write {host}:{number}:PATH"
                )
            }
            Self::SessionBegins { .. } => f.write_str("a session begins"),
            Self::ConnectionLost {
                remote,
                cause,
                timeout,
            } => {
                let cause = Causes(*cause);
                write!(
                    f,
                    "connection to {remote} lost: {cause}; reconnecting for up to {timeout}"
                )
            }
            Self::LanesAreSessions { remote } => {
                write!(
                    f,
                    "the ssh server at {} forwards no connections; the data uses sessions of the login, as many as its \
                     MaxSessions permits",
                    remote.host
                )
            }
            Self::ThroughSsh { remote } => {
                write!(
                    f,
                    "the receiver's port at {} does not answer; the data goes through ssh",
                    remote.host
                )
            }
            Self::BlackHole { cause } => {
                write!(f, "cannot {cause}; continuing with small packets")
            }
            Self::ReceiverBusy { cause } => Causes(*cause).fmt(f),
            Self::KeyPinned { remote, key } => {
                write!(
                    f,
                    "pinned the key of {}:{}: {key}",
                    remote.host, remote.port
                )
            }
            Self::CopyRuns { id, remote } => {
                write!(
                    f,
                    "the copy continues without this command; for its result run: zmove result {id} {remote}"
                )
            }
            Self::PathsUnread { file, source } => {
                write!(f, "ignoring '{}': {source}", Escaped::path(file))
            }
            Self::PathsUnwritten { file, source } => {
                write!(f, "write '{}': {source}", Escaped::path(file))
            }
            Self::SourceMissing { path, source } => {
                let cause = PathCause {
                    error: source,
                    path,
                };
                write!(f, "sender: open '{}': {cause}", Escaped::path(path))
            }
        }
    }
}
