//! A sender's questions about entries of the target, and the receiver's answers.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use zmove_types::{Metadata, Name, RelPath, Special, Timestamp, bytes, list};

use super::verdict::Verdict;
use crate::error::WireError;
use crate::limits::{
    EXTRANEOUS_NAMES_MAX, HASHED_GROUPS_MAX, HELD_GROUPS_MAX, LISTED_NAMES_MAX, LISTED_RANGES_MAX,
    REQUESTED_ENTRIES_MAX, within,
};
use crate::message::fault::FaultCode;

/// A question about entries of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number of the request, for its reply. Unique among the outstanding requests of the same kind.
    pub number: u64,
    /// The question.
    pub question: Question,
}

/// The question of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Which of these files must be sent? Allowed only if the session may write.
    Send(
        #[serde(deserialize_with = "list::at_most::<{ REQUESTED_ENTRIES_MAX }, _, _>")]
        Vec<EntryGroup>,
    ),
    /// How do these entries differ from the target? Allowed only if the session may not write.
    Report(
        #[serde(deserialize_with = "list::at_most::<{ REQUESTED_ENTRIES_MAX }, _, _>")]
        Vec<EntryGroup>,
    ),
    /// What are the hashes of these groups, as read from the storage? Allowed only in a verification.
    Hash(FileGroups),
    /// Which names in these ranges of the target do not exist at the source?
    Extraneous(
        #[serde(deserialize_with = "list::at_most::<{ LISTED_RANGES_MAX }, _, _>")] Vec<NameRange>,
    ),
}

/// Entries of one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryGroup {
    /// The directory's path from the target root.
    pub directory: RelPath,
    /// The metadata to compare with the directory itself, or `None` if the request does not concern the directory
    /// itself.
    pub itself: Option<SourceMetadata>,
    /// The entries.
    #[serde(deserialize_with = "list::at_most::<{ REQUESTED_ENTRIES_MAX }, _, _>")]
    pub entries: Vec<SourceEntry>,
}

/// An entry at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    /// The entry's name.
    pub name: Name,
    /// The entry's kind.
    pub kind: SourceKind,
    /// The metadata of the entry.
    pub metadata: SourceMetadata,
}

/// The kind of an entry at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceKind {
    /// A regular file.
    File {
        /// The file's size in bytes.
        bytes: u64,
        /// The inode and change time of the file. Present only for a file larger than one group in a
        /// [`Question::Send`].
        mark: Option<SourceMark>,
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
    Special(Special),
    /// Another name of a regular file.
    Link {
        /// The file's size in bytes.
        bytes: u64,
        /// The path of the file's first name below the target root.
        first: RelPath,
    },
}

/// A digest of extended attributes, for comparing two files.
pub type XattrDigest = [u8; 32];

/// Metadata at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMetadata {
    /// The permission bits, modification time, owner and group.
    pub metadata: Metadata,
    /// A digest of the extended attributes, or `None` if the entry has no attributes.
    pub xattrs: Option<Box<XattrDigest>>,
}

/// The inode and change time of a source file. Together with size and modification time, they identify a version of the
/// file, because users cannot set the change time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// The inode number of the source file.
    pub inode: u64,
    /// The change time of the source file.
    pub ctime: Timestamp,
}

/// Consecutive groups of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileGroups {
    /// The path of the file from the target root.
    pub path: RelPath,
    /// The index of the first group.
    pub first: u32,
    /// The number of groups, at most [`HASHED_GROUPS_MAX`].
    pub count: u32,
}

/// A range of names in one directory, with all names of the source in that range, sorted by their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRange {
    /// The directory's path from the target root.
    pub directory: RelPath,
    /// The name after which the range begins, or `None` for the beginning of the directory.
    pub after: Option<Name>,
    /// The names at the source.
    #[serde(deserialize_with = "list::at_most::<{ LISTED_NAMES_MAX }, _, _>")]
    pub names: Vec<Name>,
    /// Whether the range extends to the end of the directory. Otherwise, it ends with the last of the names.
    pub open: bool,
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The number of the request.
    pub number: u64,
    /// The answer to its question.
    pub answer: Answer,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The answer to [`Question::Send`] and [`Question::Report`]: one verdict for each entry, and one for each
    /// directory whose metadata is in the request, in the order of the request.
    Verdicts(
        #[serde(deserialize_with = "list::at_most::<{ 2 * REQUESTED_ENTRIES_MAX }, _, _>")]
        Vec<Verdict>,
    ),
    /// The answer to [`Question::Hash`].
    Hashes(GroupHashes),
    /// The answer to [`Question::Extraneous`].
    Extraneous(ExtraneousNames),
}

/// The hashes of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHashes {
    /// The chaining values, in order. A value is `None` if the group is a hole. The list is shorter than requested if
    /// the file ends or could not be read.
    #[serde(deserialize_with = "list::at_most::<{ HASHED_GROUPS_MAX }, _, _>")]
    pub values: Vec<Option<[u8; 32]>>,
    /// The error because of which not all values could be read, or `None` if all values are present.
    pub fault: Option<FaultCode>,
}

/// Names in the ranges of a request that do not exist at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraneousNames {
    /// The names, sorted within each range and ordered by range, at most [`EXTRANEOUS_NAMES_MAX`].
    #[serde(deserialize_with = "list::at_most::<{ EXTRANEOUS_NAMES_MAX }, _, _>")]
    pub names: Vec<ExtraneousName>,
    /// The position at which an incomplete answer ends: the index of a range, and the last name returned from it.
    /// `None` if the answer is complete.
    pub rest: Option<(u32, Name)>,
    /// Ranges whose directory could not be listed.
    #[serde(deserialize_with = "list::at_most::<{ LISTED_RANGES_MAX }, _, _>")]
    pub faults: Vec<(u32, FaultCode)>,
}

/// A name that does not exist at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraneousName {
    /// The index of the name's range in the request.
    pub range: u32,
    /// The name.
    pub name: Name,
    /// Whether the name belongs to a directory.
    pub directory: bool,
}

/// Chaining values of consecutive groups of one file at the target. Messages before the reply to the request report
/// groups that an earlier transfer has stored. Messages after the reply report groups of the old version of the file,
/// for [`Verdict::Delta`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The number of the request.
    pub request: u64,
    /// The index of the file in the request, counted over all groups from 0.
    pub file: u32,
    /// The index of the first group.
    pub first: u32,
    /// The values, at most [`HELD_GROUPS_MAX`].
    #[serde(deserialize_with = "list::at_most::<{ HELD_GROUPS_MAX }, _, _>")]
    pub cvs: Vec<[u8; 32]>,
    /// Whether this is the last message about the file.
    pub end: bool,
}

impl Question {
    /// Checks the question against its limits, and the order of its names.
    ///
    /// # Errors
    /// [`WireError`] if the question exceeds a limit, lists a directory twice, or has names that are not in order.
    pub fn check(&self) -> Result<(), WireError> {
        match self {
            Self::Send(groups) if groups.iter().any(|group| group.itself.is_some()) => {
                Err(WireError::OutOfOrder {
                    what: "a request whether to send a directory",
                })
            }
            Self::Send(groups) | Self::Report(groups) => {
                let entries = groups.iter().map(|group| group.entries.len()).sum();
                let count = groups.len().max(entries);
                within("entries of a request", count, REQUESTED_ENTRIES_MAX)
            }
            Self::Hash(groups) => {
                within("groups to hash", groups.count as usize, HASHED_GROUPS_MAX)
            }
            Self::Extraneous(ranges) => check_ranges(ranges),
        }
    }
}

fn check_ranges(ranges: &[NameRange]) -> Result<(), WireError> {
    within("listed directories", ranges.len(), LISTED_RANGES_MAX)?;
    let names = ranges.iter().map(|range| range.names.len()).sum();
    within("listed names", names, LISTED_NAMES_MAX)?;
    let directories: HashSet<_> = ranges.iter().map(|range| &range.directory).collect();
    if directories.len() < ranges.len() {
        return Err(WireError::OutOfOrder {
            what: "a directory that a message lists twice",
        });
    }
    if ranges.iter().all(NameRange::is_ordered) {
        Ok(())
    } else {
        Err(WireError::OutOfOrder {
            what: "a listed name",
        })
    }
}

impl NameRange {
    fn is_ordered(&self) -> bool {
        let behind = self
            .after
            .as_ref()
            .zip(self.names.first())
            .is_none_or(|(after, first)| after < first);
        behind && self.names.is_sorted_by(|one, next| one < next)
    }

    /// Returns whether a name is in the range and does not exist at the source.
    #[must_use]
    pub fn is_extra(&self, name: &Name) -> bool {
        let after = self.after.as_ref().is_none_or(|after| name > after);
        let before = self.open || self.names.last().is_some_and(|last| name <= last);
        after && before && self.names.binary_search_by(|own| own.cmp(name)).is_err()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zmove_types::{Account, ExtraMetadata};

    use super::*;
    use crate::{ToReceiver, ToSender, decode_message, encode_message};

    #[test]
    fn special_entries_are_pinned() {
        let bytes = |special| encode_message(&SourceKind::Special(special));
        assert_eq!(bytes(Special::Fifo)[4..], [3, 0]);
        assert_eq!(bytes(Special::Socket)[4..], [3, 1]);
        assert_eq!(bytes(Special::Character(300))[4..], [3, 2, 0xAC, 2]);
        assert_eq!(bytes(Special::Block(1))[4..], [3, 3, 1]);
    }

    #[test]
    fn owners_and_attributes_in_a_request_are_pinned() {
        let owner = Account {
            id: 300,
            name: "ann".into(),
        };
        let metadata = Metadata {
            extra: Some(Arc::new(ExtraMetadata {
                owner: Some(owner),
                ..ExtraMetadata::default()
            })),
            ..Metadata::default()
        };
        let xattrs = Some(Box::new([9; 32]));
        let entry = SourceEntry {
            name: name("a"),
            kind: SourceKind::Directory,
            metadata: SourceMetadata { metadata, xattrs },
        };
        let group = EntryGroup {
            directory: RelPath::root(),
            itself: None,
            entries: vec![entry],
        };
        let request = Request {
            number: 1,
            question: Question::Report(vec![group]),
        };
        let bytes = encode_message(&request);
        assert_eq!(decode_message(&bytes[4..]), Ok(request));
        let order = [1, 1, 1, 0, 0, 1];
        let entry = [1, b'a', 1, 0, 0, 0];
        let extra = [1, 1, 0xAC, 2, 3, b'a', b'n', b'n', 0, 0, 0, 0];
        let before = [&order[..], &entry, &extra, &[1]].concat();
        assert_eq!(bytes[4..], [&before[..], &[9; 32]].concat());
    }

    #[test]
    fn orders_and_answers_are_pinned_and_bounded() {
        let path = RelPath::from_bytes(b"d/f").unwrap();
        let order = ToReceiver::Request(Request {
            number: 300,
            question: Question::Hash(FileGroups {
                path,
                first: 2,
                count: 1,
            }),
        });
        let bytes = encode_message(&order);
        assert_eq!(bytes[4..], [1, 0xAC, 2, 2, 3, b'd', b'/', b'f', 2, 1]);
        assert_eq!(decode_message(&bytes[4..]), Ok(order));
        let hashed = |values| {
            ToSender::Reply(Reply {
                number: 1,
                answer: Answer::Hashes(GroupHashes {
                    values,
                    fault: Some(FaultCode::Os(5)),
                }),
            })
        };
        let two = hashed(vec![None, Some([7; 32])]);
        let bytes = encode_message(&two);
        assert_eq!(bytes[4..10], [2, 1, 1, 2, 0, 1]);
        assert_eq!(bytes[10..42], [7; 32]);
        assert_eq!(decode_message(&bytes[4..]), Ok(two));
        let many =
            |count| decode_message::<ToSender>(&encode_message(&hashed(vec![None; count]))[4..]);
        assert!(many(HASHED_GROUPS_MAX).is_ok());
        assert_eq!(many(HASHED_GROUPS_MAX + 1), Err(WireError::Message));
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn range(after: Option<&str>, names: &[&str], open: bool) -> NameRange {
        let names = names.iter().map(|text| name(text)).collect();
        NameRange {
            directory: RelPath::root(),
            after: after.map(name),
            names,
            open,
        }
    }

    #[test]
    fn a_range_tells_what_is_extra_in_it_alone() {
        let extra =
            |range: &NameRange| ["a", "b", "c", "d", "e"].map(|text| range.is_extra(&name(text)));
        assert_eq!(
            extra(&range(None, &["b", "d"], false)),
            [true, false, true, false, false]
        );
        assert_eq!(
            extra(&range(Some("b"), &["d"], false)),
            [false, false, true, false, false]
        );
        assert_eq!(
            extra(&range(Some("d"), &[], true)),
            [false, false, false, false, true]
        );
        assert_eq!(extra(&range(Some("b"), &[], false)), [false; 5]);
    }

    #[test]
    fn names_out_of_order_and_directories_that_come_twice_are_refused() {
        let check = |range| Question::Extraneous(vec![range]).check();
        assert_eq!(check(range(Some("a"), &["b", "c"], true)), Ok(()));
        for bad in [
            range(None, &["b", "a"], true),
            range(None, &["b", "b"], true),
            range(Some("b"), &["b"], true),
        ] {
            assert_eq!(
                check(bad),
                Err(WireError::OutOfOrder {
                    what: "a listed name"
                })
            );
        }
        let twice = Question::Extraneous(vec![
            range(None, &["a"], false),
            range(Some("a"), &[], true),
        ]);
        let what = "a directory that a message lists twice";
        assert_eq!(twice.check(), Err(WireError::OutOfOrder { what }));
        let many = Question::Extraneous(vec![range(None, &[], true); LISTED_RANGES_MAX + 1]);
        assert!(matches!(
            many.check(),
            Err(WireError::OverLimit {
                what: "listed directories",
                ..
            })
        ));
    }
}
