//! Large files that have changed: nothing is sent that the version at the target has in common with the
//! source's.
//!
//! The receiver hashes the groups of the old version and sends the values. The sender reads its own file, sends the
//! groups that differ and names the others. A named group is read from the old version and hashed again before it
//! counts, so a change to that version meanwhile costs a group that is sent, never a wrong byte.
//!
//! The new file is made beside the old one. It begins as a clone where the file system has reflinks (XFS,
//! Btrfs); elsewhere the named groups are copied. Where an earlier transfer has left a part of the new file,
//! only the groups that the part does not have are looked for in the old version.
//!
//! The sender asks for all this (`--delta auto`) unless the target is local, or the path was faster last time
//! than one thread reads and hashes: then a file is sent sooner than it is compared.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use zmove_chunk::GroupHasher;
use zmove_disk::{DataFile, Direct, FileIo, Span, Staged, next_data};
use zmove_types::{Buffer, BufferPool, Cv, GROUP_BYTES, GroupSpan, Name, RelPath};
use zmove_wire::FileHead;

use crate::config::BUFFER_BYTES;
use crate::rights::quota::Booking;
use crate::store::target::tree::open_old;
use zmove_types::Lock;

/// The old versions whose values the sender has, by the path of their file.
#[derive(Debug)]
pub(crate) struct Bases {
    known: Lock<HashMap<RelPath, Base>>,
    file_io: Arc<dyn FileIo>,
    direct: Direct,
    /// Buffers for groups that are read from old versions, as many as there are writers.
    buffers: BufferPool,
}

/// The old version of one large file.
#[derive(Debug)]
pub(crate) struct Base {
    /// The values that were sent for its groups, by number.
    cvs: BTreeMap<u32, Cv>,
    _held: Option<Booking>,
    sources: OnceLock<GroupSources>,
}

/// The places where groups of the old version are found.
#[derive(Debug)]
struct GroupSources {
    /// Whether groups may be found in the new file: it began as a copy, an earlier transfer has written to it, or it is
    /// the old one, changed in its place. No group is written over another's place.
    in_place: bool,
    old: Option<DataFile>,
}

impl Bases {
    pub(crate) fn new(writers: usize, file_io: Arc<dyn FileIo>, direct: Direct) -> Self {
        Self {
            known: Lock::default(),
            file_io,
            direct,
            buffers: BufferPool::new(BUFFER_BYTES, writers),
        }
    }

    /// The old version of a file that has been declared.
    pub(crate) fn take(&self, path: &RelPath) -> Option<Base> {
        self.known.lock().remove(path)
    }

    /// Adds the old version whose values the sender is about to have.
    pub(crate) fn add(&self, path: RelPath, cvs: BTreeMap<u32, Cv>, held: Option<Booking>) {
        let base = Base {
            cvs,
            _held: held,
            sources: OnceLock::new(),
        };
        self.known.lock().insert(path, base);
    }

    /// The value of a group of an old version; `None` where the group is incomplete or cannot be read, or there is no
    /// buffer for it.
    pub(crate) fn hash_group(&self, old: &DataFile, span: GroupSpan) -> Option<Cv> {
        read_group(self.file_io.as_ref(), old, span, self.buffers.take()?).0
    }
}

impl Base {
    /// The value that was sent for a group.
    pub(crate) fn cv(&self, index: u32) -> Option<Cv> {
        self.cvs.get(&index).copied()
    }

    /// Gives a new file its size; it becomes a copy of the old version where the file system can share its blocks.
    pub(crate) fn begin(
        &self,
        directory: &OwnedFd,
        name: &Name,
        new: &mut Staged,
        head: &FileHead,
        direct: Direct,
    ) -> io::Result<()> {
        let old = open_old(directory.as_fd(), name).ok();
        let in_place = old
            .as_ref()
            .map_or(Ok(false), |old| new.clone_contents(old, head.bytes, direct))?;
        match &head.data {
            data if !in_place => new.reserve(head.bytes, data.as_deref(), direct)?,
            Some(data) => new.make_holes(data)?,
            None => {}
        }
        // Where the new file is a copy, it is read itself: its bytes are those that will count.
        let old = old
            .filter(|_| !in_place)
            .and_then(|old| for_reading(old, direct));
        let _first = self.sources.set(GroupSources { in_place, old });
        Ok(())
    }

    /// Notes that the new file is the old version, changed in its place.
    pub(crate) fn is_the_file_itself(&self, file: &Staged) {
        let _first = self.sources.set(GroupSources {
            in_place: is_read_from_storage(file),
            old: None,
        });
    }

    /// Puts a group of the old version into the new file, if it can be found and still has that value. `open_old` is
    /// for a new file that resumes from a part.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn keep(
        &self,
        bases: &Bases,
        open_old: impl FnOnce() -> io::Result<File>,
        head: &FileHead,
        new: &Staged,
        span: GroupSpan,
        cv: Cv,
    ) -> io::Result<bool> {
        let Some(mut buffer) = bases.buffers.take() else {
            return Ok(false);
        };
        let file_io = bases.file_io.as_ref();
        // How the part began from which the file resumes is not known.
        let of_part = || GroupSources {
            in_place: is_read_from_storage(new),
            old: open_old()
                .ok()
                .and_then(|old| for_reading(old, bases.direct)),
        };
        let GroupSources { in_place, old } = self.sources.get_or_init(of_part);
        let mut there = None;
        if *in_place {
            (there, buffer) = read_group(file_io, new.data(), span, buffer);
        }
        if there == Some(cv) {
            return Ok(true);
        }
        let Some(old) = old else { return Ok(false) };
        (there, buffer) = read_group(file_io, old, span, buffer);
        if there != Some(cv) {
            return Ok(false);
        }
        for range in head.data_within(span) {
            let part = Span::new(span.offset() + range.start as u64, range);
            let (written, back) = new.write(|| file_io.write_part(new.data(), part, buffer))?;
            written?;
            buffer = back;
        }
        Ok(true)
    }
}

/// Drops a file's cached pages; `false` where that is not possible. A group that stays in the file without being
/// written again counts as flushed, so it must be read from the storage. (A copy that shares its blocks has nothing
/// cached yet; a group from another file is written.)
fn is_read_from_storage(file: &Staged) -> bool {
    file.data().drop_cached().is_ok()
}

/// The groups of a file of `bytes` that are not holes in the old version: those are not looked at, and are sent where
/// the source has data. Each is looked for when it is asked for, so that neither the length that a peer claims nor an
/// old version in very many pieces keeps a thread busy between two of them.
pub(crate) fn groups_with_data(old: &File, bytes: u64) -> impl Iterator<Item = GroupSpan> {
    let mut next = Some(0);
    let mut data = 0..0;
    std::iter::from_fn(move || {
        let offset = u64::from(next?) * GROUP_BYTES;
        if data.end <= offset {
            data = next_data(old, offset).ok()??;
        }
        let index = u32::try_from(data.start.max(offset) / GROUP_BYTES).ok()?;
        next = index.checked_add(1);
        GroupSpan::of(bytes, index)
    })
}

fn for_reading(old: File, direct: Direct) -> Option<DataFile> {
    let bytes = old.metadata().ok()?.len();
    Some(DataFile::for_reading(old, bytes, direct))
}

/// Reads and hashes a group; no value where it is incomplete or cannot be read: then it is sent, as one that has
/// changed.
fn read_group(
    file_io: &dyn FileIo,
    file: &DataFile,
    span: GroupSpan,
    buffer: Buffer,
) -> (Option<Cv>, Buffer) {
    let mut hasher = GroupHasher::new(span.index);
    let wanted = span.len as usize;
    let seen = &mut |slice: &[u8]| hasher.update(slice);
    let (outcome, buffer) = file_io.read(file, span.offset(), wanted, buffer, seen);
    let whole = outcome.is_ok() && buffer.len() == wanted;
    (whole.then(|| hasher.finish()), buffer)
}
