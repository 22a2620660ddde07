//! Numbered extensions: the one way in which the protocol grows.
//!
//! A message that grows ends with a block of extensions, wherever it is nested; so do the heads of large files and the
//! entries of batches. A peer skips an extension whose number it does not know, unless the extension is critical: then
//! the peer refuses the message. **Invariant:** a block has one form, since its numbers ascend and a number keeps its
//! mark.

use std::cell::Cell;

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

use crate::error::WireError;
use crate::fields::Reader;
use crate::limits::{EXTENSIONS_BYTES_MAX, EXTENSIONS_MAX, within};

/// An extension that this program knows. A number is never used again for something else.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownExtension {
    number: u16,
    critical: bool,
}

impl KnownExtension {
    /// An extension that a peer may ignore. It changes nothing that the peer may do.
    #[must_use]
    pub const fn optional(number: u16) -> Self {
        Self {
            number,
            critical: false,
        }
    }

    /// An extension that a peer must know. A grant, a limit and an intent are always critical: a peer that ignored one
    /// would do what it may not.
    #[must_use]
    pub const fn critical(number: u16) -> Self {
        Self {
            number,
            critical: true,
        }
    }
}

/// A value that ends with a block of extensions.
pub(crate) trait Extensible {
    /// The name of the value in errors.
    const NAME: &'static str;
    /// The extensions of it that this program knows, by ascending number.
    const KNOWN: &'static [KnownExtension] = &[];
}

/// One block of extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions(Vec<Extension>);

/// One extension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extension {
    number: u16,
    critical: bool,
    bytes: Box<[u8]>,
}

impl Extensions {
    /// A block without extensions.
    pub const NONE: Self = Self(Vec::new());

    /// Adds an extension, which replaces one with the same number.
    ///
    /// # Panics
    /// When the block would exceed its limits; the caller has to stay within them.
    #[must_use]
    pub fn with(self, known: &KnownExtension, bytes: impl Into<Box<[u8]>>) -> Self {
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
    #[must_use]
    pub fn get(&self, known: &KnownExtension) -> Option<&[u8]> {
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

    /// Reads the block at the end of an `E` in a message.
    ///
    /// # Errors
    /// Those of [`known_to`](Self::known_to), which [`take_refusal`] returns.
    pub(crate) fn deserialize<'de, E: Extensible, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Self, D::Error> {
        let block = <&[u8]>::deserialize(deserializer)?;
        let known = Self::of_block(block).and_then(Self::known_to::<E>);
        known.map_err(|error| {
            REFUSAL.set(Some(error));
            D::Error::custom(error)
        })
    }

    /// Refuses what an `E` must not have. Optional extensions that this program does not know stay, and travel on where
    /// the value is passed on.
    ///
    /// # Errors
    /// [`WireError::UnknownExtension`] when one of the others is critical, or a known one has the other mark.
    fn known_to<E: Extensible>(self) -> Result<Self, WireError> {
        let known = |extension: &Extension| {
            E::KNOWN
                .iter()
                .find(|known| known.number == extension.number)
        };
        let is_refused = |extension: &&Extension| {
            extension.critical != known(extension).is_some_and(|known| known.critical)
        };
        if let Some(refused) = self.0.iter().find(is_refused) {
            return Err(WireError::UnknownExtension {
                what: E::NAME,
                number: refused.number,
            });
        }
        Ok(self)
    }

    /// Appends the length of the block and the block.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let block = self.block();
        let length = u32::try_from(block.len()).expect("a block is within EXTENSIONS_BYTES_MAX");
        out.extend(length.to_le_bytes());
        out.extend(block);
    }

    /// Reads the length of a block and the block, of a head or entry that has extensions.
    pub(crate) fn take<E: Extensible>(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = reader.bounded_u32("extensions", EXTENSIONS_BYTES_MAX)?;
        let extensions = Self::of_block(reader.bytes(length)?)?;
        if extensions.is_empty() {
            return Err(WireError::OutOfOrder {
                what: "an empty block of extensions",
            });
        }
        extensions.known_to::<E>()
    }

    fn block_bytes(&self) -> usize {
        self.0
            .iter()
            .map(|extension| EXTENSION_HEAD_BYTES + extension.bytes.len())
            .sum()
    }

    fn block(&self) -> Vec<u8> {
        let mut out = Vec::new();
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
        out
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

impl Serialize for Extensions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.block())
    }
}

thread_local! {
    /// The error of a block that was refused while a message was decoded: serde's own errors cannot carry it.
    static REFUSAL: Cell<Option<WireError>> = const { Cell::new(None) };
}

/// The error of the block that the last decoding on this thread refused, if it did.
pub(crate) fn take_refusal() -> Option<WireError> {
    REFUSAL.take()
}

/// The bytes before an extension's value: number, mark and length.
const EXTENSION_HEAD_BYTES: usize = 7;

#[cfg(test)]
pub(crate) mod tests;
