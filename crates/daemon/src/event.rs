//! The events of a daemon and their text in the log.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use zmove_disk::Mount;
use zmove_transport::Fingerprint;
use zmove_types::{Counters, Escaped};
use zmove_wire::{Cipher, HostAddress};

use zmove_receiver::Failures;
use zmove_receiver::SessionError;
use zmove_receiver::{InspectionKind, SessionReport};

use crate::sending::SendingError;
use crate::transfers::PeerInfo;

/// The amounts that a transfer has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The target that the sender requested, or the sources of a transfer that sends. `None` if the transfer ended
    /// before its request was read.
    pub target: Option<Vec<u8>>,
    /// Bytes of file contents received or sent.
    pub bytes: u64,
    /// Bytes of filler data that a probe has received. `None` unless the transfer is a probe.
    pub probed: Option<u64>,
    /// Number of regular files that were received and renamed into place, or that were sent.
    pub files: u64,
    /// Duration of the transfer.
    pub elapsed: Duration,
    /// Number of entries that failed on this host, grouped by operation and cause.
    pub failures: Vec<Failures>,
}

/// The category of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Rejection {
    /// The client did not prove a key.
    Handshake,
    /// The connection was closed before the peer had proved its key, to make room for other connections.
    Crowded,
    /// The client's key is unknown or not authorized.
    UnknownKey,
    /// The list of keys cannot be read.
    KeyList,
    /// The client sent no greeting, or one that is not valid.
    Greeting,
    /// The client requested unencrypted lanes.
    Clear,
    /// The connection would exceed a limit.
    Limit,
    /// The daemon is being stopped.
    Stopping,
    /// The lane belongs to no transfer, or its transfer already has too many lanes. Also used for a transfer that is
    /// already running.
    Transfer,
}

/// An event that a daemon logs.
#[derive(Debug)]
#[non_exhaustive]
pub enum DaemonEvent {
    /// A connection was rejected.
    Rejected {
        /// The category of the reason.
        kind: Rejection,
        /// The address of the peer.
        address: SocketAddr,
        /// The reason, as text for the log.
        reason: String,
    },
    /// A transfer is queued.
    Waits {
        /// The peer of the transfer.
        who: PeerInfo,
        /// The reason for the wait, as text for the log.
        reason: String,
    },
    /// A transfer has begun.
    Begun {
        /// The peer of the transfer.
        who: PeerInfo,
    },
    /// A transfer has ended.
    Ended(EndedTransfer),
    /// A grant was issued to a client. It allows another host to send files to this host.
    Granted {
        /// The client.
        who: PeerInfo,
        /// The key of the other host.
        source: Fingerprint,
        /// The target of the grant.
        target: Vec<u8>,
    },
    /// The system refused to accept a connection.
    Accept {
        /// The system's error.
        error: std::io::Error,
    },
}

/// A transfer that has ended or that was abandoned by the daemon.
#[derive(Debug)]
pub struct EndedTransfer {
    /// The peer.
    pub who: PeerInfo,
    /// The amounts moved until the end. For a transfer that sends, the target holds the requested sources.
    pub moved: Moved,
    /// The result of the transfer.
    pub end: TransferEnd,
}

/// The result of a transfer.
#[derive(Debug)]
pub enum TransferEnd {
    /// A push to this host or a cleanup on this host was completed.
    Received {
        /// The cipher of the transfer's lanes.
        cipher: Cipher,
        /// The report of the session.
        report: SessionReport,
    },
    /// A probe was completed.
    Probed,
    /// A transfer to this host ended early.
    Broken(SessionError),
    /// A pull was completed.
    Sent {
        /// The cipher of the transfer's lanes.
        cipher: Cipher,
        /// Number of failed entries.
        failed: u64,
    },
    /// A copy to another host, ordered by the peer, was completed.
    Copied {
        /// The other host.
        to: HostAddress,
        /// Number of failed entries.
        failed: u64,
    },
    /// A pull or a copy ended early.
    SendingBroken(SendingError),
    /// The transfer was abandoned because it did not end when the daemon was stopped. Contains the mount of its target,
    /// if known.
    LeftBehind(Option<Mount>),
}

impl TransferEnd {
    /// Returns the number of failed entries of a completed transfer.
    #[must_use]
    pub const fn faults(&self) -> Option<u64> {
        match self {
            Self::Received { report, .. } => Some(report.faults),
            Self::Probed => Some(0),
            Self::Sent { failed, .. } | Self::Copied { failed, .. } => Some(*failed),
            Self::Broken(_) | Self::SendingBroken(_) | Self::LeftBehind(_) => None,
        }
    }

    /// Returns the name of the result as one word, for metrics.
    #[must_use]
    pub const fn result(&self) -> &'static str {
        match self.faults() {
            Some(0) => "complete",
            Some(_) => "partial",
            None => "broken",
        }
    }

    /// Returns the kind of the error that ended the transfer early, or `None` if no error ended the transfer.
    #[must_use]
    pub const fn error_kind(&self) -> Option<&'static str> {
        match self {
            Self::Broken(error) => Some(error.kind()),
            Self::SendingBroken(error) => Some(error.kind()),
            _ => None,
        }
    }
}

impl Rejection {
    /// Returns the name of the category as one word, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Moved {
    /// Returns this value with the sender's counts of files and bytes.
    pub(crate) fn with_sender_counts(self, counters: &Counters) -> Self {
        Self {
            files: counters.files,
            bytes: counters.bytes,
            ..self
        }
    }

    /// Returns the target or the sources for display.
    fn shown(&self) -> Escaped<'_> {
        Escaped(self.target.as_deref().unwrap_or_default())
    }
}

/// A number of files, displayed in singular or plural.
struct Files(u64);

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} file{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// A word followed by the target or the sources of a transfer. Displays nothing if the peer has not named any.
struct NamedTarget<'a>(&'static str, &'a Moved);

impl fmt::Display for NamedTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(word, moved) = self;
        match moved.target {
            Some(_) => write!(f, " {word} '{}'", moved.shown()),
            None => Ok(()),
        }
    }
}

/// A cipher that is displayed only if the lanes are not encrypted.
struct InClear(Cipher);

impl fmt::Display for InClear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Cipher::None => f.write_str(", in clear"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for DaemonEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected {
                address, reason, ..
            } => write!(f, "rejected {address}: {reason}"),
            Self::Waits { who, reason } => write!(f, "queued: {who}: {reason}"),
            Self::Begun { who } => write!(f, "begun by {who}"),
            Self::Ended(ended) => ended.fmt(f),
            Self::Granted {
                who,
                source,
                target,
            } => {
                let target = Escaped(target);
                let key = who.key;
                write!(
                    f,
                    "granted to {who}: a copy by {source} into '{target}'; key {key}"
                )
            }
            Self::Accept { error } => write!(f, "accept a connection: {error}"),
        }
    }
}

impl fmt::Display for EndedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, moved, end } = self;
        let path = moved.shown();
        let seconds = format!("{:.2} s", moved.elapsed.as_secs_f64());
        match end {
            TransferEnd::Received { cipher, report } => {
                let faults = report.faults;
                match report.looked {
                    Some(InspectionKind::Preview) => {
                        write!(f, "previewed by {who} into '{path}' in {seconds}")?;
                    }
                    Some(InspectionKind::Verification) => {
                        write!(f, "verified by {who} against '{path}' in {seconds}")?;
                    }
                    Some(InspectionKind::Cleaning) => write!(
                        f,
                        "cleaned by {who} at '{path}' in {seconds}, {} leftovers, {faults} faults",
                        report.items
                    )?,
                    None => write!(
                        f,
                        "received from {who} into '{path}' in {seconds}, {faults} faults{}",
                        InClear(*cipher)
                    )?,
                }
            }
            TransferEnd::Probed => write!(f, "probed by {who} for {seconds}")?,
            TransferEnd::Broken(error) if moved.probed.is_some() => {
                write!(f, "probe broken off by {who} after {seconds}: {error}")?;
            }
            TransferEnd::Broken(error) => {
                let target = NamedTarget("into", moved);
                write!(f, "broken off by {who}{target} after {seconds}: {error}")?;
            }
            TransferEnd::Sent { cipher, failed } => write!(
                f,
                "sent to {who} from '{path}' in {seconds}, {failed} faults{}",
                InClear(*cipher)
            )?,
            TransferEnd::Copied { to, failed } => write!(
                f,
                "copied for {who} from '{path}' to {}:{} in {seconds}, {failed} faults",
                Escaped(to.host.as_bytes()),
                to.port
            )?,
            TransferEnd::SendingBroken(error) => {
                let sources = NamedTarget("from", moved);
                write!(
                    f,
                    "sending{sources} to {who} broken off after {seconds}: {error}"
                )?;
            }
            TransferEnd::LeftBehind(mount) => {
                write!(f, "left behind: the transfer of {who}, '{path}': ")?;
                write_storage(f, mount.as_ref())?;
            }
        }
        self.write_amount(f)
    }
}

impl EndedTransfer {
    /// Writes the amount that was moved (if the transfer was to move files), the peer's key, and the failures on this
    /// host.
    fn write_amount(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, moved, end } = self;
        let looked = matches!(end, TransferEnd::Received { report, .. } if report.looked.is_some());
        match moved.probed {
            Some(bytes) => write!(f, "; {bytes} bytes of filler")?,
            None if looked || matches!(end, TransferEnd::SendingBroken(_)) => {}
            None => write!(f, "; {}, {} bytes", Files(moved.files), moved.bytes)?,
        }
        write!(f, "; key {}", who.key)?;
        if looked || !matches!(end, TransferEnd::Received { .. } | TransferEnd::Broken(_)) {
            return Ok(());
        }
        for Failures {
            operation,
            code,
            count,
            first,
        } in &moved.failures
        {
            write!(f, "; {count} x {operation}: {code}")?;
            if let Some(first) = first {
                write!(f, ", of which '{first}'")?;
            }
        }
        match end {
            TransferEnd::Received { report, .. } => match &report.journal_trouble {
                Some(trouble) => write!(f, "; its journal is missing or incomplete: {trouble}"),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Writes the mount of the storage that does not respond.
fn write_storage(f: &mut fmt::Formatter<'_>, mount: Option<&Mount>) -> fmt::Result {
    match mount {
        Some(mount) => {
            let point = Escaped::path(&mount.point);
            let kind = Escaped(mount.kind.as_bytes());
            let source = Escaped(mount.source.as_bytes());
            write!(f, "the storage at '{point}' ({kind}, {source})")?;
        }
        None => f.write_str("its storage")?,
    }
    f.write_str(" does not answer; its locks are released, and another daemon can be started")
}
