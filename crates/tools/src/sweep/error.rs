//! Errors that end a sweep.

use std::io;
use std::path::{Path, PathBuf};

use zmove_types::ByteCount;

/// The reason why a sweep has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// An operation on the storage failed.
    #[error("{operation} '{}': {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The free space is less than the budget plus the reserve.
    #[error("not enough space in '{}': {free} free, but the sweep writes {budget} and leaves {reserve} for others \
             (use a smaller --budget)", path.display())]
    NoRoom {
        /// The directory of the sweep.
        path: PathBuf,
        /// The free space.
        free: ByteCount,
        /// Maximum number of bytes to write.
        budget: ByteCount,
        /// The space that must stay free.
        reserve: ByteCount,
    },
    /// The budget is too small for a single file.
    #[error("a budget of {0} is too small for any file: use 1 MiB or more")]
    NothingFits(ByteCount),
    /// Another sweep is running in the same directory on this host.
    #[error("another sweep is running in '{}' and would distort the results: wait until it has ended", path.display())]
    Running {
        /// The directory of that sweep.
        path: PathBuf,
    },
    /// The sweep was asked to stop.
    #[error("interrupted; the files of the sweep were removed")]
    Interrupted,
    /// The files of the sweep could not be removed.
    #[error("'{}' could not be removed (remove it manually): {source}", path.display())]
    NotRemoved {
        /// The sweep's directory, which was left behind.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SweepError {
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
}
