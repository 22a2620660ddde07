//! The errors about single entries, after which the walk of the others goes on.
//!
//! **Invariant:** every error names the path in full, as the user can type it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;
use zmove_disk::CauseAt;
use zmove_types::{Escaped, PathError};

/// A soft error: the entry that it names is missing from the scan, with all that is below it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// A system call failed.
    #[error("{operation} '{}': {}", Escaped::path(path), CauseAt { error: source, path })]
    Io {
        /// The path that could not be read.
        path: PathBuf,
        /// The operation that failed.
        operation: Operation,
        /// The system's error.
        source: io::Error,
    },
    /// The entry was listed and then removed or renamed by somebody else.
    #[error("find '{}' again after it was listed", Escaped::path(path))]
    Vanished {
        /// The path at which the entry was listed.
        path: PathBuf,
    },
    /// The name or the path cannot be carried to the target.
    #[error("carry the path '{}': {source}", Escaped::path(path))]
    Path {
        /// The path at the source.
        path: PathBuf,
        /// The reason why the path cannot be carried.
        source: PathError,
    },
    /// A path of the list cannot be sent.
    #[error("take '{}' from the list of paths: {fault}", Escaped::path(path))]
    Listed {
        /// The path as it is in the list.
        path: PathBuf,
        /// The reason.
        fault: ListFault,
    },
    /// The list of paths could not be read to its end: what came after is missing.
    #[error("read the list of paths '{}': {source}", Escaped::path(path))]
    List {
        /// The path of the list.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A root is another directory than at the first walk.
    #[error(
        "list directory '{}': it is not the one that was there at the beginning",
        Escaped::path(path)
    )]
    Exchanged {
        /// The root, as the user typed it.
        path: PathBuf,
    },
    /// A mount that the first walk found below a root is gone.
    #[error(
        "list directory '{}': what was mounted there at the beginning is gone",
        Escaped::path(path)
    )]
    Unmounted {
        /// The path of the mount.
        path: PathBuf,
    },
    /// An entry is not the one that another node has found there.
    #[error(
        "find '{}' as another node has found it: {difference}",
        Escaped::path(path)
    )]
    Differs {
        /// The path of the entry.
        path: PathBuf,
        /// How it differs.
        difference: Difference,
    },
    /// The threads of the walk could not be started: nothing was walked.
    #[error("start the threads of the scan: {source}")]
    Threads {
        /// The error of starting the threads.
        source: io::Error,
    },
}

/// How an entry differs from what another node has found in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Difference {
    /// Another directory is there.
    #[error("it is another directory here, inode {here} and not {there}")]
    Another {
        /// The inode number of the one that is here.
        here: u64,
        /// The inode number of the one that the other node has found.
        there: u64,
    },
    /// The entry has changed there later than here.
    #[error("it is older here: a copy that lags behind, or the cache of a network file system")]
    Older,
    /// Nothing is there.
    #[error("it is not here")]
    Missing,
    /// Something is mounted on it, and not at the node that leads.
    #[error("something is mounted on it here, and not at the node that leads")]
    MountedHere,
    /// Something is mounted on it at the node that leads.
    #[error("nothing is mounted on it here, and something is at the node that leads")]
    NotMountedHere,
}

/// The reason why one path of a list cannot be sent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ListFault {
    /// The path begins with a `/`.
    #[error("it is absolute, and paths are relative to the source")]
    Absolute,
    /// The path has a `..` component.
    #[error("it has a '..'")]
    DotDot,
    /// The path cannot be sent.
    #[error("{0}")]
    Path(PathError),
    /// Nothing exists at the path.
    #[error("there is no such file or directory")]
    Missing,
    /// The entry at the path has the name of one that a transfer has not finished.
    #[error("it is a part of an unfinished transfer, of use where it is alone")]
    Unfinished,
    /// An entry above the path is a file or a link.
    #[error("'{}' is not a directory", Escaped::path(.0))]
    NotDirectory(PathBuf),
    /// A directory above the path cannot be opened.
    #[error("open directory '{}': {source}", Escaped::path(path))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

/// An operation that an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Opening a directory.
    Open,
    /// Reading a directory's names.
    List,
    /// Reading an entry's size, mode and times.
    Stat,
    /// Reading the path that a symbolic link points to.
    ReadLink,
}

impl ScanError {
    /// The path that the error is about, if it is about one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Vanished { path }
            | Self::Exchanged { path }
            | Self::Unmounted { path }
            | Self::Differs { path, .. }
            | Self::Path { path, .. }
            | Self::Listed { path, .. }
            | Self::List { path, .. } => Some(path),
            Self::Threads { .. } => None,
        }
    }

    /// The error about an entry that a listing named: if it is not found, it has vanished.
    pub(crate) fn listed(path: PathBuf, operation: Operation, errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::Vanished { path },
            _ => Self::io(path, operation, errno),
        }
    }

    /// The error of an operation on a path that no listing named.
    pub(crate) fn io(path: PathBuf, operation: Operation, errno: Errno) -> Self {
        Self::Io {
            path,
            operation,
            source: errno.into(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open directory",
            Self::List => "list directory",
            Self::Stat => "read the attributes of",
            Self::ReadLink => "read the symbolic link",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_fit_failed_to() {
        let path = || PathBuf::from("/a/b");
        let denied = ScanError::listed(path(), Operation::Open, Errno::ACCESS);
        assert_eq!(
            format!("failed to {denied}"),
            "failed to open directory '/a/b': Permission denied (os error 13)"
        );
        let gone = ScanError::listed(path(), Operation::Stat, Errno::NOENT);
        assert_eq!(
            format!("failed to {gone}"),
            "failed to find '/a/b' again after it was listed"
        );
        assert!(matches!(gone, ScanError::Vanished { .. }));
    }
}
