//! Numbered extensions. The protocol changes only by extensions and new message tags.
//!
//! A message that can grow ends with a list of extensions, even if it is nested in another message. A peer skips an
//! unknown extension, but refuses the message if the extension is critical. No extension is defined yet.
//!
//! **Invariant:** the numbers in a list ascend, so a list has only one encoding.

use std::cell::Cell;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use zmove_types::{bytes, list};

use crate::error::WireError;
use crate::limits::{EXTENSION_BYTES_MAX, EXTENSIONS_MAX};

/// The extensions of one message, in ascending order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Extensions(pub Vec<Extension>);

/// One extension. Its number is never reused for another purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// The number, which is specific to one kind of message.
    pub number: u16,
    /// Whether a peer must understand the extension. Extensions that carry grants, limits or intents are always
    /// critical, because a peer that ignored them would exceed its permissions.
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

    /// Deserializes the extensions at the end of an `E`. Optional extensions are kept, and are forwarded with the
    /// message.
    ///
    /// # Errors
    /// The numbers do not ascend, or an extension is critical. In the second case, [`take_extension_error`] returns an
    /// error that names the extension.
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
        EXTENSION_ERROR.set(Some(refusal));
        Err(D::Error::custom(refusal))
    }
}

thread_local! {
    /// The error of a message that was refused because of an extension. Serde's own errors cannot carry it.
    static EXTENSION_ERROR: Cell<Option<WireError>> = const { Cell::new(None) };
}

/// Returns the error for the extension that made the last decoding on this thread fail, or `None` if no extension did.
pub(crate) fn take_extension_error() -> Option<WireError> {
    EXTENSION_ERROR.take()
}
