//! Little-endian reading and writing with bounds.
//!
//! **Invariant:** a [`Reader`] never looks past its bytes; what does not fit is a [`WireError`], not a panic.

use zmove_types::{Metadata, Name, RelPath, Timestamp};

use crate::error::WireError;

/// Takes values off the front of some bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let Some((taken, rest)) = self.0.split_at_checked(len) else {
            return Err(WireError::Truncated { wanted: len - self.0.len() });
        };
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        Ok(self.bytes(N)?.try_into().expect("exactly N bytes were taken"))
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
    pub(crate) fn bounded_u32(&mut self, what: &'static str, limit: usize) -> Result<usize, WireError> {
        let value = self.u32()?;
        match usize::try_from(value) {
            Ok(count) if count <= limit => Ok(count),
            _ => Err(WireError::OverLimit { what, value: u64::from(value), limit: limit as u64 }),
        }
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
        Ok(Metadata { mode, mtime: self.timestamp()? })
    }

    pub(crate) fn timestamp(&mut self) -> Result<Timestamp, WireError> {
        let (seconds, nanos) = (self.i64()?, self.u32()?);
        if nanos >= 1_000_000_000 {
            let (value, limit) = (u64::from(nanos), 999_999_999);
            return Err(WireError::OverLimit { what: "nanoseconds", value, limit });
        }
        Ok(Timestamp { seconds, nanos })
    }

    /// Whether everything has been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value must have taken everything.
    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.is_empty() { Ok(()) } else { Err(WireError::Trailing { left: self.0.len() }) }
    }
}

/// Appends values to a frame's head.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);
    fn put_path(&mut self, path: &RelPath) {
        let len = u16::try_from(path.as_bytes().len()).expect("RelPath is at most 65,535 bytes");
        self.put(&len.to_le_bytes());
        self.put(path.as_bytes());
    }
    fn put_name(&mut self, name: &Name) {
        self.put(&[u8::try_from(name.as_bytes().len()).expect("Name is at most 255 bytes")]);
        self.put(name.as_bytes());
    }
    fn put_metadata(&mut self, metadata: &Metadata) {
        self.put(&metadata.mode.to_le_bytes());
        self.put_timestamp(metadata.mtime);
    }

    fn put_timestamp(&mut self, time: Timestamp) {
        self.put(&time.seconds.to_le_bytes());
        self.put(&time.nanos.to_le_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
