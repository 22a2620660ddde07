//! Metadata to preserve: the sender's request, and the metadata that could not be preserved.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use zmove_types::{MetadataKinds, RelPath, list};

use crate::limits::MISSED_MAX;

/// The metadata that a sender requests to preserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreserveOptions {
    /// The kinds of metadata.
    pub kinds: MetadataKinds,
    /// Whether the receiver reports the path of each entry that lacks metadata.
    pub named: bool,
    /// Whether the sender reports a transfer as partial if any entries lack metadata.
    pub strict: bool,
}

impl PreserveOptions {
    /// Only the metadata that is always preserved.
    pub const LEAST: Self = Self {
        kinds: MetadataKinds::ALWAYS,
        named: false,
        strict: false,
    };
}

impl Default for PreserveOptions {
    fn default() -> Self {
        Self {
            kinds: MetadataKinds::USUAL,
            named: false,
            strict: false,
        }
    }
}

/// The reason why metadata was not preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NotKeptReason {
    /// The receiver's user is not permitted to set the metadata.
    NotPermitted,
    /// The key's grant does not allow the metadata to be set.
    NotGranted,
    /// The file system does not support the metadata.
    Unsupported,
    /// There is no space to store the metadata.
    NoRoom,
    /// The receiver could not interpret the metadata.
    Invalid,
    /// The metadata exceeds the limits of the protocol.
    TooMuch,
    /// The sender could not read the metadata.
    Unread,
    /// Another error of the system, as a Linux `errno`.
    Os(i32),
    /// The file system cannot represent the value, so the nearest possible value was stored.
    BeyondRange,
}

impl fmt::Display for NotKeptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "not permitted to the receiver's user",
            Self::NotGranted => "the key's grant does not allow it",
            Self::Unsupported => "not supported there",
            Self::NoRoom => "no space there",
            Self::Invalid => "not valid there",
            Self::TooMuch => "larger than the limit",
            Self::Unread => "not readable here",
            Self::BeyondRange => "beyond the range of the file system there",
            Self::Os(errno) => return std::io::Error::from_raw_os_error(*errno).fmt(f),
        })
    }
}

/// A count of entries with metadata that was not preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotKept {
    /// The kind of metadata.
    pub kind: MetadataKinds,
    /// The reason.
    pub why: NotKeptReason,
    /// Number of entries that lack the metadata.
    pub entries: u64,
}

impl NotKept {
    /// Creates a count of entries that lack one kind of metadata.
    #[must_use]
    pub const fn new(kind: MetadataKinds, why: NotKeptReason, entries: u64) -> Self {
        Self { kind, why, entries }
    }

    /// Returns the counts of a table by kind and reason, in the table's order.
    pub fn all(
        counts: &BTreeMap<(MetadataKinds, NotKeptReason), u64>,
    ) -> impl Iterator<Item = Self> {
        let counts = counts.iter();
        counts.map(|((kind, why), entries)| Self::new(*kind, *why, *entries))
    }
}

/// An entry that lacks metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The path of the entry.
    pub path: RelPath,
    /// The kinds of metadata that the entry lacks, with the reasons. The count in each element is 1.
    #[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")]
    pub lacks: Vec<NotKept>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToSender, decode_message, encode_message};

    #[test]
    fn what_is_asked_for_is_pinned() {
        let bytes = |keeping: &PreserveOptions| encode_message(keeping)[4..].to_vec();
        assert_eq!(bytes(&PreserveOptions::default()), [0xB3, 44, 0, 0]);
        let all = PreserveOptions {
            kinds: MetadataKinds::ALL,
            named: true,
            strict: true,
        };
        assert_eq!(bytes(&all), [0xFF, 127, 1, 1]);
        assert_eq!(decode_message(&bytes(&all)), Ok(all));
    }

    #[test]
    fn what_was_not_kept_is_pinned() {
        let lack = NotKept::new(MetadataKinds::ACLS, NotKeptReason::Unsupported, 3);
        let counts = ToSender::NotKept {
            counts: vec![
                lack,
                NotKept::new(MetadataKinds::OWNER, NotKeptReason::Os(-1), 1),
            ],
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
        assert_eq!(lack.kind, MetadataKinds::ACLS);
    }
}
