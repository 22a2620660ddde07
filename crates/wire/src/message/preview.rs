//! The inquiries of a preview, and the receiver's findings.

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
    /// The directory's path from the target root.
    #[serde(with = "bytes")]
    pub directory: RelPath,
    /// The metadata that the directory itself would get; `None` where it is not asked about.
    pub itself: Option<InquiredMetadata>,
    /// The entries that would be in the directory.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::INQUIRED_ENTRIES_MAX }, _, _>")]
    pub entries: Vec<InquiredEntry>,
}

/// One entry as it is at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquiredEntry {
    /// The entry's name.
    #[serde(with = "bytes")]
    pub name: Name,
    /// The entry's kind.
    pub kind: InquiredKind,
    /// The entry's mode and time.
    pub metadata: InquiredMetadata,
}

/// The kind of an entry at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InquiredKind {
    /// A regular file.
    File {
        /// The file's size in bytes.
        bytes: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// The path that the link points to.
        #[serde(with = "bytes")]
        target: Vec<u8>,
    },
    /// A FIFO, socket or device.
    Special(#[serde(with = "SentSpecial")] Special),
    /// Another name of a regular file.
    Link {
        /// The file's size in bytes.
        bytes: u64,
        /// The path of the first name below the target root.
        #[serde(with = "bytes")]
        first: RelPath,
    },
}

/// A [`Special`] entry as it travels.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Special")]
enum SentSpecial {
    Fifo,
    Socket,
    Character(u64),
    Block(u64),
}

/// Metadata at the source, and a digest of the extended attributes, if there are any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquiredMetadata(
    #[serde(with = "metadata")] pub Metadata,
    pub Option<Box<XattrDigest>>,
);

/// The answer to an inquiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// The number of the inquiry that this answers.
    pub inquiry: u64,
    /// One finding for each group's directory that was asked about and for each entry, in the inquiry's order.
    #[serde(
        deserialize_with = "list::at_most::<{ 2 * crate::limits::INQUIRED_ENTRIES_MAX }, _, _>"
    )]
    pub findings: Vec<Finding>,
}

/// The change that a transfer would make to one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finding {
    /// No change: the entry is there as it should be.
    Same,
    /// No change: the existing entry may not be replaced.
    Stays,
    /// The transfer would make the entry.
    New,
    /// The transfer would change or replace the existing entry.
    Differs(Differences),
    /// The contents decide: a file of the same size with this root hash exists, which has these other differences.
    Contents(Differences, [u8; 32]),
    /// The transfer would fail for the entry.
    Fails(Operation, FaultCode),
}

impl Finding {
    /// Whether a file is at the target whose contents may be the source's.
    #[must_use]
    pub fn leaves_contents_open(self) -> bool {
        match self {
            Self::Same => true,
            Self::Differs(differences) => {
                !differences.has_any(Differences::SIZE.and(Differences::TYPE))
            }
            _ => false,
        }
    }
}

/// The properties in which an entry at the target differs from its source, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differences(pub u16);

impl Differences {
    /// The number of bytes.
    pub const SIZE: Self = Self(1);
    /// The modification time.
    pub const TIME: Self = Self(2);
    /// The permission bits.
    pub const MODE: Self = Self(4);
    /// The contents, by their hashes.
    pub const CONTENTS: Self = Self(8);
    /// The path that a link points to.
    pub const TARGET: Self = Self(16);
    /// The kind of entry.
    pub const TYPE: Self = Self(32);
    /// The owner or the group.
    pub const OWNER: Self = Self(64);
    /// Extended attributes, access control lists among them. With this a number takes two bytes.
    pub const XATTRS: Self = Self(128);
    /// The names of the file: some are missing, or another file has them too.
    pub const LINKS: Self = Self(256);

    const NAMED: [(Self, &'static str); 9] = [
        (Self::TYPE, "type"),
        (Self::SIZE, "size"),
        (Self::TIME, "time"),
        (Self::MODE, "mode"),
        (Self::CONTENTS, "contents"),
        (Self::TARGET, "target"),
        (Self::OWNER, "owner"),
        (Self::XATTRS, "xattr"),
        (Self::LINKS, "hard link"),
    ];

    /// The union of these differences and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These differences, and `one` if the two values differ.
    #[must_use]
    pub fn and_if<T: PartialEq>(self, one: Self, there: &T, source: &T) -> Self {
        if there == source { self } else { self.and(one) }
    }

    /// Whether these differences include any of `of`.
    #[must_use]
    pub fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// The words for these differences, with some more behind the word for `one`.
    #[must_use]
    pub fn with_detail(self, one: Self, detail: &str) -> String {
        let names = Self::NAMED.iter().filter(|(bit, _)| self.has_any(*bit));
        let names =
            names.map(|(bit, name)| format!("{name}{}", if *bit == one { detail } else { "" }));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Whether there is no difference.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_detail(Self::default(), ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::encode_message;

    #[test]
    fn special_entries_are_pinned() {
        let bytes = |special| encode_message(&InquiredKind::Special(special));
        assert_eq!(bytes(Special::Fifo)[4..], [3, 0]);
        assert_eq!(bytes(Special::Socket)[4..], [3, 1]);
        assert_eq!(bytes(Special::Character(300))[4..], [3, 2, 0xAC, 2]);
        assert_eq!(bytes(Special::Block(1))[4..], [3, 3, 1]);
    }

    #[test]
    fn differences_read_as_a_list() {
        let none = Differences::default();
        let some = none
            .and_if(Differences::MODE, &1, &2)
            .and_if(Differences::TIME, &1, &1);
        assert_eq!(some.and(Differences::SIZE).to_string(), "size, mode");
        assert_eq!(
            (none.to_string(), none.is_empty(), some.is_empty()),
            (String::new(), true, false)
        );
    }
}
