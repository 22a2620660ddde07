//! What is kept of entries beside their contents: what the sender asks for, what the receiver can, and what lacks.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zmove_types::{Kinds, RelPath};

use super::{InquiredMetadata, Inquiry, Offer, bytes, list};
use crate::error::WireError;
use crate::extensions::{Extension, Extensions};
use crate::extra::{ExtraReader, ExtraWriter, OF_OFFERED, read_digest};
use crate::fields::Reader;
use crate::limits::MISSED_MAX;

/// What a sender asks to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// The kinds.
    pub kinds: Kinds,
    /// Whether the user has asked for the kinds: a receiver that does not know this extension then refuses the
    /// transfer.
    pub asked: bool,
    /// Whether each entry that lacks something is to be named.
    pub named: bool,
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            kinds: Kinds::USUAL,
            asked: false,
            named: false,
        }
    }
}

/// The number of what is kept, among the extensions of an opening and of its answer.
pub(super) const KEPT: u16 = 1;

impl Keeping {
    /// The extension of the opening that says it.
    pub(super) fn extension(self) -> Extension {
        let bytes = [
            &self.kinds.bits().to_le_bytes()[..],
            &[u8::from(self.named)],
        ]
        .concat();
        Extension {
            number: KEPT,
            critical: self.asked,
            bytes: bytes.into(),
        }
    }

    /// The request to keep metadata in the extensions of an opening.
    ///
    /// # Errors
    /// [`WireError`] when that makes no sense.
    pub fn of_opening(extensions: &Extensions) -> Result<Option<Self>, WireError> {
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            let kinds = Kinds::from_bits(reader.u32()?);
            let named = reader.u8()? != 0;
            reader.finish()?;
            Ok(Self {
                kinds,
                asked: false,
                named,
            })
        };
        extensions.get(KEPT).map(read).transpose()
    }

    /// The extensions of the answer to an opening: the kinds that a receiver knows.
    #[must_use]
    pub fn answer(kinds: Kinds) -> Extensions {
        let bytes = kinds.bits().to_le_bytes().into();
        Extensions::default().with(Extension {
            number: KEPT,
            critical: false,
            bytes,
        })
    }

    /// The kinds that a receiver knows, by its answer.
    ///
    /// # Errors
    /// [`WireError`] when that makes no sense.
    pub fn of_answer(extensions: &Extensions) -> Result<Kinds, WireError> {
        let Some(bytes) = extensions.get(KEPT) else {
            return Ok(Kinds::ALWAYS);
        };
        let mut reader = Reader::new(bytes);
        let kinds = Kinds::from_bits(reader.u32()?);
        reader.finish()?;
        Ok(kinds)
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
    /// The receiver is of an older release.
    OldReceiver,
    /// What the system says, as its Linux `errno`.
    Os(i32),
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
            Self::OldReceiver => "the receiver is of an older release",
            Self::Os(errno) => return std::io::Error::from_raw_os_error(*errno).fmt(f),
        })
    }
}

/// What was not kept of some entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotKept {
    /// The bit of the kind that was not kept.
    kind: u32,
    /// The reason.
    pub why: Lack,
    /// The number of entries that lack the kind.
    pub entries: u64,
}

impl NotKept {
    /// A count of entries that lack one kind.
    #[must_use]
    pub const fn new(kind: Kinds, why: Lack, entries: u64) -> Self {
        Self {
            kind: kind.bits(),
            why,
            entries,
        }
    }

    /// The kind that was not kept.
    #[must_use]
    pub const fn kind(&self) -> Kinds {
        Kinds::from_bits(self.kind)
    }
}

/// One entry that lacks something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The entry.
    #[serde(with = "bytes::path")]
    pub path: RelPath,
    /// The kinds that the entry lacks, and why; the number of entries is 1 in each.
    #[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")]
    pub lacks: Vec<NotKept>,
}

/// An offer, with what its files have beside mode and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferWith(pub Offer);

/// An inquiry, with what its entries have beside mode and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquireWith(pub Inquiry);

/// Extensions of some of many, by their numbers.
#[derive(Debug, Default)]
struct Blocks(BTreeMap<u32, Extensions>);

impl Blocks {
    fn add(&mut self, number: u32, extensions: Extensions) {
        if !extensions.is_empty() {
            self.0.insert(number, extensions);
        }
    }

    fn read(bytes: &[u8], what: &'static str) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let mut blocks = Self::default();
        let mut least = 0;
        while !reader.is_empty() {
            let number = reader.u32()?;
            if number < least {
                return Err(WireError::OutOfOrder {
                    what: "an entry's extensions",
                });
            }
            least = number.saturating_add(1);
            blocks.0.insert(
                number,
                Extensions::take(&mut reader)?.only(OF_OFFERED, what)?,
            );
        }
        Ok(blocks)
    }
}

impl Serialize for Blocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = Vec::new();
        for (number, extensions) in &self.0 {
            out.extend(number.to_le_bytes());
            extensions.put(&mut out);
        }
        serializer.serialize_bytes(&out)
    }
}

/// The bytes of blocks, as they stand in a message.
#[derive(Deserialize)]
struct BlockBytes<'a>(&'a [u8]);

impl Serialize for OfferWith {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut writer, mut blocks) = (ExtraWriter::default(), Blocks::default());
        for (number, file) in (0..).zip(self.0.groups.iter().flat_map(|group| &group.files)) {
            blocks.add(
                number,
                writer.next(file.metadata.extra.as_deref(), file.xattrs.as_deref()),
            );
        }
        (&self.0, blocks).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OfferWith {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut offer, BlockBytes(blocks)) =
            <(Offer, BlockBytes<'de>)>::deserialize(deserializer)?;
        let blocks = Blocks::read(blocks, "an offered file").map_err(D::Error::custom)?;
        let mut reader = ExtraReader::default();
        for (number, file) in (0..).zip(offer.groups.iter_mut().flat_map(|group| &mut group.files))
        {
            if let Some(extensions) = blocks.0.get(&number) {
                file.metadata.extra = reader.next(extensions).map_err(D::Error::custom)?;
                file.xattrs = read_digest(extensions).map_err(D::Error::custom)?;
            }
        }
        Ok(Self(offer))
    }
}

impl Serialize for InquireWith {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut writer, mut blocks) = (ExtraWriter::default(), Blocks::default());
        let all = self.0.groups.iter().flat_map(|group| {
            group
                .itself
                .iter()
                .chain(group.entries.iter().map(|entry| &entry.metadata))
        });
        for (number, InquiredMetadata(metadata, xattrs)) in (0..).zip(all) {
            blocks.add(
                number,
                writer.next(metadata.extra.as_deref(), xattrs.as_deref()),
            );
        }
        (&self.0, blocks).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for InquireWith {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut inquiry, BlockBytes(blocks)) =
            <(Inquiry, BlockBytes<'de>)>::deserialize(deserializer)?;
        let blocks = Blocks::read(blocks, "an entry inquired about").map_err(D::Error::custom)?;
        let mut reader = ExtraReader::default();
        let all = inquiry.groups.iter_mut().flat_map(|group| {
            group
                .itself
                .iter_mut()
                .chain(group.entries.iter_mut().map(|entry| &mut entry.metadata))
        });
        for (number, InquiredMetadata(metadata, xattrs)) in (0..).zip(all) {
            if let Some(extensions) = blocks.0.get(&number) {
                metadata.extra = reader.next(extensions).map_err(D::Error::custom)?;
                *xattrs = read_digest(extensions).map_err(D::Error::custom)?;
            }
        }
        Ok(Self(inquiry))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zmove_types::{Account, Extra, Metadata, Name, Timestamp};

    use super::*;
    use crate::message::{
        InquiredEntry, InquiredGroup, InquiredKind, OfferedFile, OfferedGroup, ToReceiver,
        ToSender, decode_message, encode_message,
    };
    use crate::{Open, Purpose, Version};

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn owned() -> Metadata {
        let owner = Some(Account {
            id: 7,
            name: "".into(),
        });
        let extra = Some(Arc::new(Extra {
            owner,
            ..Extra::default()
        }));
        Metadata {
            extra,
            ..Metadata::new(0o600, Timestamp::default())
        }
    }

    #[test]
    fn what_is_asked_for_is_pinned_and_critical_where_the_user_has_asked() {
        let say = |keeping: Keeping| {
            // A preview, whose opening has no other extension.
            let purpose = Purpose::Preview;
            let open = Open {
                keeping: Some(keeping),
                purpose,
                ..Open::new(b"/d".to_vec(), [0; 16])
            };
            let ToReceiver::OpenWith(open, extensions) = open.into_message(Version::V4) else {
                panic!("no opening")
            };
            let bytes = encode_message(&extensions);
            (
                bytes[4..].to_vec(),
                open.with(extensions).unwrap().keeping.unwrap(),
            )
        };
        let (bytes, read) = say(Keeping::default());
        assert_eq!(
            (bytes, read),
            (
                vec![12, 1, 0, 0, 5, 0, 0, 0, 0x33, 6, 0, 0, 0],
                Keeping::default()
            )
        );
        let asked = Keeping {
            kinds: Kinds::ALL,
            asked: true,
            named: true,
        };
        let (bytes, read) = say(asked);
        assert_eq!(bytes, [12, 1, 0, 1, 5, 0, 0, 0, 0xFF, 15, 0, 0, 1]);
        assert_eq!(
            read,
            Keeping {
                asked: false,
                ..asked
            }
        );
        assert_eq!(
            Keeping::of_answer(&Keeping::answer(Kinds::ALL)),
            Ok(Kinds::ALL)
        );
        assert_eq!(
            Keeping::of_answer(&Extensions::default()),
            Ok(Kinds::ALWAYS)
        );
    }

    #[test]
    fn an_offer_s_extras_are_pinned_behind_the_offer() {
        let plain = |text: &str, metadata: Metadata| OfferedFile {
            name: name(text),
            bytes: 1,
            metadata,
            source: None,
            xattrs: None,
        };
        let first = OfferedFile {
            xattrs: Some(Box::new([9; 32])),
            ..plain("a", owned())
        };
        let files = vec![first, plain("b", Metadata::default()), plain("c", owned())];
        let offer = Offer {
            offer: 3,
            groups: vec![OfferedGroup {
                directory: RelPath::root(),
                files,
            }],
        };
        let (bare, with) = (
            ToReceiver::Offer(offer.clone()),
            ToReceiver::OfferWith(OfferWith(offer)),
        );
        let (bare, bytes) = (encode_message(&bare), encode_message(&with));
        assert_eq!((bare[4], bytes[4]), (1, 11));
        assert_eq!(bytes[5..bare.len()], bare[5..], "the offer as it was");
        let blocks = [
            &[
                0, 0, 0, 0, 52, 0, 0, 0, 1, 0, 0, 6, 0, 0, 0, 1, 7, 0, 0, 0, 0, 3, 0, 0, 32, 0, 0,
                0,
            ][..],
            &[9; 32],
            &[2, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes[bare.len()..], [&[75][..], &blocks.concat()].concat());
        assert_eq!(decode_message(&bytes[4..]), Ok(with));
    }

    #[test]
    fn an_inquiry_s_extras_survive_the_wire() {
        let entry = |text: &str, extra| InquiredEntry {
            name: name(text),
            kind: InquiredKind::Directory,
            metadata: extra,
        };
        let bare = InquiredMetadata(Metadata::default(), None);
        let entries = vec![
            entry("a", bare),
            entry("b", InquiredMetadata(owned(), None)),
        ];
        let itself = Some(InquiredMetadata(owned(), Some(Box::new([3; 32]))));
        let group = InquiredGroup {
            directory: RelPath::root(),
            itself,
            entries,
        };
        let inquiry = ToReceiver::InquireWith(InquireWith(Inquiry {
            inquiry: 1,
            groups: vec![group],
        }));
        let bytes = encode_message(&inquiry);
        assert_eq!((bytes[4], decode_message(&bytes[4..])), (12, Ok(inquiry)));
    }

    #[test]
    fn what_was_not_kept_is_pinned() {
        let lack = NotKept::new(Kinds::ACLS, Lack::Unsupported, 3);
        let counts = ToSender::NotKept {
            counts: vec![lack, NotKept::new(Kinds::OWNER, Lack::Os(-1), 1)],
        };
        assert_eq!(encode_message(&counts)[4..], [17, 2, 32, 2, 3, 4, 8, 1, 1]);
        let entries = vec![Missed {
            path: RelPath::from_bytes(b"a/b").unwrap(),
            lacks: vec![lack],
        }];
        let missed = ToSender::Missed { entries };
        let bytes = encode_message(&missed);
        assert_eq!(bytes[4..], [18, 1, 3, b'a', b'/', b'b', 1, 32, 2, 3]);
        assert_eq!(decode_message(&bytes[4..]), Ok(missed));
        assert_eq!(lack.kind(), Kinds::ACLS);
    }

    #[test]
    fn extras_of_files_that_are_not_offered_say_nothing() {
        let offer = OfferWith(Offer {
            offer: 3,
            groups: Vec::new(),
        });
        let mut bytes = encode_message(&ToReceiver::OfferWith(offer.clone()));
        assert_eq!(bytes.pop(), Some(0));
        let block = [9, 0, 0, 0, 0, 0, 0, 0];
        let with = |blocks: &[u8]| {
            decode_message::<ToReceiver>(
                &[&bytes[4..], &[u8::try_from(blocks.len()).unwrap()], blocks].concat(),
            )
        };
        assert_eq!(with(&block), Ok(ToReceiver::OfferWith(offer)));
        assert_eq!(
            with(&[block, block].concat()),
            Err(WireError::Message),
            "twice the same"
        );
        assert_eq!(with(&block[1..]), Err(WireError::Message));
    }
}
