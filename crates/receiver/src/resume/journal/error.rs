//! Why a journal cannot be written or read.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use zmove_types::Escaped;

use super::record::VERSION;

/// Why a journal cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The system refused.
    #[error("{operation} '{}': {source}", Escaped::path(path))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The first record is not whole, or the file is something else.
    #[error("it is no journal, or its beginning is damaged")]
    Damaged,
    /// Another release wrote it.
    #[error("it has format version {found}, and this zmove reads {VERSION}: use the release that wrote it")]
    OtherVersion {
        /// The version it has.
        found: u32,
    },
    /// A field is longer than the format allows.
    #[error("{what} has {bytes} bytes, more than the {limit} that a journal takes")]
    TooLong {
        /// Which.
        what: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The transfers of one key have left as much as they may; its older ones have to be finished or removed first.
    #[error(
        "its key has {limit} {what} here, as many as it may (limits.journals_per_identity, limits.journal_bytes_per_identity)"
    )]
    NoRoom {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// More files are unfinished than a journal holds.
    #[error("more than {limit} files are unfinished at once")]
    TooManyFiles {
        /// How many may be.
        limit: usize,
    },
    /// A record that could not be written whole could not be taken back either, so nothing may follow it.
    #[error("an earlier record could not be written whole")]
    Broken,
}

impl JournalError {
    /// Names the operation and the file of an error of the system.
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }
}
