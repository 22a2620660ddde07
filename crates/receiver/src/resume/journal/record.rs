//! The bytes of a journal's records.
//!
//! A record is the length of its body (u32, little-endian), the body in postcard, and the CRC32C of both. Magic and
//! version (u32, little-endian) stand before the first record's body. **Invariant:** they, and the frame of that
//! record, have the same place in every version.

use serde::{Deserialize, Serialize};
use zmove_disk::boot_id;
use zmove_types::{Cv, Timestamp};

use super::{Begin, JournalError, PartFile};

/// The format that is written and read here.
pub(super) const VERSION: u32 = 1;
/// The first bytes in the body of a journal's first record.
pub(super) const MAGIC: [u8; 8] = *b"zmv-jrnl";
/// The bytes of a record's length.
pub(super) const LENGTH_BYTES: usize = 4;
/// The bytes of the checksum at a record's end.
pub(super) const CRC_BYTES: usize = 4;
/// The longest body, in bytes; checked before anything is allocated.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// The most groups in one record.
pub(super) const GROUPS_MAX: usize = 8192;

/// The identifier of one run of the system; zeros where the kernel has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BootId(pub(super) [u8; 16]);

impl BootId {
    /// The identifier of this run of the system.
    pub(super) fn current() -> Self {
        boot_id().map_or_else(Self::default, Self::of)
    }

    fn of(number: u128) -> Self {
        Self(number.swap_bytes().to_le_bytes())
    }
}

/// One record of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// The first record of a journal, and never another one.
    Begin(Begin, BootId),
    /// A large file begins.
    Part(u64, PartFile),
    /// Groups from `first` on that have been written, or had been `flushed` before they came into this journal.
    Groups {
        file: u64,
        first: u32,
        cvs: Vec<Cv>,
        flushed: bool,
    },
    /// All groups in records that end at or before this offset have been flushed.
    Flushed { upto: u64 },
    /// A file has its name or is given up.
    Ended { file: u64 },
    /// The transfer writes no more to the part of a file, which it has left with this change time.
    Left { file: u64, ctime: Timestamp },
}

impl Record {
    /// The record's bytes.
    ///
    /// # Errors
    /// [`JournalError::TooLong`].
    pub(super) fn encode(&self) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; LENGTH_BYTES];
        if let Self::Begin(..) = self {
            bytes.extend(MAGIC);
            bytes.extend(VERSION.to_le_bytes());
        }
        let mut bytes = postcard::to_extend(self, bytes).expect("plain data always serialises");
        let body = bytes.len() - LENGTH_BYTES;
        let length = u32::try_from(body).ok();
        let length = length.filter(|_| body <= BODY_BYTES_MAX);
        let length = length.ok_or(JournalError::TooLong { bytes: body })?;
        bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        Ok(bytes)
    }

    /// Decodes a body whose checksum was right, without magic and version; `None` where it is malformed.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let (record, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests;
