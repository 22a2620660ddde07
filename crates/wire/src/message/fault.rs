//! Failures that cross the wire: a numbered operation and cause with the path, never a foreign error's text.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zmove_types::RelPath;

use super::bytes;
use crate::limits::REASON_CHARS_MAX;

/// One thing that failed at the receiver; the transfer goes on.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{operation} '{path}': {code}")]
pub struct Fault {
    /// The path of what failed, from the target root.
    pub path: RelPath,
    /// The operation that failed.
    pub operation: Operation,
    /// The cause of the failure.
    pub code: FaultCode,
}

/// An operation of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Making a directory.
    MakeDirectory,
    /// Making a file.
    Create,
    /// Writing a file's data.
    Write,
    /// Reading a file for comparison.
    Read,
    /// Flushing to stable storage.
    Flush,
    /// Giving a file its final name.
    Rename,
    /// Making a symbolic link.
    Symlink,
    /// Setting mode or times.
    SetMetadata,
    /// Checking that data arrived as it was sent.
    Verify,
    /// Removing an entry that stands in the way.
    Remove,
    /// Listing a directory.
    List,
    /// Removing an entry that is not at the source.
    Delete,
    /// Opening an existing file to change it in place.
    OpenInPlace,
    /// Making a hard link. The sender then sends the file itself. Told only of entries that are hard links.
    Link,
    /// Opening a directory that exists.
    OpenDirectory,
}

impl Operation {
    /// Whether the operation is on the directory of the entry for which its failure is reported.
    #[must_use]
    pub const fn is_on_directory(self) -> bool {
        matches!(self, Self::MakeDirectory | Self::OpenDirectory)
    }
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FaultCode {
    /// The error of the operating system, as an `errno` of Linux.
    #[error("{}{}", io::Error::from_raw_os_error(*.0), mount_hint(*.0))]
    Os(i32),
    /// A directory stands where a file or link has to go.
    #[error(
        "a directory of that name is in the way and is not empty (--delete or --force replaces it)"
    )]
    DirectoryInTheWay,
    /// The data does not have the hash that the sender gave.
    #[error("the data arrived damaged (its BLAKE3 differs from the sender's)")]
    Damaged,
    /// Some of the file's data did not come.
    #[error("not all of its data arrived")]
    Incomplete,
    /// The file's declarations on different lanes contradict each other.
    #[error("it was declared twice with different properties")]
    Contradiction,
    /// No failure: the file was guessed to be missing, but exists with the same size and time.
    #[error("it is there already")]
    AlreadyThere,
    /// Another process has locked the file, as programs do that change a file in place.
    #[error("another transfer or program has locked it")]
    Locked,
    /// The name of a file that was changed in place belongs to another file now, or is gone.
    #[error("another file has its name by now, or it is gone")]
    Replaced,
    /// Another program has changed a file while it was changed in place.
    #[error("another program has changed it meanwhile; run the command again")]
    Changed,
    /// The entry stays, since its name is one that zmove gives to unfinished files.
    #[error(
        "names that begin with .zmove- may belong to a transfer that is running; remove it if none is"
    )]
    Reserved,
    /// The entry stays, since it is a mount point of another file system.
    #[error("a file system is mounted there")]
    Mounted,
    /// Read back from the storage, the file does not have the hash by which it came. Only told to a sender that has
    /// asked for [`Proof::Media`](crate::Proof).
    #[error(
        "the storage does not hold what was written to it (its BLAKE3 differs when it is read back)"
    )]
    NotOnMedia,
    /// The entry stays, since as many have been removed as may be. Only told where the receiver has such a limit of its
    /// own: in a pull, and where the opening has one.
    #[error("as many entries have been removed as may be (--max-delete)")]
    RemovedEnough,
    /// The job has ended: this receiver changes nothing more of it. Only told in a job.
    #[error("its push has ended")]
    JobEnded,
    /// A directory stands where a file or link has to go, and a rule of the opening protects it or an entry in it.
    #[error("a directory of that name is in the way, and what the selection leaves out is in it")]
    Protected,
}

/// The receiver will not take the transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The reason in words, one line.
    #[serde(
        serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
    )]
    pub text: String,
}

impl Refusal {
    /// Whether the host has had no room for the transfer, and may have some later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.code == RefusalCode::Full
    }

    /// Whether another session may succeed without a change of settings.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use RefusalCode::{Broken, Busy, Full, Stopping};
        matches!(self.code, Stopping | Broken | Busy | Full)
    }

    /// A refusal of this kind, with the reason in words.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

/// The kind of reason for which a transfer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The client's key is not in `authorized_keys`.
    UnknownKey,
    /// The key may not do that, or not at this target.
    Denied,
    /// The target is not what the transfer needs it to be.
    Target,
    /// The receiver has no room for more transfers or lanes.
    Busy,
    /// The request makes no sense to this receiver, or bytes on a connection make none or do not authenticate.
    Protocol,
    /// The receiver cannot go on with a transfer it had taken.
    Failed,
    /// The receiver is being stopped, and may be back soon.
    Stopping,
    /// A connection of a running transfer was lost; another try may succeed.
    Broken,
    /// The receiver has no room, not even in its queue: the sender is to try again.
    Full,
    /// The job of several receivers is not at this target, and the opening may not begin it there.
    NotUnderWay,
}

impl FaultCode {
    /// The codes of a storage that is full, and of a quota that is used up.
    pub const NO_ROOM: [Self; 2] = [Self::Os(ENOSPC), Self::Os(EDQUOT)];

    /// Whether there is no room.
    #[must_use]
    pub fn is_no_room(self) -> bool {
        Self::NO_ROOM.contains(&self)
    }

    /// The code of an error of the operating system.
    #[must_use]
    pub fn os(error: &io::Error) -> Self {
        Self::Os(error.raw_os_error().unwrap_or(EIO))
    }
}

/// What an error says of the file system that an entry lies on, if it says anything: it was mounted, and is gone.
const fn mount_hint(errno: i32) -> &'static str {
    match errno {
        ENOTCONN | ESHUTDOWN | EHOSTDOWN => {
            " (the file system that is mounted there does not answer; mount it again)"
        }
        ESTALE => {
            " (another program has moved it, or the file system that is mounted there has lost it; if this persists, mount \
             it again)"
        }
        _ => "",
    }
}

/// "Transport endpoint is not connected", as of a FUSE server that has ended.
const ENOTCONN: i32 = 107;
/// "Cannot send after transport endpoint shutdown".
const ESHUTDOWN: i32 = 108;
/// "Host is down".
const EHOSTDOWN: i32 = 112;
/// "Stale file handle", as of a file server that has lost its state.
const ESTALE: i32 = 116;
/// "Input/output error", which stands for an error without a number.
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
            Self::Rename => "give the final name to",
            Self::Symlink => "make symbolic link",
            Self::SetMetadata => "set mode and times of",
            Self::Verify => "verify",
            Self::Remove => "make room for",
            Self::List => "list directory",
            Self::Delete => "remove",
            Self::OpenInPlace => "open for a change in place",
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
    fn a_fault_reads_as_one_line() {
        assert_eq!(
            sample().to_string(),
            "write 'a/b': No space left on device (os error 28)"
        );
    }
}
