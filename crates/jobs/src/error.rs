//! Errors of the job store.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

use crate::job::JobId;
use crate::state::IllegalStep;

/// The reason why a job store cannot be opened, read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An operation on a file failed.
    #[error("{operation} '{}': {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory is on a network file system, where locks and shared memory may not work.
    #[error(
        "'{}' is on a network file system, which can damage a database: set ZMOVE_JOBS to a directory on a local file \
         system",
        path.display()
    )]
    Network {
        /// The directory.
        path: PathBuf,
    },
    /// The directory, or a file in it, belongs to another user, or other users can write to it.
    #[error("'{}' belongs to another user or is writable by another user", path.display())]
    Foreign {
        /// The directory or file.
        path: PathBuf,
    },
    /// Other users have access to the directory and may have put files there.
    #[error(
        "'{}' is accessible to other users, but jobs are read from it: if all its files are yours, run chmod 700 on \
         it, or set ZMOVE_JOBS to another directory",
        path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// The database has a different schema version.
    #[error(
        "'{}' has schema version {found}, and this zmove reads version {known}: use the zmove that wrote it, or move it away",
        path.display()
    )]
    OtherVersion {
        /// The path of the database.
        path: PathBuf,
        /// The version of its schema.
        found: u32,
        /// The version that this program supports.
        known: u32,
    },
    /// The file is not a database, or the database is corrupt.
    #[error(
        "'{}' is damaged: restore a backup made with 'zmove jobs backup', or move the file away to start with an \
         empty list of jobs: {why}",
        path.display()
    )]
    Damaged {
        /// The path of the database.
        path: PathBuf,
        /// The damage that was found.
        why: String,
    },
    /// The disk is full. Nothing was changed.
    #[error("no space left to write '{}': nothing was changed", path.display())]
    Full {
        /// The path of the database.
        path: PathBuf,
    },
    /// Another process held the lock of the database for too long.
    #[error("'{}' is locked by another process: try again", path.display())]
    Locked {
        /// The path of the database.
        path: PathBuf,
    },
    /// Any other error of the database.
    #[error("use '{}': {source}", path.display())]
    Database {
        /// The path of the database.
        path: PathBuf,
        /// The library's error.
        source: rusqlite::Error,
    },
    /// The job does not exist.
    #[error("there is no job {0}: see 'zmove jobs --all'")]
    NoJob(JobId),
    /// The job's state does not allow the operation.
    #[error("job {id}: {source}")]
    Illegal {
        /// The job.
        id: JobId,
        /// The step that the state does not allow.
        source: IllegalStep,
    },
    /// The id of the submission belongs to a different job.
    #[error(
        "submission id '{submission}' belongs to job {id}, which has other arguments or another directory"
    )]
    OtherSubmission {
        /// The submission's id.
        submission: String,
        /// The job with this id.
        id: JobId,
    },
    /// The job has not ended, so it cannot be repeated.
    #[error("job {0} has not ended yet, so it cannot be run again")]
    NotEnded(JobId),
}

impl StoreError {
    /// Returns a closure for `map_err` that adds the operation and the path to an error.
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

    /// Converts an error of the database at `path`.
    pub(crate) fn database(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged {
                path,
                why: source.to_string(),
            },
            Some(ErrorCode::DiskFull) => Self::Full { path },
            // On a full disk, SQLite also fails to extend the shared-memory file of the write-ahead log.
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

    /// Returns whether the error is temporary: the same operation may succeed later without any intervention.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::Locked { .. } | Self::Io { .. } | Self::Database { .. }
        )
    }
}
