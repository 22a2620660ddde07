//! The encoding of journal records.
//!
//! A record consists of the length of its body (u32, little-endian), the body in postcard, and the CRC32C of both. The
//! body of the first record starts with a magic number and the format version (u32, little-endian). **Invariant:** in
//! every format version, the magic number, the version and the frame of the first record have the same position.

use serde::{Deserialize, Serialize};
use zmove_disk::boot_id;
use zmove_types::{Cv, Timestamp};

use super::{Begin, JournalError, PartFile};

/// The format version that this release reads and writes.
pub(super) const VERSION: u32 = 1;
/// The magic number at the beginning of the first record's body.
pub(super) const MAGIC: [u8; 8] = *b"zmv-jrnl";
/// Size of a record's length field, in bytes.
pub(super) const LENGTH_BYTES: usize = 4;
/// Size of the checksum at the end of a record, in bytes.
pub(super) const CRC_BYTES: usize = 4;
/// Maximum size of a body, in bytes. Checked before memory is allocated.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum number of groups in one record.
pub(super) const GROUPS_MAX: usize = 8192;

/// The ID of one boot of the system, or zeros if the kernel does not provide it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BootId(pub(super) [u8; 16]);

impl BootId {
    /// Returns the ID of the current boot.
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
    /// The first record of a journal. It occurs only there.
    Begin(Begin, BootId),
    /// A large file begins.
    Part(u64, PartFile),
    /// Consecutive written groups, starting at `first`. If `flushed` is set, they were flushed before they were
    /// recorded.
    Groups {
        file: u64,
        first: u32,
        cvs: Vec<Cv>,
        flushed: bool,
    },
    /// All groups in records that end at or before this offset have been flushed.
    Flushed { upto: u64 },
    /// A file was renamed into place or given up.
    Ended { file: u64 },
    /// The transfer has finished writing to the part of a file. The part has this change time.
    Left { file: u64, ctime: Timestamp },
}

impl Record {
    /// Returns the encoded record.
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

    /// Decodes a body with a valid checksum, without magic number and version. Returns `None` if it is malformed.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let (record, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests;
