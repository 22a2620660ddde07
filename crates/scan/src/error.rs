//! Errors about single entries. They do not stop the walk of other entries.
//!
//! **Invariant:** every error contains the full path in the form in which the user could type it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;
use zmove_disk::PathCause;
use zmove_types::{Escaped, PathError};

/// An error that does not stop the walk. The entry in the error is missing from the scan, with everything below it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// A system call failed.
    #[error("{operation} '{}': {}", Escaped::path(path), PathCause { error: source, path })]
    Io {
        /// The path that could not be read.
        path: PathBuf,
        /// The operation that failed.
        operation: Operation,
        /// The system's error.
        source: io::Error,
    },
    /// The entry was listed, but another process has removed or renamed it in the meantime.
    #[error("find '{}': it vanished after it was listed", Escaped::path(path))]
    Vanished {
        /// The path at which the entry was listed.
        path: PathBuf,
    },
    /// The name or path cannot be sent to the target.
    #[error("send the path '{}': {source}", Escaped::path(path))]
    Path {
        /// The path at the source.
        path: PathBuf,
        /// The reason why the path cannot be sent.
        source: PathError,
    },
    /// A path in the list cannot be sent.
    #[error("find the listed path '{}': {fault}", Escaped::path(path))]
    Listed {
        /// The path as it appears in the list.
        path: PathBuf,
        /// The reason.
        fault: ListFault,
    },
    /// The list of paths could not be read completely. The remaining paths are missing.
    #[error("read the list of paths '{}': {source}", Escaped::path(path))]
    List {
        /// The path of the list.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The root is no longer the directory that the first walk opened.
    #[error(
        "list directory '{}': it is no longer the same directory as at the start",
        Escaped::path(path)
    )]
    RootReplaced {
        /// The path of the root, as the user typed it.
        path: PathBuf,
    },
    /// A mount that the first walk found below a root no longer exists.
    #[error(
        "list directory '{}': the mount that was there at the start is gone",
        Escaped::path(path)
    )]
    MountGone {
        /// The path of the mount.
        path: PathBuf,
    },
    /// An entry differs from the entry that another node found at the same path.
    #[error(
        "find '{}' as another node found it: {difference}",
        Escaped::path(path)
    )]
    Differs {
        /// The path of the entry.
        path: PathBuf,
        /// The difference.
        difference: Difference,
    },
    /// The threads of the walk could not be started. Nothing was walked.
    #[error("start the threads of the scan: {source}")]
    Threads {
        /// The error returned when starting the threads.
        source: io::Error,
    },
}

/// The difference between an entry on this node and the entry that another node found at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Difference {
    /// Another directory is at the path.
    #[error("it is a different directory here (inode {here}, not {there})")]
    Another {
        /// The inode number on this node.
        here: u64,
        /// The inode number on the other node.
        there: u64,
    },
    /// The entry's last change is older here than on the other node.
    #[error("it is older here (an outdated copy, or the cache of a network file system)")]
    Older,
    /// The entry does not exist here.
    #[error("it does not exist here")]
    Missing,
    /// The entry is a mount point on this node, but not at the head (the node that leads the job).
    #[error("it is a mount point here, but not at the node that leads")]
    MountedHere,
    /// The entry is a mount point at the head (the node that leads the job), but not on this node.
    #[error("it is a mount point at the node that leads, but not here")]
    NotMountedHere,
}

/// The reason why a path in a list cannot be sent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ListFault {
    /// The path begins with a `/`.
    #[error("it is absolute, but paths must be relative to the source")]
    Absolute,
    /// The path has a `..` component.
    #[error("it has a '..'")]
    DotDot,
    /// The path is not valid for sending.
    #[error("{0}")]
    Path(PathError),
    /// The path does not exist.
    #[error("no such file or directory")]
    Missing,
    /// The entry has the name of a part of an unfinished transfer.
    #[error("it is a part of an unfinished transfer, which is never sent")]
    Unfinished,
    /// A component of the path other than the last is a file or a link.
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

/// The failed operation, as named in an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Opening a directory.
    Open,
    /// Reading a directory's names.
    List,
    /// Reading the properties of an entry.
    Stat,
    /// Reading the target of a symbolic link.
    ReadLink,
}

impl ScanError {
    /// Returns the path that the error is about, if any.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Vanished { path }
            | Self::RootReplaced { path }
            | Self::MountGone { path }
            | Self::Differs { path, .. }
            | Self::Path { path, .. }
            | Self::Listed { path, .. }
            | Self::List { path, .. } => Some(path),
            Self::Threads { .. } => None,
        }
    }

    /// Returns the error about an entry that a listing contained. If the entry no longer exists, returns
    /// [`ScanError::Vanished`].
    pub(crate) fn listed(path: PathBuf, operation: Operation, errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::Vanished { path },
            _ => Self::io(path, operation, errno),
        }
    }

    /// Returns the error of an operation on a path that was not read from a listing.
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
            "failed to find '/a/b': it vanished after it was listed"
        );
        assert!(matches!(gone, ScanError::Vanished { .. }));
    }
}
