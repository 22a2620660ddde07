//! The questions of a sender about entries of the target, and the receiver's answers.

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
    /// The number of the request, for its reply: unique among the open requests that ask the same.
    pub number: u64,
    /// What is asked.
    pub question: Question,
}

/// What a request asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Which of these files are to be sent. Only where the session may write.
    Send(
        #[serde(deserialize_with = "list::at_most::<{ REQUESTED_ENTRIES_MAX }, _, _>")]
        Vec<EntryGroup>,
    ),
    /// How these entries differ. Only where the session may not write.
    Report(
        #[serde(deserialize_with = "list::at_most::<{ REQUESTED_ENTRIES_MAX }, _, _>")]
        Vec<EntryGroup>,
    ),
    /// The hashes of these groups, as the storage holds them. Only in a verification.
    Hash(FileGroups),
    /// The names in these ranges that the source does not have.
    Extraneous(
        #[serde(deserialize_with = "list::at_most::<{ LISTED_RANGES_MAX }, _, _>")] Vec<NameRange>,
    ),
}

/// Entries of one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryGroup {
    /// The directory's path from the target root.
    pub directory: RelPath,
    /// The metadata that the directory itself would get; `None` where it is not asked about.
    pub itself: Option<SourceMetadata>,
    /// The entries.
    #[serde(deserialize_with = "list::at_most::<{ REQUESTED_ENTRIES_MAX }, _, _>")]
    pub entries: Vec<SourceEntry>,
}

/// One entry as it is at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    /// The entry's name.
    pub name: Name,
    /// The entry's kind.
    pub kind: SourceKind,
    /// What is kept of the entry beside its contents.
    pub metadata: SourceMetadata,
}

/// The kind of an entry at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceKind {
    /// A regular file.
    File {
        /// The file's size in bytes.
        bytes: u64,
        /// The identity and state of the file; only of one of more than one group, and where the question is what to
        /// send.
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
        /// The path of the first name below the target root.
        first: RelPath,
    },
}

/// A digest of extended attributes, by which two files are compared.
pub type XattrDigest = [u8; 32];

/// Metadata at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMetadata {
    /// The permission bits, modification time, owner and group.
    pub metadata: Metadata,
    /// A digest of the extended attributes, if there are any.
    pub xattrs: Option<Box<XattrDigest>>,
}

/// With size and modification time, this identifies a source file and its state: nobody can set a change time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// The source file's inode.
    pub inode: u64,
    /// The source file's change time.
    pub ctime: Timestamp,
}

/// Some consecutive groups of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileGroups {
    /// The path of the file from the target root.
    pub path: RelPath,
    /// The index of the first group.
    pub first: u32,
    /// The number of groups, at most [`HASHED_GROUPS_MAX`].
    pub count: u32,
}

/// All names of one directory that lie in a range, in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRange {
    /// The directory's path from the target root.
    pub directory: RelPath,
    /// The name behind which the range begins; `None` for the beginning of the directory.
    pub after: Option<Name>,
    /// The names.
    #[serde(deserialize_with = "list::at_most::<{ LISTED_NAMES_MAX }, _, _>")]
    pub names: Vec<Name>,
    /// Whether the range has no end; otherwise it ends with the last of the names.
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
    /// To [`Question::Send`] and [`Question::Report`]: one verdict for each group's directory that was asked about and
    /// for each entry, in the order of the request.
    Verdicts(
        #[serde(deserialize_with = "list::at_most::<{ 2 * REQUESTED_ENTRIES_MAX }, _, _>")]
        Vec<Verdict>,
    ),
    /// To [`Question::Hash`].
    Hashes(GroupHashes),
    /// To [`Question::Extraneous`].
    Extraneous(ExtraneousNames),
}

/// The hashes of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHashes {
    /// The chaining values, in order; `None` for a group that is a hole. Fewer than were asked for where the file ends,
    /// or could not be read.
    #[serde(deserialize_with = "list::at_most::<{ HASHED_GROUPS_MAX }, _, _>")]
    pub values: Vec<Option<[u8; 32]>>,
    /// Why the rest could not be read.
    pub fault: Option<FaultCode>,
}

/// Names in the ranges of a request that are not at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraneousNames {
    /// The names, range by range and in order within one, at most
    /// [`EXTRANEOUS_NAMES_MAX`].
    #[serde(deserialize_with = "list::at_most::<{ EXTRANEOUS_NAMES_MAX }, _, _>")]
    pub names: Vec<ExtraneousName>,
    /// The range, and the name in it, behind which the answer ends unfinished; `None` if it is complete.
    pub rest: Option<(u32, Name)>,
    /// Ranges whose directory could not be listed.
    #[serde(deserialize_with = "list::at_most::<{ LISTED_RANGES_MAX }, _, _>")]
    pub faults: Vec<(u32, FaultCode)>,
}

/// One name that is not at the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraneousName {
    /// The number of the name's range in the request.
    pub range: u32,
    /// The name.
    pub name: Name,
    /// Whether the name is that of a directory.
    pub directory: bool,
}

/// Chaining values of consecutive groups of one file, as they are at the target: before the reply to its request
/// those of a part from an earlier transfer, after it those of the old version, for [`Verdict::Delta`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The number of the request.
    pub request: u64,
    /// The file's number in the request, over all its groups, from 0.
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
    /// Checks the question against its limits, and names against their order.
    ///
    /// # Errors
    /// [`WireError`] when there is too much in it, a directory comes twice whose names are asked for, or names are not
    /// in order.
    pub fn check(&self) -> Result<(), WireError> {
        match self {
            Self::Send(groups) if groups.iter().any(|group| group.itself.is_some()) => {
                Err(WireError::OutOfOrder {
                    what: "a question whether a directory is to be sent",
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
            what: "a listed directory that comes twice in a message",
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

    /// Whether a name lies in the range and is none of those at the source.
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

    use zmove_types::{Account, Extra};

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
            extra: Some(Arc::new(Extra {
                owner: Some(owner),
                ..Extra::default()
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
        let what = "a listed directory that comes twice in a message";
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
