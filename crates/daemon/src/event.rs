//! The events of a daemon, and their text in the log.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use zmove_disk::Mount;
use zmove_transport::Fingerprint;
use zmove_types::{Counters, Escaped};
use zmove_wire::{Cipher, Place};

use zmove_receiver::Failures;
use zmove_receiver::SessionError;
use zmove_receiver::{Looked, SessionReport};

use crate::sending::SendingError;
use crate::transfers::Who;

/// What a transfer has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The target that the sender asked for; `None` if the transfer ended before that.
    pub target: Option<Vec<u8>>,
    /// Bytes of file contents received.
    pub bytes: u64,
    /// Bytes of filler received; `None` for anything but a probe.
    pub probed: Option<u64>,
    /// Regular files that were given their names.
    pub files: u64,
    /// The duration of the transfer.
    pub elapsed: Duration,
    /// The entries that have failed here, by operation and cause.
    pub failures: Vec<Failures>,
}

/// The kind of reason for which a connection was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
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
    /// The connection would exceed a limit.
    Limit,
    /// This daemon is being stopped.
    Stopping,
    /// The lane belongs to no transfer, or is one too many.
    Transfer,
}

/// An event that a daemon logs.
#[derive(Debug)]
#[non_exhaustive]
pub enum DaemonEvent {
    /// A connection was rejected.
    Rejected {
        /// The kind of reason.
        kind: Rejection,
        /// The address of the peer.
        address: SocketAddr,
        /// The reason, in words.
        reason: String,
    },
    /// A transfer waits in the queue.
    Waits {
        /// The sender.
        who: Who,
        /// The reason why the transfer waits, in words.
        reason: String,
    },
    /// A transfer has begun.
    Begun {
        /// The sender.
        who: Who,
    },
    /// A transfer has ended.
    Ended(EndedTransfer),
    /// A client was given a grant, by which another host may send here.
    Granted {
        /// The client.
        who: Who,
        /// The key of the host.
        source: Fingerprint,
        /// The target that the grant is for.
        target: Vec<u8>,
    },
    /// The system would not accept a connection.
    Accept {
        /// The system's error.
        error: std::io::Error,
    },
}

/// A transfer that has ended, or that was left behind.
#[derive(Debug)]
pub struct EndedTransfer {
    /// The peer.
    pub who: Who,
    /// What was moved until then; the target of a transfer that sends is what was asked for.
    pub moved: Moved,
    /// How the transfer ended.
    pub end: TransferEnd,
}

/// How a transfer ended.
#[derive(Debug)]
pub enum TransferEnd {
    /// A push, or a cleaning, came to its end.
    Received {
        /// The cipher of the transfer's lanes.
        cipher: Cipher,
        /// The result of the session.
        report: SessionReport,
    },
    /// A probe came to its end.
    Probed,
    /// A transfer to this host ended early.
    Broken(SessionError),
    /// A pull was sent to its end.
    Sent {
        /// The cipher of the transfer's lanes.
        cipher: Cipher,
        /// The number of entries that failed.
        failed: u64,
    },
    /// A copy that the peer has ordered was sent to another host to its end.
    Copied {
        /// The host.
        to: Place,
        /// The number of entries that failed.
        failed: u64,
    },
    /// A pull, or a copy, ended early.
    SendingBroken(SendingError),
    /// The transfer did not end when the daemon was stopped. The mount of its target is known to some of them.
    LeftBehind(Option<Mount>),
}

impl TransferEnd {
    /// The number of entries that failed in a transfer that came to its end.
    #[must_use]
    pub const fn faults(&self) -> Option<u64> {
        match self {
            Self::Received { report, .. } => Some(report.faults),
            Self::Probed => Some(0),
            Self::Sent { failed, .. } | Self::Copied { failed, .. } => Some(*failed),
            Self::Broken(_) | Self::SendingBroken(_) | Self::LeftBehind(_) => None,
        }
    }

    /// The result in one word, for counters.
    #[must_use]
    pub const fn result(&self) -> &'static str {
        match self.faults() {
            Some(0) => "complete",
            Some(_) => "partial",
            None => "broken",
        }
    }

    /// The kind of the error that ended the transfer early.
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
    /// The kind in one word, for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Moved {
    /// The same, with the files and bytes of the account that a sender keeps.
    pub(crate) fn by_account(self, counters: &Counters) -> Self {
        Self {
            files: counters.files,
            bytes: counters.bytes,
            ..self
        }
    }

    /// The target or the sources as they are shown.
    fn shown(&self) -> Escaped<'_> {
        Escaped(self.target.as_deref().unwrap_or_default())
    }
}

/// A number of files, in singular or plural.
struct Files(u64);

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} file{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// The target or the sources of a transfer behind this word, or nothing where the peer has named none.
struct Named<'a>(&'static str, &'a Moved);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(word, moved) = self;
        match moved.target {
            Some(_) => write!(f, " {word} '{}'", moved.shown()),
            None => Ok(()),
        }
    }
}

/// The cipher of a transfer where that is worth a word.
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
                    Some(Looked::Preview) => {
                        write!(f, "previewed by {who} into '{path}' in {seconds}")?;
                    }
                    Some(Looked::Verification) => {
                        write!(f, "verified by {who} against '{path}' in {seconds}")?;
                    }
                    Some(Looked::Cleaning) => write!(
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
                let target = Named("into", moved);
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
                let sources = Named("from", moved);
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
    /// Writes how much was moved, where something was to be, whose key it was, and what has failed here.
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
                Some(trouble) => write!(f, "; without a journal: {trouble}"),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Writes which storage does not answer.
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
