//! The storage engine of io_uring: the parts of a group are in flight together, and the first are hashed while the
//! last are still being read.

use std::io;

use zmove_types::Buffer;
use zmove_uring::{Ring, RingConfig, Span, Unavailable};

use crate::backend::{Engine, Slices, Way};

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
