//! Errors of writing and reading journals.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;
use zmove_types::Escaped;
use zmove_wire::WireError;

use super::record::{BODY_BYTES_MAX, VERSION};

/// The reason why a journal cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A system call failed.
    #[error("{operation} '{}': {source}", Escaped::path(path))]
    Io {
        /// The name of the operation.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The first record is incomplete, or the file is not a journal.
    #[error("it is not a journal, or its beginning is damaged")]
    Damaged,
    /// A release with a different format version wrote the journal.
    #[error(
        "it has format version {found}, and this zmove reads {VERSION}: use the release that wrote it"
    )]
    OtherVersion {
        /// The version of the journal.
        found: u32,
    },
    /// A record is longer than the format allows.
    #[error("a record has {bytes} bytes, more than the limit of {BODY_BYTES_MAX}")]
    TooLong {
        /// The length of the record's body.
        bytes: usize,
    },
    /// The key has reached the limit on the number of its journals or on their total size.
    #[error(
        "its key has reached the limit of {limit} {what} here (limits.{setting}): complete its older transfers, or \
         remove their journals with 'zmove journal clean'"
    )]
    NoRoom {
        /// The unit of the limit: journals or bytes.
        what: &'static str,
        /// The name of the limit in the settings of a daemon.
        setting: &'static str,
        /// The limit.
        limit: u64,
    },
    /// This journal has reached its share of the bytes for all journals of its key.
    #[error(
        "the journal '{}' has reached {limit} bytes, {share} of limits.journal_bytes_per_identity: it records nothing \
         more, so an interrupted transfer sends the rest again; raise the limit to avoid this",
        Escaped::path(path)
    )]
    ShareFull {
        /// The journal.
        path: PathBuf,
        /// The share of the limit, in words.
        share: &'static str,
        /// The maximum size of the journal, in bytes.
        limit: u64,
    },
    /// There are more unfinished files than a journal may contain.
    #[error("more than {limit} files are unfinished at once")]
    TooManyFiles {
        /// Maximum number of unfinished files.
        limit: usize,
    },
    /// An incomplete record could not be truncated, so no record may follow it.
    #[error("an earlier record could not be written completely")]
    Broken,
    /// The journals of earlier transfers need more memory than the key's quota allows.
    #[error("{0}")]
    OverLimit(#[from] WireError),
    /// The session was dropped while its threads hung. Another session may take over its journal.
    #[error("its session was abandoned")]
    LeftBehind,
}

impl JournalError {
    /// Adds the operation and the path to a system error.
    pub(super) fn io<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Io {
            operation,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Returns the system's error number, or the closest equivalent.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            Self::NoRoom { .. } | Self::ShareFull { .. } => Errno::DQUOT,
            Self::OverLimit(_) => Errno::NOMEM,
            Self::LeftBehind => Errno::CANCELED,
            _ => Errno::IO,
        }
    }
}
