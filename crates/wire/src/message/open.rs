//! The opening of a transfer: the target, the rules for writing it, and the receiver's answer.

use serde::{Deserialize, Serialize};
use zmove_types::Name;

use crate::extensions::{Extensible, Extensions};

use super::{Extraneous, GrantToken, PreserveOptions, RuleText, SharedJobOpening, bytes, list};
use crate::limits::PROCESS_CHARS_MAX;

/// The request for a transfer: the target and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The target as the user typed it: absolute, or relative to the first root of the client's identity. At most 4096
    /// bytes.
    #[serde(with = "bytes")]
    pub target: Vec<u8>,
    /// The expected shape of the target.
    pub shape: TargetShape,
    /// How existing files are compared.
    pub compare: Compare,
    /// When data must be on stable storage.
    pub durability: Durability,
    /// Whether only the groups of a changed large file that differ from the old version are sent
    /// ([`Verdict::Delta`](super::Verdict::Delta)).
    pub delta: bool,
    /// The run that the transfer belongs to, identified by the ID of the run's first transfer. If an earlier transfer
    /// of the same run and key is still running, the receiver ends it first.
    pub run: [u8; 16],
    /// An interrupted session of the run whose receiver may still publish.
    pub earlier: Option<EarlierSession>,
    /// Whether existing entries of the same name are replaced.
    pub overwrite: Overwrite,
    /// The operations that the session may perform at the target.
    pub intent: Intent,
    /// Whether entries that exist only at the target may be removed.
    pub extraneous: Extraneous,
    /// Whether existing regular files are changed in place instead of replaced.
    pub inplace: bool,
    /// The metadata to preserve.
    pub keeping: PreserveOptions,
    /// Whether an inspection reads contents from the storage to verify them. Groups of large files are compared by
    /// [hash](super::Question::Hash).
    pub verify: bool,
    /// The verification that a received file must pass before it is renamed into place.
    pub proof: Proof,
    /// The grant that opens the transfer, if the transfer uses the permissions of a key other than the sender's.
    pub grant: Option<GrantToken>,
    /// Maximum number of entries that the receiver removes in the whole run, regardless of the sender's requests.
    /// `None` means no limit.
    pub removals_max: Option<u64>,
    /// The state of the target, if this opening is part of a receiver's order and the target is known to be empty. The
    /// sender may then send files before it receives the answer to the opening.
    pub known_state: Option<TargetState>,
    /// The job of several receivers that the session belongs to, if any.
    pub shared_job: Option<Box<SharedJobOpening>>,
    /// Which directories are replaced by a file or link of the same name.
    pub in_the_way: DirectoryReplacement,
    /// The selection rules that protect directories, in order. A directory is not replaced if the rules exclude the
    /// directory or any entry in it.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::SELECTION_RULES_MAX }, _, _>")]
    pub protected: Vec<RuleText>,
    /// Fields that later releases have added.
    #[serde(deserialize_with = "Extensions::deserialize::<Open, _>")]
    pub extensions: Extensions,
}

impl Intent {
    /// Returns whether a session with this intent transfers or inspects entries of sources. Another host can order only
    /// such a session.
    #[must_use]
    pub const fn is_of_transfer(self) -> bool {
        matches!(self, Self::Write | Self::Inspect)
    }
}

impl Extensible for Open {
    const NAME: &'static str = "the opening";
}

impl Open {
    /// Creates the opening of a push into a directory with default options: existing files with a different size or
    /// time are replaced, and nothing is flushed.
    #[must_use]
    pub const fn new(target: Vec<u8>, run: [u8; 16]) -> Self {
        Self {
            target,
            shape: TargetShape::Directory { tops: Vec::new() },
            compare: Compare::Quick,
            durability: Durability::None,
            delta: false,
            run,
            earlier: None,
            overwrite: Overwrite::Differing,
            intent: Intent::Write,
            extraneous: Extraneous::Stays,
            inplace: false,
            keeping: PreserveOptions::LEAST,
            verify: false,
            proof: Proof::Wire,
            grant: None,
            removals_max: None,
            known_state: None,
            shared_job: None,
            in_the_way: DirectoryReplacement::Stays,
            protected: Vec::new(),
            extensions: Extensions::NONE,
        }
    }

    /// Returns whether another session may follow one that lost its connections. A receiver that was killed may have
    /// left a partly changed file with a newer timestamp than the source. With [`Overwrite::Older`], the next session
    /// would skip this file, and the transfer would seem to succeed.
    #[must_use]
    pub fn can_be_repeated(&self) -> bool {
        !(self.inplace && self.overwrite == Overwrite::Older)
    }
}

/// An interrupted session whose receiver has not confirmed the end and may still publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierSession {
    /// The process of that receiver, as reported in [`Opened`], or empty if `Opened` was not received.
    #[serde(
        serialize_with = "bytes::cut::<PROCESS_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<PROCESS_CHARS_MAX, _>"
    )]
    pub process: String,
    /// Maximum time for which that receiver may still publish, in milliseconds.
    pub lease_left_ms: u16,
}

/// The expected shape of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetShape {
    /// A directory that receives entries.
    Directory {
        /// The names in the directory that the transfer may write, at most [`TOPS_MAX`](crate::limits::TOPS_MAX). The
        /// first component of each path must be one of them. An empty list allows any name.
        #[serde(deserialize_with = "list::at_most::<{ crate::limits::TOPS_MAX }, _, _>")]
        tops: Vec<Name>,
    },
    /// A single entry. If the target is a directory, the entry is placed in it. Otherwise, the target is the entry's
    /// new path.
    Single {
        /// The entry's name at the source.
        name: Name,
    },
}

/// How a file at the target is compared with its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// Compares size and modification time.
    #[default]
    Quick,
    /// Compares contents.
    Checksum,
}

/// The operations that a session may perform at the target. **Invariant:** only [`Intent::Write`] may create visible
/// names there, and [`Intent::Clean`] removes only hidden names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// To write files.
    #[default]
    Write,
    /// To report the changes that writing would make, or whether the contents are equal. The target is not changed.
    Inspect,
    /// To measure the path, and optionally the storage. No entries remain at the target.
    Measure,
    /// To remove the leftovers of ended sessions.
    Clean,
    /// To report the entries that [`Clean`](Self::Clean) would remove. The target is not changed.
    CleanPreview,
}

/// Whether an existing entry of the same name is replaced if it differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overwrite {
    /// Every existing entry that differs is replaced.
    #[default]
    Differing,
    /// A file is replaced unless the existing file has a later modification time.
    Older,
    /// Nothing is replaced. Only the mode and time of directories are set.
    Nothing,
}

/// Which directories of the target are replaced by an entry that is not a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryReplacement {
    /// No directories.
    #[default]
    Stays,
    /// Empty directories.
    EmptyGoes,
    /// All directories, including their contents.
    Goes,
}

/// When data is flushed to stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Nothing is flushed.
    None,
    /// Everything is flushed before the end of the transfer.
    #[default]
    End,
    /// Each file is flushed before it is renamed into place.
    File,
}

/// The receiver's permission to begin, with the state of the target and the receiver's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Whether the target contains anything.
    pub state: TargetState,
    /// Maximum number of lanes that the receiver accepts.
    pub lanes_max: u16,
    /// The name of a single entry at the target, if it differs from the entry's name at the source.
    pub single_name: Option<Name>,
    /// Number of bytes that the receiver's user can still store in the file system of the target. `None` if unknown or
    /// unlimited.
    pub free_bytes: Option<u64>,
    /// The ID of the receiver's process, which a later opening sends as part of [`EarlierSession`]. The ID is unique
    /// across hosts and time.
    #[serde(
        serialize_with = "bytes::cut::<PROCESS_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<PROCESS_CHARS_MAX, _>"
    )]
    pub process: String,
    /// Fields that later releases have added.
    #[serde(deserialize_with = "Extensions::deserialize::<Opened, _>")]
    pub extensions: Extensions,
}

impl Extensible for Opened {
    const NAME: &'static str = "the answer to an opening";
}

/// Totals of the files found so far, and of the bytes that need not be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundSoFar {
    /// Regular files found by the scan.
    pub files: u64,
    /// Total size of these files, in bytes.
    pub bytes: u64,
    /// Bytes that are not sent: equal files, groups already at the target, and holes.
    pub skipped_bytes: u64,
    /// Whether the scan has ended.
    pub all: bool,
}

/// Whether the sender must ask the receiver about files before it sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// The target is empty, so every file is needed.
    Empty,
    /// The target contains entries, so the receiver must be asked first.
    Populated,
}

/// The verification that a received file must pass before it is renamed into place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// The data matched the sender's hashes when it arrived.
    #[default]
    Wire,
    /// In addition, the data matched when it was read back from the storage, after a flush and bypassing the page
    /// cache.
    Media,
}

#[cfg(test)]
pub(super) mod tests;
