//! The greeting that opens every connection.
//!
//! A greeting is 40 bytes long. Its magic number and its version have the same position in every version of the
//! protocol. Programs that speak different versions can therefore report the mismatch. **Invariant:** only this file
//! reads a version.

use thiserror::Error;
use zmove_types::{LaneId, TransferId};

use crate::frame::field;

/// The version of the protocol that this release speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// The name of the protocol in TLS (ALPN).
pub const PROTOCOL_NAME: &[u8] = b"zmove/1";
/// The ALPN name that all versions support. Two peers agree on it if they have no other name in common. The server then
/// sends its greeting and closes the connection.
pub const ANY_PROTOCOL_NAME: &[u8] = b"zmove";
/// The ALPN name of a path check, which tests whether large packets pass. The server then sends [`PATH_CHECK_BYTES`]
/// and closes the connection.
pub const PATH_CHECK_NAME: &[u8] = b"zmove-path";
/// Number of bytes that the server of a path check sends. The client's hello has at least this size too. The size
/// exceeds the largest packet of any Ethernet.
pub const PATH_CHECK_BYTES: usize = 12 << 10;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Control messages in both directions.
    Control,
    /// Data frames from sender to receiver.
    Lane(LaneId),
    /// Control messages in both directions. The side that dialed is the receiver, and the dialed host is the sender.
    Fetch,
}

/// The protection of a transfer's lanes after their greetings. The control connection always uses TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cipher {
    /// Encrypted: the lanes stay in TLS.
    #[default]
    Tls,
    /// Unencrypted, with a keyed hash over each frame. The data can be read in transit but not changed.
    None,
}

/// The first bytes that a side sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The purpose of the connection.
    pub role: Role,
    /// The protection of this lane after the greeting, or of all lanes if this is a control connection.
    pub cipher: Cipher,
    /// The transfer that the connection belongs to.
    pub transfer: TransferId,
}

/// The reason why a greeting was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// The bytes are not a zmove greeting.
    #[error("the peer is not zmove: it does not send zmove's greeting")]
    NotZmove,
    /// The greeting contains a value that is unknown to this release.
    #[error(
        "the peer is a zmove whose greeting has the unknown {what} {tag}: install the same release on both hosts"
    )]
    Unknown {
        /// The kind of value.
        what: &'static str,
        /// The value.
        tag: u8,
    },
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer is a zmove that speaks protocol version {theirs}, this one speaks version {PROTOCOL_VERSION}: \
         install the same release on both hosts"
    )]
    OtherVersion {
        /// The version that the peer speaks.
        theirs: u16,
    },
}

/// Checks the protocol version of a peer.
///
/// # Errors
/// [`GreetingError::OtherVersion`] if the peer speaks another version.
pub const fn check_version(theirs: u16) -> Result<(), GreetingError> {
    if theirs == PROTOCOL_VERSION {
        Ok(())
    } else {
        Err(GreetingError::OtherVersion { theirs })
    }
}

impl Greeting {
    /// The encoded size of a greeting, in bytes.
    pub const BYTES: usize = 40;
    const MAGIC: [u8; 8] = *b"ZMOVE\r\n\x1a";

    /// Creates a greeting for lanes that stay in TLS.
    #[must_use]
    pub fn new(role: Role, transfer: TransferId) -> Self {
        Self {
            role,
            cipher: Cipher::Tls,
            transfer,
        }
    }

    /// Encodes the greeting.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        match self.role {
            Role::Control => {}
            Role::Lane(lane) => {
                bytes[10] = 1;
                bytes[12..14].copy_from_slice(&lane.0.to_le_bytes());
            }
            Role::Fetch => bytes[10] = 2,
        }
        bytes[11] = match self.cipher {
            Cipher::Tls => 0,
            Cipher::None => 1,
        };
        bytes[16..32].copy_from_slice(&self.transfer.0);
        bytes
    }

    /// Decodes a greeting.
    ///
    /// # Errors
    /// [`GreetingError::NotZmove`] if the magic number is unknown, [`GreetingError::OtherVersion`] if the peer speaks
    /// another version, and [`GreetingError::Unknown`] if the role or the cipher is unknown.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, GreetingError> {
        if !bytes.starts_with(&Self::MAGIC) {
            return Err(GreetingError::NotZmove);
        }
        check_version(u16::from_le_bytes(field(bytes, 8)))?;
        let unknown = |what, tag| Err(GreetingError::Unknown { what, tag });
        Ok(Self {
            role: match bytes[10] {
                0 => Role::Control,
                1 => Role::Lane(LaneId(u16::from_le_bytes(field(bytes, 12)))),
                2 => Role::Fetch,
                tag => return unknown("role", tag),
            },
            cipher: match bytes[11] {
                0 => Cipher::Tls,
                1 => Cipher::None,
                tag => return unknown("cipher", tag),
            },
            transfer: TransferId(field(bytes, 16)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Greeting {
        Greeting::new(Role::Lane(LaneId(3)), TransferId([9; 16]))
    }

    /// Returns the greeting of a lane with one byte replaced.
    fn with_byte(at: usize, byte: u8) -> [u8; Greeting::BYTES] {
        let mut bytes = lane().encode();
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn greeting_bytes_are_pinned() {
        let expected = [
            &b"ZMOVE\r\n\x1a"[..],
            &[1, 0, 1, 0, 3, 0, 0, 0],
            &[9; 16],
            &[0; 8],
        ]
        .concat();
        assert_eq!(lane().encode().to_vec(), expected);
        assert_eq!(Greeting::decode(&lane().encode()), Ok(lane()));
        assert_eq!(
            PROTOCOL_NAME,
            format!("zmove/{PROTOCOL_VERSION}").as_bytes()
        );
    }

    #[test]
    fn a_receiver_that_dials_has_its_own_role() {
        let fetch = Greeting::new(Role::Fetch, TransferId([9; 16]));
        let bytes = fetch.encode();
        assert_eq!(
            (bytes[10..14].to_vec(), Greeting::decode(&bytes)),
            (vec![2, 0, 0, 0], Ok(fetch))
        );
        assert_eq!(
            Greeting::decode(&with_byte(10, 3)),
            Err(GreetingError::Unknown {
                what: "role",
                tag: 3
            })
        );
    }

    #[test]
    fn lanes_in_clear_have_their_own_byte() {
        let clear = Greeting {
            cipher: Cipher::None,
            ..lane()
        };
        let bytes = with_byte(11, 1);
        assert_eq!(
            (clear.encode(), Greeting::decode(&bytes)),
            (bytes, Ok(clear))
        );
        assert_eq!(
            Greeting::decode(&with_byte(11, 2)),
            Err(GreetingError::Unknown {
                what: "cipher",
                tag: 2
            })
        );
    }

    /// This must work regardless of all other changes in the other version.
    #[test]
    fn a_zmove_that_speaks_another_version_is_recognized() {
        for theirs in [0, 9, u16::MAX] {
            let mut bytes = [0xFF; Greeting::BYTES];
            bytes[..8].copy_from_slice(b"ZMOVE\r\n\x1a");
            bytes[8..10].copy_from_slice(&theirs.to_le_bytes());
            let error = Greeting::decode(&bytes).unwrap_err();
            assert_eq!(error, GreetingError::OtherVersion { theirs });
            let text = error.to_string();
            assert!(text.contains(&format!("version {theirs}, ")), "{text}");
        }
    }

    #[test]
    fn other_protocols_are_not_zmove() {
        assert_eq!(
            Greeting::decode(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u5\r\n"),
            Err(GreetingError::NotZmove)
        );
        assert_eq!(
            Greeting::decode(&with_byte(0, b'z')),
            Err(GreetingError::NotZmove)
        );
    }
}
