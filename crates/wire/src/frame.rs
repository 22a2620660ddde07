//! The fixed header of every frame on a lane: 72 bytes, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 batch, 2 declare, 3 chunk, 4 guess, 5 same, 6 filler |
//! | 1 | 3 | zero |
//! | 4 | 4 | head length |
//! | 8 | 4 | data length |
//! | 12 | 4 | group index (chunk, same), otherwise zero |
//! | 16 | 8 | item ID (batch, chunk, guess, same) |
//! | 24 | 8 | file ID (declare, chunk, same) |
//! | 32 | 8 | zero |
//! | 40 | 32 | digest: the seal of bytes 0 to 39 and of the content, computed by `zmove_chunk::seal` |

use zmove_types::{FileId, ItemId};

use crate::error::WireError;
use crate::limits::{FILLER_BYTES_MAX, FRAME_DATA_BYTES_MAX, FRAME_HEAD_BYTES_MAX, within};

/// The kind of a frame, with its number on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Many small entries. The head describes the entries, and the data contains their contents.
    #[default]
    Batch = 1,
    /// A large file whose chunks will follow on this lane. The head describes the file, and the frame has no data.
    Declare = 2,
    /// One group of a large file.
    Chunk = 3,
    /// A batch that was sent before the sender knew which of its files exist at the target. The receiver leaves
    /// existing files unchanged.
    Guess = 4,
    /// Notice that a group of a large file equals the corresponding group that the receiver reported for the old
    /// version of the file. The frame has neither head nor data.
    Same = 5,
    /// Bytes of a probe, which are counted and discarded. The frame has no head, and at most [`FILLER_BYTES_MAX`] of
    /// data.
    Filler = 6,
}

/// The header of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Length of the head (the part that describes the data), in bytes.
    pub head_bytes: u32,
    /// Length of the data in bytes.
    pub data_bytes: u32,
    /// The group's index in its file (chunk, same).
    pub group: u32,
    /// The item that the frame carries and that its receipt will name (batch, chunk, guess, same).
    pub item: ItemId,
    /// The large file (declare, chunk, same).
    pub file: FileId,
    /// The seal over the [`prefix`](Self::prefix) and a hash. Depending on the kind, this is the hash of the head
    /// (batch, guess, declare), of the data (chunk, filler), or of the unchanged group (same). See `zmove_chunk::seal`.
    pub digest: [u8; 32],
}

impl FrameHeader {
    /// The encoded size of a header, in bytes.
    pub const BYTES: usize = 72;

    /// Returns the bytes that the seal covers: the header without the digest.
    #[must_use]
    pub fn prefix(&self) -> [u8; 40] {
        let bytes = self.encode();
        let (prefix, _digest) = bytes
            .split_first_chunk()
            .expect("a header is longer than its prefix");
        *prefix
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.head_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.group.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.item.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file.0.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.digest);
        bytes
    }

    /// Decodes a header and checks its lengths against the limits.
    ///
    /// # Errors
    /// [`WireError`] if the kind is unknown or a length exceeds its limit.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, WireError> {
        let kind = FrameKind::from_tag(bytes[0])?;
        let head_bytes = u32::from_le_bytes(field(bytes, 4));
        let data_bytes = u32::from_le_bytes(field(bytes, 8));
        let (head_max, data_max) = kind.limits();
        within("frame head", head_bytes as usize, head_max)?;
        within("frame data", data_bytes as usize, data_max)?;
        Ok(Self {
            kind,
            head_bytes,
            data_bytes,
            group: u32::from_le_bytes(field(bytes, 12)),
            item: ItemId(u64::from_le_bytes(field(bytes, 16))),
            file: FileId(u64::from_le_bytes(field(bytes, 24))),
            digest: field(bytes, 40),
        })
    }
}

/// Returns the field of a fixed header that begins at offset `at`.
pub(crate) fn field<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let field = header[at..].first_chunk();
    *field.expect("the header has its length")
}

impl FrameKind {
    const ALL: [Self; 6] = [
        Self::Batch,
        Self::Declare,
        Self::Chunk,
        Self::Guess,
        Self::Same,
        Self::Filler,
    ];

    /// Returns the maximum sizes of head and data, in bytes.
    const fn limits(self) -> (usize, usize) {
        match self {
            Self::Filler => (0, FILLER_BYTES_MAX),
            _ => (FRAME_HEAD_BYTES_MAX, FRAME_DATA_BYTES_MAX),
        }
    }

    fn from_tag(tag: u8) -> Result<Self, WireError> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u8 == tag);
        known.ok_or(WireError::UnknownTag { what: "frame", tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Chunk,
            head_bytes: 0,
            data_bytes: 0x0040_0000,
            group: 0x0102_0304,
            item: ItemId(0x1112_1314_1516_1718),
            file: FileId(0x2122_2324_2526_2728),
            digest: [0xAB; 32],
        }
    }

    #[test]
    fn header_bytes_are_pinned() {
        let mut expected = vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 4, 3, 2, 1];
        expected.extend([0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        expected.extend([0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21]);
        expected.extend([0; 8]);
        expected.extend([0xAB; 32]);
        assert_eq!(golden().encode().to_vec(), expected);
        assert_eq!(FrameHeader::decode(&golden().encode()), Ok(golden()));
    }

    #[test]
    fn a_huge_length_is_refused() {
        let mut bytes = golden().encode();
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let limit = FRAME_DATA_BYTES_MAX as u64;
        let value = u64::from(u32::MAX);
        assert_eq!(
            FrameHeader::decode(&bytes),
            Err(WireError::OverLimit {
                what: "frame data",
                value,
                limit
            })
        );
    }

    #[test]
    fn filler_is_pinned_and_short() {
        let filler = |data_bytes| FrameHeader {
            kind: FrameKind::Filler,
            data_bytes,
            group: 0,
            item: ItemId(0),
            file: FileId(0),
            ..golden()
        };
        let longest = filler(u32::try_from(FILLER_BYTES_MAX).unwrap());
        let expected = [
            &[6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0][..],
            &[0; 28],
            &[0xAB; 32],
        ]
        .concat();
        assert_eq!(longest.encode().to_vec(), expected);
        assert_eq!(FrameHeader::decode(&longest.encode()), Ok(longest));
        assert!(FrameHeader::decode(&filler(longest.data_bytes + 1).encode()).is_err());
        assert!(
            FrameHeader::decode(
                &FrameHeader {
                    head_bytes: 1,
                    ..filler(1)
                }
                .encode()
            )
            .is_err()
        );
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut bytes = golden().encode();
        bytes[0] = 9;
        assert_eq!(
            FrameHeader::decode(&bytes),
            Err(WireError::UnknownTag {
                what: "frame",
                tag: 9
            })
        );
    }
}
