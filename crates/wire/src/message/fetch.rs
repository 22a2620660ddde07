//! The messages of a receiver that has dialed, including its request for files. The receiver sends them before the
//! dialed host becomes the sender.
//!
//! **Invariant:** each list has its own limit, and a [`Fetch`] has at most
//! [`FETCH_BYTES_MAX`](crate::limits::FETCH_BYTES_MAX) bytes. The host checks that limit before it reads the message.

use serde::{Deserialize, Serialize};
use zmove_types::{Account, Timestamp};

use super::{Begin, CopyOrder, GrantOrder, Open, bytes, list};
use crate::extensions::{Extensible, Extensions};
use crate::limits::{FETCH_MAPPINGS_MAX, FETCH_SOURCES_MAX, REASON_CHARS_MAX, SELECTION_RULES_MAX};

/// A message from a receiver that has dialed, to the host that has the sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSource {
    /// The first message: the files to send, and how to send them.
    Fetch(Box<Fetch>),
    /// Part of the list of paths that [`Fetch::list`] announces.
    Listed {
        /// The bytes of the list, at most [`FETCH_LIST_PART_BYTES_MAX`](crate::limits::FETCH_LIST_PART_BYTES_MAX).
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// An order for a copy to another host. Sent instead of [`Fetch`](Self::Fetch).
    Copy(Box<CopyOrder>),
    /// The grant and the key for an accepted copy.
    Begin(Begin),
    /// An order for a grant. Sent instead of [`Fetch`](Self::Fetch).
    Grant(Box<GrantOrder>),
    /// A request for the result of a copy. Sent instead of [`Fetch`](Self::Fetch).
    Result {
        /// The ID of the copy.
        id: [u8; 16],
        /// Whether to stop the copy now if it is running.
        stop: bool,
    },
}

/// The request of a receiver that has dialed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The opening for the transfer, with the rules for writing at the receiver. Its target is empty, and its shape is
    /// ignored.
    pub open: Open,
    /// The sources, as the user wrote them.
    #[serde(deserialize_with = "list::at_most::<FETCH_SOURCES_MAX, _, _>")]
    pub sources: Vec<SourcePath>,
    /// The rules of the selection, in order.
    #[serde(deserialize_with = "list::at_most::<SELECTION_RULES_MAX, _, _>")]
    pub rules: Vec<RuleText>,
    /// Minimum and maximum size of the files to send, in bytes.
    pub sizes: (u64, u64),
    /// Whether file systems mounted below the sources are excluded.
    pub one_file_system: bool,
    /// The format of a list of paths, which follows in further messages. The host then sends only these paths of its
    /// single source. `None` to send all contents.
    pub list: Option<ListOrder>,
    /// The removals of entries that exist only at the target, or `None` for no removals.
    pub removals: Option<RemovalOrder>,
    /// The owners and groups to send for entries.
    pub owners: OwnerOrder,
    /// Whether blocks of zeros are sent or become holes.
    pub zeros: Zeros,
    /// The umask from which to compute permission bits. `None` to use the modes of the entries.
    pub umask: Option<u32>,
    /// The modification time for all entries. `None` to use the time of each entry.
    pub mtime: Option<Timestamp>,
    /// Rate limit for all data connections together, in bytes per second.
    pub rate_max: Option<u64>,
    /// The data connections that the receiver has dialed.
    pub lanes: LaneOrder,
    /// Whether the host reports the hash of each file.
    pub manifest: bool,
    /// Interval at which to report the progress of all stages, in milliseconds.
    pub sample_millis: Option<u32>,
    /// Fields that later releases have added.
    #[serde(deserialize_with = "Extensions::deserialize::<Fetch, _>")]
    pub extensions: Extensions,
}

impl Extensible for Fetch {
    const NAME: &'static str = "the order of a pull";
}

impl Fetch {
    /// Creates a request for all contents of the sources, without any changes to them.
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
    /// The pattern in gitignore syntax, without the `!` of a rule that includes entries again.
    #[serde(with = "bytes")]
    pub pattern: Vec<u8>,
    /// Whether the rule includes matching entries again.
    pub includes: bool,
}

/// The format of a list of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOrder {
    /// Whether the paths end with NUL bytes instead of line feeds.
    pub nul: bool,
    /// The size of the list in bytes.
    pub bytes: u64,
}

/// The removals of a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalOrder {
    /// Whether entries are removed if part of the source could not be read, or could not be stored at the target.
    pub after_errors: AfterErrors,
    /// Maximum number of files and directories to remove. The deepest entries are removed first, and entries beyond the
    /// limit are kept. Default: no limit.
    pub entries_max: Option<u64>,
    /// Whether an empty source directory may empty its mirror. Default: the removal is refused if the directory at the
    /// target has entries.
    pub empty_sources: EmptySources,
}

/// The rule for removals if part of the source could not be read, or could not be stored at the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterErrors {
    /// Nothing is removed.
    #[default]
    Keep,
    /// Entries are removed, except in directories whose names could not be read.
    Remove,
}

/// The treatment of a source directory without entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EmptySources {
    /// If the target directory has entries, nothing is removed in the whole run, because the source's file system may
    /// not be mounted.
    #[default]
    Refuse,
    /// The mirror becomes empty.
    Mirror,
}

/// The owners and groups to send for entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerOrder {
    /// Whether to send only numeric IDs, without names.
    pub numeric: bool,
    /// Mappings of users. The first match applies.
    #[serde(deserialize_with = "list::at_most::<FETCH_MAPPINGS_MAX, _, _>")]
    pub users: Vec<Mapping>,
    /// Mappings of groups. The first match applies.
    #[serde(deserialize_with = "list::at_most::<FETCH_MAPPINGS_MAX, _, _>")]
    pub groups: Vec<Mapping>,
}

/// A mapping of users or groups at the source to one at the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The user or group at the target.
    pub to: Account,
    /// The users or groups at the source.
    pub from: AccountMatch,
}

/// A set of users or groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountMatch {
    /// All users or groups.
    All,
    /// Users or groups that have no name at the source.
    Nameless,
    /// The user or group with this name.
    Name(
        #[serde(
            serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
            deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
        )]
        String,
    ),
    /// Users or groups whose IDs are in this range, including both ends.
    Ids(u32, u32),
}

/// Whether zeros that are allocated at the source are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Zeros {
    /// Zeros are sent like any other data.
    #[default]
    Sent,
    /// Blocks of 4 KiB of zeros become holes if holes are preserved. To find these blocks, the sender reads each file
    /// one additional time.
    MadeHoles,
}

/// The data connections of a receiver that has dialed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOrder {
    /// Number of lanes dialed, in addition to the control connection.
    pub dialled: u16,
    /// Minimum number of lanes that suits the path, or `None` if the sender may not change the number of lanes.
    pub least: Option<u16>,
    /// Maximum number of lanes that the receiver accepts.
    pub most: u16,
}

/// A host's acceptance of a request for files. After this message, the host is the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Maximum number of lanes that the host serves.
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
                    from: AccountMatch::Ids(1, 2),
                }],
                groups: vec![Mapping {
                    to: Account {
                        id: 6,
                        name: "".into(),
                    },
                    from: AccountMatch::Name("g".into()),
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
