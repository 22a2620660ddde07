//! Errors of decoding bytes from a peer.

use thiserror::Error;
use zmove_types::PathError;

/// The peer sent bytes that violate the protocol: it misbehaves, or it is not zmove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// There are bytes left after the value.
    #[error("decode: {left} unexpected bytes at the end")]
    Trailing {
        /// Number of bytes left.
        left: usize,
    },
    /// A tag is unknown.
    #[error("decode: unknown {what} tag {tag}")]
    UnknownTag {
        /// The kind of value that the tag selects.
        what: &'static str,
        /// The tag.
        tag: u8,
    },
    /// A length or count exceeds its limit.
    #[error("decode: {what}: {value} is over the limit of {limit}")]
    OverLimit {
        /// The name of the length or count.
        what: &'static str,
        /// The value that the peer claimed.
        value: u64,
        /// The maximum value allowed.
        limit: u64,
    },
    /// A path is empty or leads outside its directory.
    #[error("decode path: {0}")]
    Path(#[from] PathError),
    /// A control message cannot be decoded.
    #[error("decode a control message")]
    Message,
    /// The head of a frame (the part that describes its data) cannot be decoded, or is inconsistent.
    #[error("decode a frame header")]
    Head,
    /// A control message or a frame's head does not have the canonical encoding: a number uses more bytes than
    /// necessary, or some bytes have no meaning.
    #[error("decode a control message or a header: it is not in its canonical form")]
    OtherForm,
    /// A critical extension is unknown. A peer that ignored it would misinterpret the message.
    #[error("decode: unknown extension {number} of {what}: install the same release on both hosts")]
    UnknownExtension {
        /// The value that the extension belongs to.
        what: &'static str,
        /// The extension's number.
        number: u16,
    },
    /// The peer sent a name or path that this side did not request.
    #[error("it names an entry that was not requested")]
    Unasked,
    /// A path leads into the directory of a shared job, where no other transfer may write.
    #[error(
        "it names the directory of a job of several receivers (.zmove-job-…), where no other transfer may write"
    )]
    OfSharedJob,
    /// A message is not allowed in the current state.
    #[error("{what} is out of order")]
    OutOfOrder {
        /// The message or value that was received too early or too late.
        what: &'static str,
    },
}

/// Returns the error for a message that is not allowed in the current state. `what` is the name of the message.
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
