//! What a daemon has to tell its operator, and in which words.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use zmove_transport::Fingerprint;
use zmove_types::Escaped;
use zmove_wire::Cipher;

use crate::error::SessionError;
use crate::session::ways::SessionReport;

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// What the list of keys calls them.
    pub name: String,
    /// From where.
    pub address: SocketAddr,
    /// The key they have proved.
    pub key: Fingerprint,
}

/// What a transfer has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The target as it was asked for; empty if it never was.
    pub target: Vec<u8>,
    /// Bytes of file contents that came.
    pub bytes: u64,
    /// Bytes of filler that came; `None` for anything but a probe.
    pub probed: Option<u64>,
    /// Regular files that got their names.
    pub files: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Why a connection came to nothing, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejection {
    /// The client did not prove a key.
    Handshake,
    /// The connection made room for others that had not proved a key.
    Crowded,
    /// The client's key is not in the list.
    UnknownKey,
    /// The list of keys cannot be read.
    KeyList,
    /// The client sent no greeting, or not that of zmove.
    Greeting,
    /// The client asked for lanes in clear.
    Clear,
    /// The connection would be beyond a limit.
    Limit,
    /// This daemon is being stopped.
    Stopping,
    /// The lane belongs to no transfer, or is one too many.
    Transfer,
}

/// What a daemon has to tell its operator.
#[derive(Debug)]
#[non_exhaustive]
pub enum DaemonEvent {
    /// A connection came to nothing.
    Rejected {
        /// The kind of reason.
        kind: Rejection,
        /// From where.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// A transfer waits in line.
    Waits {
        /// Who sends.
        who: Who,
        /// What for.
        reason: String,
    },
    /// A transfer has begun.
    Begun {
        /// Who sends.
        who: Who,
    },
    /// A transfer came to its end.
    Received {
        /// Who sent it.
        who: Who,
        /// The cipher of the transfer's lanes.
        cipher: Cipher,
        /// What came.
        moved: Moved,
        /// What was done.
        report: SessionReport,
    },
    /// A probe came to its end.
    Probed {
        /// Who has probed.
        who: Who,
        /// What came.
        moved: Moved,
    },
    /// A transfer ended early.
    Broken {
        /// Who sent it.
        who: Who,
        /// What came before.
        moved: Moved,
        /// Why.
        error: SessionError,
    },
    /// The system would not accept a connection.
    Accept {
        /// Why.
        error: std::io::Error,
    },
}

impl Rejection {
    /// One word, for counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Crowded => "crowded",
            Self::UnknownKey => "unknown_key",
            Self::KeyList => "key_list",
            Self::Greeting => "greeting",
            Self::Clear => "clear",
            Self::Limit => "limit",
            Self::Stopping => "stopping",
            Self::Transfer => "transfer",
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

impl fmt::Display for DaemonEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { address, reason, .. } => write!(f, "rejected {address}: {reason}"),
            Self::Waits { who, reason } => write!(f, "in line: {who}: {reason}"),
            Self::Begun { who } => write!(f, "begun by {who}"),
            Self::Received { who, cipher, moved, report } => {
                let target = Escaped(&moved.target);
                let (seconds, faults) = (moved.elapsed.as_secs_f64(), report.faults);
                let clear = if *cipher == Cipher::None { ", in clear" } else { "" };
                write!(f, "received from {who} into '{target}' in {seconds:.2} s, {faults} faults{clear}")?;
                write!(f, "; {} files, {} bytes; key {}", moved.files, moved.bytes, who.key)?;
                let trouble = report.journal_trouble.as_ref();
                trouble.map_or(Ok(()), |trouble| write!(f, "; without a journal: {trouble}"))
            }
            Self::Probed { who, moved } => {
                let (seconds, bytes) = (moved.elapsed.as_secs_f64(), moved.probed.unwrap_or(0));
                write!(f, "probed by {who} for {seconds:.2} s; {bytes} bytes of filler; key {}", who.key)
            }
            Self::Broken { who, moved: Moved { probed: Some(bytes), elapsed, .. }, error } => {
                let seconds = elapsed.as_secs_f64();
                write!(f, "probe broken off by {who} after {seconds:.2} s: {error}")?;
                write!(f, "; {bytes} bytes of filler; key {}", who.key)
            }
            Self::Broken { who, moved, error } => {
                let target = Escaped(&moved.target);
                let (seconds, Moved { files, bytes, .. }) = (moved.elapsed.as_secs_f64(), moved);
                write!(f, "broken off by {who} into '{target}' after {seconds:.2} s: {error}")?;
                write!(f, "; {files} files, {bytes} bytes; key {}", who.key)
            }
            Self::Accept { error } => write!(f, "accept a connection: {error}"),
        }
    }
}
