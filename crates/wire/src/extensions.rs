//! Numbered extensions: the one way in which the protocol grows.
//!
//! A message that grows ends with a list of extensions, wherever it is nested. A peer skips an extension whose number
//! it does not know, unless the extension is critical: then the peer refuses the message. No message has an extension
//! yet.
//! **Invariant:** a list has one form, since its numbers ascend.

use std::cell::Cell;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use zmove_types::{bytes, list};

use crate::error::WireError;
use crate::limits::{EXTENSION_BYTES_MAX, EXTENSIONS_MAX};

/// The extensions of one message, in the ascending order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Extensions(pub Vec<Extension>);

/// One extension. A number is never used again for something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// The number, which has its meaning in one kind of message.
    pub number: u16,
    /// Whether a peer must know the extension. A grant, a limit and an intent are always critical: a peer that ignored
    /// one would do what it may not.
    pub critical: bool,
    /// The value.
    #[serde(
        serialize_with = "bytes::serialize",
        deserialize_with = "bytes::at_most::<EXTENSION_BYTES_MAX, _>"
    )]
    pub value: Vec<u8>,
}

/// A message that ends with extensions.
pub(crate) trait Extensible {
    /// The name of the message in errors.
    const NAME: &'static str;
}

impl Extensions {
    /// No extensions.
    pub const NONE: Self = Self(Vec::new());

    /// Reads the extensions at the end of an `E`. Optional extensions stay, and travel on where the message is passed
    /// on.
    ///
    /// # Errors
    /// The numbers do not ascend, or an extension is critical. [`take_refusal`] returns the error that names a critical
    /// one.
    pub(crate) fn deserialize<'de, E: Extensible, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Self, D::Error> {
        let extensions: Vec<Extension> = list::at_most::<EXTENSIONS_MAX, _, _>(deserializer)?;
        if !extensions.is_sorted_by(|one, next| one.number < next.number) {
            return Err(D::Error::custom("the order of extensions"));
        }
        let Some(critical) = extensions.iter().find(|extension| extension.critical) else {
            return Ok(Self(extensions));
        };
        let refusal = WireError::UnknownExtension {
            what: E::NAME,
            number: critical.number,
        };
        REFUSAL.set(Some(refusal));
        Err(D::Error::custom(refusal))
    }
}

thread_local! {
    /// The error of a message that was refused for an extension: serde's own errors cannot carry it.
    static REFUSAL: Cell<Option<WireError>> = const { Cell::new(None) };
}

/// The error of the extension for which the last decoding on this thread failed, if it did.
pub(crate) fn take_refusal() -> Option<WireError> {
    REFUSAL.take()
}
