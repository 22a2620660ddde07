//! Large files that have changed: what the version at the target has in common with the source's is not sent.
//!
//! The groups of the old version are hashed and told to the sender, which sends those that differ and names the others. A
//! group that is named is read from the old version and hashed again before it counts, so what happens to that version
//! meanwhile costs a group that is sent, never a wrong byte.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::OFlags;
use zmove_chunk::{GroupHasher, group_cv};
use zmove_disk::{DataFile, Direct, FileIdentity, Staged, open_beneath};
use zmove_types::{Buffer, BufferPool, Cv, GROUP_BYTES, GroupSpan, Name, RelPath};
use zmove_wire::Held;
use zmove_wire::limits::HELD_GROUPS_MAX;

use crate::config::BUFFER_BYTES;
use crate::store::{Context, Outcome};

/// Old versions that the sender has been told of, by the path of their file.
#[derive(Debug)]
pub(crate) struct Bases {
    known: Mutex<HashMap<RelPath, Base>>,
    /// For groups that are read from old versions, one for each writer.
    buffers: BufferPool,
}

/// The old version of one large file.
#[derive(Debug)]
pub(crate) struct Base {
    cvs: Vec<Option<Cv>>,
    opened: OnceLock<Option<OldVersion>>,
}

#[derive(Debug)]
enum OldVersion {
    /// A file of its own.
    Beside(DataFile),
    /// The new file holds it: it began as a copy, or is the old one, changed in its place.
    Within,
}

/// A large file at the target that has changed at the source.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) offer: u64,
    /// Its number in the offer.
    pub(crate) file: u32,
    pub(crate) path: RelPath,
    pub(crate) bytes: u64,
    old: File,
}

impl Bases {
    pub(crate) fn new(writers: usize) -> Self {
        Self { known: Mutex::default(), buffers: BufferPool::new(BUFFER_BYTES, writers) }
    }

    /// The old version of a file that has been declared.
    pub(crate) fn take(&self, path: &RelPath) -> Option<Base> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(path)
    }

    fn add(&self, path: RelPath, cvs: Vec<Option<Cv>>) {
        let base = Base { cvs, opened: OnceLock::new() };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(path, base);
    }
}

impl Candidate {
    /// The file that is there, if it and the new one are large.
    pub(crate) fn find(
        directory: &OwnedFd,
        name: &Name,
        path: RelPath,
        (offer, file): (u64, u32),
        bytes: u64,
    ) -> Option<Self> {
        let old = open_old(directory, name).ok()?;
        let there = FileIdentity::of(&old).ok()?;
        let large = there.regular && there.bytes > GROUP_BYTES && bytes > GROUP_BYTES;
        large.then_some(Self { offer, file, path, bytes, old })
    }

    /// Hashes the old version and tells the sender of it, piece by piece; the last piece ends the offer if this is the last
    /// of its files.
    pub(crate) fn tell(self, context: &Context, last: bool) {
        let Self { offer, file, path, bytes, old } = self;
        let mut cvs = Vec::new();
        let mut room = vec![0; BUFFER_BYTES];
        let groups = GroupSpan::count(bytes).unwrap_or(0);
        for span in (0..groups).map_while(|index| GroupSpan::of(bytes, index)) {
            let wanted = &mut room[..span.len as usize];
            // a shorter version has no more groups; one that cannot be read is none
            if context.stopping.load(Ordering::Relaxed) || old.read_exact_at(wanted, span.offset()).is_err() {
                break;
            }
            cvs.push(group_cv(span.index, wanted));
        }
        // the sender may declare the file as soon as it has been told all
        context.bases.add(path, cvs.iter().copied().map(Some).collect());
        let mut pieces = cvs.chunks(HELD_GROUPS_MAX).peekable();
        let mut first = 0;
        loop {
            let piece = pieces.next().unwrap_or_default();
            let (end, cvs) = (pieces.peek().is_none(), piece.iter().map(|cv| cv.0).collect());
            context.tell(Outcome::Held(Held { offer, file, first, cvs, end }, last && end));
            if end {
                return;
            }
            first += u32::try_from(piece.len()).unwrap_or(u32::MAX);
        }
    }
}

impl Base {
    /// What a group was told to be.
    pub(crate) fn cv(&self, index: u32) -> Option<Cv> {
        self.cvs.get(index as usize).copied().flatten()
    }

    /// Opens the old version for a new file, which becomes a copy of it where the file system can share its blocks.
    pub(crate) fn open(
        &self,
        directory: &OwnedFd,
        name: &Name,
        new: &mut Staged,
        bytes: u64,
        direct: Direct,
    ) -> io::Result<()> {
        let Ok(old) = open_old(directory, name) else { return new.reserve(bytes, direct) };
        let opened = if new.clone_contents(&old, bytes, direct)? {
            OldVersion::Within
        } else {
            new.reserve(bytes, direct)?;
            let old_bytes = old.metadata()?.len();
            OldVersion::Beside(DataFile::for_reading(old, old_bytes, direct))
        };
        let _first = self.opened.set(Some(opened));
        Ok(())
    }

    /// The new file is the old version, changed in its place.
    pub(crate) fn is_the_file_itself(&self) {
        let _first = self.opened.set(Some(OldVersion::Within));
    }

    /// Puts a group of the old version into the new file, if it still has that value.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn keep(&self, context: &Context, new: &Staged, span: GroupSpan, cv: Cv) -> io::Result<bool> {
        let (Some(Some(old)), Some(buffer)) = (self.opened.get(), context.bases.buffers.take()) else {
            return Ok(false);
        };
        let source = match old {
            OldVersion::Beside(data) => data,
            // that is what will count; no group was written over another's place
            OldVersion::Within => new.data(),
        };
        // one that cannot be read is sent, as one that has changed
        let Ok((Some(there), buffer)) = read_group(context, source, span, buffer) else { return Ok(false) };
        if there != cv {
            return Ok(false);
        }
        if let OldVersion::Beside(_) = old {
            context.disk.write(new.data(), span.offset(), buffer).0?;
        }
        Ok(true)
    }
}

/// Reads and hashes a group; no value where there is less.
fn read_group(
    context: &Context,
    file: &DataFile,
    span: GroupSpan,
    buffer: Buffer,
) -> io::Result<(Option<Cv>, Buffer)> {
    let mut hasher = GroupHasher::new(span.index);
    let wanted = span.len as usize;
    let seen = &mut |slice: &[u8]| hasher.update(slice);
    let (outcome, buffer) = context.disk.read(file, span.offset(), wanted, buffer, seen);
    outcome?;
    let cv = (buffer.len() == wanted).then(|| hasher.finish());
    Ok((cv, buffer))
}

fn open_old(directory: &OwnedFd, name: &Name) -> io::Result<File> {
    let path = RelPath::root().join(name).map_err(|error| io::Error::other(error.to_string()))?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(open_beneath(directory.as_fd(), &path, flags)?.into())
}
