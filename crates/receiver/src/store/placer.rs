//! Places the entries of verified batches at the target. Each writer has its own placer.
//!
//! If this transfer has created a directory and has not added anything to it yet, its files are created in a staging
//! directory under their final names. All other files are created under hidden names in their final directory. The
//! [publisher](crate::store::publishing::publisher) renames both into place. If storage latency is high, some files are
//! created in a side directory and linked to their final names immediately ([`side`]).
//!
//! In a shared job, files are created in the session's own directory, and directories under their final names.
//!
//! `target/replacement.rs` decides which entries may replace a directory. A directory replaces a file or link when it
//! is published. With `--ignore-existing`, the file or link is kept, and all entries below the directory fail.

mod runs;
mod side;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{
    ContentsWriter, Linked, NameAt, NonRegular, Permit, Staged, StagingDirectory, Task, Tree, Turn,
    close, write_data,
};
use zmove_types::{Lock, Metadata, Name, RelPath};
use zmove_wire::{
    BatchEntry, DirectoryGroup, Durability, FileEntry, LinkEntry, Operation, Overwrite,
};

use crate::store::failure::{
    Failure, KEPT_EXISTING, again, failure_in, is_in_the_way, is_no_room, with_entry_operation,
    with_operation,
};
use crate::store::placer::runs::{DirectoryFiles, PlacedEntry, PlacingTurns, Run, Runs};
use crate::store::placer::side::{SIDE_FILES_MIN, SideDirectories, SideDirectory};
use crate::store::publishing::publish_all;
use crate::store::publishing::publisher::{
    ExpectedState, HiddenFile, PendingBatch, SmallFile, StagingGuard,
};
use crate::store::target::file_systems::Flush;
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::open_directories::{OpenDirectories, Opened};
use crate::store::target::tree::{NewFile, check_close, flush_now};
use crate::store::transfer::Transfer;

/// The placer of one thread: the transfer and the directories that the thread has open.
#[derive(Debug)]
pub(crate) struct Placer<'a> {
    transfer: &'a Transfer,
    directories: OpenDirectories<'a>,
    contents: Arc<ContentsWriter>,
}

/// Number of attempts to create a staging directory if one is required.
const STAGE_TRIES: usize = 3;

impl<'a> Placer<'a> {
    pub(crate) fn new(transfer: &'a Transfer) -> Self {
        Self::with_contents(transfer, Arc::new(ContentsWriter::new(transfer.direct)))
    }

    fn with_contents(transfer: &'a Transfer, contents: Arc<ContentsWriter>) -> Self {
        Self {
            transfer,
            directories: OpenDirectories::new(transfer),
            contents,
        }
    }

    /// Places all entries of a batch. `data` contains the contents of its files, one after another. The files are
    /// renamed into place later.
    ///
    /// If storage latency is high, other threads help to place this batch. If more batches are queued, `writer` (the
    /// turn of the calling writer) starts more writers instead.
    pub(crate) fn place_groups(
        &mut self,
        groups: Vec<DirectoryGroup>,
        batch: &Arc<PendingBatch>,
        data: &[u8],
        writer: &Turn<'_>,
    ) {
        let transfer = self.transfer;
        let contents = Arc::clone(&self.contents);
        let runs = Runs::new(groups, data);
        // The calling thread uses this placer. Each helper thread creates its own one.
        let own = Lock::new(Some(self));
        transfer.run_parallel(Task::Write, "zmove-write", |turn| {
            let turns = PlacingTurns { own: turn, writer };
            let mut other = None;
            let placer = own.lock().take();
            let helps = placer.is_none();
            let placer = placer.unwrap_or_else(|| {
                other.insert(Placer::with_contents(transfer, Arc::clone(&contents)))
            });
            let mut done = None;
            while let Some(mut run) = runs.next(done.take()) {
                placer.place_run(&turns, &runs, &mut run, batch);
                done = Some(run);
                // A helper stops if another batch is queued. The rest of this batch is probably in a directory that the
                // helper would have to open first.
                if helps && transfer.meter.has_queued() {
                    break;
                }
            }
            runs.finish_run(done);
        });
    }

    /// Places the entries of a run (a few entries of one directory). If the session has ended, drops the remaining
    /// entries.
    fn place_run(
        &mut self,
        turns: &PlacingTurns<'_>,
        runs: &Runs<'_>,
        run: &mut Run<'_>,
        batch: &Arc<PendingBatch>,
    ) {
        let path = Arc::clone(&run.path);
        let mut entries = std::mem::take(&mut run.entries);
        // This waits for a turn first, because creating the directories of a very long path also uses much CPU time.
        if turns.own.is_over() {
            return;
        }
        if let Some(staging) = self.staging(&path, run.files) {
            entries = self.fill(turns, &path, staging, batch, entries);
        }
        if entries.is_empty() {
            return;
        }
        match run.opened.take() {
            Some(opened) => self.directories.adopt(&path, opened),
            None => {
                if let Ok(opened) = self.directory(&path) {
                    runs.share(run, &opened);
                }
            }
        }
        let mut opened = self.directory(&path);
        let side = self.side_directory(run, &opened);
        for entry in entries {
            if turns.own.is_over() {
                return;
            }
            turns.start_helper(self.transfer);
            if batch.known == ExpectedState::Unknown
                && let BatchEntry::File(file) = &entry.entry
                && opened
                    .as_ref()
                    .is_ok_and(|opened| self.transfer.target.has(&opened.directory, &path, file))
            {
                batch.fault(entry.number, KEPT_EXISTING);
                continue;
            }
            if matches!(entry.entry, BatchEntry::File(_)) {
                turns.own.note_write(entry.bytes.len());
            }
            let made = match (&side, &entry.entry, &opened) {
                (Some(side), BatchEntry::File(file), Ok(opened)) => self.create_in_side_directory(
                    &run.side_directories,
                    side,
                    opened,
                    &path,
                    file,
                    entry.bytes,
                ),
                _ => Err(CreateError::NotCreated),
            };
            let placed = match made {
                Ok(()) => Ok(()),
                Err(CreateError::NotCreated) => self.put(&path, &mut opened, |placer, opened| {
                    placer.place(opened, &path, batch, &entry)
                }),
                // An incomplete file in a side directory is removed together with that directory.
                Err(CreateError::Failed(why) | CreateError::LeftIncomplete(why)) => Err(why),
            };
            if let Err(why) = placed {
                self.fail(batch, entry.number, &why, || {
                    entry
                        .entry
                        .name()
                        .map_or(Some((*path).clone()), |name| path.join(name).ok())
                });
            }
        }
    }

    /// Reports an entry that could not be placed.
    fn fail(
        &self,
        batch: &PendingBatch,
        number: u32,
        (operation, error): &Failure,
        path: impl FnOnce() -> Option<RelPath>,
    ) {
        let cause = failure_in(&self.transfer.target.tree, *operation, error);
        self.transfer.failed_at(cause, path);
        batch.fault(number, cause);
    }

    /// Opens a directory of the target. Creates it if it does not exist.
    pub(crate) fn directory(&mut self, path: &RelPath) -> io::Result<Opened> {
        if let Some(opened) = self.directories.get(path) {
            return Ok(opened);
        }
        self.transfer.publisher.mark_used(path);
        let directory = match self.directories.open_or_make(path) {
            // With `--ignore-existing`, the entry in the way is kept, and the directory is not created.
            Err(error)
                if is_in_the_way(&error)
                    && self.transfer.target.view.policy.rules.overwrite == Overwrite::Nothing =>
            {
                return Err(Errno::NOTDIR.into());
            }
            Err(error) if is_in_the_way(&error) => {
                self.stage_over_file(path)?;
                self.directories.open_or_make(path)?
            }
            opened => opened?,
        };
        // After the first call of `mark_used`, another thread may have created a staging directory at this path. The
        // second call prevents that.
        self.transfer.publisher.mark_used(path);
        let directory = match self.transfer.publisher.staged_above(path) {
            Some(_) => self.directories.open_or_make(path)?,
            None => directory,
        };
        self.transfer.enter(path, &directory)?;
        self.directories.remember(path, directory)
    }

    /// Opens a directory like [`directory`](Self::directory). Reopens it if its path was replaced after this thread
    /// opened it.
    pub(crate) fn directory_now(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        self.directories.close_if_replaced(path);
        Ok(self.directory(path)?.directory)
    }

    /// Creates a staging directory for a path at which a file or link exists. That entry is kept until the directory is
    /// published. If no staging directory is possible, removes the entry immediately.
    fn stage_over_file(&mut self, path: &RelPath) -> io::Result<()> {
        // In a shared job, the target contains no hidden entries, and so no staging directories.
        if self.transfer.target.shared_job.is_some() {
            return Err(Errno::NOTDIR.into());
        }
        let mut above = RelPath::root();
        for name in path.components() {
            let name = Name::from_bytes(name).expect("a part of a path");
            let parent = above.clone();
            above = above.join(&name).map_err(|_too_long| Errno::NAMETOOLONG)?;
            if !self
                .directories
                .open(&above)
                .is_err_and(|error| is_in_the_way(&error))
            {
                continue;
            }
            return self.stage_at(&parent, &above, &name);
        }
        Ok(())
    }

    fn stage_at(&mut self, parent: &RelPath, path: &RelPath, name: &Name) -> io::Result<()> {
        let transfer = self.transfer;
        let modes = transfer.target.tree.modes();
        for _ in 0..STAGE_TRIES {
            let parent = self.directory(parent)?.directory;
            let mut error = None;
            let begun = transfer.publisher.begin(path, || {
                let held = transfer
                    .quota
                    .charge_staging(path)
                    .ok_or_else(|| Errno::MFILE.into());
                let begun = held
                    .and_then(|held| Ok((StagingDirectory::begin(&parent, name, modes)?, held)));
                begun.map_err(|why| error = Some(why)).ok()
            });
            if let Some(staging) = begun {
                staging.leave(Vec::new(), Vec::new());
                return Ok(());
            }
            // Other users may rename entries of the parent directory, so a staging directory in it would not be safe.
            // The existing entry is removed now.
            if error.as_ref().and_then(Errno::from_io_error) == Some(Errno::PERM) {
                let lease = transfer.target.tree.lease();
                let removed = StagingDirectory::remove_existing(lease, &parent, name);
                // Another thread may have removed the entry, and may have created the directory since then.
                return match self.directories.open(path) {
                    Err(error) if is_in_the_way(&error) => removed,
                    _ => Ok(()),
                };
            }
            if let Some(error) = error {
                return Err(error);
            }
            // `begin` returns nothing if a generation is being closed or is full, or if another thread has just created
            // the staging directory. So this publishes the generation and tries again.
            publish_all(transfer);
        }
        Ok(())
    }

    /// Returns a guard for filling the staging directory of `path`. Creates the staging directory if it does not exist
    /// and there are enough files for it.
    fn staging(&mut self, path: &RelPath, files: DirectoryFiles) -> Option<StagingGuard<'a>> {
        let publisher = &self.transfer.publisher;
        if files.count == 0 || self.transfer.target.shared_job.is_some() {
            return None;
        }
        if let Some(open) = publisher.join(path) {
            return Some(open);
        }
        let (parent, name) = path.split().filter(|_| files.is_worth_staging())?;
        let parent_directory = self.directory(&parent).ok()?.directory;
        let tree = &self.transfer.target.tree;
        let modes = tree.modes();
        let begun = publisher.begin(path, || {
            let held = self.transfer.quota.charge_spare_staging(path)?;
            if !publisher.use_fresh(path)
                && !Tree::create_new(tree.lease(), parent_directory.as_fd(), &name, modes).ok()?
            {
                return None;
            }
            let staging = StagingDirectory::begin(&parent_directory, &name, modes).ok()?;
            Some((staging, held))
        });
        // If `begin` has returned nothing, another thread may have created the staging directory first.
        begun.or_else(|| publisher.join(path))
    }

    /// Creates the files of these entries in a staging directory. Returns the entries that the caller must place
    /// elsewhere: entries that are not files, and files that cannot be created in the staging directory. Reports all
    /// other failures.
    fn fill<'d>(
        &self,
        turns: &PlacingTurns<'_>,
        path: &RelPath,
        staging: StagingGuard<'_>,
        batch: &Arc<PendingBatch>,
        entries: Vec<PlacedEntry<'d>>,
    ) -> Vec<PlacedEntry<'d>> {
        let mut others = Vec::new();
        let mut files = Vec::new();
        let mut spoiled = Vec::new();
        let flush = self
            .transfer
            .target
            .file_systems
            .note(staging.staging.directory())
            .unwrap_or(Flush::PerFile);
        for PlacedEntry {
            number,
            bytes,
            entry,
        } in entries
        {
            if turns.own.is_over() {
                break;
            }
            turns.start_helper(self.transfer);
            let BatchEntry::File(file) = entry else {
                others.push(PlacedEntry {
                    number,
                    bytes,
                    entry,
                });
                continue;
            };
            turns.own.note_write(bytes.len());
            let metadata = self
                .transfer
                .target
                .view
                .policy
                .rules
                .of_file(&file.metadata);
            match self.make_in(&staging.staging, flush, path, &file, &metadata, bytes) {
                Ok(()) => files.push(SmallFile::new(batch, number, file)),
                Err(CreateError::NotCreated) => others.push(PlacedEntry {
                    number,
                    bytes,
                    entry: BatchEntry::File(file),
                }),
                Err(CreateError::Failed(why)) => {
                    self.fail(batch, number, &why, || path.join(&file.name).ok());
                }
                Err(CreateError::LeftIncomplete(why)) => {
                    self.fail(batch, number, &why, || path.join(&file.name).ok());
                    spoiled.push(file.name);
                }
            }
        }
        staging.leave(files, spoiled);
        others
    }

    /// Returns a side directory for the files of a run. Returns `None` if a side directory is not useful or not
    /// possible, or if the files must not have their final names before they are published.
    fn side_directory(
        &self,
        run: &Run<'_>,
        opened: &io::Result<Opened>,
    ) -> Option<Arc<SideDirectory>> {
        let transfer = self.transfer;
        let opened = opened.as_ref().ok()?;
        let rules = &transfer.target.view.policy.rules;
        let may_be_named = self.is_flushed_per_file(opened.flush) || !rules.flushes();
        // With `--verify media`, the publisher must read files back before they get their final names.
        if run.files.count < SIDE_FILES_MIN
            || !may_be_named
            || rules.in_place
            || transfer.reads_back()
        {
            return None;
        }
        if transfer.target.shared_job.is_some() {
            return None;
        }
        // Files below a staging directory are not linked, because the path may change when that directory is published.
        if !transfer.quota.has_slow_writes() || transfer.publisher.staged_above(&run.path).is_some()
        {
            return None;
        }
        run.side_directories.next(|| {
            let held = transfer.quota.charge_spare_staging(&run.path)?;
            Some((
                StagingDirectory::begin_unpublished(&opened.directory).ok()?,
                held,
            ))
        })
    }

    /// Creates a file in a side directory, flushes it, and links it to its final name.
    fn create_in_side_directory(
        &self,
        all: &SideDirectories,
        side: &SideDirectory,
        opened: &Opened,
        path: &RelPath,
        file: &FileEntry,
        bytes: &[u8],
    ) -> Result<(), CreateError> {
        if all.is_refused() {
            return Err(CreateError::NotCreated);
        }
        let name = self.transfer.target.view.name(path, &file.name);
        let place = NameAt::new(&opened.directory, name);
        let metadata = self.transfer.target.of_file(place, &file.metadata);
        self.make_in(&side.staging, opened.flush, path, file, &metadata, bytes)?;
        let lease = self.transfer.target.tree.lease();
        if !all.give_name(
            lease,
            side,
            &file.name,
            NameAt::new(&opened.directory, name),
        ) {
            return Err(CreateError::NotCreated);
        }
        self.transfer.publisher.record_renamed_in(path);
        self.transfer
            .stored_small(file, || path.join(&file.name).ok());
        Ok(())
    }

    /// Adds an entry to a directory. If the target is full, frees space and retries. If another transfer has replaced
    /// the directory, opens the new directory and retries.
    fn put(
        &mut self,
        path: &RelPath,
        opened: &mut io::Result<Opened>,
        into: impl Fn(&mut Self, &Opened) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let put = |placer: &mut Self, opened: &io::Result<Opened>| match opened {
            Ok(opened) => into(placer, opened),
            Err(error) => Err(with_entry_operation(&placer.transfer.target.tree, path)(
                again(error),
            )),
        };
        let mut done = put(self, opened);
        if done.as_ref().is_err_and(is_no_room) {
            done = self.transfer.retry_after_freeing(|| {
                if opened.is_err() {
                    *opened = self.directory(path);
                }
                put(self, opened)
            });
        }
        // The directory may have been in a staging directory that another thread has merged in the meantime. It was
        // then not found, so it is opened again.
        let was_gone = opened
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if done.is_err() && (self.directories.close_if_replaced(path) || was_gone) {
            *opened = self.directory(path);
            return put(self, opened);
        }
        done
    }

    fn place(
        &mut self,
        opened: &Opened,
        path: &Arc<RelPath>,
        batch: &Arc<PendingBatch>,
        PlacedEntry {
            number,
            bytes,
            entry,
        }: &PlacedEntry<'_>,
    ) -> Result<(), Failure> {
        let transfer = self.transfer;
        let directory = &opened.directory;
        match entry {
            BatchEntry::Itself(metadata) => {
                transfer.remember_directory(path, None, metadata.clone())
            }
            BatchEntry::Directory(name, metadata) => {
                self.place_directory(directory, path, name, metadata.clone())?
            }
            BatchEntry::Symlink(name, metadata, target) => {
                let link = NonRegular::Symlink(target);
                self.place_non_regular(directory, path, name, link, metadata)?;
            }
            BatchEntry::Special(name, metadata, special) => {
                let special = NonRegular::Special(*special);
                self.place_non_regular(directory, path, name, special, metadata)?;
            }
            BatchEntry::File(file) => {
                let failed_flushes = transfer.publisher.failed_flushes();
                let Some(hidden) = self.place_file(opened, path, file, bytes)? else {
                    return Ok(());
                };
                let small = SmallFile::new(batch, *number, file.clone());
                let hidden = HiddenFile {
                    directory: Arc::clone(path),
                    hidden,
                    small,
                };
                transfer.publisher.add_file(hidden, failed_flushes);
            }
            BatchEntry::Link(link) => return self.place_link(opened, path, batch, *number, link),
            BatchEntry::Retouch(name, metadata) => {
                let name = transfer.target.view.name(path, name);
                let metadata = transfer
                    .target
                    .of_file(NameAt::new(directory, name), metadata);
                transfer.target.set_compared_metadata(
                    directory,
                    name,
                    &metadata,
                    EntryLocation(path, Some(name)),
                )?;
            }
        }
        Ok(())
    }

    /// Creates a symbolic link or special file. If the entry has several names and another name already exists, creates
    /// a hard link to that name.
    fn place_non_regular(
        &mut self,
        directory: &OwnedFd,
        path: &RelPath,
        name: &Name,
        entry: NonRegular<'_>,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let target = &self.transfer.target;
        let name = target.view.name(path, name);
        let first = metadata.first_name().and_then(RelPath::split);
        let first =
            first.map(|(parent, first)| Ok((self.directories.open_existing(&parent)?, first)));
        target.place_non_regular(
            NameAt::new(directory, name),
            (entry, metadata),
            first,
            EntryLocation(path, Some(name)),
        )?;
        target
            .flush_if_per_file(directory)
            .map_err(with_operation(Operation::Flush))
    }

    /// Creates a hard link to a published file. The flush of this generation makes it durable.
    fn place_link(
        &mut self,
        opened: &Opened,
        path: &RelPath,
        batch: &PendingBatch,
        number: u32,
        link: &LinkEntry,
    ) -> Result<(), Failure> {
        let target = &self.transfer.target;
        let Some((parent, first)) = link.first.split() else {
            return Ok(());
        };
        let name = target.view.name(path, &link.name);
        if target.may_not_be_replaced(&opened.directory, name, link.metadata.mtime) {
            batch.fault(number, KEPT_EXISTING);
            return Ok(());
        }
        let from = self
            .directories
            .open_existing(&parent)
            .map_err(with_operation(Operation::Link))?;
        let place = NameAt::new(&opened.directory, name);
        match target.place_link(
            NameAt::new(&from, &first),
            place,
            link,
            EntryLocation(path, Some(name)),
        )? {
            Linked::Made => self.transfer.stored_link(|| path.join(&link.name).ok()),
            Linked::AlreadyLinked => batch.fault(number, KEPT_EXISTING),
        }
        Ok(())
    }

    fn place_directory(
        &mut self,
        parent: &OwnedFd,
        parent_path: &Arc<RelPath>,
        name: &Name,
        metadata: Metadata,
    ) -> Result<(), Failure> {
        let cannot = with_operation(Operation::MakeDirectory);
        let path = parent_path
            .join(name)
            .map_err(|_| cannot(Errno::NAMETOOLONG.into()))?;
        let publisher = &self.transfer.publisher;
        let tree = &self.transfer.target.tree;
        let modes = tree.modes();
        if !publisher.is_fresh(&path)
            && !publisher
                .make(&path, || {
                    Tree::create_new(tree.lease(), parent.as_fd(), name, modes)
                })
                .map_err(cannot)?
        {
            let entered = self.directory(&path);
            entered.map_err(with_entry_operation(&self.transfer.target.tree, &path))?;
        }
        if self.transfer.target.shared_job.is_some() {
            // In a shared job, the parent directory is recorded, because nothing else would flush it.
            self.transfer.publisher.record_renamed_in(parent_path);
        }
        self.transfer
            .remember_directory(parent_path, Some(name), metadata);
        Ok(())
    }

    /// Creates a complete file in a staging directory.
    fn make_in(
        &self,
        staging: &StagingDirectory,
        flush: Flush,
        path: &RelPath,
        file: &FileEntry,
        metadata: &Metadata,
        bytes: &[u8],
    ) -> Result<(), CreateError> {
        // Creation may fail because another process has removed the staging directory, or because the file system
        // treats two names as equal. The caller then tries to create the file outside the staging directory.
        let new_files = staging.new_files();
        let directory = staging.directory();
        let mode = self
            .transfer
            .target
            .first_mode(metadata, new_files, directory);
        let created = staging
            .create(&file.name, mode)
            .map_err(|_error| CreateError::NotCreated)?;
        let made = NewFile {
            file: &created,
            new_files,
            directory,
        };
        let at = EntryLocation(path, Some(&file.name));
        let written = self.fill_new(made, flush, file, metadata, bytes, at);
        // An error of the close is reported only if all earlier steps have succeeded.
        let written = written.and(close(created).map_err(with_operation(Operation::Write)));
        let Err(why) = written else { return Ok(()) };
        if staging.discard(&file.name).is_err() {
            return Err(CreateError::LeftIncomplete(why));
        }
        // The caller may try again, because publishing frees the space of replaced files.
        Err(if is_no_room(&why) {
            CreateError::NotCreated
        } else {
            CreateError::Failed(why)
        })
    }

    /// Writes a new file under a hidden name and sets its metadata. Flushes the file if files are flushed individually.
    fn fill_new(
        &self,
        made: NewFile<'_>,
        flush: Flush,
        entry: &FileEntry,
        metadata: &Metadata,
        bytes: &[u8],
        at: EntryLocation<'_>,
    ) -> Result<(), Failure> {
        let file = made.file;
        let sized = match &entry.data {
            Some(_) => file.set_len(u64::from(entry.bytes)),
            None => Ok(()),
        };
        sized
            .and_then(|()| self.write_contents(file, entry, bytes))
            .map_err(with_operation(Operation::Write))?;
        let target = &self.transfer.target;
        target.set_new_metadata(Permit::for_hidden(), made, metadata, at)?;
        flush_now(file, self.is_flushed_per_file(flush))
    }

    fn write_contents(&self, file: &File, entry: &FileEntry, bytes: &[u8]) -> io::Result<()> {
        match &entry.data {
            Some(data) => write_data(file, data, bytes),
            None => self.contents.write(file, bytes),
        }
    }

    /// Creates a complete file under a hidden name and returns that name. Returns `None` if the file was changed in
    /// place.
    fn place_file(
        &self,
        opened: &Opened,
        path: &RelPath,
        file: &FileEntry,
        bytes: &[u8],
    ) -> Result<Option<Name>, Failure> {
        let transfer = self.transfer;
        let target = &transfer.target;
        let name = target.view.name(path, &file.name);
        let directory = &opened.directory;
        let metadata = target.of_file(NameAt::new(directory, name), &file.metadata);
        let existing =
            transfer.begin_in_place(directory, name, u64::from(file.bytes), &metadata)?;
        if let Some(staged) = existing {
            let holes = file
                .data
                .as_ref()
                .map_or(Ok(()), |data| staged.make_holes(data));
            let written = holes
                .and_then(|()| staged.write(|| self.write_contents(staged.file(), file, bytes))?);
            written.map_err(with_operation(Operation::Write))?;
            let prove = |staged: &Staged| transfer.verify_small(staged, file.bytes, file.root);
            let at = EntryLocation(path, Some(name));
            target.finish_in_place(staged, name, &metadata, at, prove)?;
            transfer.stored_small(file, || path.join(&file.name).ok());
            return Ok(None);
        }
        let mode = target.first_mode(&metadata, &opened.new_files, directory);
        let staged = match target.job() {
            Some(job) => job.create_file(&opened.new_files, mode),
            None => Staged::create_in(directory, &opened.new_files, mode),
        };
        let staged = staged.map_err(with_operation(Operation::Create))?;
        let made = NewFile {
            file: staged.file(),
            new_files: &opened.new_files,
            directory,
        };
        let at = EntryLocation(path, Some(name));
        self.fill_new(made, opened.flush, file, &metadata, bytes, at)?;
        check_close(&staged)?;
        Ok(staged.into_hidden_name())
    }

    fn is_flushed_per_file(&self, flush: Flush) -> bool {
        match self.transfer.target.view.policy.rules.durability {
            Durability::None => false,
            Durability::End => flush == Flush::PerFile,
            Durability::File => true,
        }
    }
}

/// The reason why a file was not completed in its staging directory.
enum CreateError {
    /// The file was not created, or was removed again. The caller may create it in another way.
    NotCreated,
    Failed(Failure),
    /// The incomplete file could not be removed.
    LeftIncomplete(Failure),
}

#[cfg(test)]
pub(crate) mod tests;
