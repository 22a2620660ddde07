//! Source files: their location, and the proof that they did not change while they were read.

mod at_rest;
mod generated;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zmove_chunk::{Groups, merge_root, sparse_group_cv};
use zmove_disk::{DataFile, Direct, FileIdentity, cores};
use zmove_scan::{Directory, Entry, EntryKind, SourceRoot};
use zmove_types::{
    BytesByOrigin, Cv, DataRanges, FileId, GroupSpan, Lock, Metadata, Name, RelPath, Root,
    Timestamp,
};
use zmove_wire::{FileHead, WireError};

use crate::account::failure::FileError;
use crate::control::relay::Reservation;
use crate::push::piece::Piece;
use crate::read::group_values::GroupValues;
use crate::read::holes::{FoundHoles, HoleHandling};

/// The size and modification time of a source file, by which changes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeAndMtime {
    pub(crate) bytes: u64,
    pub(crate) mtime: Timestamp,
}

impl SizeAndMtime {
    pub(crate) fn of(entry: &Entry) -> Self {
        Self {
            bytes: entry.size,
            mtime: entry.metadata.mtime,
        }
    }

    /// Returns the size and modification time of an opened file.
    pub(crate) fn of_opened(identity: &FileIdentity) -> Self {
        Self {
            bytes: identity.bytes,
            mtime: identity.mtime,
        }
    }
}

/// Returns whether an open file still has the identity `before`.
pub(crate) fn is_unchanged(file: &File, before: &FileIdentity) -> bool {
    FileIdentity::of(file).is_ok_and(|now| now == *before)
}

/// A source directory. It is kept open while it is in frequent use.
#[derive(Clone, Debug)]
pub(crate) struct SourceDirectory {
    root: Arc<SourceRoot>,
    source_path: RelPath,
    target_path: RelPath,
    open: Option<Arc<Directory>>,
    /// The piece that the directory's entries belong to, if the push is fed.
    piece: Option<Arc<Piece>>,
}

impl SourceDirectory {
    /// Returns a directory that stays open while this value exists.
    pub(crate) fn held_open(directory: &Arc<Directory>) -> Self {
        Self {
            root: Arc::clone(directory.root()),
            source_path: directory.source_path().clone(),
            target_path: directory.target_path().clone(),
            open: Some(Arc::clone(directory)),
            piece: None,
        }
    }

    /// Assigns the directory's entries to a piece.
    pub(crate) fn of_piece(self, piece: Option<&Arc<Piece>>) -> Self {
        Self {
            piece: piece.map(Arc::clone),
            ..self
        }
    }

    /// Returns the piece that the directory's entries belong to.
    pub(crate) fn piece(&self) -> Option<&Piece> {
        self.piece.as_deref()
    }

    /// Closes the directory. From now on, its files are opened relative to the root of their source.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Returns the same directory. The new value does not hold the directory open.
    pub(crate) fn closed(&self) -> Self {
        Self {
            open: None,
            ..self.clone()
        }
    }

    /// Returns the same directory, opened if it was closed, for reading several files in succession. An error in
    /// opening the directory is returned when its files are opened.
    pub(crate) fn opened(&self) -> Self {
        let again = || {
            Directory::open(&self.root, &self.source_path)
                .ok()
                .map(Arc::new)
        };
        Self {
            open: self.open.clone().or_else(again),
            ..self.clone()
        }
    }

    /// Returns the directory's descriptor, if it is open.
    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.open.as_ref().map(|directory| directory.fd())
    }

    /// Returns the directory's path relative to its source.
    pub(crate) fn source_path(&self) -> &RelPath {
        &self.source_path
    }

    /// Returns the directory's path relative to the target.
    pub(crate) fn target_path(&self) -> &RelPath {
        &self.target_path
    }

    /// Returns whether both values denote the same directory of the same piece.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let piece = |directory: &Self| directory.piece.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.root, &other.root)
            && self.source_path == other.source_path
            && piece(self) == piece(other)
    }

    /// Returns the full path of an entry, for messages.
    pub(crate) fn display(&self, name: &Name) -> PathBuf {
        self.root
            .path()
            .join(self.source_path.as_path())
            .join(name.as_os_str())
    }

    /// Returns the path of an entry relative to the target. The paths of all entries of a scan are short enough.
    pub(crate) fn target_of(&self, name: &Name) -> RelPath {
        self.target_path
            .join(name)
            .unwrap_or_else(|_| RelPath::root())
    }

    /// Returns the error for a file that has changed.
    pub(crate) fn changed(&self, name: &Name) -> FileError {
        FileError::Changed {
            path: self.display(name),
        }
    }

    /// Returns a function that converts an I/O error to the error for an unreadable file.
    pub(crate) fn unreadable(&self, name: &Name) -> impl Fn(io::Error) -> FileError {
        move |source| FileError::Read {
            path: self.display(name),
            source,
        }
    }

    /// Opens a regular file if its size and modification time are still those that the scan saw.
    pub(crate) fn open_as_seen(&self, entry: &Entry) -> Result<(File, FileIdentity), FileError> {
        let (file, identity) = self.open_file(&entry.name)?;
        if SizeAndMtime::of(entry) != SizeAndMtime::of_opened(&identity) {
            return Err(self.changed(&entry.name));
        }
        Ok((file, identity))
    }

    /// Opens a regular file. Waits until writes in progress have ended, and returns the file with its identity after
    /// these writes.
    pub(crate) fn open_file(&self, name: &Name) -> Result<(File, FileIdentity), FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match &self.open {
            Some(directory) => {
                rustix::fs::openat(directory.fd(), name.as_os_str(), flags, Mode::empty())
                    .map_err(Into::into)
            }
            None => self.root.open_file(
                &self
                    .source_path
                    .join(name)
                    .expect("the scan emits only paths that fit"),
            ),
        };
        let file = opened.map_err(|source| FileError::Open {
            path: self.display(name),
            source,
        })?;
        let file = File::from(file);
        let is_generated =
            |seen: &FileIdentity| self.root.generated(seen.device, &file).has(seen.bytes);
        let identity =
            at_rest::settled_identity(&file, is_generated).map_err(self.unreadable(name))?;
        if !identity.regular {
            return Err(FileError::Replaced {
                path: self.display(name),
            });
        }
        if is_generated(&identity) {
            return generated::copy(file, &identity).map_err(self.unreadable(name));
        }
        Ok((file, identity))
    }

    /// Returns the entry with the actual length of its file. If a file system generates contents when they are read,
    /// only a read reveals the length.
    pub(crate) fn measured(&self, entry: Entry) -> Result<Entry, FileError> {
        if entry.kind != EntryKind::File || !self.may_be_generated(&entry) {
            return Ok(entry);
        }
        let (_, identity) = self.open_file(&entry.name)?;
        Ok(Entry {
            size: identity.bytes,
            may_have_holes: false,
            ..entry
        })
    }

    fn may_be_generated(&self, entry: &Entry) -> bool {
        let ask = || {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = entry.name.as_os_str();
            let file = rustix::fs::openat(self.fd()?, name, flags, Mode::empty()).ok()?;
            Some(self.root.generated(entry.device, file))
        };
        let known = self.root.known_generated_files(entry.device).or_else(ask);
        known.is_some_and(|generated| generated.has(entry.size))
    }
}

/// A file of more than one group that is being sent.
#[derive(Debug)]
pub(crate) struct LargeSource {
    pub(crate) id: FileId,
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
    pub(crate) target: RelPath,
    /// Whether the target holds groups of this version of the file. If so, the file must not have changed since the
    /// receiver was asked about it.
    resumed: bool,
    /// The range of groups to send, if other senders send the remaining groups.
    range: Option<Range<u32>>,
    state: Lock<LargeState>,
}

#[derive(Debug, Default)]
struct LargeState {
    groups_unread: u32,
    /// Number of groups to send that the receiver has not stored.
    groups_unstored: u32,
    /// Bytes that the account has counted for this file.
    counted: BytesByOrigin,
    failed: bool,
    /// Identity of the file when it was first opened.
    identity: Option<FileIdentity>,
    opened: Option<(Arc<DataFile>, FileIdentity)>,
    /// Metadata to send, read when the file was first opened.
    metadata: Option<Metadata>,
    /// Ranges with data, if the file has holes that are kept. They are determined once, because the declaration of the
    /// file contains them.
    data: Option<Arc<DataRanges>>,
    /// The number of a group that is sent although it is a hole. If nothing else is to be sent, this group completes
    /// the file.
    completing_hole: Option<u32>,
    cvs: GroupValues,
    /// Chaining values of the groups of another version of the file at the target. A group with an equal value is not
    /// sent.
    there: GroupValues,
    tries: HashMap<u32, u8>,
}

/// A large file that is open for reading.
pub(crate) struct OpenedSource {
    pub(crate) file: Arc<DataFile>,
    pub(crate) identity: FileIdentity,
    /// Holes of the file. Set only when the file is opened for the first time.
    pub(crate) holes: FoundHoles,
}

/// The effect of a stored group on its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredGroup {
    /// Whether the bytes of the group count. The bytes of a failed file do not count.
    pub(crate) counts: bool,
    /// Whether the receiver has stored all groups of the file.
    pub(crate) is_all: bool,
}

/// The state of a file after a group was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadProgress {
    /// More groups remain to be read.
    Going,
    /// The last group has been read.
    AllRead,
    /// The group was read before, and its hash was different then.
    Differs,
}

impl LargeSource {
    /// Creates a large file in a directory, without holding the directory open.
    pub(crate) fn new(id: FileId, directory: &SourceDirectory, entry: Entry) -> Self {
        let target = directory.target_of(&entry.name);
        let directory = directory.closed();
        let mut state = LargeState::default();
        state.expect(GroupSpan::count(entry.size).unwrap_or(u32::MAX));
        Self {
            id,
            directory,
            entry,
            target,
            resumed: false,
            range: None,
            state: Lock::new(state),
        }
    }

    /// Restricts the file to a range of groups. Other senders send the rest.
    pub(crate) fn restricted_to(mut self, range: Range<u32>) -> Self {
        let groups = range.len().try_into().unwrap_or(u32::MAX);
        self.state.get_mut().expect(groups);
        self.range = Some(range);
        self
    }

    /// Returns the file's piece if only a range of groups is sent from here and other senders send the rest.
    pub(crate) fn piece_of_range(&self) -> Option<&Piece> {
        self.directory.piece().filter(|_| self.range.is_some())
    }

    /// Resumes the file. `held` contains the values of the groups that the target holds, and `bytes` is the total size
    /// of these groups.
    pub(crate) fn resuming(mut self, held: GroupValues, bytes: BytesByOrigin) -> Self {
        let unread = self.groups_in_all().saturating_sub(held.count());
        let state = self.state.get_mut();
        state.expect(unread);
        state.counted = bytes;
        state.cvs = held;
        self.resumed = true;
        self
    }

    /// Compares the file with another version at the target, whose groups have the values in `there`.
    pub(crate) fn comparing(mut self, there: GroupValues) -> Self {
        self.state.get_mut().there = there;
        self
    }

    /// Returns whether the target's version has the same value for this group.
    pub(crate) fn target_has(&self, span: GroupSpan, cv: Cv) -> bool {
        self.lock().there.get(span.index) == Some(cv)
    }

    /// Records that a group is missing or damaged at the target, so that the group is no longer replaced by a reference
    /// and its data is sent.
    pub(crate) fn note_missing(&self, span: GroupSpan) {
        self.lock().there.remove(span.index);
    }

    /// Returns the groups to read.
    pub(crate) fn groups(&self) -> Groups {
        Groups(match &self.range {
            Some(range) => std::iter::once(range.clone()).collect(),
            None => self.lock().cvs.unknown(self.groups_in_all()).collect(),
        })
    }

    /// Opens the file, or returns the open file if it was opened before. The first call compares the file with the scan
    /// and searches for its holes.
    pub(crate) fn open(
        &self,
        direct: Direct,
        holes: HoleHandling,
        stop: impl Fn() -> bool,
        carry: impl FnOnce(&File, &FileIdentity) -> Metadata,
    ) -> Result<OpenedSource, FileError> {
        let mut state = self.lock();
        if let Some((file, identity)) = &state.opened {
            return Ok(OpenedSource {
                file: Arc::clone(file),
                identity: *identity,
                holes: FoundHoles::default(),
            });
        }
        let (file, identity) = self.directory.open_file(&self.entry.name)?;
        if identity.bytes != self.entry.size || (self.resumed && !self.is_as_scanned(&identity)) {
            return Err(self.changed());
        }
        if state.metadata.is_none() {
            state.metadata = Some(carry(&file, &identity));
        }
        let is_first = state.identity.replace(identity).is_none();
        let mut found = FoundHoles::default();
        if is_first {
            // The amount of allocated storage does not show whether the file has holes. It includes attributes and
            // preallocation beyond the end of the file.
            let (data, lack) = holes.find(&file, identity.bytes, true, stop);
            found.lack = lack;
            if let Some(data) = data {
                found.bytes = identity.bytes - data.data_bytes();
                found.held = state.holes_of_held(&data, identity.bytes);
                let groups = self.range.clone().unwrap_or(0..self.groups_in_all());
                state.exclude_holes(data, groups);
            }
        }
        let file = Arc::new(DataFile::for_reading(file, identity.bytes, direct));
        state.opened = Some((Arc::clone(&file), identity));
        Ok(OpenedSource {
            file,
            identity,
            holes: found,
        })
    }

    /// Returns the ranges with data, if the file has holes that are kept.
    pub(crate) fn data(&self) -> Option<Arc<DataRanges>> {
        self.lock().data.clone()
    }

    /// Returns the declaration that is sent before the file's groups, or `None` if the file has not been opened.
    pub(crate) fn head(&self) -> Option<FileHead> {
        let identity = self.lock().identity?;
        Some(self.head_as(&identity))
    }

    /// Returns the declaration for a file that had this identity when it was opened.
    pub(crate) fn head_as(&self, identity: &FileIdentity) -> FileHead {
        let state = self.lock();
        FileHead {
            path: self.target.clone(),
            metadata: state
                .metadata
                .clone()
                .unwrap_or_else(|| self.entry.metadata.clone()),
            bytes: identity.bytes,
            ctime: identity.ctime,
            inode: identity.inode,
            data: state.data.clone(),
        }
    }

    /// Returns the data ranges of a group, relative to its start.
    pub(crate) fn data_within(&self, span: GroupSpan) -> Vec<Range<usize>> {
        match &self.lock().data {
            Some(data) => data.within(span).collect(),
            None => std::iter::once(0..span.len as usize).collect(),
        }
    }

    /// Returns how many bytes of a group are sent.
    pub(crate) fn data_bytes_within(&self, span: GroupSpan) -> u64 {
        self.data_within(span)
            .iter()
            .map(|range| range.len() as u64)
            .sum()
    }

    /// If a group is a hole that is not sent, returns the number of the next group that may have to be sent, or
    /// `u32::MAX` if there is no such group. Returns `None` if the group itself is needed.
    pub(crate) fn next_needed_group(&self, span: GroupSpan) -> Option<u32> {
        let state = self.lock();
        let data = state.data.as_ref()?;
        let wanted = [
            data.next_group(span.index),
            state.completing_hole.filter(|index| *index >= span.index),
        ];
        let next = wanted.into_iter().flatten().min().unwrap_or(u32::MAX);
        (next != span.index).then_some(next)
    }

    /// Computes the chaining values of groups that are holes, for the root of the whole file. Uses several threads,
    /// because there may be very many such groups. Stops early if `stop` returns `true`. `book` reserves memory for the
    /// values.
    ///
    /// # Errors
    /// `book` could not reserve the memory.
    pub(crate) fn hash_holes(
        &self,
        book: impl FnOnce(usize) -> Result<Reservation, WireError>,
        stop: impl Fn() -> bool + Sync,
    ) -> Result<(), FileError> {
        let Some(data) = self.data() else {
            return Ok(());
        };
        let groups = self.groups_in_all();
        let unknown = groups.saturating_sub(self.lock().cvs.count()) as usize;
        let held = book(groups as usize * HASHED_BYTES_PER_GROUP)
            .map_err(|_over_limit| self.unreadable(Errno::NOMEM.into()))?;
        self.lock().cvs.hold(held);
        let next = AtomicU64::new(0);
        let hash = || {
            while let Ok(index) = u32::try_from(next.fetch_add(1, Ordering::Relaxed))
                && let Some(span) = GroupSpan::of(self.entry.size, index)
                && !stop()
            {
                if !data.has_group(index) && self.lock().cvs.get(index).is_none() {
                    let cv = sparse_group_cv(span, std::iter::empty(), &[]);
                    self.lock().cvs.insert(index, cv);
                }
            }
        };
        let helpers = cores().min(unknown);
        thread::scope(|scope| {
            (1..helpers).for_each(|_| drop(scope.spawn(hash)));
            hash();
        });
        Ok(())
    }

    /// Returns the number of groups of the file, including holes.
    fn groups_in_all(&self) -> u32 {
        GroupSpan::count(self.entry.size).unwrap_or(0)
    }

    fn is_as_scanned(&self, identity: &FileIdentity) -> bool {
        let Entry {
            metadata,
            ctime,
            inode,
            ..
        } = &self.entry;
        (identity.mtime, identity.ctime, identity.inode) == (metadata.mtime, *ctime, *inode)
    }

    /// Records a group's chaining value.
    pub(crate) fn group_read(&self, span: GroupSpan, cv: Cv) -> ReadProgress {
        let mut state = self.lock();
        match state.cvs.get(span.index) {
            Some(before) if before == cv => ReadProgress::Going,
            Some(_) => ReadProgress::Differs,
            None => {
                state.cvs.insert(span.index, cv);
                state.groups_unread -= 1;
                if state.groups_unread == 0 {
                    ReadProgress::AllRead
                } else {
                    ReadProgress::Going
                }
            }
        }
    }

    /// Returns whether all groups that are to be sent have been read.
    pub(crate) fn is_all_read(&self) -> bool {
        let state = self.lock();
        (state.identity.is_some() || self.resumed) && state.groups_unread == 0
    }

    /// Subtracts the bytes of holes that were counted with groups that the target holds. Returns the number of bytes
    /// subtracted, which is zero after the file has failed.
    pub(crate) fn take_back(&self, bytes: &BytesByOrigin) -> BytesByOrigin {
        let mut state = self.lock();
        let left = state.counted.without(bytes);
        std::mem::replace(&mut state.counted, left).without(&left)
    }

    /// Records that the receiver has stored a group. `bytes` are the bytes of the group by origin. After the last
    /// group, the source file is closed, even if the target's file is not yet renamed into place.
    pub(crate) fn group_stored(&self, bytes: BytesByOrigin) -> StoredGroup {
        let mut state = self.lock();
        state.groups_unstored = state.groups_unstored.saturating_sub(1);
        if state.groups_unstored == 0 {
            state.opened = None;
        }
        let counts = !state.failed;
        if counts {
            state.counted += bytes;
        }
        StoredGroup {
            counts,
            is_all: state.groups_unstored == 0,
        }
    }

    /// Returns whether the file is unchanged since it was opened.
    pub(crate) fn is_unchanged(&self) -> bool {
        let opened = self.lock().opened.clone();
        opened.is_some_and(|(file, before)| is_unchanged(file.file(), &before))
    }

    /// Returns the file's root if the values of all groups are known. For a file with holes, that requires the holes to
    /// be [hashed](Self::hash_holes) too.
    pub(crate) fn root(&self) -> Option<Root> {
        let cvs = self.lock().cvs.all(self.groups_in_all());
        cvs.map(|cvs| merge_root(self.entry.size, &cvs))
    }

    /// Sets the number of times that a group has been sent.
    pub(crate) fn set_tries(&self, span: GroupSpan, tries: u8) {
        self.lock().tries.insert(span.index, tries);
    }

    /// Returns the number of times that a group has been sent before.
    pub(crate) fn tries(&self, span: GroupSpan) -> u8 {
        self.lock().tries.get(&span.index).copied().unwrap_or(0)
    }

    /// Returns the bytes that have been counted for the file.
    pub(crate) fn counted(&self) -> BytesByOrigin {
        self.lock().counted
    }

    /// Fails the file, so that no more groups of the file are read. Returns the bytes counted for the file so far.
    #[must_use]
    pub(crate) fn fail(&self) -> BytesByOrigin {
        let mut state = self.lock();
        state.opened = None;
        state.failed = true;
        std::mem::take(&mut state.counted)
    }

    /// Closes the file after everything has been confirmed.
    pub(crate) fn close(&self) {
        self.lock().opened = None;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    pub(crate) fn display(&self) -> PathBuf {
        self.directory.display(&self.entry.name)
    }

    /// Returns the error for a file that has changed.
    pub(crate) fn changed(&self) -> FileError {
        self.directory.changed(&self.entry.name)
    }

    /// Returns the error for an I/O error while reading the file.
    pub(crate) fn unreadable(&self, source: io::Error) -> FileError {
        self.directory.unreadable(&self.entry.name)(source)
    }

    fn lock(&self) -> MutexGuard<'_, LargeState> {
        self.state.lock()
    }
}

/// Memory per group in bytes, while the value of the group is kept and all values are merged into the root.
const HASHED_BYTES_PER_GROUP: usize = 104;

impl LargeState {
    /// Sets the number of groups to send, none of which has been read.
    fn expect(&mut self, groups: u32) {
        self.groups_unread = groups;
        self.groups_unstored = groups;
    }

    /// Returns the groups that the target holds and that contain holes, each with its number of hole bytes.
    fn holes_of_held(&self, data: &DataRanges, bytes: u64) -> Vec<(u32, u64)> {
        let spans = self
            .cvs
            .known()
            .filter_map(|index| GroupSpan::of(bytes, index));
        let holes = spans.map(|span| {
            let data: u64 = data.within(span).map(|range| range.len() as u64).sum();
            (span.index, u64::from(span.len) - data)
        });
        holes.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Excludes the groups in this range that are holes from the groups to send.
    fn exclude_holes(&mut self, data: DataRanges, groups: Range<u32>) {
        let is_unread = |index: &u32| groups.contains(index) && self.cvs.get(*index).is_none();
        let unread = data.groups().filter(is_unread).count();
        if unread == 0 {
            self.completing_hole = groups.clone().find(is_unread);
        }
        // A hole that is sent to complete the file counts as a group.
        self.expect(u32::try_from(unread).unwrap_or(u32::MAX).max(1));
        self.data = Some(Arc::new(data));
    }
}

#[cfg(test)]
mod tests {
    use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};
    use zmove_types::{GROUP_BYTES, Origin};

    use super::*;

    /// Creates a file that consists of holes except for its last group, provided that the file system supports holes.
    fn of_holes(home: &std::path::Path) -> Arc<LargeSource> {
        let file = File::create(home.join("f")).unwrap();
        let bytes = 1000 * GROUP_BYTES;
        file.set_len(bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"end", bytes - 3).unwrap();
        let items = scan(
            vec![ScanRoot::new(home, RelPath::root())],
            &ScanConfig::default(),
        );
        let found = items.into_iter().find_map(|item| match item {
            ScanItem::Batch(batch) => Some(batch),
            _ => None,
        });
        let batch = found.expect("there is a file");
        let directory = SourceDirectory::held_open(&batch.directory);
        Arc::new(LargeSource::new(
            FileId(0),
            &directory,
            batch.entries[0].clone(),
        ))
    }

    fn open(file: &LargeSource) -> OpenedSource {
        let metadata = |_: &File, _: &FileIdentity| Metadata::default();
        file.open(Direct::default(), HoleHandling::Kept, || false, metadata)
            .unwrap()
    }

    #[test]
    fn what_comes_to_a_file_that_has_failed_does_not_count() {
        let home = tempfile::tempdir().unwrap();
        let file = of_holes(home.path());
        let sent = |bytes| BytesByOrigin::of(Origin::Sent, bytes);
        assert!(file.group_stored(sent(3)).counts && file.group_stored(sent(4)).counts);
        assert_eq!(file.fail(), sent(7));
        assert!(!file.group_stored(sent(5)).counts);
        assert_eq!(file.fail(), BytesByOrigin::default(), "taken back once");
    }

    #[test]
    fn a_file_of_holes_keeps_the_values_of_its_data_and_books_those_of_its_holes() {
        let home = tempfile::tempdir().unwrap();
        let file = of_holes(home.path());
        assert!(open(&file).holes.bytes > 999 * GROUP_BYTES);
        let last = GroupSpan::of(file.entry.size, 999).unwrap();
        let cv = Cv([7; 32]);
        assert_eq!(file.group_read(last, cv), ReadProgress::AllRead);
        assert!(file.is_all_read() && file.root().is_none());
        assert_eq!(file.lock().cvs.count(), 1);
        let refuse = |_| Err(WireError::Message);
        let error = file.hash_holes(refuse, || false).unwrap_err();
        assert!(
            error.to_string().contains("Cannot allocate memory"),
            "{error}"
        );
        assert_eq!(file.lock().cvs.count(), 1);
        let booked = Arc::new(());
        let book = |bytes| {
            assert_eq!(bytes, 1000 * HASHED_BYTES_PER_GROUP);
            Ok(Box::new(Arc::clone(&booked)) as Reservation)
        };
        file.hash_holes(book, || false).unwrap();
        assert!(file.root().is_some());
        assert_eq!(Arc::strong_count(&booked), 2);
        drop(file);
        assert_eq!(Arc::strong_count(&booked), 1);
    }
}
