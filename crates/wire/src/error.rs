//! What can be wrong with bytes from a peer.

use thiserror::Error;
use zmove_types::PathError;

/// Bytes that break the protocol: the peer misbehaves, or is no zmove at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the value does.
    #[error("decode: {wanted} more bytes wanted where the message ends")]
    Truncated {
        /// How many were missing.
        wanted: usize,
    },
    /// Bytes are left over after the value.
    #[error("decode: {left} bytes too many")]
    Trailing {
        /// How many are left.
        left: usize,
    },
    /// A tag with no meaning.
    #[error("decode: unknown {what} tag {tag}")]
    UnknownTag {
        /// Of what.
        what: &'static str,
        /// The tag.
        tag: u8,
    },
    /// A length or count beyond its limit.
    #[error("decode: {what} of {value} is over the limit of {limit}")]
    OverLimit {
        /// Of what.
        what: &'static str,
        /// What was claimed.
        value: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A path that names something outside its directory, or nothing.
    #[error("decode path: {0}")]
    Path(#[from] PathError),
    /// A control message that does not decode.
    #[error("decode a control message")]
    Message,
    /// An extension without which what it extends would be misunderstood.
    #[error("decode: extension {number} of {what} is not known here: install the same release on both hosts")]
    UnknownExtension {
        /// Of what.
        what: &'static str,
        /// Its number.
        number: u16,
    },
    /// A message that is not allowed at this point.
    #[error("{what} is out of order")]
    OutOfOrder {
        /// Which message.
        what: &'static str,
    },
}
