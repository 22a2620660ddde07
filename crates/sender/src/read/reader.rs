//! The readers: threads that take work from the plan, read it, hash it while it is in the CPU cache, and queue frames
//! for the lanes.
//!
//! **Invariant:** a file's bytes are sent only with the hash of exactly these bytes, and only if the file was the same
//! before and after they were read.
//!
//! When everything is planned and few packs are left, large packs are read in small pieces, including those of large
//! directories. This prevents a slow lane from holding a whole pack at the end.

use std::sync::{Arc, OnceLock};

use crossbeam_channel::Sender;
use zmove_chunk::{GroupHasher, Work};
use zmove_disk::{DataFile, FileSystemThreadCounts, Span, StorageThreads, StorageWork};
use zmove_scan::Entry;
use zmove_types::{
    Buffer, BufferPool, Cv, GROUP_BYTES, GroupSpan, ItemId, MetadataKinds, Stopwatch, ThreadState,
};
use zmove_wire::limits::FRAME_HEAD_BYTES_MAX;
use zmove_wire::{FrameHeader, FrameKind};

use crate::account::failure::FileError;
use crate::account::manifest::ProofMethod;
use crate::plan::pack::{Pack, PackEntry, PackGroup, PackSizes, PlanBasis, UnreadFile};
use crate::plan::queue::{Parcel, RoomWait};
use crate::push::config::SenderConfig;
use crate::push::session::Session;
use crate::read::entries::{EntryRead, EntryReader, read_file, unsent_root};
use crate::read::extras::drop_xattrs;
use crate::read::read_ahead::{BatchBuilder, ReadPack};
use crate::read::reader_count::ReaderCount;
use crate::read::source::{LargeSource, OpenedSource, ReadProgress, SourceDirectory};
use crate::send::frames::{Chunk, OutgoingFrame, sealed};
use crate::send::sent::{Sent, SentBatch};

/// The state shared by all readers.
pub(crate) struct ReaderContext {
    pub(crate) session: Arc<Session>,
    pub(crate) pool: BufferPool,
    pub(crate) config: SenderConfig,
    pub(crate) reader_count: ReaderCount,
    /// Threads that read small files in parallel.
    pub(crate) threads: StorageThreads,
    /// Remembered measurements of the first pack's file system. Sources are rarely on several file systems.
    pub(crate) file_system: OnceLock<FileSystemThreadCounts>,
    /// The frame queue shared by all lanes.
    pub(crate) frames: Sender<OutgoingFrame>,
}

impl ReaderContext {
    /// Sets the initial number of reading threads to the number that was useful in earlier runs. Only the first call
    /// has an effect.
    fn recall(&self, directory: &SourceDirectory) {
        self.file_system.get_or_init(|| {
            let directory = directory.opened();
            let known = directory
                .fd()
                .map(|fd| self.config.storage.of(fd))
                .unwrap_or_default();
            known.recall(StorageWork::Read, &self.threads);
            known
        });
    }
}

impl Drop for ReaderContext {
    fn drop(&mut self) {
        if let Some(file_system) = self.file_system.get() {
            file_system.keep(StorageWork::Read, &self.threads);
        }
    }
}

/// Runs one reader until the push is being stopped or the reader is no longer wanted.
pub(crate) fn read_all(context: &ReaderContext, number: usize) {
    let session = &*context.session;
    let mut reader = WorkReader {
        context,
        session,
        watch: session.timeline.read_clock.start(),
    };
    while let Some(work) = session
        .queue
        .plan
        .take(|_ended| session.in_flight.is_stopping())
    {
        reader.take(work);
        reader.watch.lap(ThreadState::Busy);
        if context.reader_count.is_surplus(number) {
            return;
        }
    }
}

struct WorkReader<'a> {
    context: &'a ReaderContext,
    session: &'a Session,
    watch: Stopwatch<'a>,
}

impl WorkReader<'_> {
    fn take(&mut self, work: Work<Parcel, Arc<LargeSource>>) {
        if let Work::Group(file, span) = &work
            && let Some(item) = self.session.in_flight.item_to_repeat(file.id, *span)
        {
            // A repeated group is not new work. The time since the last record therefore counts neither as busy nor as
            // starved.
            self.watch.skip();
            return self.repeat_group(file, *span, item);
        }
        self.watch.lap(ThreadState::Starved);
        match work {
            Work::Pack(Parcel::Unread(pack)) => self
                .last_pieces(pack)
                .into_iter()
                .for_each(|piece| self.read_pack(piece)),
            Work::Pack(Parcel::Read(read)) => self.send_batch(*read),
            Work::Pack(Parcel::Listed(files)) => self.list(&files),
            Work::Group(file, span) => self.read_group(&file, span),
        }
        self.session.in_flight.end_work();
    }

    /// Adds files that are already at the target to the manifest.
    fn list(&self, files: &[(SourceDirectory, Entry)]) {
        let Session {
            account, in_flight, ..
        } = self.session;
        for (directory, entry) in files {
            match unsent_root(directory, entry, || in_flight.is_stopping()) {
                Ok(Some(root)) => {
                    let path = directory.target_of(&entry.name);
                    account
                        .files()
                        .confirm(&path, Some(&root), ProofMethod::SizeAndTime);
                }
                Ok(None) => return,
                Err(error) => account.fail(&error),
            }
        }
    }

    /// Splits the last packs. Otherwise a slow lane could still be sending a whole pack when the other lanes have no
    /// work left.
    fn last_pieces(&self, pack: Pack) -> Vec<Pack> {
        let last = match self.context.config.pack_sizes {
            PackSizes::ForLanes => self.session.queue.plan.last_packs(),
            PackSizes::LocalCopy => None,
        };
        let piece_bytes = last.map_or(u64::MAX, last_piece_bytes);
        if pack.data_bytes() > piece_bytes.saturating_mul(2) {
            pack.split(piece_bytes)
        } else {
            vec![pack]
        }
    }

    fn read_pack(&mut self, pack: Pack) {
        let Some(mut buffer) = self.buffer() else {
            return;
        };
        let Pack { groups, unread, .. } = pack;
        groups
            .first()
            .into_iter()
            .for_each(|group| self.context.recall(&group.directory));
        let Session {
            in_flight,
            extras,
            account,
            quota,
            ..
        } = self.session;
        let (wants_roots, lists_unchanged_files) = {
            let files = account.files();
            (files.manifest.is_some(), files.lists_unchanged_files())
        };
        let entries = EntryReader {
            in_flight,
            extras,
            threads: &self.context.threads,
            quota: &**quota,
            wants_roots,
            lists_unchanged_files,
        };
        let mut read = entries.read_all(&groups, buffer.room()).into_iter();
        let mut filling = BatchBuilder::new(buffer);
        let mut sent = Pack {
            groups: Vec::with_capacity(groups.len()),
            unread: None,
            ..pack
        };
        let mut grown = Vec::new();
        for mut group in groups {
            filling.begin_group(&group.directory);
            let directory = &group.directory;
            group
                .entries
                .retain(|entry| match read.next().unwrap_or(EntryRead::Nothing) {
                    EntryRead::Done(read) => {
                        filling.add(*read);
                        true
                    }
                    EntryRead::Grown(entry) => {
                        grown.push((directory.clone(), *entry));
                        false
                    }
                    other => {
                        self.exclude_entry(directory, entry, unread.as_ref(), other);
                        false
                    }
                });
            sent.groups.push(group);
        }
        for (directory, entry) in grown {
            sent.groups
                .extend(self.read_grown(directory, entry, unread.as_ref(), &mut filling));
        }
        drop(unread);
        if filling.batch.entry_count() > 0 {
            self.send_or_keep(ReadPack {
                pack: sent,
                filling,
            });
        }
    }

    /// Omits an unreadable entry from its pack. If the target may not need the entry, it is returned through `unread`.
    /// Otherwise it has failed.
    fn exclude_entry(
        &self,
        directory: &SourceDirectory,
        entry: &PackEntry,
        unread: Option<&Sender<UnreadFile>>,
        read: EntryRead,
    ) {
        match (read, unread, entry) {
            (EntryRead::ContentsDiffer, _, PackEntry::Compare(entry, _)) => {
                self.plan_needed(directory, entry);
            }
            (EntryRead::Failed(error), Some(unread), PackEntry::Within(entry))
                if !matches!(error, FileError::Changed { .. }) =>
            {
                return_to_planner(unread, directory, entry);
            }
            (EntryRead::Failed(error), ..) => self.session.account.fail(&error),
            _ => {}
        }
    }

    /// Reads a file that has grown since the scan into the unused space of the buffer. A file that does not fit there
    /// is sent separately. If the target may not need the file, it is returned through `unread` instead.
    fn read_grown(
        &self,
        directory: SourceDirectory,
        entry: Entry,
        unread: Option<&Sender<UnreadFile>>,
        filling: &mut BatchBuilder,
    ) -> Option<PackGroup> {
        let extras = &self.session.extras;
        let read = read_file(extras, &directory, &entry, filling.filled, filling.rest());
        match (read.unwrap_or_else(EntryRead::Failed), unread) {
            (EntryRead::Done(read), _) => {
                filling.begin_group(&directory);
                filling.add(*read);
                return Some(PackGroup {
                    directory,
                    entries: vec![PackEntry::Within(entry)],
                });
            }
            (EntryRead::Grown(grown), Some(unread)) => {
                return_to_planner(unread, &directory, &grown);
            }
            (EntryRead::Grown(grown), None) => self.plan_needed(&directory, &grown),
            (other, _) => self.exclude_entry(&directory, &PackEntry::Within(entry), unread, other),
        }
        None
    }

    fn plan_needed(&self, directory: &SourceDirectory, entry: &Entry) {
        if entry.size > GROUP_BYTES {
            let queue = &self.session.queue;
            let source = queue.large_source(directory, entry.clone());
            return queue.add_file(source, RoomWait::Skip);
        }
        let entries = vec![PackEntry::Within(entry.clone())];
        let groups = vec![PackGroup {
            directory: directory.clone(),
            entries,
        }];
        self.session.queue.add_now(Parcel::Unread(Pack::of(groups)));
    }

    /// Keeps a batch that was read ahead until the state of the target is known. If the state is already known, sends
    /// the batch as a guess instead.
    fn send_or_keep(&mut self, read: ReadPack) {
        let read = if read.pack.basis == PlanBasis::ReadAhead {
            self.session.read_ahead.keep(read)
        } else {
            Some(read)
        };
        if let Some(read) = read {
            self.send_batch(read);
        }
    }

    fn send_batch(&mut self, ReadPack { mut pack, filling }: ReadPack) {
        let BatchBuilder {
            mut batch,
            mut buffer,
            filled,
            files,
            mut lacks,
        } = filling;
        let mut head = batch.encode();
        if let Some(excess) = head
            .len()
            .checked_sub(FRAME_HEAD_BYTES_MAX)
            .filter(|excess| *excess > 0)
        {
            lacks.extend(drop_xattrs(&mut batch, excess));
            head = batch.encode();
        }
        for (path, lacks) in lacks {
            self.session
                .account
                .count_lacking(&self.session.extras, &path, &lacks);
        }
        buffer.set_len(filled);
        let content = *blake3::hash(&head).as_bytes();
        let tries = pack.tries;
        let kind = if pack.basis == PlanBasis::Known {
            FrameKind::Batch
        } else {
            FrameKind::Guess
        };
        for group in &pack.groups {
            group
                .directory
                .piece()
                .into_iter()
                .for_each(|piece| piece.note_read(group.data_bytes()));
        }
        pack.close_directories();
        let Some(item) = self.issue(
            Sent::Batch(SentBatch {
                pack,
                files,
                faults: Vec::new(),
            }),
            tries,
        ) else {
            return;
        };
        let header = FrameHeader {
            kind,
            item,
            ..FrameHeader::default()
        };
        self.send_to_lanes(OutgoingFrame {
            frame: sealed(&content, header, head, buffer),
            chunk: None,
        });
    }

    fn read_group(&mut self, file: &Arc<LargeSource>, span: GroupSpan) {
        if file.has_failed() {
            return;
        }
        if let Err(error) = self.try_read_group(file, span, None) {
            self.session.fail_large(file, &error);
        }
    }

    /// Reads a late group again. The first copy is still in transit, so the file does not fail if this read finds it
    /// changed or unreadable.
    fn repeat_group(&mut self, file: &Arc<LargeSource>, span: GroupSpan, item: ItemId) {
        if !file.has_failed() && self.session.in_flight.has(item) {
            let _first_copy_counts = self.try_read_group(file, span, Some(item));
        }
    }

    /// Reads a group and passes it to the lanes, as a new item or as the second copy of a late item.
    fn try_read_group(
        &mut self,
        file: &Arc<LargeSource>,
        span: GroupSpan,
        again: Option<ItemId>,
    ) -> Result<(), FileError> {
        let OpenedSource {
            file: opened,
            identity,
            ..
        } = self.open(file)?;
        if let Some(next) = file.next_needed_group(span) {
            self.session.queue.skip_groups(file, next);
            return Ok(());
        }
        let Some(buffer) = self.buffer() else {
            return Ok(());
        };
        let (cv, buffer) = self.read_data(file, &opened, span, buffer)?;
        let changed = match file.group_read(span, cv) {
            ReadProgress::Going => false,
            ReadProgress::AllRead => {
                if self.session.account.files().manifest.is_some() {
                    file.hash_holes(
                        |bytes| self.session.quota.charge_memory(bytes),
                        || self.session.in_flight.is_stopping(),
                    )?;
                }
                !file.is_unchanged()
            }
            ReadProgress::Differs => true,
        };
        if changed {
            return Err(file.changed());
        }
        let tries = file.tries(span);
        let (kind, data) = if file.target_has(span, cv) {
            (FrameKind::Same, Buffer::empty())
        } else {
            (FrameKind::Chunk, buffer)
        };
        let item = again.or_else(|| self.issue(Sent::Group(Arc::clone(file), span, kind), tries));
        let Some(item) = item else { return Ok(()) };
        let header = FrameHeader {
            kind,
            group: span.index,
            item,
            file: file.id,
            ..FrameHeader::default()
        };
        let frame = sealed(&cv.0, header, Vec::new(), data);
        let chunk = Chunk {
            file: Arc::clone(file),
            identity,
            tries,
            late: again.is_some(),
        };
        self.send_to_lanes(OutgoingFrame {
            frame,
            chunk: Some(chunk),
        });
        file.directory
            .piece()
            .into_iter()
            .for_each(|piece| piece.note_read(u64::from(span.len)));
        Ok(())
    }

    /// Opens a large file. Accounts for the holes of the file and for the attributes that it lacks.
    fn open(&self, file: &LargeSource) -> Result<OpenedSource, FileError> {
        let Session {
            account,
            extras,
            in_flight,
            ..
        } = self.session;
        let source = file.open(
            self.context.config.direct,
            extras.holes(),
            || in_flight.is_stopping(),
            |opened, identity| {
                let (metadata, lacks) = extras.file_metadata(opened, identity, &file.entry);
                account.count_lacking(extras, &file.target, &lacks);
                metadata
            },
        )?;
        let holes = &source.holes;
        account.found_holes(holes.bytes - account.not_held(file, &holes.held));
        if let Some(why) = holes.lack {
            account.count_lacking(extras, &file.target, &[(MetadataKinds::HOLES, why)]);
        }
        Ok(source)
    }

    /// Reads the data of a group into a buffer, range by range. Returns the chaining value of the group, with holes
    /// hashed as zeros.
    fn read_data(
        &self,
        file: &LargeSource,
        opened: &DataFile,
        span: GroupSpan,
        mut buffer: Buffer,
    ) -> Result<(Cv, Buffer), FileError> {
        let mut hasher = GroupHasher::new(span.index);
        let mut at = 0;
        let mut filled = 0;
        for range in file.data_within(span) {
            hasher.update_zeros(range.start - at);
            let part = Span::new(
                span.offset() + range.start as u64,
                filled..filled + range.len(),
            );
            let seen = &mut |slice: &[u8]| hasher.update(slice);
            let (outcome, back) = self
                .context
                .config
                .file_io
                .read_part(opened, part, buffer, seen);
            buffer = back;
            let read = outcome.map_err(|source| file.unreadable(source))?;
            if read < range.len() {
                return Err(file.changed());
            }
            filled += read;
            at = range.end;
        }
        hasher.update_zeros(span.len as usize - at);
        buffer.set_len(filled);
        Ok((hasher.finish(), buffer))
    }

    /// Takes a buffer from the pool. Returns `None` if the push is being stopped.
    fn buffer(&mut self) -> Option<Buffer> {
        self.watch.lap(ThreadState::Busy);
        let buffer = self.context.pool.take();
        self.watch.lap(ThreadState::Blocked);
        buffer
    }

    /// Records an item as in flight. Waits while too many items are. Returns `None` if the push is being stopped.
    fn issue(&mut self, work: Sent, tries: u8) -> Option<ItemId> {
        self.watch.lap(ThreadState::Busy);
        let item = self.session.in_flight.issue(work, tries);
        self.watch.lap(ThreadState::Blocked);
        item
    }

    fn send_to_lanes(&mut self, outgoing: OutgoingFrame) {
        self.session
            .account
            .totals
            .bytes_read
            .add(u64::from(outgoing.frame.header.data_bytes));
        self.watch.lap(ThreadState::Busy);
        // Sending fails only if the push is being stopped.
        let _stopping = self.context.frames.send(outgoing);
        self.watch.lap(ThreadState::Blocked);
    }
}

/// Returns the size of the pieces into which a pack is split when `packs_left` packs are left. Pieces get smaller as
/// fewer packs are left, so that no lane works much longer than the others. Pieces have a minimum size, because storage
/// with a high latency gets slower when fewer directories are read in parallel.
fn last_piece_bytes(packs_left: usize) -> u64 {
    (GROUP_BYTES * packs_left as u64 / LAST_PACKS).max(LAST_PIECE_BYTES)
}

/// Number of remaining packs below which pieces are smaller than one group. This is one and a third packs per lane.
const LAST_PACKS: u64 = 16;
/// Minimum piece size: the bytes that a lane of 10 Mbit/s sends in a fifth of a second.
const LAST_PIECE_BYTES: u64 = 256 << 10;

/// Returns a file to the planner, which asks the receiver whether it is needed.
fn return_to_planner(unread: &Sender<UnreadFile>, directory: &SourceDirectory, entry: &Entry) {
    // Sending fails only if the push is being stopped.
    let _stopping = unread.send(UnreadFile {
        directory: directory.closed(),
        entry: entry.clone(),
    });
}
