//! Times and metadata within messages: mode, time, owner and group. Only this file and `fields`, for
//! batches, know their
//! form on the wire.

use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zmove_types::{Account, Extra, Metadata, Timestamp};

pub(super) fn serialize<S: Serializer>(
    metadata: &Metadata,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Metadata { mode, mtime, extra } = metadata;
    let owner = extra.as_ref().and_then(|extra| extra.owner.as_ref());
    let group = extra.as_ref().and_then(|extra| extra.group.as_ref());
    (mode, Time(*mtime), owner.map(sent), group.map(sent)).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Metadata, D::Error> {
    let (mode, Time(mtime), owner, group) =
        <(u32, _, Option<_>, Option<_>)>::deserialize(deserializer)?;
    let extra = Extra {
        owner: owner.map(received).transpose()?,
        group: group.map(received).transpose()?,
        ..Extra::default()
    };
    Ok(Metadata {
        extra: (!extra.is_empty()).then(|| Arc::new(extra)),
        ..Metadata::new(mode & 0o7777, mtime)
    })
}

/// A user or group as it travels.
#[derive(Serialize, Deserialize)]
struct SentAccount<'a> {
    id: u32,
    name: &'a str,
}

fn sent(Account { id, name }: &Account) -> SentAccount<'_> {
    SentAccount { id: *id, name }
}

pub(super) fn serialize_account<S: Serializer>(
    account: &Account,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    sent(account).serialize(serializer)
}

pub(super) fn deserialize_account<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Account, D::Error> {
    received(SentAccount::deserialize(deserializer)?)
}

fn received<E: Error>(SentAccount { id, name }: SentAccount<'_>) -> Result<Account, E> {
    if name.len() > Account::NAME_BYTES_MAX || name.contains('\0') {
        return Err(E::custom("the name of a user or group"));
    }
    Ok(Account {
        id,
        name: name.into(),
    })
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time(#[serde(with = "SentTimestamp")] pub Timestamp);

/// A [`Timestamp`] as it travels.
#[derive(Debug, Serialize, Deserialize)]
#[serde(remote = "Timestamp")]
pub struct SentTimestamp {
    seconds: i64,
    #[serde(deserialize_with = "nanos")]
    nanos: u32,
}

fn nanos<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let nanos = u32::deserialize(deserializer)?;
    if nanos < 1_000_000_000 {
        Ok(nanos)
    } else {
        Err(D::Error::custom("nanoseconds"))
    }
}

#[cfg(test)]
mod tests {
    use zmove_types::{Name, RelPath};

    use super::*;
    use crate::error::WireError;
    use crate::message::{
        EntryGroup, Question, Request, SourceEntry, SourceKind, SourceMetadata, decode_message,
        encode_message,
    };

    fn owned(name: &str) -> Metadata {
        let account = |id, name: &str| {
            Some(Account {
                id,
                name: name.into(),
            })
        };
        let extra = Some(Arc::new(Extra {
            owner: account(300, name),
            group: account(5, ""),
            ..Extra::default()
        }));
        Metadata {
            extra,
            ..Metadata::new(0o600, Timestamp::default())
        }
    }

    fn file(metadata: Metadata) -> SourceEntry {
        SourceEntry {
            name: Name::from_bytes(b"a").unwrap(),
            kind: SourceKind::File {
                bytes: 1,
                mark: None,
            },
            metadata: SourceMetadata {
                metadata,
                xattrs: Some(Box::new([9; 32])),
            },
        }
    }

    #[test]
    fn the_owner_and_the_attributes_of_a_file_are_pinned() {
        let bytes = encode_message(&file(owned("ann")));
        let fields = [
            1, b'a', 0, 1, 0, 0x80, 3, 0, 0, 1, 0xAC, 2, 3, b'a', b'n', b'n', 1, 5, 0, 1,
        ];
        assert_eq!(bytes[4..], [&fields[..], &[9; 32]].concat());
        assert_eq!(decode_message(&bytes[4..]), Ok(file(owned("ann"))));
    }

    #[test]
    fn names_of_users_are_short_and_hold_no_nul() {
        let decoded = |name: &str| {
            decode_message::<SourceEntry>(&encode_message(&file(owned(name)))[4..]).map(drop)
        };
        assert_eq!(decoded(&"n".repeat(255)), Ok(()));
        assert_eq!(decoded(&"n".repeat(256)), Err(WireError::Message));
        assert_eq!(decoded("a\0b"), Err(WireError::Message));
    }

    #[test]
    fn owners_and_attributes_in_a_request_survive_the_wire() {
        let of = |metadata, xattrs| SourceMetadata { metadata, xattrs };
        let entry = |text: &[u8], metadata| SourceEntry {
            name: Name::from_bytes(text).unwrap(),
            kind: SourceKind::Directory,
            metadata: of(metadata, None),
        };
        let group = EntryGroup {
            directory: RelPath::root(),
            itself: Some(of(owned("u"), Some(Box::new([3; 32])))),
            entries: vec![entry(b"a", Metadata::default()), entry(b"b", owned(""))],
        };
        let request = Request {
            number: 1,
            question: Question::Report(vec![group]),
        };
        let bytes = encode_message(&request);
        assert_eq!(decode_message(&bytes[4..]), Ok(request));
    }
}
