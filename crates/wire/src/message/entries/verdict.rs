//! The verdicts of a receiver on entries of the source.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::fault::{FaultCode, Operation};

/// The receiver's verdict on one entry of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The entry at the target matches.
    Same,
    /// The existing entry must not be replaced and is kept unchanged.
    Stays,
    /// The target does not have the entry.
    New,
    /// The existing entry differs in these properties and must be replaced.
    Replace(Differences),
    /// The existing entry differs in these properties, which must be set.
    Set(Differences),
    /// A regular file of the same size exists at the target. The values are its metadata differences and its root hash,
    /// which the sender must compare with its own.
    Contents(Differences, [u8; 32]),
    /// The transfer of the entry would fail with this operation and cause.
    Fails(Operation, FaultCode),
    /// An earlier transfer has stored groups of exactly this version of the file. [`Held`](crate::Held) reports them,
    /// and only the other groups must be sent.
    Resume,
    /// Another version of the file exists. After the reply, [`Held`](crate::Held) reports the groups of that version.
    /// The sender need not send groups that are equal. As with [`Resume`](Self::Resume), it need not send the groups
    /// that [`Held`](crate::Held) reported before the reply either.
    Delta,
}

impl Verdict {
    /// Returns the verdict on an existing entry that need not be replaced.
    #[must_use]
    pub fn set(differences: Differences) -> Self {
        if differences.is_empty() {
            Self::Same
        } else {
            Self::Set(differences)
        }
    }

    /// Returns the verdict on an existing file after its contents have been compared. `differences` are the differences
    /// in its metadata.
    #[must_use]
    pub fn compared(differences: Differences, is_same: bool) -> Self {
        if is_same {
            Self::set(differences)
        } else {
            Self::Replace(differences.and(Differences::CONTENTS))
        }
    }

    /// Returns the differences of an existing file whose contents may be equal to those of the source.
    #[must_use]
    pub fn non_content_differences(self) -> Option<Differences> {
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
    /// The size in bytes.
    pub const SIZE: Self = Self(1);
    /// The modification time.
    pub const TIME: Self = Self(2);
    /// The permission bits.
    pub const MODE: Self = Self(4);
    /// The contents, by their hashes.
    pub const CONTENTS: Self = Self(8);
    /// The target of a symbolic link.
    pub const TARGET: Self = Self(16);
    /// The type of the entry.
    pub const TYPE: Self = Self(32);
    /// The owner or group.
    pub const OWNER: Self = Self(64);
    /// Extended attributes, including access control lists. Encoding this or a higher value takes two bytes.
    pub const XATTRS: Self = Self(128);
    /// The hard links of the file: a name is missing, or one of the names belongs to a different file.
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

    /// Returns the union of both sets of differences.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns these differences without `others`.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Adds the difference `one` if the target's value `there` differs from the source's value.
    #[must_use]
    pub fn add_if_unequal<T: PartialEq>(self, one: Self, there: &T, source: &T) -> Self {
        if there == source { self } else { self.and(one) }
    }

    /// Returns whether these differences include any of `of`.
    #[must_use]
    pub fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Returns the names of these differences, with `detail` appended to the name of `one`.
    #[must_use]
    pub fn with_detail(self, one: Self, detail: &str) -> String {
        let names = Self::NAMED.iter().filter(|(bit, _)| self.has_any(*bit));
        let names =
            names.map(|(bit, name)| format!("{name}{}", if *bit == one { detail } else { "" }));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Returns whether there are no differences.
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
            .add_if_unequal(Differences::MODE, &1, &2)
            .add_if_unequal(Differences::TIME, &1, &1);
        assert_eq!(some.and(Differences::SIZE).to_string(), "size, mode");
        assert_eq!(
            (none.to_string(), none.is_empty(), some.is_empty()),
            (String::new(), true, false)
        );
    }
}
