//! The greeting that opens every connection, and the versions of the protocol.
//!
//! The greeting is 40 bytes long and keeps its place and meaning in all versions, so that two programs that cannot talk
//! can at least report why: magic, version range, role, transfer id, lane number, and how the lanes go on.

use thiserror::Error;
use zmove_types::{LaneId, TransferId};

use crate::fields::Reader;

/// A version of the protocol. Each wire change is one line here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The first: push with offers, batches, chunks and receipts.
    V1 = 1,
    /// Probes: [`Purpose::Probe`](crate::Purpose), its questions and answers, and frames of filler.
    V2 = 2,
    /// [`ToSender::Paced`](crate::ToSender): how long a receiver's rate limit held a transfer up.
    V3 = 3,
    /// [`Extensions`](crate::Extensions) of openings, heads and entries;
    /// [`ToSender::Published`](crate::ToSender), so that `Stored` no longer means that files have their
    /// names; [`ToSender::Waiting`](crate::ToSender); [`ToSender::TimesBeyondRange`](crate::ToSender). The
    /// first version with a TLS protocol name (ALPN) of its own.
    V4 = 4,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Control messages, both ways.
    Control,
    /// Data frames, sender to receiver.
    Lane(LaneId),
    /// Control messages, both ways, where the receiver has dialled: the host is to send. From
    /// [`Version::V4`] on.
    Fetch,
}

/// The protection of a transfer's lanes after their greetings. Control always stays in TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cipher {
    /// Encrypted: lanes stay in TLS.
    #[default]
    Tls,
    /// In clear, each frame under a keyed hash: readable on the path, but not to be changed there.
    None,
}

/// The first bytes on every connection, from each side that speaks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The oldest version that is spoken.
    pub version_min: u16,
    /// The newest version that is spoken.
    pub version_max: u16,
    /// The purpose of the connection.
    pub role: Role,
    /// The protection of this lane after the greeting; on control, that of all lanes.
    pub cipher: Cipher,
    /// The transfer that the connection belongs to.
    pub transfer: TransferId,
}

/// The reason why a greeting is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// The bytes are not a zmove greeting.
    #[error("the peer does not greet as zmove does")]
    NotZmove,
    /// No version is spoken by both.
    #[error(
        "the peer speaks protocol versions {theirs_min} to {theirs_max}, this zmove {ours_min} to {ours_max}: \
         install the same release on both hosts"
    )]
    Incompatible {
        /// The peer's oldest version.
        theirs_min: u16,
        /// The peer's newest version.
        theirs_max: u16,
        /// This program's oldest version.
        ours_min: u16,
        /// This program's newest version.
        ours_max: u16,
    },
}

impl Version {
    const ALL: [Self; 4] = [Self::V1, Self::V2, Self::V3, Self::V4];
    const OLDEST: u16 = Self::V1 as u16;
    /// The newest version that this program speaks.
    pub const NEWEST: Self = Self::V4;

    /// The names by which TLS agrees on a version (ALPN), the most wanted first. The last name covers all versions
    /// before they had names of their own; which of them is spoken is decided by the greetings.
    pub const PROTOCOLS: [(&'static [u8], Self); 2] =
        [(b"zmove/4", Self::V4), (b"zmove", Self::UNNAMED)];
    const UNNAMED: Self = Self::V3;

    /// The newest version that may be spoken where TLS has agreed on this name; `None` where it is not one of zmove's.
    #[must_use]
    pub fn of_protocol(name: &[u8]) -> Option<Self> {
        Self::PROTOCOLS
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, version)| version)
    }
}

impl Greeting {
    /// The greeting's length on the wire.
    pub const BYTES: usize = 40;
    const MAGIC: [u8; 8] = *b"ZMOVE\r\n\x1a";

    /// This program's greeting, for lanes that stay in TLS.
    #[must_use]
    pub fn new(role: Role, transfer: TransferId) -> Self {
        Self {
            version_min: Version::OLDEST,
            version_max: Version::NEWEST as u16,
            role,
            cipher: Cipher::Tls,
            transfer,
        }
    }

    /// The greeting as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..10].copy_from_slice(&self.version_min.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version_max.to_le_bytes());
        match self.role {
            Role::Control => {}
            Role::Lane(lane) => {
                bytes[12] = 1;
                bytes[14..16].copy_from_slice(&lane.0.to_le_bytes());
            }
            Role::Fetch => bytes[12] = 2,
        }
        bytes[13] = match self.cipher {
            Cipher::Tls => 0,
            Cipher::None => 1,
        };
        bytes[16..32].copy_from_slice(&self.transfer.0);
        bytes
    }

    /// Reads a greeting; the peer's versions are checked by [`agree`](Self::agree).
    ///
    /// # Errors
    /// [`GreetingError::NotZmove`] when the magic, the role or the cipher is unknown.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, GreetingError> {
        Self::read(Reader::new(bytes))
            .ok()
            .flatten()
            .ok_or(GreetingError::NotZmove)
    }

    fn read(mut reader: Reader<'_>) -> Result<Option<Self>, crate::WireError> {
        let magic: [u8; 8] = reader.array()?;
        let (version_min, version_max) = (reader.u16()?, reader.u16()?);
        let (role, cipher, lane) = (reader.u8()?, reader.u8()?, LaneId(reader.u16()?));
        let role = match role {
            0 => Role::Control,
            1 => Role::Lane(lane),
            2 => Role::Fetch,
            _ => return Ok(None),
        };
        let cipher = match cipher {
            0 => Cipher::Tls,
            1 => Cipher::None,
            _ => return Ok(None),
        };
        let transfer = TransferId(reader.array()?);
        Ok((magic == Self::MAGIC).then_some(Self {
            version_min,
            version_max,
            role,
            cipher,
            transfer,
        }))
    }

    /// The newest version that both sides speak.
    ///
    /// # Errors
    /// [`GreetingError::Incompatible`] when there is none.
    pub fn agree(&self) -> Result<Version, GreetingError> {
        let newest = self.version_max.min(Version::NEWEST as u16);
        let version = Version::ALL
            .into_iter()
            .find(|version| *version as u16 == newest);
        version
            .filter(|_| newest >= self.version_min)
            .ok_or_else(|| self.incompatible(Version::OLDEST))
    }

    /// The newest version that both sides speak, where that is `least` or a later one.
    ///
    /// # Errors
    /// [`GreetingError::Incompatible`] when it is not.
    pub fn agree_on(&self, least: Version) -> Result<Version, GreetingError> {
        let version = self.agree()?;
        if version < least {
            Err(self.incompatible(least as u16))
        } else {
            Ok(version)
        }
    }

    /// The version that is spoken on a connection whose TLS has agreed on a name that stands for `named`
    /// ([`Version::of_protocol`]): a peer that has agreed on a version cannot then speak an older one.
    ///
    /// # Errors
    /// [`GreetingError::Incompatible`] when there is none.
    pub fn agree_within(&self, named: Version) -> Result<Version, GreetingError> {
        let least = if named > Version::UNNAMED {
            named
        } else {
            Version::V1
        };
        Ok(self.agree_on(least)?.min(named))
    }

    const fn incompatible(&self, ours_min: u16) -> GreetingError {
        let (theirs_min, theirs_max) = (self.version_min, self.version_max);
        GreetingError::Incompatible {
            theirs_min,
            theirs_max,
            ours_min,
            ours_max: Version::NEWEST as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Greeting {
        Greeting::new(Role::Lane(LaneId(3)), TransferId([9; 16]))
    }

    #[test]
    fn greeting_bytes_are_pinned() {
        let expected = [
            &b"ZMOVE\r\n\x1a"[..],
            &[1, 0, 4, 0, 1, 0, 3, 0],
            &[9; 16],
            &[0; 8],
        ]
        .concat();
        assert_eq!(lane().encode().to_vec(), expected);
        assert_eq!(Greeting::decode(&lane().encode()), Ok(lane()));
        assert_eq!(lane().agree(), Ok(Version::V4));
    }

    #[test]
    fn a_receiver_that_dials_is_told_apart() {
        let fetch = Greeting::new(Role::Fetch, TransferId([9; 16]));
        let bytes = fetch.encode();
        assert_eq!(
            (bytes[12..16].to_vec(), Greeting::decode(&bytes)),
            (vec![2, 0, 0, 0], Ok(fetch))
        );
        let unknown = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| if at == 12 { 3 } else { *byte });
        let unknown: Vec<_> = unknown.collect();
        assert_eq!(
            Greeting::decode(&unknown.try_into().unwrap()),
            Err(GreetingError::NotZmove)
        );
    }

    #[test]
    fn lanes_in_clear_are_told_apart() {
        let clear = Greeting {
            cipher: Cipher::None,
            ..lane()
        };
        let mut bytes = lane().encode();
        bytes[13] = 1;
        assert_eq!(
            (clear.encode(), Greeting::decode(&bytes)),
            (bytes, Ok(clear))
        );
        bytes[13] = 2;
        assert_eq!(Greeting::decode(&bytes), Err(GreetingError::NotZmove));
    }

    #[test]
    fn a_newer_peer_is_named() {
        let newer = Greeting {
            version_min: 5,
            version_max: 6,
            ..lane()
        };
        let error = GreetingError::Incompatible {
            theirs_min: 5,
            theirs_max: 6,
            ours_min: 1,
            ours_max: 4,
        };
        assert_eq!(
            (newer.agree(), newer.agree_within(Version::V4)),
            (Err(error), Err(error))
        );
        assert_eq!(
            Greeting {
                version_max: 6,
                ..lane()
            }
            .agree(),
            Ok(Version::V4)
        );
    }

    #[test]
    fn what_an_older_peer_does_not_know_is_not_asked_of_it() {
        let older = Greeting {
            version_max: 1,
            ..lane()
        };
        let error = GreetingError::Incompatible {
            theirs_min: 1,
            theirs_max: 1,
            ours_min: 2,
            ours_max: 4,
        };
        assert_eq!(
            (older.agree(), older.agree_on(Version::V2)),
            (Ok(Version::V1), Err(error))
        );
        assert_eq!(
            Greeting {
                version_max: 2,
                ..lane()
            }
            .agree_on(Version::V2),
            Ok(Version::V2)
        );
        assert_eq!(lane().agree_on(Version::V2), Ok(Version::V4));
    }

    #[test]
    fn names_of_versions_are_pinned() {
        let versions = [&b"zmove/4"[..], b"zmove", b"zmove/5", b"h2"].map(Version::of_protocol);
        assert_eq!(versions, [Some(Version::V4), Some(Version::V3), None, None]);
        assert_eq!(Version::PROTOCOLS[0].1, Version::NEWEST);
    }

    #[test]
    fn the_name_that_tls_agreed_on_bounds_the_version() {
        let speaking = |version_max| Greeting {
            version_max,
            ..lane()
        };
        let unnamed = [1, 2, 3, 4, 9].map(|newest| speaking(newest).agree_within(Version::V3));
        assert_eq!(
            unnamed,
            [
                Version::V1,
                Version::V2,
                Version::V3,
                Version::V3,
                Version::V3
            ]
            .map(Ok)
        );
        assert_eq!(
            [4, 9].map(|newest| speaking(newest).agree_within(Version::V4)),
            [Ok(Version::V4); 2]
        );
        let error = GreetingError::Incompatible {
            theirs_min: 1,
            theirs_max: 3,
            ours_min: 4,
            ours_max: 4,
        };
        assert_eq!(speaking(3).agree_within(Version::V4), Err(error));
    }

    #[test]
    fn other_protocols_are_not_zmove() {
        assert_eq!(
            Greeting::decode(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u5\r\n"),
            Err(GreetingError::NotZmove)
        );
    }
}
