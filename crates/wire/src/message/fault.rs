//! Failures sent over the wire: a numeric operation and cause, with the path. The error text of another host is never
//! sent.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zmove_types::RelPath;

use super::bytes;
use crate::limits::REASON_CHARS_MAX;

/// A failure at the receiver that does not end the transfer.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{operation} '{path}': {code}")]
pub struct Fault {
    /// The path of the entry that failed, from the target root.
    pub path: RelPath,
    /// The operation that failed.
    pub operation: Operation,
    /// The cause of the failure.
    pub code: FaultCode,
}

/// An operation of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Creating a directory.
    MakeDirectory,
    /// Creating a file.
    Create,
    /// Writing a file's data.
    Write,
    /// Reading a file for comparison.
    Read,
    /// Flushing to stable storage.
    Flush,
    /// Renaming a file into place.
    Rename,
    /// Creating a symbolic link.
    Symlink,
    /// Setting mode or times.
    SetMetadata,
    /// Verifying that data arrived unchanged.
    Verify,
    /// Removing an entry that is in the way.
    Remove,
    /// Listing a directory.
    List,
    /// Removing an entry that does not exist at the source.
    Delete,
    /// Opening an existing file to change it in place.
    OpenInPlace,
    /// Creating a hard link. Reported only for entries that are hard links. The sender then sends the file itself.
    Link,
    /// Opening an existing directory.
    OpenDirectory,
}

impl Operation {
    /// Returns whether the operation is on the directory that contains the entry for which the failure is reported.
    #[must_use]
    pub const fn is_on_directory(self) -> bool {
        matches!(self, Self::MakeDirectory | Self::OpenDirectory)
    }
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FaultCode {
    /// An error of the operating system, as a Linux `errno`.
    #[error("{}{}", io::Error::from_raw_os_error(*.0), mount_hint(*.0))]
    Os(i32),
    /// A directory exists where a file or link must be placed.
    #[error(
        "a directory of that name is in the way and is not empty (--delete or --force replaces it)"
    )]
    DirectoryInTheWay,
    /// The data does not match the sender's hash.
    #[error("the data arrived damaged (its BLAKE3 differs from the sender's)")]
    Damaged,
    /// Some of the file's data did not arrive.
    #[error("not all of its data arrived")]
    Incomplete,
    /// The declarations of the file on different lanes contradict each other.
    #[error("it was declared twice with different properties")]
    Contradiction,
    /// The file already exists at the target with the same size and time, although the sender had assumed that it was
    /// missing. This is not a failure.
    #[error("it already exists")]
    AlreadyThere,
    /// Another process has locked the file, probably to change it in place.
    #[error("another transfer or program has locked it")]
    Locked,
    /// While the file was being changed in place, its name was removed or given to another file.
    #[error("another file replaced it, or it was removed")]
    Replaced,
    /// Another program has modified a file while it was being changed in place.
    #[error("another program changed it during the transfer; run the command again")]
    Changed,
    /// The entry is kept, because its name is reserved for unfinished files of zmove.
    #[error(
        "names that begin with .zmove- may belong to a running transfer; remove it if no transfer is running"
    )]
    Reserved,
    /// The entry is kept, because another file system is mounted on it.
    #[error("a file system is mounted there")]
    Mounted,
    /// The file did not match the hash of the received data when it was read back from the storage. Reported only to a
    /// sender that has requested [`Proof::Media`](crate::Proof).
    #[error(
        "the storage returned different data than was written (its BLAKE3 differs when it is read back)"
    )]
    NotOnMedia,
    /// The entry is kept, because the removal limit was reached. Reported only if the receiver itself has such a limit:
    /// in a pull, or if the opening contains one.
    #[error("the limit of removed entries is reached (--max-delete)")]
    RemovedEnough,
    /// The job has ended, so this receiver makes no more changes for it. Reported only in a shared job.
    #[error("its push has ended")]
    JobEnded,
    /// A directory exists where a file or link must be placed, and a rule of the opening protects it or one of its
    /// entries.
    #[error(
        "a directory of that name is in the way and contains entries that the selection leaves out"
    )]
    Protected,
    /// No more entries can be created, because the file system has no free inodes, although it has free space.
    #[error("{}: no inodes are free", Self::Os(ENOSPC))]
    NoInodes,
}

/// The refusal of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The reason, in one line.
    #[serde(
        serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
    )]
    pub text: String,
}

impl Refusal {
    /// Returns whether the host is at capacity and may accept the transfer later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.code == RefusalCode::Full
    }

    /// Returns whether a retry may succeed without a change of settings.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use RefusalCode::{Broken, Busy, Full, Stopping};
        matches!(self.code, Stopping | Broken | Busy | Full)
    }

    /// Creates a refusal with a reason in words.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

/// The kind of reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The client's key is not in `authorized_keys`.
    UnknownKey,
    /// The key's permissions do not allow the request, or do not allow it at this target.
    Denied,
    /// The target does not meet the requirements of the transfer.
    Target,
    /// The receiver has no capacity for more transfers or lanes.
    Busy,
    /// The receiver does not understand the request, or bytes on a connection are malformed or not authentic.
    Protocol,
    /// The receiver cannot continue a transfer that it had accepted.
    Failed,
    /// The receiver is shutting down and may be back soon.
    Stopping,
    /// A connection of a running transfer was lost. A retry may succeed.
    Broken,
    /// The receiver has no capacity, not even in its queue, or its storage does not answer. The sender should retry.
    Full,
    /// The shared job is not running at this target, and the opening does not permit to begin it.
    NotUnderWay,
}

impl RefusalCode {
    /// Returns the code for a root or target that cannot be opened. Storage that does not answer may answer later.
    #[must_use]
    pub fn of_target(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Full,
            _ => Self::Target,
        }
    }
}

impl FaultCode {
    /// The codes for a full storage and for an exceeded quota.
    pub const NO_ROOM: [Self; 3] = [Self::NoInodes, Self::Os(ENOSPC), Self::Os(EDQUOT)];

    /// Returns whether the storage is full or a quota is exceeded.
    #[must_use]
    pub fn is_no_room(self) -> bool {
        Self::NO_ROOM.contains(&self)
    }

    /// Returns the code for an error of the operating system.
    #[must_use]
    pub fn os(error: &io::Error) -> Self {
        Self::Os(error.raw_os_error().unwrap_or(EIO))
    }
}

/// Returns a hint if the error suggests that a mounted file system is no longer available.
const fn mount_hint(errno: i32) -> &'static str {
    match errno {
        ENOTCONN | ESHUTDOWN | EHOSTDOWN => {
            " (the file system mounted there does not answer; mount it again)"
        }
        ESTALE => {
            " (another program moved it, or the file system mounted there lost it; if this persists, mount it again)"
        }
        _ => "",
    }
}

/// "Transport endpoint is not connected", for example after a FUSE server has ended.
const ENOTCONN: i32 = 107;
/// "Cannot send after transport endpoint shutdown".
const ESHUTDOWN: i32 = 108;
/// "Host is down".
const EHOSTDOWN: i32 = 112;
/// "Stale file handle", for example after a file server has lost its state.
const ESTALE: i32 = 116;
/// "Input/output error". Also used for errors without a number.
const EIO: i32 = 5;
/// "No space left on device".
const ENOSPC: i32 = 28;
/// "Disk quota exceeded".
const EDQUOT: i32 = 122;

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MakeDirectory => "make directory",
            Self::Create => "create",
            Self::Write => "write",
            Self::Read => "read",
            Self::Flush => "flush",
            Self::Rename => "rename the finished file to",
            Self::Symlink => "make symbolic link",
            Self::SetMetadata => "set mode and times of",
            Self::Verify => "verify",
            Self::Remove => "make room for",
            Self::List => "list directory",
            Self::Delete => "remove",
            Self::OpenInPlace => "open for an in-place update",
            Self::Link => "make hard link",
            Self::OpenDirectory => "open directory",
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn sample() -> Fault {
        Fault {
            path: RelPath::from_bytes(b"a/b").unwrap(),
            operation: Operation::Write,
            code: FaultCode::Os(28),
        }
    }

    #[test]
    fn a_fault_of_a_lost_file_system_says_what_to_do() {
        let says_it = |errno| {
            FaultCode::Os(errno)
                .to_string()
                .ends_with("mount it again)")
        };
        for errno in [ENOTCONN, ESHUTDOWN, EHOSTDOWN, ESTALE] {
            assert!(says_it(errno), "{errno}");
        }
        assert!(!says_it(EIO));
    }

    #[test]
    fn missing_inodes_are_a_kind_of_missing_space() {
        assert!(FaultCode::NO_ROOM.into_iter().all(FaultCode::is_no_room));
        assert_eq!(
            FaultCode::NoInodes.to_string(),
            "No space left on device (os error 28): no inodes are free"
        );
    }

    #[test]
    fn a_fault_reads_as_one_line() {
        assert_eq!(
            sample().to_string(),
            "write 'a/b': No space left on device (os error 28)"
        );
    }
}
