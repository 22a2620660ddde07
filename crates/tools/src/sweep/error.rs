//! The reasons why a sweep did not come to its end.

use std::io;
use std::path::{Path, PathBuf};

use zmove_types::ByteCount;

/// The reason why there is no sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// An operation on the storage failed.
    #[error("{operation} '{}': {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Less space is free than the sweep may write and others need.
    #[error("'{}' has {free} free, and {budget} are to be written with {reserve} left for others: take a smaller --budget", path.display())]
    NoRoom {
        /// The directory of the sweep.
        path: PathBuf,
        /// The space that is free there.
        free: ByteCount,
        /// The most bytes that the sweep would write.
        budget: ByteCount,
        /// The space that the sweep leaves for others.
        reserve: ByteCount,
    },
    /// Not one file fits into the budget.
    #[error("a budget of {0} has no room for a file: take 1 MiB or more")]
    NothingFits(ByteCount),
    /// Another sweep runs in the same directory on this host.
    #[error("another sweep is running in '{}': both would measure each other", path.display())]
    Running {
        /// The directory of that sweep.
        path: PathBuf,
    },
    /// The sweep was asked to stop.
    #[error("interrupted; what it had written has been removed")]
    Interrupted,
    /// The files of the sweep could not be removed.
    #[error("'{}' could not be removed, and may be by hand: {source}", path.display())]
    Left {
        /// The sweep's directory, which is left.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SweepError {
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
}
