//! Blocks of extensions: their one form, and what a peer does with a number that it does not know.

use super::*;
use proptest::prelude::{Strategy, any, prop_oneof, proptest};

impl Extensions {
    /// A block of one extension.
    pub(crate) fn of_one(number: u16, critical: bool, bytes: &[u8]) -> Self {
        Self::NONE.insert(extension(number, critical, bytes))
    }
}

fn extension(number: u16, critical: bool, bytes: &[u8]) -> Extension {
    Extension {
        number,
        critical,
        bytes: bytes.into(),
    }
}

const NOTE: KnownExtension = KnownExtension::optional(1);
const LIMIT: KnownExtension = KnownExtension::critical(0x0203);

fn two() -> Extensions {
    Extensions::NONE.with(&LIMIT, *b"xy").with(&NOTE, *b"")
}

/// A value whose extensions this program knows all.
struct Known;

impl Extensible for Known {
    const NAME: &'static str = "a test";
    const KNOWN: &'static [KnownExtension] = &[NOTE, LIMIT];
}

/// The same value, to an older program.
struct Older;

impl Extensible for Older {
    const NAME: &'static str = "a test";
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
    assert_eq!(Extensions::take::<Known>(&mut reader), Ok(two()));
    assert!(reader.is_empty());
}

/// Where a head or an entry has no extension there is no block, so these have one form.
#[test]
fn an_empty_block_of_a_head_is_refused() {
    assert_eq!(
        Extensions::take::<Known>(&mut Reader::new(&[0; 4])),
        Err(WireError::OutOfOrder {
            what: "an empty block of extensions"
        })
    );
}

#[test]
fn numbers_of_known_extensions_ascend() {
    fn check<E: Extensible>() {
        let numbers = E::KNOWN.iter().map(|known| known.number);
        assert!(numbers.is_sorted_by(|one, next| one < next), "{}", E::NAME);
    }
    check::<crate::Open>();
    check::<crate::Opened>();
    check::<crate::Fetch>();
    check::<crate::BatchEntry>();
    check::<crate::FileHead>();
}

fn unknown(number: u16) -> Result<Extensions, WireError> {
    Err(WireError::UnknownExtension {
        what: "a test",
        number,
    })
}

#[test]
fn an_unknown_extension_is_skipped_unless_it_is_critical() {
    assert_eq!(two().known_to::<Known>(), Ok(two()));
    assert_eq!(two().get(&LIMIT), Some(&b"xy"[..]));
    assert_eq!(two().known_to::<Older>(), unknown(0x0203));
    let note = Extensions::NONE.with(&NOTE, *b"z");
    assert_eq!(note.clone().known_to::<Older>(), Ok(note));
    let error = two().known_to::<Older>().unwrap_err().to_string();
    assert!(error.contains("extension 515 of a test"), "{error}");
}

/// Otherwise a limit could be sent as one that may be ignored, and a block would have two forms.
#[test]
fn a_known_extension_with_the_other_mark_is_refused() {
    for (number, critical) in [(0x0203, false), (1, true)] {
        let block = Extensions::of_one(number, critical, b"");
        assert_eq!(block.known_to::<Known>(), unknown(number));
    }
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
    assert_eq!(two().with(&NOTE, *b"z").get(&NOTE), Some(&b"z"[..]));
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
    assert!(Extensions::take::<Known>(&mut reader).is_err());
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
            .fold(Extensions::NONE, |all, (number, critical, bytes)| {
                all.insert(extension(*number, *critical, bytes))
            })
    })
}

proptest! {
    #[test]
    fn blocks_survive_the_wire(extensions in any_extensions()) {
        assert_eq!(Extensions::of_block(&extensions.block()), Ok(extensions));
    }

    /// A block has one form, so no two blocks mean the same.
    #[test]
    fn any_block_decodes_to_itself_or_fails(block in prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        proptest::collection::vec(0..3_u8, 0..60),
    ]) {
        if let Ok(extensions) = Extensions::of_block(&block) {
            assert_eq!(extensions.block(), block);
        }
    }
}
