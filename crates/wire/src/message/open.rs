//! The opening of a transfer: the target and how it is written, and the receiver's answer.

use serde::{Deserialize, Serialize};
use zmove_types::Name;

use crate::extensions::{Extensible, Extensions};

use super::{Extraneous, GrantToken, Keeping, RuleText, SharedJobOpening, bytes, list};
use crate::limits::PROCESS_CHARS_MAX;

/// The order for a transfer: the target and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The target as the user wrote it: absolute, or relative to the identity's first root. At most 4096 bytes.
    #[serde(with = "bytes")]
    pub target: Vec<u8>,
    /// The shape that the target will have.
    pub shape: TargetShape,
    /// How existing files are compared.
    pub compare: Compare,
    /// When data must be on stable storage.
    pub durability: Durability,
    /// Whether large files that have changed are sent as the groups that differ from the old version
    /// ([`Verdict::Delta`](super::Verdict::Delta)).
    pub delta: bool,
    /// The run that the transfer belongs to: the id of the run's first transfer. An earlier transfer of the same run
    /// and key ends first.
    pub run: [u8; 16],
    /// An earlier session of the run that broke off, if its receiver may still publish.
    pub earlier: Option<EarlierSession>,
    /// Whether existing entries of the same name are replaced.
    pub overwrite: Overwrite,
    /// What the conversation may do at the target.
    pub intent: Intent,
    /// Whether entries that are only at the target may be removed.
    pub extraneous: Extraneous,
    /// Whether regular files that exist are changed in place instead of replaced.
    pub inplace: bool,
    /// What is kept of entries beside their contents.
    pub keeping: Keeping,
    /// Whether an inspection compares the contents that the storages hold, and groups of large files by
    /// [hashes](super::Question::Hash).
    pub verify: bool,
    /// What a file is proven by before it gets its name.
    pub proof: Proof,
    /// The grant by which the transfer is opened, where the right to do so is another's than the sender's.
    pub grant: Option<GrantToken>,
    /// The maximum number of entries that the receiver removes in the whole run, whatever its sender asks for; `None`:
    /// no limit.
    pub removals_max: Option<u64>,
    /// The state of the target, where the receiver, which orders this, knows that it is empty: files may be sent before
    /// it has answered to the opening.
    pub known_state: Option<TargetState>,
    /// The part that the session has in a job of several receivers.
    pub shared_job: Option<Box<SharedJobOpening>>,
    /// Which directories are replaced by a file or link of their name.
    pub in_the_way: InTheWay,
    /// The rules of the selection, first to last. A directory that they leave out, or that holds an entry that they
    /// leave out, is not replaced.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::SELECTION_RULES_MAX }, _, _>")]
    pub protected: Vec<RuleText>,
    /// The fields that later releases have added.
    #[serde(deserialize_with = "Extensions::deserialize::<Open, _>")]
    pub extensions: Extensions,
}

impl Intent {
    /// Whether a session with this intent looks at, or moves, the entries of sources. Only such a session can be
    /// ordered from another host.
    #[must_use]
    pub const fn is_of_transfer(self) -> bool {
        matches!(self, Self::Write | Self::Inspect)
    }
}

impl Extensible for Open {
    const NAME: &'static str = "the opening";
}

impl Open {
    /// A push into a directory with no option set: files of another size or time are replaced, and nothing is flushed.
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
            keeping: Keeping::LEAST,
            verify: false,
            proof: Proof::Wire,
            grant: None,
            removals_max: None,
            known_state: None,
            shared_job: None,
            in_the_way: InTheWay::Stays,
            protected: Vec::new(),
            extensions: Extensions::NONE,
        }
    }
}

/// A session that broke off, and whose receiver may still publish: it has not confirmed the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierSession {
    /// The process of that receiver, as it was reported in [`Opened`]; empty if `Opened` was not received.
    #[serde(
        serialize_with = "bytes::cut::<PROCESS_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<PROCESS_CHARS_MAX, _>"
    )]
    pub process: String,
    /// The maximum time for which that receiver may still publish, in milliseconds.
    pub lease_left_ms: u16,
}

/// The shape that the target will have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetShape {
    /// A directory that receives entries.
    Directory {
        /// The names at the directory's top that will be written, at most [`TOPS_MAX`](crate::limits::TOPS_MAX); an
        /// empty list stands for any name.
        #[serde(deserialize_with = "list::at_most::<{ crate::limits::TOPS_MAX }, _, _>")]
        tops: Vec<Name>,
    },
    /// One entry: put into the target when that is a directory, else named as the target.
    Single {
        /// The entry's name at the source.
        name: Name,
    },
}

/// The way in which a file at the target is compared with its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// Compares size and modification time.
    #[default]
    Quick,
    /// Compares contents.
    Checksum,
}

/// What a conversation may do at the target. **Invariant:** only [`Intent::Write`] may give a name there, and
/// [`Intent::Clean`] removes hidden names alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// To write files.
    #[default]
    Write,
    /// To report what writing would do, or whether the contents are equal; nothing at the target is changed.
    Inspect,
    /// To measure the path, and perhaps the storage; nothing stays at the target.
    Measure,
    /// To remove the leftovers of ended sessions.
    Clean,
    /// To report what [`Clean`](Self::Clean) would remove; nothing at the target is changed.
    CleanPreview,
}

/// Whether an existing entry of the same name is replaced where it differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overwrite {
    /// Every existing entry that differs is replaced.
    #[default]
    Differing,
    /// Files are replaced unless the existing file has the later modification time.
    Older,
    /// Nothing is replaced; only directories get mode and time.
    Nothing,
}

/// Which directories of the target are replaced by an entry of their name that is no directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InTheWay {
    /// None.
    #[default]
    Stays,
    /// Empty directories.
    EmptyGoes,
    /// All directories, with what is in them.
    Goes,
}

/// The promise that a zero exit code makes about the target's storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Nothing is flushed.
    None,
    /// Everything is flushed before the end.
    #[default]
    End,
    /// Each file is flushed before it gets its final name.
    File,
}

/// The receiver's permission to begin: the state of the target and the receiver's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Whether the target holds anything.
    pub state: TargetState,
    /// The most lanes that the receiver will take.
    pub lanes_max: u16,
    /// The name that a single entry gets, where that is another than its own.
    pub single_name: Option<Name>,
    /// The bytes that the receiver's user may still store in the file system of the target, if they are limited.
    pub free_bytes: Option<u64>,
    /// The process of the receiver, as no other that has ever run on any host, for the [`EarlierSession`] of a later
    /// opening.
    #[serde(
        serialize_with = "bytes::cut::<PROCESS_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<PROCESS_CHARS_MAX, _>"
    )]
    pub process: String,
    /// The fields that later releases have added.
    #[serde(deserialize_with = "Extensions::deserialize::<Opened, _>")]
    pub extensions: Extensions,
}

impl Extensible for Opened {
    const NAME: &'static str = "the answer to an opening";
}

/// How much the sender has found so far, and how much of it need not travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundSoFar {
    /// Regular files that the scan has found.
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// The bytes of those that need not travel: of files that are equal, of groups that are there, of holes.
    pub skipped_bytes: u64,
    /// Whether the scan has ended.
    pub all: bool,
}

/// Whether the receiver has to be asked about files before they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// Nothing is there: every file is needed.
    Empty,
    /// Something is there: the receiver must be asked first.
    Populated,
}

/// What a received file is proven by before it gets its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// The data had the sender's hashes when it arrived.
    #[default]
    Wire,
    /// That, and once more when it was read back from the storage, after a flush and past the page cache.
    Media,
}

#[cfg(test)]
pub(super) mod tests;
