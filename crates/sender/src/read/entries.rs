//! Reads the entries of one pack into one buffer, with as many threads as the storage can use.
//!
//! Space in the buffer is assigned to each file in advance, according to the size that the scan saw. A file that no
//! longer fits into its space is not read here. The reader handles it separately.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use zmove_chunk::{file_root, read_root, sparse_file_root};
use zmove_disk::{FileIdentity, StorageThreads, Task, Turn};
use zmove_scan::{Entry, EntryKind};
use zmove_types::{DataRanges, GroupSpan, Lock, MetadataKinds, Root};
use zmove_wire::{BatchEntry, FileEntry, LinkEntry};

use crate::account::failure::FileError;
use crate::account::manifest::ProofMethod;
use crate::control::relay::PeerQuota;
use crate::plan::links::FirstName;
use crate::plan::pack::{PackEntry, PackGroup};
use crate::read::extras::{Extras, Lacks};
use crate::read::source::{SizeAndMtime, SourceDirectory, is_unchanged};
use crate::send::in_flight::InFlight;
use crate::send::sent::{NameRole, SentFile};

/// The result of reading an entry.
#[derive(Debug)]
pub(super) enum EntryRead {
    Done(Box<ReadEntry>),
    /// A file that has grown and no longer fits into its space in the buffer.
    Grown(Box<Entry>),
    /// A file whose contents at the target differ.
    ContentsDiffer,
    Failed(FileError),
    /// Neither data nor metadata of the entry need to be sent.
    Nothing,
}

/// An entry to send.
#[derive(Debug)]
pub(super) struct ReadEntry {
    pub(super) entry: BatchEntry,
    pub(super) file: Option<SentFile>,
    /// Offset of the file's contents in the buffer.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Requested metadata that the entry lacks.
    pub(super) lacks: Lacks,
}

/// Reads the entries of packs.
pub(super) struct EntryReader<'a> {
    pub(super) in_flight: &'a InFlight,
    pub(super) extras: &'a Extras,
    pub(super) threads: &'a StorageThreads,
    /// The quota for the receiver's use of this host's memory and threads.
    pub(super) quota: &'a dyn PeerQuota,
    /// Whether the root of each file that is read is needed for a manifest.
    pub(super) wants_roots: bool,
    /// Whether files are read to compute their roots if their contents at the target stay unchanged.
    pub(super) lists_unchanged_files: bool,
}

/// An entry that waits for a thread.
struct PendingEntry<'a> {
    group: usize,
    entry: &'a PackEntry,
    /// The slot for the entry's result. Each entry has its own slot, so that threads can read in parallel in any order.
    read: &'a mut EntryRead,
    /// Offset in the buffer of the space for the entry's contents.
    offset: usize,
    room: &'a mut [u8],
}

impl EntryReader<'_> {
    /// Reads all entries of these groups, and writes the contents of files to `room`. Returns the results in the order
    /// of the entries.
    pub(super) fn read_all(&self, groups: &[PackGroup], room: &mut [u8]) -> Vec<EntryRead> {
        let entries = groups.iter().map(|group| group.entries.len()).sum();
        let mut read = Vec::with_capacity(entries);
        read.resize_with(entries, || EntryRead::Nothing);
        let waiting = Lock::new(with_room(groups, &mut read, room).into_iter());
        let stopping = self.in_flight.stopping();
        let read_some = |turn: &Turn<'_>| self.read_some(turn, groups, &waiting);
        self.threads.run_parallel(
            Task::Read,
            "zmove-read",
            stopping,
            || self.quota.charge_helper(),
            read_some,
        );
        drop(waiting);
        read
    }

    fn read_some(
        &self,
        turn: &Turn<'_>,
        groups: &[PackGroup],
        waiting: &Lock<std::vec::IntoIter<PendingEntry<'_>>>,
    ) {
        let mut opened: Option<(usize, SourceDirectory)> = None;
        while !turn.is_over() {
            let next = waiting.lock().next();
            let Some(PendingEntry {
                group,
                entry,
                read,
                offset,
                room,
            }) = next
            else {
                break;
            };
            turn.start_helper();
            let directory = match opened.take() {
                Some((last, directory)) if last == group => directory,
                _ if groups[group].entries.len() > 1 => groups[group].directory.opened(),
                _ => groups[group].directory.clone(),
            };
            let done = self.read(&directory, entry, offset, room);
            *read = done.unwrap_or_else(EntryRead::Failed);
            opened = Some((group, directory));
        }
    }

    fn read(
        &self,
        directory: &SourceDirectory,
        entry: &PackEntry,
        offset: usize,
        room: &mut [u8],
    ) -> Result<EntryRead, FileError> {
        Ok(match entry {
            PackEntry::Itself(metadata, properties) => {
                let (metadata, lacks) = self
                    .extras
                    .directory_metadata(directory, metadata, properties);
                without_contents(BatchEntry::Itself(metadata), lacks, None)
            }
            PackEntry::Retouch(entry) => return self.retouch(directory, entry),
            PackEntry::Compare(entry, root) => return self.compare(directory, entry, *root),
            PackEntry::Within(entry) => return self.within(directory, entry, None, offset, room),
            PackEntry::Link(entry, first) => {
                return self.within(directory, entry, Some(first), offset, room);
            }
        })
    }

    /// Reads an entry of a directory. `first` is set if the entry is another name of a file that is already at the
    /// target.
    fn within(
        &self,
        directory: &SourceDirectory,
        entry: &Entry,
        first: Option<&Arc<FirstName>>,
        offset: usize,
        room: &mut [u8],
    ) -> Result<EntryRead, FileError> {
        let name = || entry.name.clone();
        let non_content_differences = || {
            let (metadata, lacks) = self.extras.entry_metadata(directory, entry);
            let metadata = match first {
                Some(first) => metadata.with_first_name(first.path.clone()),
                None => metadata,
            };
            (metadata, lacks)
        };
        let (entry, lacks) = match (&entry.kind, first) {
            (EntryKind::File, None) => {
                return read_file(self.extras, directory, entry, offset, room);
            }
            (EntryKind::File, Some(first)) => return self.link(directory, entry, first),
            (EntryKind::Directory, _) => {
                let (metadata, lacks) = non_content_differences();
                (BatchEntry::Directory(name(), metadata), lacks)
            }
            (EntryKind::Symlink(target), _) => {
                let (metadata, lacks) = non_content_differences();
                (BatchEntry::Symlink(name(), metadata, target.clone()), lacks)
            }
            (EntryKind::Special(special), _) => {
                let (metadata, lacks) = non_content_differences();
                (BatchEntry::Special(name(), metadata, *special), lacks)
            }
        };
        Ok(without_contents(entry, lacks, None))
    }

    /// Reads a file that the target may already have. If the contents are equal, only the metadata is sent. Otherwise
    /// the whole file is sent.
    fn compare(
        &self,
        directory: &SourceDirectory,
        entry: &Entry,
        there: Root,
    ) -> Result<EntryRead, FileError> {
        let (file, before) = directory.open_file(&entry.name)?;
        let unreadable = directory.unreadable(&entry.name);
        let stop = || self.in_flight.is_stopping();
        let hashed = self.extras.contents_root(&file, before.bytes, stop);
        let Some(root) = hashed.map_err(&unreadable)? else {
            return Ok(EntryRead::Nothing);
        };
        if !is_unchanged(&file, &before) {
            return Err(directory.changed(&entry.name));
        }
        if root != there {
            return Ok(EntryRead::ContentsDiffer);
        }
        let (metadata, lacks) = self.extras.file_metadata(&file, &before, entry);
        let root = match (self.extras.compares_groups(before.bytes), self.wants_roots) {
            (false, _) => Some(root),
            (true, false) => None,
            (true, true) => {
                // The comparison has moved the file position.
                let root = (&file).rewind().and_then(|()| read_root(&file, stop));
                root.map_err(unreadable)?
            }
        };
        let known = ProofMethod::Compared;
        let file = SentFile {
            retouched: true,
            known,
            ..sent_file(directory, entry, root, &before)
        };
        Ok(without_contents(
            BatchEntry::Retouch(entry.name.clone(), metadata),
            lacks,
            Some(file),
        ))
    }

    /// Returns a link to a file whose first name is at the target, provided that this name still leads to that file. If
    /// the file has changed since its first name was sent, the receiver rejects the link. This name is then sent again.
    fn link(
        &self,
        directory: &SourceDirectory,
        entry: &Entry,
        first: &Arc<FirstName>,
    ) -> Result<EntryRead, FileError> {
        let (file, now) = directory.open_file(&entry.name)?;
        if now.inode != entry.inode {
            return Err(directory.changed(&entry.name));
        }
        let link = LinkEntry {
            name: entry.name.clone(),
            metadata: self.extras.link_metadata(now.metadata()),
            bytes: now.bytes,
            first: first.path.clone(),
        };
        let (root, known) = match first.root {
            Some(root) => (Some(root), ProofMethod::Received),
            None => (
                self.root_of_unchanged(directory, entry, &file, &now)?,
                ProofMethod::SizeAndTime,
            ),
        };
        let file = SentFile {
            retouched: true,
            known,
            part: NameRole::Link,
            ..sent_file(directory, entry, root, &now)
        };
        Ok(without_contents(
            BatchEntry::Link(link),
            Lacks::new(),
            Some(file),
        ))
    }

    /// Reads the metadata of a file whose contents are already at the target. Fails if the file has changed since the
    /// receiver was asked about it.
    fn retouch(&self, directory: &SourceDirectory, entry: &Entry) -> Result<EntryRead, FileError> {
        let (file, before) = directory.open_as_seen(entry)?;
        let root = self.root_of_unchanged(directory, entry, &file, &before)?;
        let (metadata, lacks) = self.extras.file_metadata(&file, &before, entry);
        let known = ProofMethod::SizeAndTime;
        let file = SentFile {
            retouched: true,
            known,
            ..sent_file(directory, entry, root, &before)
        };
        Ok(without_contents(
            BatchEntry::Retouch(entry.name.clone(), metadata),
            lacks,
            Some(file),
        ))
    }

    /// Returns the root of a file whose contents are not sent, if the manifest needs it.
    fn root_of_unchanged(
        &self,
        directory: &SourceDirectory,
        entry: &Entry,
        file: &File,
        before: &FileIdentity,
    ) -> Result<Option<Root>, FileError> {
        if !self.lists_unchanged_files {
            return Ok(None);
        }
        root_of(directory, entry, file, before, || {
            self.in_flight.is_stopping()
        })
    }
}

/// Returns the root of a file that is at the target, provided that the file is unchanged since the scan. Returns `None`
/// once `stop` returns `true`.
pub(super) fn unsent_root(
    directory: &SourceDirectory,
    entry: &Entry,
    stop: impl Fn() -> bool,
) -> Result<Option<Root>, FileError> {
    let (file, before) = directory.open_as_seen(entry)?;
    root_of(directory, entry, &file, &before, stop)
}

/// Returns the root of an open file, provided that the file does not change while it is read.
fn root_of(
    directory: &SourceDirectory,
    entry: &Entry,
    file: &File,
    before: &FileIdentity,
    stop: impl Fn() -> bool,
) -> Result<Option<Root>, FileError> {
    let root = read_root(file, stop).map_err(directory.unreadable(&entry.name))?;
    if is_unchanged(file, before) {
        Ok(root)
    } else {
        Err(directory.changed(&entry.name))
    }
}

/// Assigns space in the buffer to each entry. An entry gets the space that its size in the scan requires, or all
/// remaining space if that is less.
fn with_room<'a>(
    groups: &'a [PackGroup],
    results: &'a mut [EntryRead],
    mut room: &'a mut [u8],
) -> Vec<PendingEntry<'a>> {
    let mut all = Vec::with_capacity(results.len());
    let mut results = results.iter_mut();
    let mut offset = 0;
    for (group, pack) in groups.iter().enumerate() {
        for (entry, read) in pack.entries.iter().zip(&mut results) {
            let bytes = usize::try_from(entry.data_bytes())
                .unwrap_or(usize::MAX)
                .min(room.len());
            let (own, rest) = room.split_at_mut(bytes);
            all.push(PendingEntry {
                group,
                entry,
                read,
                offset,
                room: own,
            });
            room = rest;
            offset += bytes;
        }
    }
    all
}

fn without_contents(entry: BatchEntry, lacks: Lacks, file: Option<SentFile>) -> EntryRead {
    EntryRead::Done(Box::new(ReadEntry {
        entry,
        file,
        offset: 0,
        bytes: 0,
        lacks,
    }))
}

/// Reads a small file into `room`, which begins at `offset` in the buffer.
pub(super) fn read_file(
    extras: &Extras,
    directory: &SourceDirectory,
    entry: &Entry,
    offset: usize,
    room: &mut [u8],
) -> Result<EntryRead, FileError> {
    let (file, before) = directory.open_file(&entry.name)?;
    let wanted = usize::try_from(before.bytes).unwrap_or(usize::MAX);
    let Some(room) = room.get_mut(..wanted) else {
        // Keep the ctime from the scan, because other changes of the file since the scan cannot be ruled out.
        let FileIdentity {
            bytes: size, inode, ..
        } = before;
        let grown = Entry {
            size,
            metadata: before.metadata(),
            inode,
            ..entry.clone()
        };
        return Ok(EntryRead::Grown(Box::new(grown)));
    };
    let (data, lack) = extras
        .holes()
        .find(&file, before.bytes, entry.may_have_holes, || false);
    let filled = data.as_ref().map_or(wanted, |data| {
        usize::try_from(data.data_bytes()).unwrap_or(wanted)
    });
    let room = &mut room[..filled];
    match read_data(&file, data.as_ref(), room) {
        Ok(()) if is_unchanged(&file, &before) => {}
        Err(source) if source.kind() != ErrorKind::UnexpectedEof => {
            return Err(directory.unreadable(&entry.name)(source));
        }
        _ => return Err(directory.changed(&entry.name)),
    }
    let span = GroupSpan::of(before.bytes, 0);
    let ranges = data
        .as_ref()
        .zip(span)
        .map(|(data, span)| data.within(span));
    let root = ranges.map_or_else(
        || file_root(room),
        |ranges| sparse_file_root(wanted, ranges, room),
    );
    let bytes = u32::try_from(wanted).expect("it fits into a buffer");
    let (metadata, mut lacks) = extras.file_metadata(&file, &before, entry);
    lacks.extend(lack.map(|why| (MetadataKinds::HOLES, why)));
    let sent = SentFile {
        data_bytes: filled as u64,
        ..sent_file(directory, entry, Some(root), &before)
    };
    let data = data.map(Arc::new);
    let entry = BatchEntry::File(FileEntry {
        name: entry.name.clone(),
        metadata,
        bytes,
        root,
        data,
    });
    Ok(EntryRead::Done(Box::new(ReadEntry {
        entry,
        file: Some(sent),
        offset,
        bytes: filled,
        lacks,
    })))
}

/// Reads a whole file, or only the data ranges of a file with holes.
fn read_data(mut file: &File, data: Option<&DataRanges>, room: &mut [u8]) -> io::Result<()> {
    let Some(data) = data else {
        return file.read_exact(room);
    };
    let mut rest = room;
    for Range { start, end } in data.ranges() {
        let (piece, behind) = rest.split_at_mut(usize::try_from(end - start).unwrap_or(usize::MAX));
        file.read_exact_at(piece, *start)?;
        rest = behind;
    }
    Ok(())
}

fn sent_file(
    directory: &SourceDirectory,
    entry: &Entry,
    root: Option<Root>,
    read: &FileIdentity,
) -> SentFile {
    let path = directory.target_of(&entry.name);
    let size_and_mtime = SizeAndMtime::of_opened(read);
    let part = entry
        .shared
        .map_or(NameRole::Alone, |shared| NameRole::First(shared.id));
    SentFile {
        path,
        root,
        size_and_mtime,
        known: ProofMethod::Received,
        data_bytes: size_and_mtime.bytes,
        retouched: false,
        part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::relay::Reservation;

    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc::unbounded_channel;
    use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};
    use zmove_types::{NoObserver, RelPath};
    use zmove_wire::WireError;

    /// A quota that allows no more threads.
    #[derive(Debug, Default)]
    struct Exhausted {
        asked: AtomicUsize,
    }

    impl PeerQuota for Exhausted {
        fn charge_memory(&self, _bytes: usize) -> Result<Reservation, WireError> {
            Ok(Box::new(()))
        }

        fn charge_helper(&self) -> Option<Reservation> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    fn groups(home: &Path) -> Vec<PackGroup> {
        let root = ScanRoot::new(home.to_owned(), RelPath::root());
        let scan = scan(vec![root], &ScanConfig::default());
        let batches = scan.receiver().iter().filter_map(|item| match item {
            ScanItem::Batch(batch) => Some(PackGroup {
                directory: SourceDirectory::held_open(&batch.directory),
                entries: batch.entries.into_iter().map(PackEntry::Within).collect(),
            }),
            _ => None,
        });
        batches.collect()
    }

    #[test]
    fn help_is_asked_of_the_quota_of_whom_it_is_read_for() {
        let home = tempfile::tempdir().unwrap();
        (0..100)
            .for_each(|number| std::fs::write(home.path().join(number.to_string()), "x").unwrap());
        let (quota, extras, (outgoing, _messages)) =
            (Exhausted::default(), Extras::default(), unbounded_channel());
        let in_flight = InFlight::new(Arc::new(NoObserver), outgoing);
        let threads = StorageThreads::default();
        threads.start_with(Task::Read, 64);
        let reader = EntryReader {
            in_flight: &in_flight,
            extras: &extras,
            threads: &threads,
            quota: &quota,
            wants_roots: false,
            lists_unchanged_files: false,
        };
        let read = reader.read_all(&groups(home.path()), &mut [0; 100]);
        assert_eq!(
            read.iter()
                .filter(|entry| matches!(entry, EntryRead::Done(_)))
                .count(),
            100
        );
        assert!(
            quota.asked.load(Ordering::Relaxed) > 0,
            "it was to get help"
        );
    }
}
