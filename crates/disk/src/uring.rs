//! The storage engine of io_uring: the parts of a group are in flight together, and the first are hashed while the
//! last are still being read.

use std::io;

use zmove_types::Buffer;
use zmove_uring::{Ring, RingConfig, Span, Unavailable};

use crate::backend::{self, Disk, Engine, Slices, Way};
use crate::data_file::DataFile;

/// Positional I/O by a ring's thread.
#[derive(Debug)]
pub struct Uring(Ring);

impl Uring {
    /// Starts the ring, or says why there is none.
    ///
    /// # Errors
    /// Why io_uring cannot be used here.
    pub fn start(config: RingConfig) -> Result<Self, Unavailable> {
        Ok(Self(Ring::start(config)?))
    }
}

impl Disk for Uring {
    fn read(
        &self,
        file: &DataFile,
        offset: u64,
        len: usize,
        buffer: Buffer,
        seen: Slices<'_>,
    ) -> (io::Result<()>, Buffer) {
        backend::read(self, file, offset, len, buffer, seen)
    }

    fn write(&self, file: &DataFile, offset: u64, buffer: Buffer) -> (io::Result<()>, Buffer) {
        backend::write(self, file, offset, buffer)
    }
}

impl Engine for Uring {
    fn read_some(
        &self,
        way: Way<'_>,
        span: Span,
        buffer: Buffer,
        seen: Slices<'_>,
    ) -> (io::Result<usize>, Buffer) {
        self.0.read(way.file(), span, buffer, seen)
    }

    fn write_some(&self, way: Way<'_>, span: Span, buffer: Buffer) -> (io::Result<usize>, Buffer) {
        self.0.write(way.file(), span, buffer)
    }
}
