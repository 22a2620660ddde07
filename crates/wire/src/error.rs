//! The errors of decoding bytes from a peer.

use thiserror::Error;
use zmove_types::PathError;

/// Bytes that break the protocol: the peer misbehaves, or is no zmove at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Bytes are left over after the value.
    #[error("decode: {left} bytes too many")]
    Trailing {
        /// The number of bytes left over.
        left: usize,
    },
    /// A tag with no meaning.
    #[error("decode: unknown {what} tag {tag}")]
    UnknownTag {
        /// The kind of value that the tag should select.
        what: &'static str,
        /// The tag.
        tag: u8,
    },
    /// A length or count beyond its limit.
    #[error("decode: {what} of {value} is over the limit of {limit}")]
    OverLimit {
        /// The length or count.
        what: &'static str,
        /// The value that the peer claimed.
        value: u64,
        /// The largest value that is allowed.
        limit: u64,
    },
    /// A path that names something outside its directory, or nothing.
    #[error("decode path: {0}")]
    Path(#[from] PathError),
    /// A control message that does not decode.
    #[error("decode a control message")]
    Message,
    /// The head of a frame that does not decode, or is not consistent.
    #[error("decode the head of a frame")]
    Head,
    /// A control message, or a head, whose bytes are not those to which it encodes: a number in more bytes than it
    /// needs, or something that has no meaning.
    #[error("decode a control message or a head: it is not in the form that it must have")]
    OtherForm,
    /// A critical extension that is not known here: ignoring it would misinterpret the message.
    #[error(
        "decode: extension {number} of {what} is not known here: install the same release on both hosts"
    )]
    UnknownExtension {
        /// The value that the extension belongs to.
        what: &'static str,
        /// The extension's number.
        number: u16,
    },
    /// A name that this side has not asked for.
    #[error("it names something that was not asked for")]
    Unasked,
    /// A path that leads into the directory of a shared job.
    #[error(
        "it names the directory of a job of several receivers (.zmove-job-…), where nobody else writes"
    )]
    OfSharedJob,
    /// A message that is not allowed at this point.
    #[error("{what} is out of order")]
    OutOfOrder {
        /// The message or value that came at the wrong point.
        what: &'static str,
    },
}

/// The error of a message that must not come here; `what` names it.
///
/// # Errors
/// Always.
pub fn out_of_order<T, E: From<WireError>>(what: &'static str) -> Result<T, E> {
    Err(WireError::OutOfOrder { what }.into())
}

impl From<postcard::Error> for WireError {
    fn from(_undecodable: postcard::Error) -> Self {
        Self::Head
    }
}
