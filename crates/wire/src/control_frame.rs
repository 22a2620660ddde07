//! The frames of a control connection: a header of 4 bytes, followed by a message or by the value of a ping or pong.
//!
//! A ping is a frame of its own, so the layer that reads frames answers it. Sessions never see pings. **Invariant:** a
//! header is decoded, and its length is checked against a limit, before the body is read.

use crate::error::WireError;
use crate::limits::{MESSAGE_BYTES_MAX, within};

/// The header of a control frame: 3 bytes for the length of the body, little-endian, and 1 byte for the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlHeader {
    /// A message follows.
    Message {
        /// The length of the message in bytes.
        bytes: usize,
    },
    /// The value of a ping follows. The peer echoes it in a pong.
    Ping,
    /// The value of a pong follows.
    Pong,
}

impl ControlHeader {
    /// The encoded size of a header, in bytes.
    pub const BYTES: usize = 4;

    /// Decodes a header.
    ///
    /// # Errors
    /// [`WireError`] if the kind is unknown or the length is invalid for the kind.
    pub fn decode(header: [u8; Self::BYTES]) -> Result<Self, WireError> {
        let [low, middle, high, kind] = header;
        let bytes = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let echo = |header| {
            if bytes == VALUE_BYTES {
                Ok(header)
            } else {
                Err(WireError::Message)
            }
        };
        match kind {
            0 => {
                within("message", bytes, MESSAGE_BYTES_MAX)?;
                Ok(Self::Message { bytes })
            }
            PING => echo(Self::Ping),
            PONG => echo(Self::Pong),
            tag => Err(WireError::UnknownTag {
                what: "control frame",
                tag,
            }),
        }
    }
}

/// Encodes a ping with its header.
#[must_use]
pub fn encode_ping(value: u64) -> [u8; 12] {
    encode_value(PING, value)
}

/// Encodes a pong with its header.
#[must_use]
pub fn encode_pong(value: u64) -> [u8; 12] {
    encode_value(PONG, value)
}

fn encode_value(kind: u8, value: u64) -> [u8; 12] {
    let mut frame = [0; ControlHeader::BYTES + VALUE_BYTES];
    frame[0] = 8;
    frame[3] = kind;
    frame[ControlHeader::BYTES..].copy_from_slice(&value.to_le_bytes());
    frame
}

const PING: u8 = 1;
const PONG: u8 = 2;
const VALUE_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToReceiver, encode_message};

    fn header(frame: &[u8]) -> Result<ControlHeader, WireError> {
        ControlHeader::decode(*frame.first_chunk().unwrap())
    }

    #[test]
    fn frames_are_pinned() {
        let value = [8, 7, 6, 5, 4, 3, 2, 1];
        let ping = encode_ping(0x0102_0304_0506_0708);
        assert_eq!(ping, *[&[8, 0, 0, 1][..], &value].concat());
        assert_eq!(header(&ping), Ok(ControlHeader::Ping));
        let pong = encode_pong(0x0102_0304_0506_0708);
        assert_eq!(pong, *[&[8, 0, 0, 2][..], &value].concat());
        assert_eq!(header(&pong), Ok(ControlHeader::Pong));
        let message = encode_message(&ToReceiver::Abandon { file: 300 });
        assert_eq!(message, [3, 0, 0, 0, 2, 0xAC, 2]);
        assert_eq!(header(&message), Ok(ControlHeader::Message { bytes: 3 }));
    }

    #[test]
    fn headers_that_make_no_sense_are_refused() {
        let longest = u32::try_from(MESSAGE_BYTES_MAX).unwrap();
        assert!(header(&longest.to_le_bytes()).is_ok());
        assert!(matches!(
            header(&(longest + 1).to_le_bytes()),
            Err(WireError::OverLimit { .. })
        ));
        assert_eq!(header(&[9, 0, 0, 1]), Err(WireError::Message));
        assert_eq!(header(&[7, 0, 0, 2]), Err(WireError::Message));
        let unknown = WireError::UnknownTag {
            what: "control frame",
            tag: 3,
        };
        assert_eq!(header(&[8, 0, 0, 3]), Err(unknown));
    }
}
