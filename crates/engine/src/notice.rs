//! What the engine tells beside the [`Event`](zmove_types::Event)s of a session.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

use zmove_transport::Fingerprint;
use zmove_types::Escaped;

use crate::backoff::Timeout;
use crate::error::{Causes, PushError};
use crate::location::Remote;

/// One thing that whoever pushes may want to know.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A session begins: no more questions come, and events count from nothing.
    SessionBegins,
    /// The connection is gone and is dialled again.
    ConnectionLost {
        /// The receiver.
        remote: &'a Remote,
        /// The reason.
        cause: &'a PushError,
        /// How long it is dialled for.
        timeout: Timeout,
    },
    /// The receiver has no room now and is waited for; told with each attempt.
    ReceiverBusy {
        /// The reason.
        cause: &'a PushError,
    },
    /// The key of a host that was not known is remembered.
    KeyPinned {
        /// The host.
        remote: &'a Remote,
        /// Its key.
        key: Fingerprint,
    },
    /// The memory of paths cannot be read or understood, and is not used.
    PathsUnread {
        /// Its file.
        file: &'a Path,
        /// The reason.
        source: io::Error,
    },
    /// The memory of paths cannot be written.
    PathsUnwritten {
        /// Its file.
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

/// Anything that wants to know.
pub trait Listener: Sync {
    /// Takes one notice; must not block for long.
    fn hear(&self, notice: &Notice<'_>);
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoListener;

impl Listener for NoListener {
    fn hear(&self, _notice: &Notice<'_>) {}
}

impl Display for Notice<'_> {
    /// One line for the user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionBegins => f.write_str("a session begins"),
            Self::ConnectionLost { remote, cause, timeout } => {
                let cause = Causes(*cause);
                write!(f, "connection to {remote} lost: {cause}; reconnecting for up to {timeout}")
            }
            Self::ReceiverBusy { cause } => Causes(*cause).fmt(f),
            Self::KeyPinned { remote, key } => {
                write!(f, "pinned the key of {}:{}: {key}", remote.host, remote.port)
            }
            Self::PathsUnread { file, source } => {
                write!(f, "'{}' is not used: {source}", Escaped::path(file))
            }
            Self::PathsUnwritten { file, source } => write!(f, "write '{}': {source}", Escaped::path(file)),
            Self::SourceMissing { path, source } => {
                write!(f, "sender: open '{}': {source}", Escaped::path(path))
            }
        }
    }
}
