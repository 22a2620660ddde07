//! Delta transfer of changed large files: groups that already exist at the target are not sent.
//!
//! The receiver hashes the groups of the old version and sends the hash values to the sender. The sender reads its own
//! file, sends the groups that differ, and reports the others as unchanged. The receiver reads an unchanged group from
//! the old version and hashes it again before the group counts as received. If the old version changes in between, the
//! group must be sent, but no wrong data is stored.
//!
//! The new file is created next to the old version. On file systems with reflinks (XFS, Btrfs), the new file starts as
//! a clone. On other file systems, unchanged groups are copied. If an earlier transfer has left a part (temporary file)
//! of the new file, only groups that are missing from the part are copied from the old version.
//!
//! The sender requests delta transfer (`--delta auto`) except in two cases: the target is local, or the previous
//! transfer on this path was faster than one thread can read and hash. In these cases, sending a file is faster than
//! comparing it.

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
use crate::rights::quota::Charge;
use crate::store::target::tree::open_old;
use zmove_types::Lock;

/// Old versions whose hash values were sent to the sender, by the path of the file.
#[derive(Debug)]
pub(crate) struct OldVersions {
    known: Lock<HashMap<RelPath, OldVersion>>,
    file_io: Arc<dyn FileIo>,
    direct: Direct,
    /// Buffers for groups that are read from old versions, one for each writer.
    buffers: BufferPool,
}

/// The old version of one large file.
#[derive(Debug)]
pub(crate) struct OldVersion {
    /// Hash values of the old version's groups that were sent to the sender, by group index.
    cvs: BTreeMap<u32, Cv>,
    _held: Option<Charge>,
    sources: OnceLock<GroupSources>,
}

/// The files that may contain groups of the old version.
#[derive(Debug)]
struct GroupSources {
    /// Whether the new file may already contain the groups at their offsets. This is the case if the new file started
    /// as a clone, or if an earlier transfer has written to it. It is also the case if the new file is the old version
    /// itself, which is being changed in place.
    in_place: bool,
    old: Option<DataFile>,
}

impl OldVersions {
    pub(crate) fn new(writers: usize, file_io: Arc<dyn FileIo>, direct: Direct) -> Self {
        Self {
            known: Lock::default(),
            file_io,
            direct,
            buffers: BufferPool::new(BUFFER_BYTES, writers),
        }
    }

    /// Removes the old version of a declared file from this table and returns it.
    pub(crate) fn take(&self, path: &RelPath) -> Option<OldVersion> {
        self.known.lock().remove(path)
    }

    /// Adds an old version whose hash values are about to be sent to the sender.
    pub(crate) fn add(&self, path: RelPath, cvs: BTreeMap<u32, Cv>, held: Option<Charge>) {
        let old_version = OldVersion {
            cvs,
            _held: held,
            sources: OnceLock::new(),
        };
        self.known.lock().insert(path, old_version);
    }

    /// Returns the hash value of a group of an old version. Returns `None` if the group is incomplete or cannot be
    /// read, or if no buffer is available.
    pub(crate) fn hash_group(&self, old: &DataFile, span: GroupSpan) -> Option<Cv> {
        read_group(self.file_io.as_ref(), old, span, self.buffers.take()?).0
    }
}

impl OldVersion {
    /// Returns the hash value that was sent to the sender for a group, or `None` if none was sent.
    pub(crate) fn cv(&self, index: u32) -> Option<Cv> {
        self.cvs.get(&index).copied()
    }

    /// Sets the size of a new file. If the file system supports reflinks, makes the file a clone of the old version.
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
        // The groups of a clone are read from the clone and not from the old version, because the clone is published.
        let old = old
            .filter(|_| !in_place)
            .and_then(|old| for_reading(old, direct));
        let _first = self.sources.set(GroupSources { in_place, old });
        Ok(())
    }

    /// Records that the new file is the old version, which is being changed in place.
    pub(crate) fn set_in_place(&self, file: &Staged) {
        let _first = self.sources.set(GroupSources {
            in_place: is_read_from_storage(file),
            old: None,
        });
    }

    /// Copies a group of the old version into the new file, unless the new file already contains it. Returns `false` if
    /// neither file contains a group with this hash value. `open_old` is called only if the new file resumes from a
    /// part of an earlier transfer.
    ///
    /// # Errors
    /// Returns an I/O error if the group cannot be written.
    pub(crate) fn copy_group(
        &self,
        old_versions: &OldVersions,
        open_old: impl FnOnce() -> io::Result<File>,
        head: &FileHead,
        new: &Staged,
        span: GroupSpan,
        cv: Cv,
    ) -> io::Result<bool> {
        let Some(mut buffer) = old_versions.buffers.take() else {
            return Ok(false);
        };
        let file_io = old_versions.file_io.as_ref();
        // The part (the temporary file of an earlier transfer) may have started as a clone, so it may already contain
        // the group.
        let of_part = || GroupSources {
            in_place: is_read_from_storage(new),
            old: open_old()
                .ok()
                .and_then(|old| for_reading(old, old_versions.direct)),
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

/// Drops the cached pages of a file, so that later reads come from the storage. Returns `false` if that is not
/// possible.
///
/// An unchanged group that is not written again counts as flushed, so it must be read from the storage and not from the
/// page cache. Other cases do not need this function: a new clone has no cached pages, and a group that is copied from
/// another file is written.
fn is_read_from_storage(file: &Staged) -> bool {
    file.data().drop_cached().is_ok()
}

/// Returns the groups of a file of `bytes` bytes that contain data in the old version. Groups that are holes in the old
/// version are not compared, and are sent if they contain data at the source.
///
/// The iterator searches for each group on demand. So neither the length that a peer claims nor a heavily fragmented
/// old version can keep a thread busy between two groups.
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

/// Reads and hashes a group. The hash value is `None` if the group is incomplete or cannot be read. Such a group is
/// sent like a changed one.
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
