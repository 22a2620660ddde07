//! The reasons why something cannot be done with jobs.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

use crate::job::JobId;
use crate::state::IllegalStep;

/// The reason why a store of jobs cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An operation on a file failed.
    #[error("{operation} '{}': {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory is on a file system whose locks and memory other hosts share, or do not.
    #[error(
        "'{}' is on a network file system, where a database can be damaged: name a directory of this host by ZMOVE_JOBS",
        path.display()
    )]
    Network {
        /// The directory.
        path: PathBuf,
    },
    /// The directory, or a file in it, belongs to another user, or could be written by one.
    #[error("'{}' belongs to another user, or could be written by one", path.display())]
    Foreign {
        /// The directory or file.
        path: PathBuf,
    },
    /// The directory is open to others, who may have put something there.
    #[error(
        "'{}' is open to other users, and what jobs do is read from there: if all in it is yours, chmod 700 closes it; \
         else name another directory (ZMOVE_JOBS)",
        path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// The database has a schema of another version.
    #[error(
        "'{}' has schema version {found}, and this zmove reads version {known}: use the zmove that wrote it, or move it away",
        path.display()
    )]
    OtherVersion {
        /// The path of the database.
        path: PathBuf,
        /// The version of its schema.
        found: u32,
        /// The version that this program reads.
        known: u32,
    },
    /// The file is no database, or one that is broken.
    #[error(
        "'{}' is damaged: put a backup in its place ('zmove jobs backup' makes them), or move it away to begin anew: {why}",
        path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// There is no room for what was to be written, which was not done.
    #[error("no room to write '{}': nothing was changed", path.display())]
    Full {
        /// The database.
        path: PathBuf,
    },
    /// Another process has held the database for too long.
    #[error("'{}' is locked by another process: try again", path.display())]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// Any other failure of the database.
    #[error("use '{}': {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// The library's error.
        source: rusqlite::Error,
    },
    /// There is no such job.
    #[error("there is no job {0}: see 'zmove jobs --all'")]
    NoJob(JobId),
    /// The job is not in a state for that.
    #[error("job {id}: {source}")]
    Illegal {
        /// The job.
        id: JobId,
        /// The step that it cannot take.
        source: IllegalStep,
    },
    /// The submission's id is that of another job.
    #[error(
        "submission '{submission}' is job {id}, which has other arguments or another directory"
    )]
    OtherSubmission {
        /// The submission's id.
        submission: String,
        /// The job that has it.
        id: JobId,
    },
    /// Only a job that has ended can be done again.
    #[error("job {0} has not ended: nothing is to be done again")]
    NotEnded(JobId),
}

impl StoreError {
    /// The error of an operation on a path, to be given to `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source: source.into(),
        }
    }

    /// The error of the database at a path.
    pub(crate) fn database(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged {
                path,
                why: source.to_string(),
            },
            Some(ErrorCode::DiskFull) => Self::Full { path },
            // a full disk has no room for the file by which processes share the log either
            _ if source
                .sqlite_error()
                .is_some_and(|error| error.extended_code == SQLITE_IOERR_SHMSIZE) =>
            {
                Self::Full { path }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked { path },
            _ => Self::Database { path, source },
        }
    }

    /// Whether the same may succeed later, with nothing done by anybody.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::Locked { .. } | Self::Io { .. } | Self::Database { .. }
        )
    }
}
