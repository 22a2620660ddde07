//! An entry that an ended session has left at a target, as a cleaning reports it.

use serde::{Deserialize, Serialize};
use zmove_types::RelPath;

/// An entry without a final name, whose session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// The path of the entry from the target root.
    pub path: RelPath,
    /// What the entry is.
    pub kind: LeftoverKind,
    /// The bytes that the entry takes on its storage, with all below it.
    pub bytes: u64,
    /// What happens to the entry.
    pub fate: LeftoverFate,
}

/// What a leftover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftoverKind {
    /// A file, a link or a special file that did not get its final name.
    Unfinished,
    /// A directory in which a session has made entries, or one that did not get its final name.
    Directory,
    /// The part of a large file from which a later transfer can resume.
    Part,
    /// The directory of a job of several receivers.
    SharedJob,
}

/// What happens to a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftoverFate {
    /// The leftover has been removed. In a preview: it would be.
    Goes,
    /// The leftover stays, since a transfer may resume from it.
    StaysUntil {
        /// The end of this time, in seconds since 1970.
        seconds: u64,
    },
    /// The leftover stays, since it belongs to another user than that of the receiver, or holds entries that no
    /// receiver has made.
    Foreign,
}
