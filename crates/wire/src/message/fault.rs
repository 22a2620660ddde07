//! Failures that cross the wire: a numbered operation and cause with the path, never a foreign error's text.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zmove_types::RelPath;

use super::bytes;
use crate::version::Version;

/// One thing that failed at the receiver; the transfer goes on.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{operation} '{path}': {code}")]
pub struct Fault {
    /// What it was about, from the target root.
    #[serde(with = "bytes::path")]
    pub path: RelPath,
    /// What was tried.
    pub operation: Operation,
    /// Why it failed.
    pub code: FaultCode,
}

/// What the receiver was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Opening or making a directory.
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
    /// Removing what stands in the way.
    Remove,
    /// Listing a directory.
    List,
    /// Removing what is not at the source.
    Delete,
    /// Opening a file that is there, to change it in its place.
    OpenInPlace,
}

/// Why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FaultCode {
    /// The operating system said so: an `errno` of Linux.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// A directory stands where a file or link has to go.
    #[error("a directory of that name is in the way")]
    DirectoryInTheWay,
    /// The data did not hash to what the sender said.
    #[error("the data arrived damaged (its BLAKE3 differs from the sender's)")]
    Damaged,
    /// Not all of the file came.
    #[error("not all of its data arrived")]
    Incomplete,
    /// The file's declarations on different lanes contradict each other.
    #[error("it was declared twice with different properties")]
    Contradiction,
    /// No fault: the file was guessed to be missing and is there, of the same size and time.
    #[error("it is there already")]
    AlreadyThere,
    /// Another process has locked the file, as processes do that change a file in place.
    #[error("another transfer or program has locked it")]
    Locked,
    /// Another file has got the name of one that was changed in place, or none has it any more.
    #[error("another file has its name by now, or it is gone")]
    Replaced,
    /// Somebody else has changed a file while it was changed in place. From [`Version::V4`] on.
    #[error("another program has changed it meanwhile; run the command again")]
    Changed,
    /// The entry stays, since its name is one of those that zmove gives to what is not finished. From
    /// [`Version::V4`] on.
    #[error("names that begin with .zmove- may belong to a transfer that is running; remove it if none is")]
    Reserved,
    /// It stays, since it is another file system than the directory that it is in. From [`Version::V4`] on.
    #[error("a file system is mounted there")]
    Mounted,
}

/// The receiver will not take the transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The reason in words, one line.
    #[serde(deserialize_with = "bytes::reason")]
    pub text: String,
}

/// Why a transfer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The client's key is not in `authorized_keys`.
    UnknownKey,
    /// The key may not do that, or not there.
    Denied,
    /// The target cannot be what it would have to be.
    Target,
    /// The receiver has no room for more transfers or lanes.
    Busy,
    /// The request makes no sense to this receiver, or what came on a connection makes none or does not authenticate.
    Protocol,
    /// The receiver cannot go on with a transfer it had taken.
    Failed,
    /// The receiver is being stopped, and may be back soon.
    Stopping,
    /// A connection of a running transfer was lost; the same may go well if it is tried again.
    Broken,
    /// The receiver has no room, not even in line: the same is to be tried again. From
    /// [`Version::V4`](crate::Version) on; before, `Busy`.
    Full,
}

impl FaultCode {
    /// This, or what comes nearest among those that a peer of an older version knows.
    #[must_use]
    pub fn known_to(self, version: Version) -> Self {
        match self {
            Self::Changed if version < Version::V4 => Self::Replaced,
            Self::Reserved if version < Version::V4 => Self::Locked,
            Self::Mounted if version < Version::V4 => Self::Os(EXDEV),
            known => known,
        }
    }

    /// The code of an error of the operating system.
    #[must_use]
    pub fn os(error: &io::Error) -> Self {
        Self::Os(error.raw_os_error().unwrap_or(EIO))
    }
}

/// "Input/output error": what stands for an error that has no number.
const EIO: i32 = 5;
/// "Invalid cross-device link".
const EXDEV: i32 = 18;

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
    fn an_older_peer_is_told_what_it_knows() {
        let older = |code: FaultCode| code.known_to(Version::V3);
        assert_eq!(
            [FaultCode::Changed, FaultCode::Reserved, FaultCode::Mounted].map(older),
            [FaultCode::Replaced, FaultCode::Locked, FaultCode::Os(18)]
        );
        assert_eq!(FaultCode::Changed.known_to(Version::V4), FaultCode::Changed);
        assert_eq!(older(FaultCode::Os(28)), FaultCode::Os(28));
    }

    #[test]
    fn a_fault_reads_as_one_line() {
        assert_eq!(sample().to_string(), "write 'a/b': No space left on device (os error 28)");
    }
}
