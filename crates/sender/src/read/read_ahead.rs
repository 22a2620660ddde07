//! Batches that are read before it is known whether the target needs them.
//!
//! Before the receiver opens the transfer there is a round trip, in which the readers would otherwise be idle.
//! **Invariant:** a batch that is kept here has not been issued, so throwing it away loses nothing but the reading.

use zmove_types::{Buffer, Lock, RelPath};
use zmove_wire::{Batch, DirectoryGroup};

use crate::plan::pack::Pack;
use crate::read::entries::ReadEntry;
use crate::read::extras::{Lacks, path_of};
use crate::read::source::SourceDirectory;
use crate::send::sent::SentFile;

/// A batch that is being filled from a pack.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(super) batch: Batch,
    pub(super) buffer: Buffer,
    pub(super) filled: usize,
    pub(super) files: Vec<SentFile>,
    /// What entries lack, told when they are sent.
    pub(super) lacks: Vec<(RelPath, Lacks)>,
}

impl Filling {
    pub(super) fn new(buffer: Buffer) -> Self {
        Self {
            batch: Batch::default(),
            buffer,
            filled: 0,
            files: Vec::new(),
            lacks: Vec::new(),
        }
    }

    /// Begins the group of another directory.
    pub(super) fn begin_group(&mut self, directory: &SourceDirectory) {
        let directory = directory.target_path().clone();
        self.batch.groups.push(DirectoryGroup {
            directory,
            entries: Vec::new(),
        });
    }

    /// Adds an entry. Its contents are where those of the last one end, or further back where something between them is
    /// not sent.
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

    /// The room that is left.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        &mut self.buffer.room()[self.filled..]
    }
}

/// A pack and the batch that was read from it.
#[derive(Debug)]
pub(crate) struct ReadPack {
    pub(crate) pack: Pack,
    pub(crate) filling: Filling,
}

/// The batches that are kept; `None` once the target is known.
#[derive(Debug)]
pub(crate) struct ReadAhead(Lock<Option<Vec<ReadPack>>>);

impl ReadAhead {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Some(Vec::new())))
    }

    /// Keeps a batch; returns it when the target is known.
    pub(crate) fn keep(&self, mut batch: ReadPack) -> Option<ReadPack> {
        let mut kept = self.0.lock();
        let Some(kept) = kept.as_mut() else {
            return Some(batch);
        };
        batch.pack.put_off();
        // The copy has memory of its own, so that the buffer can serve others.
        let Filling { buffer, filled, .. } = &mut batch.filling;
        *buffer = Buffer::copied(&buffer.room()[..*filled]);
        kept.push(batch);
        None
    }

    /// Takes the kept batches, since the target is known.
    pub(crate) fn close(&self) -> Vec<ReadPack> {
        self.0.lock().take().unwrap_or_default()
    }
}
