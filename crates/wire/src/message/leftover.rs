//! An entry that an ended session has left at a target, as reported by a cleanup.

use serde::{Deserialize, Serialize};
use zmove_types::RelPath;

/// An entry that was not renamed into place and whose session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// The path of the entry from the target root.
    pub path: RelPath,
    /// The kind of the entry.
    pub kind: LeftoverKind,
    /// Storage used by the entry and everything below it, in bytes.
    pub bytes: u64,
    /// Whether the entry is removed.
    pub fate: LeftoverFate,
}

/// The kind of a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftoverKind {
    /// A file, link or special file that was not renamed into place.
    Unfinished,
    /// A temporary directory in which a session has created entries, or a directory that was not renamed into place.
    Directory,
    /// The part of a large file, from which a later transfer can resume.
    Part,
    /// The directory of a job of several receivers.
    SharedJob,
}

/// Whether a leftover is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftoverFate {
    /// The leftover was removed, or would be removed in a preview.
    Goes,
    /// The leftover is kept, because a transfer may resume from it.
    StaysUntil {
        /// The end of its retention period, in seconds since 1970.
        seconds: u64,
    },
    /// The leftover is kept, because it belongs to a user other than the receiver's, or because it contains entries
    /// that no receiver has created.
    Foreign,
}
