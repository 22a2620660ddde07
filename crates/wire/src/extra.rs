//! What is carried of an entry beside mode and time, as extensions of entries of batches and of large files.
//!
//! What the receiver of a transfer keeps of it is asked for in the transfer's [opening](crate::Open).
//! **Invariant:** the
//! names of attributes ascend, are of a [kind](Kinds::of_xattr), and what there is of them is within
//! [`Xattr::ENTRY_BYTES_MAX`].

use std::sync::Arc;

use zmove_types::{Account, Extra, Kinds, RelPath, Timestamp, Xattr};

use crate::error::WireError;
use crate::extensions::{Extensions, KnownExtension};
use crate::fields::{Reader, put_timestamp};
use crate::limits::within;

/// Owner and group. An empty value repeats those of the last entry before that had any.
pub(crate) const OWNERSHIP: KnownExtension = KnownExtension::optional(1);
/// Extended attributes, access control lists among them.
pub(crate) const XATTRS: KnownExtension = KnownExtension::optional(2);
/// The time of the last access.
pub(crate) const ATIME: KnownExtension = KnownExtension::optional(3);
/// The first name of a symbolic link or special file that has several.
pub(crate) const FIRST_NAME: KnownExtension = KnownExtension::optional(4);

/// A digest of extended attributes, by which two files are compared.
pub type XattrDigest = [u8; 32];

type Ownership = (Option<Account>, Option<Account>);

/// Writes the extensions of entries one after the other.
#[derive(Debug, Default)]
pub(crate) struct ExtraWriter {
    last: Option<Ownership>,
}

impl ExtraWriter {
    /// The extensions of the next entry; none if it has only mode and time.
    pub(crate) fn next(&mut self, extra: Option<&Extra>) -> Extensions {
        let mut extensions = Extensions::default();
        let Some(extra) = extra else {
            return extensions;
        };
        if extra.owner.is_some() || extra.group.is_some() {
            extensions = extensions.with(&OWNERSHIP, self.ownership(extra));
        }
        if !extra.xattrs.is_empty() {
            extensions = extensions.with(&XATTRS, xattrs(&extra.xattrs));
        }
        if let Some(atime) = extra.atime {
            let mut bytes = Vec::new();
            put_timestamp(&mut bytes, atime);
            extensions = extensions.with(&ATIME, bytes);
        }
        if let Some(path) = &extra.first_name {
            extensions = extensions.with(&FIRST_NAME, path.as_bytes());
        }
        extensions
    }

    fn ownership(&mut self, extra: &Extra) -> Vec<u8> {
        let is_last = self
            .last
            .as_ref()
            .is_some_and(|(owner, group)| *owner == extra.owner && *group == extra.group);
        if is_last {
            return Vec::new();
        }
        self.last = Some((extra.owner.clone(), extra.group.clone()));
        let mut out = vec![u8::from(extra.owner.is_some()) | u8::from(extra.group.is_some()) << 1];
        for account in [&extra.owner, &extra.group].into_iter().flatten() {
            out.extend(account.id.to_le_bytes());
            out.push(
                u8::try_from(account.name.len()).expect("a name has at most NAME_BYTES_MAX bytes"),
            );
            out.extend_from_slice(account.name.as_bytes());
        }
        out
    }
}

fn xattrs(xattrs: &[Xattr]) -> Vec<u8> {
    let mut out = Vec::new();
    for Xattr { name, value } in xattrs {
        out.push(u8::try_from(name.len()).expect("a name has at most NAME_BYTES_MAX bytes"));
        out.extend_from_slice(name);
        out.extend(
            u32::try_from(value.len())
                .expect("a value has at most VALUE_BYTES_MAX bytes")
                .to_le_bytes(),
        );
        out.extend_from_slice(value);
    }
    out
}

/// Reads the extensions of entries one after the other.
#[derive(Debug, Default)]
pub(crate) struct ExtraReader {
    last: Option<Ownership>,
    /// The last metadata that has ownership alone: entries that have the same share it.
    shared: Option<Arc<Extra>>,
}

impl ExtraReader {
    /// The metadata that the extensions of the next entry carry.
    pub(crate) fn next(
        &mut self,
        extensions: &Extensions,
    ) -> Result<Option<Arc<Extra>>, WireError> {
        let mut extra = Extra::default();
        if let Some(xattrs) = extensions.get(&XATTRS) {
            extra.xattrs = read_xattrs(&mut Reader::new(xattrs))?;
        }
        extra.atime = extensions.get(&ATIME).map(read_time).transpose()?;
        extra.first_name = extensions
            .get(&FIRST_NAME)
            .map(read_first_name)
            .transpose()?;
        let alone = extra.is_empty();
        match extensions.get(&OWNERSHIP) {
            None => {}
            Some([]) if alone && self.shared.is_some() => return Ok(self.shared.clone()),
            Some([]) => {
                let nobody = WireError::OutOfOrder {
                    what: "the owner of the entry before the first",
                };
                (extra.owner, extra.group) = self.last.clone().ok_or(nobody)?;
            }
            Some(ownership) => {
                self.last = Some(read_ownership(ownership)?);
                self.shared = None;
                (extra.owner, extra.group) = self.last.clone().expect("set just above");
            }
        }
        if extra.is_empty() {
            return Ok(None);
        }
        let extra = Arc::new(extra);
        if alone {
            self.shared = Some(Arc::clone(&extra));
        }
        Ok(Some(extra))
    }
}

fn read_time(bytes: &[u8]) -> Result<Timestamp, WireError> {
    let mut reader = Reader::new(bytes);
    let time = reader.timestamp()?;
    reader.finish()?;
    Ok(time)
}

fn read_first_name(bytes: &[u8]) -> Result<RelPath, WireError> {
    let path = RelPath::from_bytes(bytes)?;
    if path.is_root() {
        Err(WireError::OutOfOrder {
            what: "a first name",
        })
    } else {
        Ok(path)
    }
}

fn read_ownership(bytes: &[u8]) -> Result<Ownership, WireError> {
    let mut reader = Reader::new(bytes);
    let which = reader.u8()?;
    if !(1..=3).contains(&which) {
        return Err(WireError::UnknownTag {
            what: "ownership",
            tag: which,
        });
    }
    let mut account = |bit| {
        (which & bit != 0)
            .then(|| read_account(&mut reader))
            .transpose()
    };
    let accounts = (account(1)?, account(2)?);
    reader.finish()?;
    Ok(accounts)
}

fn read_account(reader: &mut Reader<'_>) -> Result<Account, WireError> {
    let id = reader.u32()?;
    let len = usize::from(reader.u8()?);
    let name = std::str::from_utf8(reader.bytes(len)?)
        .ok()
        .filter(|name| !name.contains('\0'));
    let name = name.ok_or(WireError::OutOfOrder {
        what: "the name of a user",
    })?;
    Ok(Account {
        id,
        name: name.into(),
    })
}

fn read_xattrs(reader: &mut Reader<'_>) -> Result<Vec<Xattr>, WireError> {
    let mut xattrs = Vec::<Xattr>::new();
    let mut bytes = 0;
    while !reader.is_empty() {
        let len = usize::from(reader.u8()?);
        let name = reader.bytes(len)?;
        if name.contains(&0) || Kinds::of_xattr(name).is_none() {
            return Err(WireError::OutOfOrder {
                what: "the name of an extended attribute",
            });
        }
        if xattrs.last().is_some_and(|before| *before.name >= *name) {
            return Err(WireError::OutOfOrder {
                what: "an extended attribute",
            });
        }
        let len = reader.bounded_u32("extended attribute", Xattr::VALUE_BYTES_MAX)?;
        let xattr = Xattr {
            name: name.into(),
            value: reader.bytes(len)?.into(),
        };
        bytes += xattr.bytes();
        within("extended attributes", bytes, Xattr::ENTRY_BYTES_MAX)?;
        xattrs.push(xattr);
    }
    // What is booked counts no spare room.
    xattrs.shrink_to_fit();
    Ok(xattrs)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, proptest};

    fn account(id: u32, name: &str) -> Option<Account> {
        Some(Account {
            id,
            name: name.into(),
        })
    }

    pub(crate) fn xattr(name: &str, value: &[u8]) -> Xattr {
        Xattr {
            name: name.as_bytes().into(),
            value: value.into(),
        }
    }

    fn owned(owner: Option<Account>, group: Option<Account>, xattrs: &[Xattr]) -> Extra {
        Extra {
            owner,
            group,
            xattrs: xattrs.to_vec(),
            ..Extra::default()
        }
    }

    #[test]
    fn the_bytes_are_pinned_and_an_owner_is_said_once() {
        let mut writer = ExtraWriter::default();
        let mut reader = ExtraReader::default();
        let first = owned(
            account(1000, "ann"),
            account(100, ""),
            &[xattr("user.a", b"xy")],
        );
        let said = writer.next(Some(&first));
        assert_eq!(
            said.get(&OWNERSHIP),
            Some(&[3, 0xE8, 3, 0, 0, 3, b'a', b'n', b'n', 100, 0, 0, 0, 0][..])
        );
        assert_eq!(
            said.get(&XATTRS),
            Some(&[&[6][..], b"user.a", &[2, 0, 0, 0], b"xy"].concat()[..])
        );
        assert_eq!(reader.next(&said), Ok(Some(Arc::new(first.clone()))));
        let second = owned(first.owner.clone(), first.group.clone(), &[]);
        let said = writer.next(Some(&second));
        assert_eq!(
            (said.get(&OWNERSHIP), said.get(&XATTRS)),
            (Some(&[][..]), None)
        );
        let one = reader.next(&said).unwrap().unwrap();
        assert_eq!(*one, second);
        assert!(
            Arc::ptr_eq(&one, &reader.next(&said).unwrap().unwrap()),
            "it is shared"
        );
        let group = owned(None, account(5, "x"), &[]);
        let said = writer.next(Some(&group));
        assert_eq!(said.get(&OWNERSHIP), Some(&[2, 5, 0, 0, 0, 1, b'x'][..]));
        assert_eq!(reader.next(&said), Ok(Some(Arc::new(group))));
        let read = Extra {
            atime: Some(Timestamp {
                seconds: -2,
                nanos: 3,
            }),
            ..Extra::default()
        };
        let said = writer.next(Some(&read));
        let time = [0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 3, 0, 0, 0];
        assert_eq!(
            (said.get(&OWNERSHIP), said.get(&ATIME)),
            (None, Some(&time[..]))
        );
        assert_eq!(reader.next(&said), Ok(Some(Arc::new(read))));
        let first_name = Some(RelPath::from_bytes(b"a/b").unwrap());
        let other = Extra {
            first_name,
            ..Extra::default()
        };
        let said = writer.next(Some(&other));
        assert_eq!(
            (said.get(&OWNERSHIP), said.get(&FIRST_NAME)),
            (None, Some(&b"a/b"[..]))
        );
        assert_eq!(reader.next(&said), Ok(Some(Arc::new(other))));
        assert_eq!(writer.next(None), Extensions::default());
        assert_eq!(reader.next(&Extensions::default()), Ok(None));
    }

    fn read(number: u16, bytes: &[u8]) -> Result<Option<Arc<Extra>>, WireError> {
        ExtraReader::default().next(&Extensions::of_one(number, false, bytes))
    }

    #[test]
    fn what_no_sender_says_is_refused() {
        let entry = |name: &str, value: &[u8]| xattrs(&[xattr(name, value)]);
        assert!(read(2, &entry("user.a", b"")).is_ok());
        for name in [
            "",
            "user.a\0b",
            "security.selinux",
            "system.posix_acl",
            "nonsense",
        ] {
            let error = WireError::OutOfOrder {
                what: "the name of an extended attribute",
            };
            assert_eq!(read(2, &entry(name, b"")), Err(error), "{name:?}");
        }
        let twice = [entry("user.b", b""), entry("user.a", b"")];
        assert_eq!(
            read(2, &twice.concat()),
            Err(WireError::OutOfOrder {
                what: "an extended attribute"
            })
        );
        assert!(read(2, &entry("user.a", &vec![0; Xattr::VALUE_BYTES_MAX + 1])).is_err());
        let many: Vec<_> = (10..27)
            .flat_map(|n| entry(&format!("user.{n}"), &vec![0; 64 << 10]))
            .collect();
        assert!(matches!(
            read(2, &many),
            Err(WireError::OverLimit {
                what: "extended attributes",
                ..
            })
        ));
        for bytes in [
            &[][..],
            &[0],
            &[4],
            &[1, 0, 0],
            &[1, 0, 0, 0, 0, 1, 0],
            &[1, 0, 0, 0, 0, 1, 0xFF],
            &[1; 9],
        ] {
            assert!(read(1, bytes).is_err(), "{bytes:?}");
        }
        for path in ["", "/a", "a/../b", "..", "a//b"] {
            assert!(read(4, path.as_bytes()).is_err(), "{path:?}");
        }
    }

    /// What `Extra::bytes` says is booked: neither the room of a list that has grown nor the allocator comes beside it.
    #[test]
    fn many_short_attributes_take_no_more_than_is_booked() {
        let xattrs: Vec<_> = (0..5000)
            .map(|number| xattr(&format!("user.{number:04}"), b""))
            .collect();
        let extra = owned(None, None, &xattrs);
        let sent = ExtraWriter::default().next(Some(&extra));
        let read = ExtraReader::default().next(&sent).unwrap().unwrap();
        assert_eq!(read.xattrs.capacity(), 5000);
        let chunk = size_of::<Xattr>() + zmove_types::ALLOCATION_BYTES + "user.0000".len();
        assert!(read.bytes() >= 5000 * chunk, "{}", read.bytes());
    }

    pub(crate) fn any_extra() -> impl Strategy<Value = Option<Extra>> {
        let account = || proptest::option::of((any::<u32>(), "[a-z\u{e9}]{0,6}"));
        let xattrs = proptest::collection::btree_map(
            "user\\.[a-z]{1,5}",
            proptest::collection::vec(any::<u8>(), 0..9),
            0..4,
        );
        let atime = proptest::option::of((any::<i64>(), 0..1_000_000_000_u32));
        let first = proptest::option::of("[a-z]{1,5}(/[a-z]{1,5}){0,2}");
        (account(), account(), xattrs, atime, first).prop_map(
            |(owner, group, xattrs, atime, first)| {
                let account = |found: Option<(u32, String)>| {
                    found.map(|(id, name)| Account {
                        id,
                        name: name.into(),
                    })
                };
                let xattrs = xattrs
                    .iter()
                    .map(|(name, value)| xattr(name, value))
                    .collect();
                let atime = atime.map(|(seconds, nanos)| Timestamp { seconds, nanos });
                let first_name = first.map(|path| RelPath::from_bytes(path.as_bytes()).unwrap());
                let (owner, group) = (account(owner), account(group));
                let extra = Extra {
                    owner,
                    group,
                    xattrs,
                    atime,
                    first_name,
                };
                (!extra.is_empty()).then_some(extra)
            },
        )
    }

    proptest! {
        #[test]
        fn entries_survive_the_wire(entries in proptest::collection::vec(any_extra(), 0..9)) {
            let (mut writer, mut reader) = (ExtraWriter::default(), ExtraReader::default());
            for extra in entries {
                let read = reader.next(&writer.next(extra.as_ref())).unwrap();
                assert_eq!(read.as_deref(), extra.as_ref());
            }
        }

        #[test]
        fn any_bytes_decode_or_fail(number in 1..6_u16, bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _outcome = read(number, &bytes);
        }
    }
}
