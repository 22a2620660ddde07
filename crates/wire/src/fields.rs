//! The fields of heads: little-endian, decoded and encoded with bounds checks.
//!
//! **Invariant:** a [`Reader`] never looks past its bytes; what does not fit is a [`WireError`], not a panic.

use zmove_types::{Metadata, Name, RelPath, Timestamp};

use crate::error::WireError;
use crate::limits::within;

/// Takes values off the front of some bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let Some((taken, rest)) = self.0.split_at_checked(len) else {
            return Err(WireError::Truncated {
                wanted: len - self.0.len(),
            });
        };
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        Ok(self
            .bytes(N)?
            .try_into()
            .expect("exactly N bytes were taken"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, WireError> {
        self.array().map(i64::from_le_bytes)
    }

    /// A count or length that must not pass `limit`.
    pub(crate) fn bounded_u32(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<usize, WireError> {
        let value = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        within(what, value, limit)?;
        Ok(value)
    }

    pub(crate) fn path(&mut self) -> Result<RelPath, WireError> {
        let len = usize::from(self.u16()?);
        Ok(RelPath::from_bytes(self.bytes(len)?)?)
    }

    pub(crate) fn name(&mut self) -> Result<Name, WireError> {
        let len = usize::from(self.u8()?);
        Ok(Name::from_bytes(self.bytes(len)?)?)
    }

    pub(crate) fn metadata(&mut self) -> Result<Metadata, WireError> {
        let mode = self.u32()? & 0o7777;
        Ok(Metadata::new(mode, self.timestamp()?))
    }

    pub(crate) fn timestamp(&mut self) -> Result<Timestamp, WireError> {
        let (seconds, nanos) = (self.i64()?, self.u32()?);
        within("nanoseconds", nanos, 999_999_999)?;
        Ok(Timestamp { seconds, nanos })
    }

    /// Whether everything has been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails unless everything has been taken.
    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(WireError::Trailing { left: self.0.len() })
        }
    }
}

/// Appends a path to a frame's head.
pub(crate) fn put_path(out: &mut Vec<u8>, path: &RelPath) {
    let len = u16::try_from(path.as_bytes().len()).expect("RelPath is at most 65,535 bytes");
    out.extend(len.to_le_bytes());
    out.extend_from_slice(path.as_bytes());
}

/// Appends a name.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &Name) {
    out.push(u8::try_from(name.as_bytes().len()).expect("Name is at most 255 bytes"));
    out.extend_from_slice(name.as_bytes());
}

/// Appends mode and time.
pub(crate) fn put_metadata(out: &mut Vec<u8>, metadata: &Metadata) {
    out.extend(metadata.mode.to_le_bytes());
    put_timestamp(out, metadata.mtime);
}

/// Appends a time.
pub(crate) fn put_timestamp(out: &mut Vec<u8>, time: Timestamp) {
    out.extend(time.seconds.to_le_bytes());
    out.extend(time.nanos.to_le_bytes());
}
