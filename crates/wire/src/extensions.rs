//! Numbered extensions: the one way in which messages, heads and entries grow.
//!
//! A block of extensions follows the fields of a message, of a large file's head, or of a batch's entries, behind its
//! own length. Where there is no extension there is no block. A peer skips an extension whose number it does not know,
//! unless the extension is marked critical: then the peer refuses what it belongs to. [`KNOWN`] lists all extensions.
//! **Invariant:** the numbers of a block ascend, so each occurs once and a block has one form.

use crate::error::WireError;
use crate::fields::Reader;
use crate::limits::{EXTENSIONS_BYTES_MAX, EXTENSIONS_MAX, within};

/// An extension that this program knows. A number is never used again for something else.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KnownExtension {
    /// The number among the extensions of what it belongs to.
    pub(crate) number: u16,
    /// What the extension carries.
    meaning: &'static str,
    /// Whether a peer that does not know the extension has to refuse what it belongs to.
    critical: bool,
    /// Whether the extension changes what the peer may do: a grant, a limit or an intent.
    changes_permission: bool,
}

/// Owner and group. An empty value repeats those of the last entry before that had any.
pub(crate) const OWNERSHIP: KnownExtension = KnownExtension::optional(1, "owner and group");
/// Extended attributes, access control lists among them.
pub(crate) const XATTRS: KnownExtension = KnownExtension::optional(2, "extended attributes");
/// The time of the last access.
pub(crate) const ATIME: KnownExtension = KnownExtension::optional(3, "access time");
/// The first name of a symbolic link or special file that has several.
pub(crate) const FIRST_NAME: KnownExtension = KnownExtension::optional(4, "first name");
/// The [ranges](crate::ranges) of data of a file with holes. Critical, since frames carry the data alone.
pub(crate) const DATA: KnownExtension = KnownExtension {
    critical: true,
    ..KnownExtension::optional(5, "ranges of data")
};

/// The extensions of messages; there are none yet.
pub(crate) const OF_MESSAGES: &[KnownExtension] = &[];
/// The extensions of entries of batches.
pub(crate) const OF_ENTRIES: &[KnownExtension] = &[OWNERSHIP, XATTRS, ATIME, FIRST_NAME, DATA];
/// The extensions of large files.
pub(crate) const OF_LARGE_FILES: &[KnownExtension] = &[OWNERSHIP, XATTRS, ATIME, DATA];

/// All extensions, by what they belong to.
const KNOWN: [(&str, &[KnownExtension]); 3] = [
    ("a message", OF_MESSAGES),
    ("an entry of a batch", OF_ENTRIES),
    ("a large file", OF_LARGE_FILES),
];

/// A peer that ignored a grant, a limit or an intent would do what it may not, so such extensions are critical.
const _: () = {
    let mut block = 0;
    while block < KNOWN.len() {
        let mut at = 0;
        while at < KNOWN[block].1.len() {
            let known = &KNOWN[block].1[at];
            assert!(
                known.critical || !known.changes_permission,
                "it must be critical"
            );
            at += 1;
        }
        block += 1;
    }
};

impl KnownExtension {
    /// An extension that may be ignored.
    const fn optional(number: u16, meaning: &'static str) -> Self {
        Self {
            number,
            meaning,
            critical: false,
            changes_permission: false,
        }
    }
}

/// One block of extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extensions(Vec<Extension>);

/// One extension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extension {
    number: u16,
    critical: bool,
    bytes: Box<[u8]>,
}

impl Extensions {
    /// Adds an extension, which replaces one with the same number.
    ///
    /// # Panics
    /// When the block would exceed its limits; the caller has to stay within them.
    #[must_use]
    pub(crate) fn with(self, known: &KnownExtension, bytes: impl Into<Box<[u8]>>) -> Self {
        self.insert(Extension {
            number: known.number,
            critical: known.critical,
            bytes: bytes.into(),
        })
    }

    fn insert(mut self, extension: Extension) -> Self {
        match self
            .0
            .binary_search_by_key(&extension.number, |other| other.number)
        {
            Ok(at) => self.0[at] = extension,
            Err(at) => self.0.insert(at, extension),
        }
        assert!(self.0.len() <= EXTENSIONS_MAX && self.block_bytes() <= EXTENSIONS_BYTES_MAX);
        self
    }

    /// The value of an extension.
    pub(crate) fn get(&self, known: &KnownExtension) -> Option<&[u8]> {
        let at = self
            .0
            .binary_search_by_key(&known.number, |extension| extension.number)
            .ok()?;
        Some(&self.0[at].bytes)
    }

    /// Whether the block has no extension.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps the extensions in `known` and drops the others; the error names `what` they belong to.
    ///
    /// # Errors
    /// [`WireError::UnknownExtension`] when one of the others is critical.
    pub(crate) fn only(
        mut self,
        known: &[KnownExtension],
        what: &'static str,
    ) -> Result<Self, WireError> {
        let is_known =
            |extension: &Extension| known.iter().any(|known| known.number == extension.number);
        if let Some(unknown) = self
            .0
            .iter()
            .find(|extension| extension.critical && !is_known(extension))
        {
            return Err(WireError::UnknownExtension {
                what,
                number: unknown.number,
            });
        }
        self.0.retain(is_known);
        Ok(self)
    }

    /// Appends the length of the block and the block.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let length =
            u32::try_from(self.block_bytes()).expect("a block is within EXTENSIONS_BYTES_MAX");
        out.extend(length.to_le_bytes());
        self.put_block(out);
    }

    /// Reads the length of a block and the block.
    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = reader.bounded_u32("extensions", EXTENSIONS_BYTES_MAX)?;
        Self::of_block(reader.bytes(length)?)
    }

    fn block_bytes(&self) -> usize {
        self.0
            .iter()
            .map(|extension| EXTENSION_HEAD_BYTES + extension.bytes.len())
            .sum()
    }

    fn put_block(&self, out: &mut Vec<u8>) {
        for Extension {
            number,
            critical,
            bytes,
        } in &self.0
        {
            let length = u32::try_from(bytes.len()).expect("within EXTENSIONS_BYTES_MAX");
            out.extend(number.to_le_bytes());
            out.push(u8::from(*critical));
            out.extend(length.to_le_bytes());
            out.extend_from_slice(bytes);
        }
    }

    fn of_block(block: &[u8]) -> Result<Self, WireError> {
        within("extensions", block.len(), EXTENSIONS_BYTES_MAX)?;
        let mut reader = Reader::new(block);
        let mut extensions = Vec::<Extension>::new();
        while !reader.is_empty() {
            let number = reader.u16()?;
            let critical = match reader.u8()? {
                0 => false,
                1 => true,
                tag => {
                    return Err(WireError::UnknownTag {
                        what: "extension",
                        tag,
                    });
                }
            };
            if extensions
                .last()
                .is_some_and(|before| before.number >= number)
            {
                return Err(WireError::OutOfOrder {
                    what: "an extension",
                });
            }
            within("number of extensions", extensions.len() + 1, EXTENSIONS_MAX)?;
            let length = reader.bounded_u32("extension", EXTENSIONS_BYTES_MAX)?;
            let bytes = reader.bytes(length)?.into();
            extensions.push(Extension {
                number,
                critical,
                bytes,
            });
        }
        Ok(Self(extensions))
    }
}

/// The bytes before an extension's value: number, mark and length.
const EXTENSION_HEAD_BYTES: usize = 7;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop_oneof, proptest};

    impl Extensions {
        /// A block of one extension.
        pub(crate) fn of_one(number: u16, critical: bool, bytes: &[u8]) -> Self {
            Self::default().insert(extension(number, critical, bytes))
        }
    }

    /// An extension with this number.
    fn numbered(number: u16) -> KnownExtension {
        KnownExtension::optional(number, "a test")
    }

    fn extension(number: u16, critical: bool, bytes: &[u8]) -> Extension {
        Extension {
            number,
            critical,
            bytes: bytes.into(),
        }
    }

    fn two() -> Extensions {
        Extensions::default()
            .insert(extension(0x0203, true, b"xy"))
            .insert(extension(1, false, b""))
    }

    #[test]
    fn the_bytes_of_a_block_are_pinned() {
        let mut out = vec![9];
        two().put(&mut out);
        assert_eq!(
            out,
            [
                9, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 2, 1, 2, 0, 0, 0, b'x', b'y'
            ]
        );
        let mut reader = Reader::new(&out[1..]);
        assert_eq!(Extensions::take(&mut reader), Ok(two()));
        assert!(reader.is_empty());
        let mut none = Vec::new();
        Extensions::default().put(&mut none);
        assert_eq!(none, [0; 4]);
    }

    /// A peer that ignored a grant, a limit or an intent would do what it may not.
    #[test]
    fn extensions_that_change_a_permission_are_critical_and_numbers_are_unique() {
        for (what, extensions) in KNOWN {
            let numbers: Vec<_> = extensions.iter().map(|known| known.number).collect();
            assert!(numbers.is_sorted_by(|one, next| one < next), "{what}");
            for known in extensions {
                let meaning = known.meaning;
                assert!(known.critical || !known.changes_permission, "{meaning}");
                let block = Extensions::default().with(known, *b"");
                assert_eq!(block.only(&[], what).is_err(), known.critical, "{meaning}");
            }
        }
        assert_eq!((DATA.critical, OWNERSHIP.critical), (true, false));
    }

    #[test]
    fn an_unknown_extension_is_skipped_unless_it_is_critical() {
        let unknown = |number| {
            Err(WireError::UnknownExtension {
                what: "a test",
                number,
            })
        };
        assert_eq!(
            two().only(&[numbered(1), numbered(0x0203)], "a test"),
            Ok(two())
        );
        assert_eq!(two().only(&[numbered(1)], "a test"), unknown(0x0203));
        let critical = two().only(&[numbered(0x0203)], "a test").unwrap();
        assert_eq!(
            (critical.get(&numbered(0x0203)), critical.get(&numbered(1))),
            (Some(&b"xy"[..]), None)
        );
        let error = two().only(&[], "a test").unwrap_err().to_string();
        assert!(error.contains("extension 515 of a test"), "{error}");
    }

    #[test]
    fn numbers_ascend() {
        let block = |numbers: &[u8]| -> Vec<u8> {
            numbers
                .iter()
                .flat_map(|number| [*number, 0, 0, 0, 0, 0, 0])
                .collect()
        };
        assert!(Extensions::of_block(&block(&[1, 2])).is_ok());
        let error = Err(WireError::OutOfOrder {
            what: "an extension",
        });
        assert_eq!(Extensions::of_block(&block(&[2, 2])), error);
        assert_eq!(Extensions::of_block(&block(&[2, 1])), error);
        assert!(
            Extensions::of_block(&[1, 0, 2, 0, 0, 0, 0]).is_err(),
            "of another mark"
        );
        assert_eq!(
            two().insert(extension(1, false, b"z")).get(&numbered(1)),
            Some(&b"z"[..])
        );
    }

    #[test]
    fn blocks_are_short() {
        let many = |count: usize| -> Vec<u8> {
            (0..count)
                .flat_map(|number| [u8::try_from(number).unwrap(), 0, 0, 0, 0, 0, 0])
                .collect()
        };
        assert!(Extensions::of_block(&many(EXTENSIONS_MAX)).is_ok());
        assert!(Extensions::of_block(&many(EXTENSIONS_MAX + 1)).is_err());
        let mut reader = Reader::new(&[0xFF; 4]);
        assert!(Extensions::take(&mut reader).is_err());
        assert!(Extensions::of_block(&vec![0; EXTENSIONS_BYTES_MAX + 1]).is_err());
        // The length announces bytes that do not come.
        assert_eq!(
            Extensions::of_block(&[1, 0, 0, 9, 0, 0, 0]),
            Err(WireError::Truncated { wanted: 9 })
        );
    }

    pub(crate) fn any_extensions() -> impl Strategy<Value = Extensions> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..9);
        proptest::collection::vec((any::<u16>(), any::<bool>(), bytes), 0..5).prop_map(|list| {
            list.iter()
                .fold(Extensions::default(), |all, (number, critical, bytes)| {
                    all.insert(extension(*number, *critical, bytes))
                })
        })
    }

    proptest! {
        #[test]
        fn blocks_survive_the_wire(extensions in any_extensions()) {
            let mut out = Vec::new();
            extensions.put(&mut out);
            assert_eq!(Extensions::take(&mut Reader::new(&out)), Ok(extensions));
        }

        /// A block has one form, so no two blocks mean the same.
        #[test]
        fn any_block_decodes_to_itself_or_fails(block in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60),
            proptest::collection::vec(0..3_u8, 0..60),
        ]) {
            if let Ok(extensions) = Extensions::of_block(&block) {
                let mut again = Vec::new();
                extensions.put_block(&mut again);
                assert_eq!(again, block);
            }
        }
    }
}
