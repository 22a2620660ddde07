//! A batch while it is being filled from a pack.

use zmove_types::Buffer;
use zmove_wire::{Batch, BatchEntry};

use crate::send::sent::SentFile;

/// A batch being filled from a pack.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(super) batch: Batch,
    pub(super) buffer: Buffer,
    pub(super) filled: usize,
    pub(super) files: Vec<SentFile>,
}

impl Filling {
    pub(super) fn add(&mut self, entry: BatchEntry) {
        self.batch.groups.last_mut().expect("a group was begun").entries.push(entry);
    }

    /// Moves the data into memory of its own, so that the buffer can serve others.
    pub(super) fn let_go_of_pool(&mut self) {
        self.buffer = Buffer::copied(&self.buffer.room()[..self.filled]);
    }
}
