//! The messages of a receiver that has dialled: what it wants to be sent. They come before the host, which is the
//! sender from then on, says anything as one.
//!
//! **Invariant:** each list has a bound of its own, and a [`Fetch`] is no longer than
//! [`FETCH_BYTES_MAX`](crate::limits::FETCH_BYTES_MAX), which the host checks before its bytes are awaited.

use serde::{Deserialize, Serialize};
use zmove_types::{Account, Timestamp};

use super::{Begin, CopyOrder, GrantOrder, Open, bytes, list};
use crate::extensions::{Extensible, Extensions};
use crate::limits::{FETCH_MAPPINGS_MAX, FETCH_SOURCES_MAX, REASON_CHARS_MAX, SELECTION_RULES_MAX};

/// A message from a receiver that has dialled to the host that is to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSource {
    /// The first message: what is to be sent, and how.
    Fetch(Box<Fetch>),
    /// A part of the list of paths that [`Fetch::list`] has announced.
    Listed {
        /// The bytes of the list, at most [`FETCH_LIST_PART_BYTES_MAX`](crate::limits::FETCH_LIST_PART_BYTES_MAX).
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// In place of [`Fetch`](Self::Fetch): an order for a copy to another host.
    Copy(Box<CopyOrder>),
    /// What that copy begins with, once it was accepted.
    Begin(Begin),
    /// In place of [`Fetch`](Self::Fetch): an order for a grant.
    Grant(Box<GrantOrder>),
    /// In place of [`Fetch`](Self::Fetch): a question what has become of a copy.
    Result {
        /// The id of the copy.
        id: [u8; 16],
        /// Whether the copy is to end now, if it runs.
        stop: bool,
    },
}

/// The order of a receiver that has dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// How the receiver writes; its target is empty, and its shape without meaning.
    pub open: Open,
    /// The sources, as the user wrote them.
    #[serde(deserialize_with = "list::at_most::<FETCH_SOURCES_MAX, _, _>")]
    pub sources: Vec<SourcePath>,
    /// The rules of the selection, first to last.
    #[serde(deserialize_with = "list::at_most::<SELECTION_RULES_MAX, _, _>")]
    pub rules: Vec<RuleText>,
    /// The least and the largest size of files that are wanted, in bytes.
    pub sizes: (u64, u64),
    /// Whether what is mounted below the sources is left out.
    pub one_file_system: bool,
    /// The list of paths in place of the contents of the only source, which comes in further messages.
    pub list: Option<ListOrder>,
    /// Whether what is at the target alone is removed, and when.
    pub removals: Option<RemovalOrder>,
    /// Whom entries are said to belong to.
    pub owners: OwnerOrder,
    /// What becomes of blocks of zeros.
    pub zeros: Zeros,
    /// The umask whose permission bits take the place of modes.
    pub umask: Option<u32>,
    /// The modification time of all entries, in the place of their own.
    pub mtime: Option<Timestamp>,
    /// The rate that all data connections together are held to, in bytes per second.
    pub rate_max: Option<u64>,
    /// The data connections that the receiver has dialled.
    pub lanes: LaneOrder,
    /// Whether the host reports the hash of each file.
    pub manifest: bool,
    /// The interval in which the progress of all stages is to be told, in milliseconds.
    pub sample_millis: Option<u32>,
    /// The fields that later releases have added.
    #[serde(deserialize_with = "Extensions::deserialize::<Fetch, _>")]
    pub extensions: Extensions,
}

impl Extensible for Fetch {
    const NAME: &'static str = "the order of a pull";
}

impl Fetch {
    /// An order for all that the sources hold, as it is there.
    #[must_use]
    pub fn new(open: Open, sources: Vec<SourcePath>) -> Self {
        Self {
            open,
            sources,
            rules: Vec::new(),
            sizes: (0, u64::MAX),
            one_file_system: false,
            list: None,
            removals: None,
            owners: OwnerOrder::default(),
            zeros: Zeros::default(),
            umask: None,
            mtime: None,
            rate_max: None,
            lanes: LaneOrder::default(),
            manifest: false,
            sample_millis: None,
            extensions: Extensions::NONE,
        }
    }
}

/// A source as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePath(#[serde(with = "bytes")] pub Vec<u8>);

/// One rule of a selection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleText {
    /// The pattern, in gitignore's syntax, without the sign that takes entries in again.
    #[serde(with = "bytes")]
    pub pattern: Vec<u8>,
    /// Whether matching entries are taken in again.
    pub includes: bool,
}

/// The form of a list of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOrder {
    /// Whether its paths end in NUL bytes instead of line feeds.
    pub nul: bool,
    /// The length of the list in bytes.
    pub bytes: u64,
}

/// The removals of a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalOrder {
    /// Whether entries are removed when a part of the source is not at the target.
    pub after_errors: AfterErrors,
    /// The most files and directories that are removed. Default: any number. The deepest go first, and the rest stays.
    pub entries_max: Option<u64>,
    /// What a source directory without entries does. Default: it is refused where the target has entries.
    pub empty_sources: EmptySources,
}

/// Whether entries are removed when a part of the source could not be read, or not be stored at the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterErrors {
    /// Nothing is removed.
    #[default]
    Keep,
    /// Entries are removed, except where names could not be read.
    Remove,
}

/// What a source directory without entries means for its mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EmptySources {
    /// Nothing is removed in the whole run where the directory at the target has entries: the file system of the source
    /// may not be mounted.
    #[default]
    Refuse,
    /// The mirror becomes empty.
    Mirror,
}

/// Whom entries are said to belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerOrder {
    /// Whether numbers count, and names are not told.
    pub numeric: bool,
    /// What users become, the first that applies.
    #[serde(deserialize_with = "list::at_most::<FETCH_MAPPINGS_MAX, _, _>")]
    pub users: Vec<Mapping>,
    /// What groups become, the first that applies.
    #[serde(deserialize_with = "list::at_most::<FETCH_MAPPINGS_MAX, _, _>")]
    pub groups: Vec<Mapping>,
}

/// What some users or groups of the source become at the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The user or group that they become.
    pub to: Account,
    /// Which ones.
    pub from: Mapped,
}

/// Some users or groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mapped {
    /// All of them.
    All,
    /// Users or groups that have no name at the source.
    Nameless,
    /// The one of this name.
    Name(
        #[serde(
            serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
            deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
        )]
        String,
    ),
    /// Users or groups whose numbers lie between two, both included.
    Ids(u32, u32),
}

/// What becomes of zeros that are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Zeros {
    /// Zeros are data like any other.
    #[default]
    Sent,
    /// Blocks of 4 KiB of zeros become holes, where holes are kept; each file is read once more for that.
    MadeHoles,
}

/// The data connections of a receiver that has dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOrder {
    /// The number of lanes that are dialled beside control.
    pub dialled: u16,
    /// The fewest that suit the path, where the sender may change the number.
    pub least: Option<u16>,
    /// The most that the receiver takes.
    pub most: u16,
}

/// What a host says before it sends: it does as it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// The most lanes that the host serves.
    pub lanes_max: u16,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::WireError;
    use crate::message::open::tests::fixed;
    use crate::message::{ToSender, decode_message, encode_message};
    use zmove_types::Timestamp;

    pub(crate) fn sample() -> Fetch {
        Fetch {
            open: Open::new(Vec::new(), [7; 16]),
            sources: vec![SourcePath(b"a/".to_vec())],
            rules: vec![RuleText {
                pattern: b"*.o".to_vec(),
                includes: false,
            }],
            sizes: (0, 1),
            one_file_system: true,
            list: Some(ListOrder {
                nul: true,
                bytes: 3,
            }),
            removals: Some(RemovalOrder {
                after_errors: AfterErrors::Remove,
                entries_max: Some(2),
                empty_sources: EmptySources::Mirror,
            }),
            owners: OwnerOrder {
                numeric: true,
                users: vec![Mapping {
                    to: Account {
                        id: 5,
                        name: "u".into(),
                    },
                    from: Mapped::Ids(1, 2),
                }],
                groups: vec![Mapping {
                    to: Account {
                        id: 6,
                        name: "".into(),
                    },
                    from: Mapped::Name("g".into()),
                }],
            },
            zeros: Zeros::Sent,
            umask: Some(0o22),
            mtime: Some(Timestamp {
                seconds: -1,
                nanos: 2,
            }),
            rate_max: Some(9),
            lanes: LaneOrder {
                dialled: 2,
                least: Some(2),
                most: 64,
            },
            manifest: true,
            sample_millis: Some(100),
            extensions: Extensions::NONE,
        }
    }

    #[test]
    fn an_order_is_pinned() {
        let fetch = ToSource::Fetch(Box::new(sample()));
        let bytes = encode_message(&fetch);
        let open = fixed(b"", 7);
        let rest = [
            &[
                1, 2, b'a', b'/', 1, 3, b'*', b'.', b'o', 0, 0, 1, 1, 1, 1, 3, 1, 1, 1, 2, 1,
            ][..],
            &[
                1, 1, 5, 1, b'u', 3, 1, 2, 1, 6, 0, 2, 1, b'g', 0, 1, 18, 1, 1, 2, 1, 9, 2, 1, 2,
                64, 1, 1, 100, 0,
            ],
        ];
        assert_eq!(bytes[4..], [&[0][..], &open, &rest.concat()].concat());
        assert_eq!(decode_message(&bytes[4..]), Ok(fetch));
        let listed = ToSource::Listed {
            bytes: b"a\n".to_vec(),
        };
        assert_eq!(encode_message(&listed)[4..], [1, 2, b'a', b'\n']);
        let fetching = ToSender::Fetching(Fetching { lanes_max: 300 });
        assert_eq!(encode_message(&fetching)[4..], [17, 0xAC, 2]);
    }

    #[test]
    fn an_order_s_lists_are_bounded() {
        let with = |sources: usize, rules: usize| {
            let fetch = Fetch {
                sources: vec![SourcePath(Vec::new()); sources],
                rules: vec![
                    RuleText {
                        pattern: Vec::new(),
                        includes: true
                    };
                    rules
                ],
                ..sample()
            };
            decode_message::<ToSource>(&encode_message(&ToSource::Fetch(Box::new(fetch)))[4..])
                .map(drop)
        };
        assert_eq!(with(FETCH_SOURCES_MAX, SELECTION_RULES_MAX), Ok(()));
        assert_eq!(with(FETCH_SOURCES_MAX + 1, 1), Err(WireError::Message));
        assert_eq!(with(1, SELECTION_RULES_MAX + 1), Err(WireError::Message));
    }
}
