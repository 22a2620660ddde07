//! The notices of the engine, beside the [`Event`](zmove_types::Event)s of a session.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

use zmove_disk::CauseAt;
use zmove_transport::{BlackHole, Fingerprint};
use zmove_types::{Escaped, TransferId};

use crate::backoff::Timeout;
use crate::connecting::location::Remote;
use crate::error::{Causes, PushError};

/// One notice to the caller of a push.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// The receiver has not answered at once, and is still being dialled.
    Dialling {
        /// The receiver.
        remote: &'a Remote,
    },
    /// The receiver cannot be reached, and what was taken for a path could be its port.
    PathLikePort {
        /// The receiver.
        remote: &'a Remote,
    },
    /// A session begins: no more questions are asked, and events count from zero.
    SessionBegins {
        /// The transfer, by which its host knows it too; not known of a copy between two other hosts.
        transfer: Option<TransferId>,
    },
    /// The connection is lost and is dialled again.
    ConnectionLost {
        /// The receiver.
        remote: &'a Remote,
        /// The reason.
        cause: &'a PushError,
        /// For how long the receiver is dialled again.
        timeout: Timeout,
    },
    /// Full-size packets vanish on the path, and only small ones are sent from now on.
    BlackHole {
        /// The reason.
        cause: &'a BlackHole,
    },
    /// The receiver has no room now and is waited for; reported with each attempt.
    ReceiverBusy {
        /// The reason.
        cause: &'a PushError,
    },
    /// The key of an unknown host has been pinned.
    KeyPinned {
        /// The host.
        remote: &'a Remote,
        /// The host's key.
        key: Fingerprint,
    },
    /// A copy between two other hosts has begun, and goes on without this one.
    CopyRuns {
        /// The id of the copy, as it is written.
        id: &'a str,
        /// The host that sends.
        remote: &'a Remote,
    },
    /// The memory of paths cannot be read or understood, and is not used.
    PathsUnread {
        /// The memory's file.
        file: &'a Path,
        /// The reason.
        source: io::Error,
    },
    /// The memory of paths cannot be written.
    PathsUnwritten {
        /// The memory's file.
        file: &'a Path,
        /// The reason.
        source: io::Error,
    },
    /// A source cannot be opened; the others are pushed.
    SourceMissing {
        /// The source.
        path: &'a Path,
        /// The reason.
        source: io::Error,
    },
}

/// A consumer of notices.
pub trait Listener: Sync {
    /// Takes one notice; must not block for long.
    fn hear(&self, notice: &Notice<'_>);
}

/// A listener that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoListener;

impl Listener for NoListener {
    fn hear(&self, _notice: &Notice<'_>) {}
}

impl Display for Notice<'_> {
    /// Writes the notice as one line for the user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dialling { remote } => write!(f, "connecting to {remote} ..."),
            Self::PathLikePort {
                remote: Remote { host, path, .. },
            } => {
                let number = Escaped(path);
                write!(
                    f,
                    "'{number}' is a path here; where it is the port, write {host}:{number}:PATH"
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
                    "it goes on without this command; its result: zmove result {id} {remote}"
                )
            }
            Self::PathsUnread { file, source } => {
                write!(f, "'{}' is not used: {source}", Escaped::path(file))
            }
            Self::PathsUnwritten { file, source } => {
                write!(f, "write '{}': {source}", Escaped::path(file))
            }
            Self::SourceMissing { path, source } => {
                let cause = CauseAt {
                    error: source,
                    path,
                };
                write!(f, "sender: open '{}': {cause}", Escaped::path(path))
            }
        }
    }
}
