//! Failures of single files, which do not end the push.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use zmove_disk::PathCause;
use zmove_scan::ScanError;
use zmove_types::Escaped;
use zmove_wire::{Fault, Operation};

/// The reason why one file was not copied. The push continues after such an error.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    /// The scan could not examine the file.
    #[error("sender: {0}")]
    Scan(ScanError),
    /// The file could not be opened.
    #[error("sender: open '{}': {}", Escaped::path(path), PathCause { error: source, path })]
    Open { path: PathBuf, source: io::Error },
    /// The file could not be read.
    #[error("sender: read '{}': {}", Escaped::path(path), PathCause { error: source, path })]
    Read { path: PathBuf, source: io::Error },
    /// The file existed when it was scanned, but is no longer a regular file.
    #[error(
        "sender: open '{}': it is no longer a regular file",
        Escaped::path(path)
    )]
    Replaced { path: PathBuf },
    /// The file changed while it was read.
    #[error(
        "sender: read '{}': the file changed while it was being copied; run the command again",
        Escaped::path(path)
    )]
    Changed { path: PathBuf },
    /// The file has more groups than can be numbered.
    #[error(
        "sender: read '{}': files larger than 16 PiB cannot be sent",
        Escaped::path(path)
    )]
    TooLarge { path: PathBuf },
    /// The target of a link is empty or too long.
    #[error(
        "sender: read link '{}': its target is empty or longer than 4096 bytes",
        Escaped::path(path)
    )]
    LinkTarget { path: PathBuf },
    /// The receiver reported a fault.
    #[error("receiver: {0}")]
    Receiver(Fault),
    /// A guard objected to the removal of entries at the target.
    #[error("sender: nothing is removed at the target: {why}")]
    Guarded { why: String },
    /// A source is empty and its mirror is not.
    #[error(
        "sender: '{}' is empty and its mirror is not (is its file system mounted?): nothing is removed at the target; \
         use --allow-empty to empty the mirror",
        Escaped::path(path)
    )]
    EmptySource { path: PathBuf },
    /// A source is no longer the directory that was pushed.
    #[error("sender: {0}; nothing is removed at the target")]
    OtherSource(ScanError),
    /// The file arrived damaged every time.
    #[error(
        "receiver: verify '{}': it arrived damaged {times} times in a row and was not copied",
        Escaped::path(path)
    )]
    Damaged { path: PathBuf, times: u8 },
    /// The receiver never reported the result of the file.
    #[error("receiver: '{}' was sent but never confirmed", Escaped::path(path))]
    Unconfirmed { path: PathBuf },
    /// Some files were neither moved nor skipped, and no failure was reported. This is a bug in this program.
    #[error(
        "sender: {files} of the files found were neither moved nor skipped; this is a bug in zmove: run the command \
         again, and please report it"
    )]
    Unaccounted { files: u64 },
}

/// Returns the message about a file that has changed since it was found.
#[must_use]
pub fn file_changed(path: PathBuf) -> String {
    FileError::Changed { path }.to_string()
}

impl FileError {
    /// Returns whether a file or link that the scan has found could not be read completely.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Read { .. }
                | Self::Replaced { .. }
                | Self::Changed { .. }
                | Self::TooLarge { .. }
                | Self::LinkTarget { .. }
        )
    }

    /// Returns whether an entry that should be at the target is missing or incorrect there.
    pub(crate) fn is_unplaced(&self) -> bool {
        match self {
            Self::Receiver(fault) => {
                !matches!(fault.operation, Operation::List | Operation::Delete)
            }
            Self::Damaged { .. } => true,
            _ => false,
        }
    }
}
