//! Why a whole push ends early, and what goes wrong with single files on the way.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use zmove_scan::ScanError;
use zmove_transport::{ControlError, LaneError};
use zmove_types::Escaped;
use zmove_wire::{Fault, GreetingError, Operation, Refusal, RefusalCode, WireError};

/// Why a push ended before everything was settled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The receiver will not take the transfer.
    #[error("receiver: {}", .0.text)]
    Refused(Refusal),
    /// The receiver has had no room for the transfer for as long as it was to be waited for.
    #[error("receiver: {reason}; its turn has not come within {} s", waited.as_secs_f64())]
    StillInLine {
        /// What it was waited for.
        reason: String,
        /// How long.
        waited: Duration,
    },
    /// The peer broke the protocol.
    #[error("the receiver broke the protocol: {0}")]
    PeerMisbehaved(#[from] WireError),
    /// The peer speaks another version.
    #[error("{0}")]
    PeerIncompatible(#[from] GreetingError),
    /// The control connection ended.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// A lane ended in mid-transfer.
    #[error("{0}")]
    Lane(#[from] LaneError),
    /// The user stopped it.
    #[error("interrupted")]
    Interrupted,
    /// No lane could be set up.
    #[error("no data lane could be set up")]
    NoLane,
    /// The receiver has not said in time whether it takes the transfer.
    #[error("the receiver does not answer")]
    Silent,
    /// The manifest could not be written.
    #[error("write the manifest: {0}")]
    Manifest(#[source] io::Error),
    /// This side could not start a thread.
    #[error("start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl SessionError {
    /// Whether the receiver has had no room for the transfer, and may have some later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == RefusalCode::Full)
    }

    /// Whether connections were lost, or never came about, so that another session may come to its end without anybody
    /// changing a setting. What came and makes no sense, or does not authenticate, is no such thing.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                use RefusalCode::{Broken, Busy, Full, Stopping};
                matches!(refusal.code, Stopping | Broken | Busy | Full)
            }
            Self::Control(error) => error.is_lost(),
            Self::Lane(error) => error.is_lost(),
            Self::NoLane | Self::Silent => true,
            Self::PeerMisbehaved(_)
            | Self::PeerIncompatible(_)
            | Self::StillInLine { .. }
            | Self::Interrupted
            | Self::Manifest(_)
            | Self::Thread(_) => false,
        }
    }
}

/// Why one file did not make it; the push goes on.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    /// The scan could not see it.
    #[error("sender: {0}")]
    Scan(ScanError),
    /// It could not be opened.
    #[error("sender: open '{}': {source}", Escaped::path(path))]
    Open { path: PathBuf, source: io::Error },
    /// It could not be read.
    #[error("sender: read '{}': {source}", Escaped::path(path))]
    Read { path: PathBuf, source: io::Error },
    /// It was there at the scan and is no regular file now.
    #[error("sender: open '{}': it is no longer a regular file", Escaped::path(path))]
    Replaced { path: PathBuf },
    /// It changed while it was read.
    #[error(
        "sender: read '{}': the file changed while it was being copied; run the command again",
        Escaped::path(path)
    )]
    Changed { path: PathBuf },
    /// Its groups cannot be numbered.
    #[error("sender: read '{}': files beyond 16 PiB cannot be carried", Escaped::path(path))]
    TooLarge { path: PathBuf },
    /// A link's target cannot be carried.
    #[error("sender: read link '{}': its target is empty or longer than 4096 bytes", Escaped::path(path))]
    LinkTarget { path: PathBuf },
    /// The receiver could not place it.
    #[error("receiver: {0}")]
    Receiver(Fault),
    /// Removing could reach the source itself.
    #[error("sender: nothing is removed at the target: {why}")]
    Guarded { why: String },
    /// What is walked now is not what was pushed.
    #[error("sender: {0}; nothing is removed at the target")]
    OtherSource(ScanError),
    /// It arrived damaged every time.
    #[error(
        "receiver: verify '{}': it arrived damaged {times} times in a row; given up",
        Escaped::path(path)
    )]
    Damaged { path: PathBuf, times: u8 },
    /// The receiver never said what became of it.
    #[error("receiver: '{}' was sent but never confirmed", Escaped::path(path))]
    Unconfirmed { path: PathBuf },
    /// Nothing else was told of them: a mistake of the program itself.
    #[error(
        "sender: {files} of the files that were found were neither moved nor skipped; this is a bug in zmove: run the \
         command again, and please report it"
    )]
    Unaccounted { files: u64 },
}

impl FileError {
    /// Whether the scan has found a file or link of which not all could be read.
    pub(crate) fn is_unread(&self) -> bool {
        match self {
            Self::Open { .. }
            | Self::Read { .. }
            | Self::Replaced { .. }
            | Self::Changed { .. }
            | Self::TooLarge { .. }
            | Self::LinkTarget { .. } => true,
            Self::Scan(_)
            | Self::Receiver(_)
            | Self::Guarded { .. }
            | Self::OtherSource(_)
            | Self::Damaged { .. }
            | Self::Unconfirmed { .. }
            | Self::Unaccounted { .. } => false,
        }
    }
    /// Whether something was to be at the target and is not, or not as it should be.
    pub(crate) fn is_unplaced(&self) -> bool {
        match self {
            Self::Receiver(fault) => !matches!(fault.operation, Operation::List | Operation::Delete),
            Self::Damaged { .. } => true,
            _ => false,
        }
    }
}
