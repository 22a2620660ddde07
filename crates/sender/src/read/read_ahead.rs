//! Batches that are read before it is known whether the target needs them.
//!
//! The receiver takes a round trip to open the transfer, during which the readers would otherwise be idle.
//!
//! **Invariant:** a batch that is kept here has not been issued, so discarding it wastes only the read.

use zmove_types::{Buffer, Lock, RelPath};
use zmove_wire::{Batch, DirectoryGroup};

use crate::plan::pack::Pack;
use crate::read::entries::ReadEntry;
use crate::read::extras::{Lacks, path_of};
use crate::read::source::SourceDirectory;
use crate::send::sent::SentFile;

/// A batch that is being filled from a pack.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    pub(super) batch: Batch,
    pub(super) buffer: Buffer,
    pub(super) filled: usize,
    pub(super) files: Vec<SentFile>,
    /// Attributes that entries lack. They are reported when the batch is sent.
    pub(super) lacks: Vec<(RelPath, Lacks)>,
}

impl BatchBuilder {
    pub(super) fn new(buffer: Buffer) -> Self {
        Self {
            batch: Batch::default(),
            buffer,
            filled: 0,
            files: Vec::new(),
            lacks: Vec::new(),
        }
    }

    /// Begins a group for another directory.
    pub(super) fn begin_group(&mut self, directory: &SourceDirectory) {
        let directory = directory.target_path().clone();
        self.batch.groups.push(DirectoryGroup {
            directory,
            entries: Vec::new(),
        });
    }

    /// Adds an entry. If the buffer contains unsent data before the entry's contents, the contents are moved to the end
    /// of the previous contents.
    pub(super) fn add(&mut self, read: ReadEntry) {
        let ReadEntry {
            entry,
            file,
            offset,
            bytes,
            lacks,
        } = read;
        if offset > self.filled {
            self.buffer
                .room()
                .copy_within(offset..offset + bytes, self.filled);
        }
        self.filled += bytes;
        self.files.extend(file);
        let group = self.batch.groups.last_mut().expect("a group was begun");
        if !lacks.is_empty() {
            self.lacks.push((path_of(&group.directory, &entry), lacks));
        }
        group.entries.push(entry);
    }

    /// Returns the unused space of the buffer.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        &mut self.buffer.room()[self.filled..]
    }
}

/// A pack and the batch that was read from it.
#[derive(Debug)]
pub(crate) struct ReadPack {
    pub(crate) pack: Pack,
    pub(crate) filling: BatchBuilder,
}

/// The kept batches, or `None` once the state of the target is known.
#[derive(Debug)]
pub(crate) struct ReadAhead(Lock<Option<Vec<ReadPack>>>);

impl ReadAhead {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Some(Vec::new())))
    }

    /// Keeps a batch, or returns it if the state of the target is already known.
    pub(crate) fn keep(&self, mut batch: ReadPack) -> Option<ReadPack> {
        let mut kept = self.0.lock();
        let Some(kept) = kept.as_mut() else {
            return Some(batch);
        };
        batch.pack.close_directories();
        // The copy has its own memory, so that the buffer can be reused.
        let BatchBuilder { buffer, filled, .. } = &mut batch.filling;
        *buffer = Buffer::copied(&buffer.room()[..*filled]);
        kept.push(batch);
        None
    }

    /// Takes the kept batches. Called once the state of the target is known.
    pub(crate) fn close(&self) -> Vec<ReadPack> {
        self.0.lock().take().unwrap_or_default()
    }
}
