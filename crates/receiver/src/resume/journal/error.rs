//! Why a journal cannot be written or read.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;
use zmove_types::Escaped;
use zmove_wire::WireError;

use super::record::{BODY_BYTES_MAX, VERSION};

/// Why a journal cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A system call failed.
    #[error("{operation} '{}': {source}", Escaped::path(path))]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The first record is not whole, or the file is something else.
    #[error("it is no journal, or its beginning is damaged")]
    Damaged,
    /// Another release wrote the journal.
    #[error(
        "it has format version {found}, and this zmove reads {VERSION}: use the release that wrote it"
    )]
    OtherVersion {
        /// The version of the journal.
        found: u32,
    },
    /// A record is longer than the format allows.
    #[error("a record has {bytes} bytes, more than the {BODY_BYTES_MAX} that a journal takes")]
    TooLong {
        /// The length of the record's body.
        bytes: usize,
    },
    /// One key has as many journals, or bytes of them, as it may; its older transfers have to be finished or removed
    /// first.
    #[error(
        "its key has {limit} {what} here, as many as it may (limits.journals_per_identity, limits.journal_bytes_per_identity)"
    )]
    NoRoom {
        /// What the limit counts: journals, or bytes.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// More files are unfinished than a journal holds.
    #[error("more than {limit} files are unfinished at once")]
    TooManyFiles {
        /// The most files that may be unfinished.
        limit: usize,
    },
    /// A record that could not be written whole could not be taken back either, so nothing may follow it.
    #[error("an earlier record could not be written whole")]
    Broken,
    /// The key may not have the memory that the journals of earlier transfers take.
    #[error("{0}")]
    OverLimit(#[from] WireError),
    /// The session was dropped while its threads hung, and another may take the journal over.
    #[error("its session was left behind")]
    LeftBehind,
}

impl JournalError {
    /// Adds the operation and the path to an error of the system.
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

    /// The system's error, or the one that comes nearest.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            Self::NoRoom { .. } => Errno::DQUOT,
            Self::OverLimit(_) => Errno::NOMEM,
            Self::LeftBehind => Errno::CANCELED,
            _ => Errno::IO,
        }
    }
}
