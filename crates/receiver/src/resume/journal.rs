//! The journal of a receiver. It records the stored groups of unfinished large files, so that another run can resume
//! from them.
//!
//! Each unfinished transfer has one append-only file in a directory that the caller chooses. The session of the
//! transfer writes the file ([`Journal`]). A later session finds the journals of dead sessions ([`orphans()`]), takes
//! over the files that it needs ([`Journal::adopt`]) and removes the rest. `docs/PROTOCOL.md` describes the format.
//!
//! **Invariant:** reading a journal yields a prefix of the journal that was written, or an error. A group counts as
//! flushed only if [`Journal::record_flushed`] was called with a mark that was taken after the group had been
//! journaled.
//!
//! **Invariant:** the writer of a journal holds an `flock` on it until it is dropped, and no other process changes or
//! removes the journal.
//!
//! Each event is a record with its own CRC32C, and each record is a single write at a known offset. A record that could
//! not be written completely is truncated. If that fails too, no further record is written. A mark from before a
//! rewrite of the journal is ignored.
//!
//! Journals are stored with the receiver's keys and not in the target. Other users may be able to read a target, and
//! other tools would copy, compare and delete a hidden file there.
//!
//! A process that only inspects a journal takes a shared lock for a short time, and a process that takes over the
//! journal waits for that lock. A transfer takes only journals whose first record matches it, so it does not lock the
//! journals of other transfers.
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
pub(crate) use reader::{flushed_files, read_new_records};
pub(crate) use record::Record;
pub use writer::{Journal, JournalLimits, Mark};

/// The first record of a journal, with the transfer, its owner and its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The transfer that wrote the journal.
    pub transfer: TransferId,
    /// The fingerprint of the client's key. Empty if the transfer used no network.
    pub owner: Vec<u8>,
    /// The path of the target directory, for messages and for a later removal of parts.
    pub target: Vec<u8>,
    /// The device number of the target directory.
    pub device: u64,
    /// The inode number of the target directory.
    pub inode: u64,
    /// The start time of the transfer, in seconds since 1970.
    pub begun: u64,
}

/// The version of a source file to which the groups belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceVersion {
    /// Size in bytes.
    pub bytes: u64,
    /// The modification time.
    pub mtime: Timestamp,
    /// The change time.
    pub ctime: Timestamp,
    /// The inode number.
    pub inode: u64,
}

/// A large file that is being written, with its part file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// The path of the file once it is complete.
    pub path: RelPath,
    /// The name of the part file, in the same directory.
    pub part: Name,
    /// The version of the source file that is being copied.
    pub source: SourceVersion,
    /// The inode number of the part file.
    pub inode: u64,
    /// The birth time of the part file ([`birth_of`]), or zero if the file system does not store it.
    pub born: Timestamp,
}

impl PartFile {
    /// Returns whether a file with this inode and birth time is the part file. If the journal has no birth time,
    /// compares only the inode.
    pub(crate) fn is_in(&self, inode: u64, born: Timestamp) -> bool {
        self.inode == inode && (self.born == Timestamp::default() || self.born == born)
    }
}

/// The contents of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The first record.
    pub begin: Begin,
    /// Whether the system has not been rebooted since the journal was written. If true, groups that were not flushed
    /// have survived.
    pub same_boot: bool,
    /// Files that were neither renamed into place nor given up.
    pub files: Vec<UnfinishedFile>,
}

/// An unfinished file as recorded in a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedFile {
    /// The number of the file in its transfer.
    pub file: u64,
    /// The part file, and the version of its source.
    pub part: PartFile,
    /// The written groups, each with its chaining value and whether it was flushed.
    pub groups: BTreeMap<u32, (Cv, bool)>,
    /// The change time of the part after its transfer had finished writing to it, or `None` if the transfer was killed
    /// before it could record that.
    pub left: Option<Timestamp>,
}

impl UnfinishedFile {
    /// Returns the total size of the written groups, in bytes.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.bytes_of(|_flushed| true)
    }

    /// Returns the total size of the flushed groups, in bytes.
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

/// Maximum number of unfinished files in a journal.
pub const FILES_MAX: usize = 1 << 16;
