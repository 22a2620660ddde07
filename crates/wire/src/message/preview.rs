//! What a preview asks about, and what the receiver finds of it.

use std::fmt;

use serde::{Deserialize, Serialize};
use zmove_types::{Metadata, Name, RelPath, Special};

use super::fault::{FaultCode, Operation};
use super::{bytes, list, metadata};
use crate::extra::XattrDigest;

/// Entries that a preview asks about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inquiry {
    /// The number of the inquiry, for its answer.
    pub inquiry: u64,
    /// The entries by directory, at most [`INQUIRED_ENTRIES_MAX`](crate::limits::INQUIRED_ENTRIES_MAX) in all.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::INQUIRED_ENTRIES_MAX }, _, _>")]
    pub groups: Vec<InquiredGroup>,
}

/// Entries of one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquiredGroup {
    /// The directory, from the target root.
    #[serde(with = "bytes::path")]
    pub directory: RelPath,
    /// What the directory itself shall get, where that is asked about.
    pub itself: Option<InquiredMetadata>,
    /// What shall be in it.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::INQUIRED_ENTRIES_MAX }, _, _>")]
    pub entries: Vec<InquiredEntry>,
}

/// One entry as it is at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquiredEntry {
    /// Its name.
    #[serde(with = "bytes::name")]
    pub name: Name,
    /// What it is.
    pub kind: InquiredKind,
    /// Its mode and time.
    pub metadata: InquiredMetadata,
}

/// What an entry is at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InquiredKind {
    /// A regular file.
    File {
        /// Its size in bytes.
        bytes: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Where it points.
        #[serde(with = "bytes")]
        target: Vec<u8>,
    },
    /// A FIFO, socket or device; with [`InquireWith`](super::InquireWith) only.
    Special(#[serde(with = "bytes::special")] Special),
}

/// Metadata at the source, and a digest of the extended attributes, if there are any: that and what metadata has beside
/// mode and time travels with [`InquireWith`](super::InquireWith) only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquiredMetadata(
    #[serde(with = "metadata")] pub Metadata,
    #[serde(skip)] pub Option<Box<XattrDigest>>,
);

/// The answer to an inquiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Which inquiry.
    pub inquiry: u64,
    /// One for each group's directory that was asked about and each entry, in the inquiry's order.
    #[serde(deserialize_with = "list::at_most::<{ 2 * crate::limits::INQUIRED_ENTRIES_MAX }, _, _>")]
    pub findings: Vec<Finding>,
}

/// What a transfer would do with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finding {
    /// Nothing: the entry is there as it should be.
    Same,
    /// Nothing: the existing entry may not be replaced.
    Stays,
    /// The transfer would make the entry.
    New,
    /// The transfer would change or replace the existing entry.
    Differs(Differences),
    /// The contents decide: a file of the same size with this root hash exists, and it has these other
    /// differences.
    Contents(Differences, [u8; 32]),
    /// The transfer would fail for the entry.
    Fails(Operation, FaultCode),
}

/// In what an entry at the target differs from its source, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differences(pub u16);

impl Differences {
    /// The number of bytes.
    pub const SIZE: Self = Self(1);
    /// The modification time.
    pub const TIME: Self = Self(2);
    /// The permission bits.
    pub const MODE: Self = Self(4);
    /// The contents, as their hashes tell.
    pub const CONTENTS: Self = Self(8);
    /// Where a link points.
    pub const TARGET: Self = Self(16);
    /// The kind of entry.
    pub const TYPE: Self = Self(32);
    /// The owner or the group.
    pub const OWNER: Self = Self(64);
    /// Extended attributes, access control lists among them. With this a number takes two bytes.
    pub const XATTRS: Self = Self(128);

    const NAMED: [(Self, &'static str); 8] = [
        (Self::TYPE, "type"),
        (Self::SIZE, "size"),
        (Self::TIME, "time"),
        (Self::MODE, "mode"),
        (Self::CONTENTS, "contents"),
        (Self::TARGET, "target"),
        (Self::OWNER, "owner"),
        (Self::XATTRS, "xattr"),
    ];

    /// These and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These, and `one` if the two values differ.
    #[must_use]
    pub fn and_if<T: PartialEq>(self, one: Self, there: &T, source: &T) -> Self {
        if there == source { self } else { self.and(one) }
    }

    /// Whether any of these is among them.
    #[must_use]
    pub fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMED.iter().filter(|(bit, _)| self.has_any(*bit));
        names
            .enumerate()
            .try_for_each(|(place, (_, name))| write!(f, "{}{name}", if place == 0 { "" } else { ", " }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_read_as_a_list() {
        let none = Differences::default();
        let some = none.and_if(Differences::MODE, &1, &2).and_if(Differences::TIME, &1, &1);
        assert_eq!(some.and(Differences::SIZE).to_string(), "size, mode");
        assert_eq!((none.to_string(), none.is_empty(), some.is_empty()), (String::new(), true, false));
    }
}
