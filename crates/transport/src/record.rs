//! The TLS 1.3 record layer (RFC 8446 §5) for lanes, with the keys that rustls has negotiated.
//!
//! rustls performs the handshake, negotiates the keys, and carries the greeting and all control messages. It does not
//! carry the frames of a lane, because this took a fifth to a quarter of the CPU time of a push. rustls reads a socket
//! 4 KiB at a time with four system calls per full record, copies received plaintext twice, and allocates memory for
//! each sent record. So a lane continues with this record layer, which uses the same format. Frames are sealed into a
//! buffer of several records, which is sent in one call. All available bytes are received in one call, and each record
//! is decrypted directly into the payload's buffer.
//!
//! [`TrafficKey`] holds the state of one direction, [`Sealer`] writes records, and [`Opener`] reads them. None of them
//! does I/O. The handover from rustls costs no round trip, and no data is lost or read twice.
//! `tcp_tls/whole_records.rs` passes the socket's bytes to rustls one complete record at a time, so rustls never holds
//! a partial record. The lane first gets the plaintext that rustls has already decrypted, then the received bytes after
//! that record, and then the socket.
//!
//! **Invariant:** an [`Opener`] returns plaintext only from a record that was authenticated at its position in the
//! sequence. The stream counts as complete only if the peer has sealed its end.

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

/// Maximum number of plaintext bytes in one record.
const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// Size of a record's header: content type, version and length.
const HEADER_BYTES: usize = 5;
/// Size of the authentication tag, which is the same in all three cipher suites.
const TAG_BYTES: usize = 16;
/// Maximum size of a record's body: plaintext, content type and tag.
const BODY_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 1 + TAG_BYTES;
/// Maximum size of a record.
pub(crate) const RECORD_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;

/// Content types of RFC 8446 §5.1.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// The message by which a sender announces its next key without requesting a new key from the other side. The bytes are
/// the type, the length and the request.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// The alert that ends the stream: level and description.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// The reason why a TLS record is rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The record was not sealed with the connection's key, is out of sequence, or was modified in transit.
    #[error("a TLS record failed authentication")]
    Forged,
    /// The record is longer than TLS permits.
    #[error("a TLS record of {bytes} bytes is too long")]
    Oversized {
        /// The length field of the record.
        bytes: usize,
    },
    /// The record is too short to contain a tag.
    #[error("a TLS record of {bytes} bytes is too short")]
    Undersized {
        /// The length field of the record.
        bytes: usize,
    },
    /// The record contains only padding and therefore no content type.
    #[error("a TLS record has no content type")]
    Untyped,
    /// The record has a content type, or contains a message, that is not permitted on a lane.
    #[error("unexpected TLS record of type {content_type}")]
    Unexpected {
        /// The content type. If the record could be decrypted, this is the inner content type.
        content_type: u8,
    },
    /// The peer has ended the connection because of an error.
    #[error("the peer sent the TLS alert {description:?}")]
    Alert {
        /// The alert.
        description: rustls::AlertDescription,
    },
    /// The peer changed its keys before the lane began.
    #[error("the TLS keys do not match the handshake")]
    Rekeyed,
}

/// Returns the header of a record. The header is authenticated together with the body.
#[expect(clippy::big_endian_bytes, reason = "TLS is big-endian")]
fn header(body_bytes: usize) -> [u8; HEADER_BYTES] {
    let length = u16::try_from(body_bytes).expect("a body is shorter than 2^15");
    let [high, low] = length.to_be_bytes();
    [APPLICATION_DATA, 3, 3, high, low]
}
