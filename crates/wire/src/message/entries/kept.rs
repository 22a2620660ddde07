//! What is kept of entries beside their contents: what the sender asks for, and what could not be kept.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use zmove_types::{Kinds, RelPath, list};

use crate::limits::MISSED_MAX;

/// What a sender asks to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeping {
    /// The kinds.
    pub kinds: Kinds,
    /// Whether the receiver names each entry that lacks something.
    pub named: bool,
    /// Whether a transfer in which entries lack something is partial. It is the sender that reports that.
    pub strict: bool,
}

impl Keeping {
    /// Nothing but what is always kept.
    pub const LEAST: Self = Self {
        kinds: Kinds::ALWAYS,
        named: false,
        strict: false,
    };
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            kinds: Kinds::USUAL,
            named: false,
            strict: false,
        }
    }
}

/// Why something was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lack {
    /// The receiver's user may not set it.
    NotPermitted,
    /// The key's grant does not say that it may be set.
    NotGranted,
    /// The file system does not know it.
    Unsupported,
    /// There is no room for it.
    NoRoom,
    /// The receiver could make no sense of it.
    Invalid,
    /// There is more of it than is carried.
    TooMuch,
    /// The source could not read it.
    Unread,
    /// What the system says, as its Linux `errno`.
    Os(i32),
    /// The file system cannot hold such a value, and has the nearest one that it can.
    BeyondRange,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "the receiver's user may not",
            Self::NotGranted => "the key's grant does not allow it",
            Self::Unsupported => "not supported there",
            Self::NoRoom => "no room there",
            Self::Invalid => "not valid there",
            Self::TooMuch => "more than is carried",
            Self::Unread => "not readable here",
            Self::BeyondRange => "beyond the range of the file system there",
            Self::Os(errno) => return std::io::Error::from_raw_os_error(*errno).fmt(f),
        })
    }
}

/// What was not kept of some entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotKept {
    /// The kind that was not kept.
    pub kind: Kinds,
    /// The reason.
    pub why: Lack,
    /// The number of entries that lack the kind.
    pub entries: u64,
}

impl NotKept {
    /// A count of entries that lack one kind.
    #[must_use]
    pub const fn new(kind: Kinds, why: Lack, entries: u64) -> Self {
        Self { kind, why, entries }
    }

    /// The counts of a table by kind and reason, in its order.
    pub fn all(counts: &BTreeMap<(Kinds, Lack), u64>) -> impl Iterator<Item = Self> {
        let counts = counts.iter();
        counts.map(|((kind, why), entries)| Self::new(*kind, *why, *entries))
    }
}

/// One entry that lacks something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The entry.
    pub path: RelPath,
    /// The kinds that the entry lacks, and why; the number of entries is 1 in each.
    #[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")]
    pub lacks: Vec<NotKept>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToSender, decode_message, encode_message};

    #[test]
    fn what_is_asked_for_is_pinned() {
        let bytes = |keeping: &Keeping| encode_message(keeping)[4..].to_vec();
        assert_eq!(bytes(&Keeping::default()), [0xB3, 44, 0, 0]);
        let all = Keeping {
            kinds: Kinds::ALL,
            named: true,
            strict: true,
        };
        assert_eq!(bytes(&all), [0xFF, 127, 1, 1]);
        assert_eq!(decode_message(&bytes(&all)), Ok(all));
    }

    #[test]
    fn what_was_not_kept_is_pinned() {
        let lack = NotKept::new(Kinds::ACLS, Lack::Unsupported, 3);
        let counts = ToSender::NotKept {
            counts: vec![lack, NotKept::new(Kinds::OWNER, Lack::Os(-1), 1)],
        };
        assert_eq!(encode_message(&counts)[4..], [14, 2, 32, 2, 3, 4, 7, 1, 1]);
        let entries = vec![Missed {
            path: RelPath::from_bytes(b"a/b").unwrap(),
            lacks: vec![lack],
        }];
        let missed = ToSender::Missed { entries };
        let bytes = encode_message(&missed);
        assert_eq!(bytes[4..], [15, 1, 3, b'a', b'/', b'b', 1, 32, 2, 3]);
        assert_eq!(decode_message(&bytes[4..]), Ok(missed));
        assert_eq!(lack.kind, Kinds::ACLS);
    }
}
