//! The verdicts of a receiver on entries of the source.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::fault::{FaultCode, Operation};

/// What a receiver says of one entry that it was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The entry is at the target as it should be.
    Same,
    /// The existing entry may not be replaced.
    Stays,
    /// The target does not have the entry.
    New,
    /// The existing entry differs in these properties: another is to take its place.
    Replace(Differences),
    /// The existing entry differs in these properties, which are to be set.
    Set(Differences),
    /// A file of the same size with this root hash exists, which has these other differences: its contents decide.
    Contents(Differences, [u8; 32]),
    /// The transfer would fail for the entry.
    Fails(Operation, FaultCode),
    /// Groups of this very file came in an earlier transfer, as [`Held`](crate::Held) has reported before: send the
    /// others.
    Resume,
    /// Another version of the file exists: [`Held`](crate::Held) will report its groups, and those that are the same
    /// need not be sent. Nor need the groups that [`Held`](crate::Held) has reported before, as with
    /// [`Resume`](Self::Resume).
    Delta,
}

impl Verdict {
    /// The verdict on an existing entry whose place no other needs to take.
    #[must_use]
    pub fn set(differences: Differences) -> Self {
        if differences.is_empty() {
            Self::Same
        } else {
            Self::Set(differences)
        }
    }

    /// The verdict on an existing file with these other differences, once its contents have been compared.
    #[must_use]
    pub fn compared(differences: Differences, is_same: bool) -> Self {
        if is_same {
            Self::set(differences)
        } else {
            Self::Replace(differences.and(Differences::CONTENTS))
        }
    }

    /// The differences of an existing file whose contents may be those of the source.
    #[must_use]
    pub fn beside_contents(self) -> Option<Differences> {
        let other_file = Differences::SIZE.and(Differences::TYPE);
        match self {
            Self::Same => Some(Differences::default()),
            Self::Set(differences) => Some(differences),
            Self::Replace(differences) if !differences.has_any(other_file) => Some(differences),
            _ => None,
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

    /// These differences, except for others.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
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
