//! The record layer of TLS 1.3 (RFC 8446 §5) for lanes, with the keys that rustls has negotiated.
//!
//! rustls makes every connection: handshake, keys, greeting, and all of control. It only begins a lane. It reads a
//! socket 4 KiB at a time, with four system calls for a full record, copies plaintext twice on its way in, and
//! allocates for each record on its way out; that was a fifth to a quarter of all CPU that a push takes. So a lane goes
//! on with this record layer, and the bytes on the wire are those that rustls would have made. Frames are sealed into
//! one buffer of several records, which one call sends; all arrived bytes are taken by one call, and each record is
//! opened straight into the payload's buffer.
//!
//! [`TrafficKey`] holds the state of one direction, [`Sealer`] writes records, [`Opener`] reads them; none of them does
//! I/O. At the hand-over no round trip is spent, and nothing is lost or read twice: `tcp_tls/whole.rs` gives rustls the
//! socket's bytes one whole record at a time, so it never holds a part of one. Bytes that have arrived after that
//! record go to the lane with the socket, and what rustls has decrypted comes first.
//!
//! **Invariant:** plaintext leaves an [`Opener`] only from a record that has been authenticated at its place in the
//! sequence; and an end counts only if the peer has sealed it.

use thiserror::Error;

pub(crate) mod fuzzing;
mod key;
mod open;
mod seal;
#[cfg(test)]
mod tests;

pub(crate) use key::{TrafficKey, TrafficSecrets, traffic_keys};
pub(crate) use open::Opener;
pub(crate) use seal::Sealer;

/// The most plaintext in one record.
const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// The bytes before each record: content type, version, length.
const HEADER_BYTES: usize = 5;
/// The bytes of the tag in all three suites.
const TAG_BYTES: usize = 16;
/// The longest body: plaintext, its content type, the tag.
const BODY_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 1 + TAG_BYTES;
/// The longest record.
pub(crate) const RECORD_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;

/// Content types of RFC 8446 §5.1.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// The message of a sender that changes to its next key and asks for no change by the other side: type, length,
/// request.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// The alert at the orderly end: level, description.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Why a TLS record is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The record is not sealed with the connection's key, not in sequence, or changed on its way.
    #[error("a TLS record does not authenticate")]
    Forged,
    /// The record is longer than TLS allows.
    #[error("a TLS record of {bytes} bytes is too long")]
    Oversized {
        /// The length in its header.
        bytes: usize,
    },
    /// The record is too short to be sealed.
    #[error("a TLS record of {bytes} bytes is too short")]
    Undersized {
        /// The length in its header.
        bytes: usize,
    },
    /// The record is padding and nothing else.
    #[error("a TLS record has no content type")]
    Untyped,
    /// The record is of a content type, or has a message, that has no place on a lane.
    #[error("a TLS record of type {content_type} is out of place")]
    Unexpected {
        /// The content type, the inner one where the record could be opened.
        content_type: u8,
    },
    /// The peer has ended the connection because of an error.
    #[error("the peer sent the TLS alert {description:?}")]
    Alert {
        /// The alert.
        description: rustls::AlertDescription,
    },
    /// The peer changed its keys before the lane began.
    #[error("the TLS keys are not those of the handshake")]
    Rekeyed,
}

/// A record's header, which is also authenticated with the body.
#[expect(clippy::big_endian_bytes, reason = "TLS is big-endian")]
fn header(body_bytes: usize) -> [u8; HEADER_BYTES] {
    let length = u16::try_from(body_bytes).expect("a body is shorter than 2^15");
    let [high, low] = length.to_be_bytes();
    [APPLICATION_DATA, 3, 3, high, low]
}
