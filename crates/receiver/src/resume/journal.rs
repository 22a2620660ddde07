//! The journal: which groups of its unfinished large files a receiver has stored, so that another run can resume from
//! there.
//!
//! There is one append-only file for each unfinished transfer, in a directory that the caller names. A
//! session writes it ([`Journal`]); a later one finds what a dead one has left ([`orphans()`]), takes over
//! what it needs ([`Journal::adopt`]) and removes the rest. `docs/PROTOCOL.md` has the bytes.
//!
//! **Invariant:** a journal that is read back is a beginning of the one that was written, or an error. A group counts
//! as flushed only if [`Journal::flushed`] was called with a mark that was taken after the group had been journalled.
//!
//! **Invariant:** a journal is held by `flock` for as long as its writer lives, and nobody else changes or
//! removes it.
//!
//! Each event is a record with its own CRC32C, and each record is one write at a known place. A record that could not
//! be written whole is cut off again, and where that fails too, no record follows it. A mark that was taken before the
//! journal was rewritten is ignored.
//!
//! A journal lies with the receiver's keys and not in the target: a target may be read by others, and a
//! hidden file there would be copied, compared and deleted by other tools.
//!
//! A process that only looks at a journal takes a shared lock for a moment, and one that takes the journal over waits
//! for that. A transfer takes only journals whose first record fits it, so that transfers do not hide each other's.
//!
//! ```
//! use zmove_receiver::journal::{Begin, Journal, orphans};
//! use zmove_types::TransferId;
//! # let home = tempfile::tempdir()?;
//! # let directory = home.path().join("journal");
//! let begin = Begin {
//!     transfer: TransferId([7; 16]),
//!     owner: Vec::new(),
//!     target: b"/data".to_vec(),
//!     device: 1,
//!     inode: 2,
//!     begun: 1_700_000_000,
//! };
//! let journal = Journal::create(&directory, &begin)?;
//! assert!(orphans(&directory)?.is_empty(), "it is in use");
//! drop(journal);
//! let orphan = orphans(&directory)?.remove(0).map_err(|(_path, error)| error)?;
//! assert_eq!(orphan.unfinished().begin, begin);
//! orphan.remove()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clean;
mod error;
pub(crate) mod fuzzing;
mod locked_file;
mod naming;
mod orphans;
mod reader;
mod record;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zmove_types::{Cv, GroupSpan, Name, RelPath, Timestamp, TransferId};

pub use clean::{CleanMode, CleanRule, Cleaned, PartFate, Unreachable, birth_of, clean};
pub(crate) use clean::{birth, parts_in_use};
pub use error::JournalError;
pub use orphans::{FoundJournal, Orphan, Taken, discard, list, orphans, orphans_like};
pub(crate) use reader::{flushed_files, read_on};
pub(crate) use record::Record;
pub use writer::{Journal, JournalRoom, Mark};

/// The first record of a journal: the transfer, its owner and its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The transfer that wrote the journal.
    pub transfer: TransferId,
    /// The fingerprint of the client's key; empty where there was no network.
    pub owner: Vec<u8>,
    /// The path of the target directory, for people.
    pub target: Vec<u8>,
    /// The device of the target directory.
    pub device: u64,
    /// The inode of the target directory.
    pub inode: u64,
    /// When the transfer began, in seconds since 1970.
    pub begun: u64,
}

/// The version of a source file that the groups belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceVersion {
    /// Size in bytes.
    pub bytes: u64,
    /// When the contents last changed.
    pub mtime: Timestamp,
    /// When anything last changed.
    pub ctime: Timestamp,
    /// The inode number.
    pub inode: u64,
}

/// A large file that is being written, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// The path that the file gets when it is whole.
    pub path: RelPath,
    /// The name of the file until then, in the same directory.
    pub part: Name,
    /// The version of the source file that it is a copy of.
    pub source: SourceVersion,
    /// The inode of the part file.
    pub inode: u64,
    /// When the part file was made ([`birth_of`]); zero where the file system does not store that.
    pub born: Timestamp,
}

impl PartFile {
    /// Whether a file of this inode, made at that time, is the part file. Where the journal has no time of birth, the
    /// inode decides.
    pub(crate) fn is_in(&self, inode: u64, born: Timestamp) -> bool {
        self.inode == inode && (self.born == Timestamp::default() || self.born == born)
    }
}

/// The contents of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The first record.
    pub begin: Begin,
    /// Whether the system has not been rebooted since: groups that were not flushed are then still there.
    pub same_boot: bool,
    /// The files that have neither been finished nor given up.
    pub files: Vec<UnfinishedFile>,
}

/// An unfinished file, as a journal has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedFile {
    /// The number of the file in its transfer.
    pub file: u64,
    /// The part file, and the source it is a copy of.
    pub part: PartFile,
    /// The groups that have been written, each with whether it was flushed.
    pub groups: BTreeMap<u32, (Cv, bool)>,
    /// The change time of the part when its transfer had ended its work on it; `None` where the transfer was killed
    /// before it could record that.
    pub left: Option<Timestamp>,
}

impl UnfinishedFile {
    /// How many bytes are in groups that have been written.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.bytes_of(|_flushed| true)
    }

    /// How many bytes are in groups that have been flushed.
    #[must_use]
    pub fn bytes_flushed(&self) -> u64 {
        self.bytes_of(|flushed| flushed)
    }

    fn bytes_of(&self, counts: impl Fn(bool) -> bool) -> u64 {
        let groups = self
            .groups
            .iter()
            .filter(|(_, (_, flushed))| counts(*flushed));
        let spans = groups.filter_map(|(index, _)| GroupSpan::of(self.part.source.bytes, *index));
        spans.map(|span| u64::from(span.len)).sum()
    }
}

/// The most files that a journal holds as unfinished at once.
pub const FILES_MAX: usize = 1 << 16;
