//! Puts the entries of a verified batch into place, one at a time, each with a fault of its own if it fails.
//!
//! The files of a directory that this transfer has made, and into which nothing has been put yet, are created in a staging
//! directory under their own names; all others under hidden names in the directory where they will stay. Both get their final
//! names from the [publisher](crate::publisher).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{
    ContentsWriter, FileIdentity, Replace, Staged, StagingDirectory, Tree, place_symlink, retouch, sweep,
};
use zmove_types::{Metadata, Name, RelPath};
use zmove_wire::{BatchEntry, DirectoryGroup, Durability, FaultCode, FileEntry, Operation, Overwrite};

use crate::file_systems::Flush;
use crate::publisher::{Filled, FillingGuard, HiddenFile, PendingBatch, covers, publish_all};
use crate::store::Context;

/// One thread's hands: the transfer and the directories it has open.
#[derive(Debug)]
pub(crate) struct Placer<'a> {
    context: &'a Context,
    directories: HashMap<RelPath, Opened>,
    contents: ContentsWriter,
}

/// An open directory of the target.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) directory: Arc<OwnedFd>,
    flush: Flush,
}

/// What the sender knew of a batch's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// They are not there, or are to be replaced.
    Needed,
    /// It guessed: one that is there already stays.
    PerhapsThere,
}

/// What failed, before it is known as what.
pub(crate) type Failure = (Operation, io::Error);

/// An entry of a batch that is being placed.
struct Entry<'d> {
    /// Its number in the batch.
    number: u32,
    /// A file's contents.
    bytes: &'d [u8],
    entry: BatchEntry,
}

/// Directories that one thread keeps open.
const OPENED_MAX: usize = 64;
/// How often a staging directory is tried to be begun where there must be one.
const STAGE_TRIES: usize = 3;

impl<'a> Placer<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, directories: HashMap::new(), contents: ContentsWriter::new(context.direct) }
    }

    pub(crate) const fn context(&self) -> &'a Context {
        self.context
    }

    /// Places a group's entries, of which the first has number `first` in its batch and whose files' contents are at the
    /// front of `data`. Its files get their names later.
    pub(crate) fn place_group(
        &mut self,
        group: DirectoryGroup,
        first: u32,
        batch: &Arc<PendingBatch>,
        data: &mut &[u8],
    ) {
        let path = Arc::new(group.directory);
        let files = group.entries.iter().filter(|entry| matches!(entry, BatchEntry::File(_))).count();
        let numbered = (first..).zip(group.entries);
        let mut entries: Vec<_> =
            numbered.map(|(number, entry)| Entry { number, bytes: take_data(&entry, data), entry }).collect();
        if let Some(staging) = self.staging(&path, files) {
            entries = self.fill(staging, batch, entries);
        }
        if entries.is_empty() {
            return;
        }
        let mut opened = self.directory(&path);
        for entry in entries {
            if batch.known == Known::PerhapsThere
                && let BatchEntry::File(file) = &entry.entry
                && self.is_there(&opened, &path, file)
            {
                batch.fault(entry.number, ALREADY_THERE);
                continue;
            }
            let placed =
                self.put(&path, &mut opened, |placer, opened| placer.place(opened, &path, batch, &entry));
            if let Err((operation, error)) = placed {
                batch.fault(entry.number, failure(operation, &error));
            }
        }
    }

    /// Whether a file is at the target as it should be.
    fn is_there(&self, opened: &io::Result<Opened>, path: &RelPath, file: &FileEntry) -> bool {
        let Ok(Opened { directory, .. }) = opened else { return false };
        let name = self.context.target.name(path, &file.name);
        let metadata = self.context.set_ids.of_file(file.metadata);
        self.context.is_kept(directory, name, u64::from(file.bytes), &metadata)
    }

    /// A directory of the target, made if need be.
    pub(crate) fn directory(&mut self, path: &RelPath) -> io::Result<Opened> {
        if let Some(opened) = self.directories.get(path) {
            return Ok(opened.clone());
        }
        self.context.publisher.is_used(path);
        let directory = match self.open_or_make(path) {
            // what is in the way stays
            Err(error) if is_in_the_way(&error) && self.context.overwrite == Overwrite::Nothing => {
                return Err(Errno::NOTDIR.into());
            }
            Err(error) if is_in_the_way(&error) => {
                self.stage_in_the_place_of_a_file(path)?;
                self.open_or_make(path)?
            }
            opened => opened?,
        };
        // it may have become a staging directory between the two: from here on it does not
        self.context.publisher.is_used(path);
        let directory = match self.context.publisher.staged_above(path) {
            Some(_) => self.open_or_make(path)?,
            None => directory,
        };
        self.sweep(path, &directory);
        self.remember(path, directory)
    }

    /// As [`directory`](Self::directory), never one that has been replaced since it was opened here.
    pub(crate) fn directory_now(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        self.let_go_if_replaced(path);
        Ok(self.directory(path)?.directory)
    }

    /// A directory of the target that is there, perhaps in a staging directory.
    pub(crate) fn directory_as_it_is(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if let Some(opened) = self.directories.get(path) {
            return Ok(Arc::clone(&opened.directory));
        }
        let directory = self.open(path)?;
        Ok(self.remember(path, directory)?.directory)
    }

    /// What has been open here of a directory and below is not what stands there now.
    pub(crate) fn let_go_below(&mut self, path: &RelPath) {
        self.directories.retain(|open, _| !covers(path, open));
    }

    /// The directory that stands under a name where a staging directory was to go.
    pub(crate) fn final_directory(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return self.directory_as_it_is(path);
        };
        let parent = self.directory_as_it_is(&parent)?;
        let name = RelPath::root().join(&name).map_err(|_too_long| Errno::NAMETOOLONG)?;
        Tree::at(parent).ensure_directory(&name)
    }

    fn remember(&mut self, path: &RelPath, directory: Arc<OwnedFd>) -> io::Result<Opened> {
        let flush = self.context.file_systems.note(&directory)?;
        if self.directories.len() >= self.context.directories_each.clamp(1, OPENED_MAX) {
            self.directories.clear();
        }
        let opened = Opened { directory, flush };
        self.directories.insert(path.clone(), opened.clone());
        Ok(opened)
    }

    fn open(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.context.publisher.staged_above(path) {
            Some((above, rest)) => Tree::at(above).open_directory(&rest),
            None => self.context.target.tree.open_directory(path),
        }
    }

    fn open_or_make(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.context.publisher.staged_above(path) {
            Some((above, rest)) => Tree::at(above).ensure_directory(&rest),
            None => self.context.target.tree.ensure_directory(path),
        }
    }

    /// A file or link that stands where a directory will be stays until that is published: the directory begins as a staging
    /// directory.
    fn stage_in_the_place_of_a_file(&mut self, path: &RelPath) -> io::Result<()> {
        let mut above = RelPath::root();
        for name in path.components() {
            let name = Name::from_bytes(name).expect("a part of a path");
            let parent = above.clone();
            above = above.join(&name).map_err(|_too_long| Errno::NAMETOOLONG)?;
            if !self.open(&above).is_err_and(|error| is_in_the_way(&error)) {
                continue;
            }
            return self.stage_at(&parent, &above, &name);
        }
        Ok(())
    }

    fn stage_at(&mut self, parent: &RelPath, path: &RelPath, name: &Name) -> io::Result<()> {
        let context = self.context;
        for _ in 0..STAGE_TRIES {
            let parent = self.directory(parent)?.directory;
            let mut error = None;
            let begun = context.publisher.begin(path, || {
                let held = context.account.hold_staging().ok_or_else(|| Errno::MFILE.into());
                let begun = held.and_then(|held| {
                    Ok((StagingDirectory::begin(&parent, name, &context.temp_names)?, held))
                });
                begun.map_err(|why| error = Some(why)).ok()
            });
            if let Some(staging) = begun {
                staging.leave_empty();
                return Ok(());
            }
            if let Some(error) = error {
                return Err(error);
            }
            // a generation is being closed or has no room for more; or somebody else has just begun it
            publish_all(context);
        }
        Ok(())
    }

    /// Leave to fill the staging directory of a directory, where there is one or one can be begun for so many files.
    fn staging(&mut self, path: &RelPath, files: usize) -> Option<FillingGuard<'a>> {
        let publisher = &self.context.publisher;
        if files > 0
            && let Some(open) = publisher.join(path)
        {
            return Some(open);
        }
        let (Some(parent), Some(name), TOGETHER_FILES_MIN..) = (path.parent(), path.file_name(), files)
        else {
            return None;
        };
        let parent_directory = self.directory(&parent).ok()?.directory;
        publisher.begin(path, || {
            let held = self.context.account.hold_staging()?;
            if !publisher.take_fresh(path) && !Tree::make_new(parent_directory.as_fd(), &name).ok()? {
                return None;
            }
            let staging = StagingDirectory::begin(&parent_directory, &name, &self.context.temp_names).ok()?;
            Some((staging, held))
        })
    }

    /// Makes the files among these entries in a staging directory; returns the others, and the files that it does not take.
    fn fill<'d>(
        &self,
        staging: FillingGuard<'_>,
        batch: &Arc<PendingBatch>,
        entries: Vec<Entry<'d>>,
    ) -> Vec<Entry<'d>> {
        let mut others = Vec::new();
        let mut files = Vec::new();
        let mut spoiled = Vec::new();
        let flush = self.context.file_systems.note(staging.staging.directory()).unwrap_or(Flush::Each);
        for Entry { number, bytes, entry } in entries {
            let BatchEntry::File(file) = entry else {
                others.push(Entry { number, bytes, entry });
                continue;
            };
            match self.make_in((&staging.staging, flush), &file, bytes) {
                Ok(()) => files.push((number, file)),
                Err(Unmade::NotTaken) => others.push(Entry { number, bytes, entry: BatchEntry::File(file) }),
                Err(Unmade::Failed((operation, error))) => batch.fault(number, failure(operation, &error)),
                Err(Unmade::Left((operation, error))) => {
                    batch.fault(number, failure(operation, &error));
                    spoiled.push(file.name);
                }
            }
        }
        staging.leave(Filled { batch: Arc::clone(batch), files }, spoiled);
        others
    }

    /// Makes a directory that is not there yet; `false` when it is, or something else.
    fn make_new(&self, parent: &OwnedFd, path: &RelPath, name: &Name) -> io::Result<bool> {
        let made = Tree::make_new(parent.as_fd(), name)?;
        if made {
            self.context.publisher.made(path);
        }
        Ok(made)
    }

    /// Removes what dead processes have left in a directory, when a transfer comes to it first.
    fn sweep(&self, path: &RelPath, directory: &OwnedFd) {
        if self.context.publisher.begin_sweep(path) {
            sweep(&self.context.target.tree, path, directory.as_fd());
        }
    }

    /// Puts something into a directory; once more where another transfer has made the directory anew since it was opened, and
    /// where there is no room before what it replaces has gone.
    fn put(
        &mut self,
        path: &RelPath,
        opened: &mut io::Result<Opened>,
        into: impl Fn(&mut Self, &Opened) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let put = |placer: &mut Self, opened: &io::Result<Opened>| match opened {
            Ok(opened) => into(placer, opened),
            Err(error) => Err((Operation::MakeDirectory, again(error))),
        };
        let mut done = put(self, opened);
        if done.as_ref().is_err_and(is_no_room) {
            publish_all(self.context);
            done = put(self, opened);
        }
        // a staging directory may have been merged since its path was looked up
        let was_gone = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if done.is_err() && (self.let_go_if_replaced(path) || was_gone) {
            *opened = self.directory(path);
            return put(self, opened);
        }
        done
    }

    /// Lets go of a directory if its path leads to another by now, or to none; returns whether it did.
    fn let_go_if_replaced(&mut self, path: &RelPath) -> bool {
        let Some(held) = self.directories.get(path) else { return false };
        let identity =
            |directory: &OwnedFd| rustix::fs::fstat(directory).map(|stat| (stat.st_dev, stat.st_ino));
        let there = self.open(path);
        let same = there.is_ok_and(
            |there| matches!((identity(&there), identity(&held.directory)), (Ok(a), Ok(b)) if a == b),
        );
        if !same {
            self.directories.remove(path);
        }
        !same
    }

    fn place(
        &mut self,
        opened: &Opened,
        path: &Arc<RelPath>,
        batch: &Arc<PendingBatch>,
        Entry { number, bytes, entry }: &Entry<'_>,
    ) -> Result<(), Failure> {
        let context = self.context;
        let directory = &opened.directory;
        match entry {
            BatchEntry::Itself(metadata) => context.remember_directory(path, None, *metadata),
            BatchEntry::Directory(name, metadata) => {
                self.place_directory(directory, path, name, *metadata)?
            }
            BatchEntry::Symlink(name, metadata, target) => {
                let name = context.target.name(path, name);
                let replace = match context.overwrite {
                    Overwrite::Nothing => Replace::Nothing,
                    Overwrite::Differing | Overwrite::Older => Replace::Existing,
                };
                place_symlink(
                    directory.as_fd(),
                    name,
                    (target, metadata.mtime),
                    &context.temp_names,
                    replace,
                )
                .map_err(|error| (Operation::Symlink, error))?;
            }
            BatchEntry::File(file) => {
                let failed_flushes = context.publisher.failed_flushes();
                let Some(hidden) = self.place_file(opened, path, file, bytes)? else { return Ok(()) };
                let (directory, file, batch) = (Arc::clone(path), file.clone(), Arc::clone(batch));
                let hidden = HiddenFile { directory, hidden, file, entry: *number, batch };
                context.publisher.add_file(hidden, failed_flushes);
            }
            BatchEntry::Retouch(name, metadata) => {
                let name = context.target.name(path, name);
                retouch(directory.as_fd(), name, &context.set_ids.of_file(*metadata))
                    .map_err(|error| (Operation::SetMetadata, error))?;
                context.count_beyond_range(metadata.mtime, || FileIdentity::at(directory, name));
            }
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
        let cannot = |error| (Operation::MakeDirectory, error);
        let path = parent_path.join(name).map_err(|_| cannot(Errno::NAMETOOLONG.into()))?;
        if !self.context.publisher.is_fresh(&path) && !self.make_new(parent, &path, name).map_err(cannot)? {
            self.directory(&path).map_err(cannot)?;
        }
        self.context.remember_directory(parent_path, Some(name), metadata);
        Ok(())
    }

    /// A whole file in a staging directory.
    fn make_in(
        &self,
        (staging, flush): (&StagingDirectory, Flush),
        file: &FileEntry,
        bytes: &[u8],
    ) -> Result<(), Unmade> {
        let metadata = self.context.set_ids.of_file(file.metadata);
        // somebody may have removed the directory, or the file system may take two names for one: by itself the file may succeed
        let created = staging.create(&file.name, metadata.mode).map_err(|_error| Unmade::NotTaken)?;
        let written = self.write_whole((staging, &metadata), &created, bytes);
        let written = written.and_then(|()| flush_now(&created, self.flushes_each(flush)));
        let Err(why) = written else { return Ok(()) };
        if staging.discard(&file.name).is_err() {
            return Err(Unmade::Left(why));
        }
        // there may be room when what is replaced has gone
        Err(if is_no_room(&why) { Unmade::NotTaken } else { Unmade::Failed(why) })
    }

    fn write_whole(
        &self,
        (staging, metadata): (&StagingDirectory, &Metadata),
        file: &File,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.contents.write(file, bytes).map_err(|error| (Operation::Write, error))?;
        staging.set_metadata(file, metadata).map_err(|error| (Operation::SetMetadata, error))?;
        self.context.count_beyond_range(metadata.mtime, || FileIdentity::of(file));
        Ok(())
    }

    /// A whole file under a hidden name, which is returned; `None` where it was changed in its place.
    fn place_file(
        &self,
        opened: &Opened,
        path: &RelPath,
        file: &FileEntry,
        bytes: &[u8],
    ) -> Result<Option<Name>, Failure> {
        let context = self.context;
        let name = context.target.name(path, &file.name);
        let metadata = context.set_ids.of_file(file.metadata);
        let directory = &opened.directory;
        let existing = context.begin_in_place(directory, name, (bytes.len() as u64, &metadata))?;
        if let Some(staged) = existing {
            let written = staged.write(|| self.contents.write(staged.file(), bytes));
            written.map_err(|error| (Operation::Write, error))?;
            context.finish_in_place(staged, name, |staged| context.set_metadata(staged.file(), &metadata))?;
            context.meter.stored(1);
            return Ok(None);
        }
        let staged = Staged::create(directory, metadata.mode, &context.temp_names)
            .map_err(|error| (Operation::Create, error))?;
        self.contents.write(staged.file(), bytes).map_err(|error| (Operation::Write, error))?;
        context.set_metadata(staged.file(), &metadata)?;
        flush_now(staged.file(), self.flushes_each(opened.flush))?;
        Ok(staged.into_hidden_name())
    }

    fn flushes_each(&self, flush: Flush) -> bool {
        match self.context.durability {
            Durability::None => false,
            Durability::End => flush == Flush::Each,
            Durability::File => true,
        }
    }
}

/// A file that did not become whole in its staging directory.
enum Unmade {
    /// It was not begun, or nothing is left of it: it may be made otherwise.
    NotTaken,
    Failed(Failure),
    /// Something of it is still there.
    Left(Failure),
}

/// A file that need not have been sent.
pub(crate) const ALREADY_THERE: (Operation, FaultCode) = (Operation::Create, FaultCode::AlreadyThere);

/// A group with fewer files is not worth a directory of its own.
const TOGETHER_FILES_MIN: usize = 8;

fn flush_now(file: &File, now: bool) -> Result<(), Failure> {
    if now {
        file.sync_data().map_err(|error| (Operation::Flush, error))?;
    }
    Ok(())
}

fn is_in_the_way(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTDIR | Errno::LOOP))
}

/// Whether there is no room, or no room within a quota.
pub(crate) fn is_no_room((_, error): &Failure) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

/// A failure as the sender is told it, where that says more than an error number.
pub(crate) fn failure(operation: Operation, error: &io::Error) -> (Operation, FaultCode) {
    match (operation, Errno::from_io_error(error)) {
        (Operation::Rename | Operation::Symlink, Some(Errno::ISDIR)) => {
            (operation, FaultCode::DirectoryInTheWay)
        }
        (Operation::OpenInPlace, Some(Errno::WOULDBLOCK)) => (operation, FaultCode::Locked),
        (Operation::Verify, Some(Errno::STALE)) => (operation, FaultCode::Replaced),
        (Operation::Verify, Some(Errno::BUSY)) => (operation, FaultCode::Changed),
        _ => (operation, FaultCode::os(error)),
    }
}

fn take_data<'d>(entry: &BatchEntry, data: &mut &'d [u8]) -> &'d [u8] {
    let BatchEntry::File(file) = entry else { return &[] };
    let (bytes, rest) = data.split_at(file.bytes as usize);
    *data = rest;
    bytes
}

fn again(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use zmove_chunk::file_root;
    use zmove_disk::set_new_file_metadata;
    use zmove_types::{ItemId, Timestamp};
    use zmove_wire::{EntryFault, Extraneous, Open, Purpose, TargetShape};

    use crate::config::ReceiverConfig;
    use crate::file_systems::FileSystems;
    use crate::files::Complete;
    use crate::session::context;
    use crate::store::finish_file;
    use crate::target::{Access, Target};

    pub(crate) fn transfer(home: &Path) -> Context {
        transfer_with_journals(home, None)
    }

    pub(crate) fn transfer_with_journals(home: &Path, journals: Option<PathBuf>) -> Context {
        transfer_of(7, home, journals)
    }

    /// How a directory is asked for.
    pub(crate) fn open_at(home: &Path) -> Open {
        Open {
            target: home.as_os_str().as_encoded_bytes().to_vec(),
            shape: TargetShape::Directory { tops: Vec::new() },
            compare: zmove_wire::Compare::Quick,
            durability: Durability::None,
            delta: false,
            run: [0; 16],
            overwrite: Overwrite::Differing,
            purpose: Purpose::Move,
            extraneous: Extraneous::Stays,
            inplace: false,
        }
    }

    /// A transfer of that number.
    pub(crate) fn transfer_of(number: u8, home: &Path, journals: Option<PathBuf>) -> Context {
        let open = open_at(home);
        let target = Target::resolve(&open, &Access::Anywhere).unwrap();
        let (outcomes, _nobody) = tokio::sync::mpsc::channel(1);
        let transfer = zmove_types::TransferId([number; 16]);
        let parts = crate::parts::Parts::new(journals, transfer, String::new(), &target.tree);
        context(
            transfer,
            zmove_wire::Version::V4,
            &open,
            (target, parts),
            &ReceiverConfig::default(),
            outcomes,
        )
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    fn metadata(mode: u32) -> Metadata {
        Metadata { mode, mtime: Timestamp { seconds: 9, nanos: 0 } }
    }

    /// Files of one byte each, with these names and numbers.
    fn files(directory: &str, prefix: &str, count: u32) -> DirectoryGroup {
        let file = |number: u32| {
            let name = name(&format!("{prefix}{number}"));
            BatchEntry::File(FileEntry { name, metadata: metadata(0o644), bytes: 1, root: file_root(b"x") })
        };
        DirectoryGroup { directory: path(directory), entries: (0..count).map(file).collect() }
    }

    /// Places a group and publishes it.
    fn place(placer: &mut Placer<'_>, group: DirectoryGroup) -> Vec<EntryFault> {
        let batch = begin(placer, group);
        publish_all(placer.context());
        batch.faults()
    }

    /// Places a group as far as that goes before anything is published.
    fn begin(placer: &mut Placer<'_>, group: DirectoryGroup) -> Arc<PendingBatch> {
        let batch = PendingBatch::new(ItemId(1), Known::Needed, None);
        placer.place_group(group, 0, &batch, &mut &[b'x'; 64][..]);
        batch
    }

    /// What has a name that is not hidden.
    fn visible(directory: &Path) -> Vec<String> {
        names(directory).into_iter().filter(|name| !name.starts_with(".zmove-")).collect()
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
        names.sort();
        names
    }

    fn directory_entry(directory: &str, text: &str) -> DirectoryGroup {
        let entries = vec![BatchEntry::Directory(name(text), metadata(0o755))];
        DirectoryGroup { directory: path(directory), entries }
    }

    #[test]
    fn two_transfers_that_fill_one_new_directory_both_succeed() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (transfer(home.path()), transfer(home.path()));
        let (mut maker, mut guest) = (Placer::new(&first), Placer::new(&second));
        assert_eq!(place(&mut maker, directory_entry("", "d")), []);
        // open at the one that has not made it, while the other may still replace it
        assert_eq!(place(&mut guest, directory_entry("", "d")), []);
        assert_eq!(place(&mut maker, files("d", "f", 8)), []);
        assert_eq!(place(&mut guest, files("d", "g", 9)), []);
        assert_eq!(std::fs::read_dir(home.path().join("d")).unwrap().count(), 17);
    }

    #[test]
    fn a_large_file_survives_that_its_directory_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (transfer(home.path()), transfer(home.path()));
        let (mut maker, mut guest) = (Placer::new(&first), Placer::new(&second));
        assert_eq!(place(&mut maker, directory_entry("", "d")), []);
        let id = zmove_types::FileId(1);
        let bytes = 2 * zmove_types::GROUP_BYTES;
        let head = zmove_wire::FileHead {
            path: path("d/large"),
            metadata: metadata(0o644),
            bytes,
            ctime: Timestamp::default(),
            inode: 1,
            extensions: zmove_wire::Extensions::default(),
        };
        second.files.declare(id, head, |_| None, |_| None).unwrap();
        let file = second.files.find(id).unwrap().unwrap();
        let opened = guest.directory(&path("d")).unwrap().directory;
        let staged = Staged::create(&opened, 0o600, &second.temp_names).unwrap();
        assert_eq!(place(&mut maker, files("d", "f", 8)), []);
        finish_file(&second, &mut guest, &file, Complete(staged));
        publish_all(&second);
        assert!(home.path().join("d/large").exists());
    }

    #[test]
    fn a_directory_opened_while_it_is_made_is_not_replaced_under_the_hands_of_who_opened_it() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let start = Barrier::new(2);
        for round in 0..200 {
            let directory = format!("d{round}");
            let mut other = Placer::new(&context);
            std::thread::scope(|scope| {
                let opener = scope.spawn(|| {
                    start.wait();
                    other.directory(&path(&directory)).unwrap();
                });
                start.wait();
                assert_eq!(place(&mut Placer::new(&context), files(&directory, "f", 8)), []);
                opener.join().unwrap();
            });
            assert_eq!(place(&mut other, files(&directory, "g", 1)), [], "round {round}");
        }
    }

    #[test]
    fn batches_of_one_new_directory_get_their_names_together() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let (mut first, mut second) = (Placer::new(&context), Placer::new(&context));
        let one = begin(&mut first, files("d", "f", 8));
        let other = begin(&mut second, files("d", "g", 1));
        assert_eq!(names(&home.path().join("d")), [""; 0], "nothing has its name");
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (2, 2), "nothing is settled");
        publish_all(&context);
        assert_eq!(names(&home.path().join("d")).len(), 9);
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1));
        assert_eq!(names(home.path()), ["d"]);
    }

    #[test]
    fn files_in_a_directory_that_was_there_have_hidden_names_until_they_are_published() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("d")).unwrap();
        std::fs::write(home.path().join("d/f3"), "old").unwrap();
        let context = transfer(home.path());
        let batch = begin(&mut Placer::new(&context), files("d", "f", 8));
        let directory = home.path().join("d");
        assert_eq!((visible(&directory), names(&directory).len()), (vec!["f3".to_owned()], 9));
        assert_eq!(std::fs::read(directory.join("f3")).unwrap(), b"old");
        publish_all(&context);
        assert_eq!((visible(&directory).len(), names(&directory).len()), (8, 8));
        assert_eq!((std::fs::read(directory.join("f3")).unwrap(), batch.faults()), (b"x".to_vec(), vec![]));
    }

    #[test]
    fn what_a_dead_process_left_in_a_directory_that_is_there_goes() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("d");
        std::fs::create_dir(&directory).unwrap();
        let opened = rustix::fs::open(&directory, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty());
        let context = transfer(home.path());
        let own = context.temp_names.passing(opened.unwrap().as_fd());
        let own = own.as_os_str().to_str().unwrap();
        // as of the boot before
        let mut parts: Vec<_> = own.split('-').collect();
        parts[3] = "1";
        for name in [&parts.join("-"), own] {
            std::fs::write(directory.join(name), "left").unwrap();
        }
        let mut placer = Placer::new(&context);
        assert_eq!(place(&mut placer, directory_entry("", "d")), []);
        assert_eq!(names(&directory), [own], "that of a live process stays");
    }

    /// Mixed trees: no flush is needed to go on below a directory that has no name yet.
    #[test]
    fn what_is_below_a_staging_directory_appears_with_it() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let (mut one, mut other) = (Placer::new(&context), Placer::new(&context));
        let mut batches = vec![begin(&mut one, files("d", "f", 8))];
        for (directory, count) in [("d/few", 2), ("d/many", 9), ("d/many/deep/est", 3)] {
            batches.push(begin(&mut other, files(directory, "g", count)));
        }
        assert_eq!(names(&home.path().join("d")), [""; 0]);
        publish_all(&context);
        let count = |directory: &str| names(&home.path().join(directory)).len();
        assert_eq!(["d", "d/few", "d/many", "d/many/deep/est"].map(count), [10, 2, 10, 3]);
        assert!(batches.iter().all(|batch| batch.faults().is_empty()));
        assert_eq!(place(&mut other, files("d/few", "h", 1)), [], "the same directory as before");
        assert_eq!((count("d/few"), names(home.path())), (3, vec!["d".to_owned()]));
    }

    #[test]
    fn what_comes_while_a_directory_gets_its_name_is_published_later() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        assert_eq!(place(&mut placer, files("d", "f", 8)), []);
        let later = begin(&mut placer, files("d", "g", 8));
        assert_eq!(visible(&home.path().join("d")).len(), 8);
        publish_all(&context);
        assert_eq!((visible(&home.path().join("d")).len(), later.faults()), (16, vec![]));
    }

    #[test]
    fn a_directory_takes_the_place_of_a_file_only_when_what_is_in_it_is_published() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a"), "old").unwrap();
        std::os::unix::fs::symlink("nowhere", home.path().join("b")).unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batches = [
            begin(&mut placer, files("a/x", "f", 2)),
            begin(&mut placer, directory_entry("", "b")),
            begin(&mut placer, files("b", "f", 9)),
        ];
        assert_eq!(std::fs::read(home.path().join("a")).unwrap(), b"old");
        assert!(home.path().join("b").is_symlink());
        publish_all(&context);
        assert!(batches.iter().all(|batch| batch.faults().is_empty()));
        assert_eq!(names(home.path()), ["a", "b"]);
        assert_eq!((names(&home.path().join("a/x")).len(), names(&home.path().join("b")).len()), (2, 9));
    }

    #[test]
    fn files_whose_directory_was_filled_meanwhile_go_there_one_by_one() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batches = [begin(&mut placer, files("d", "f", 8)), begin(&mut placer, files("d", "g", 2))];
        let filled = home.path().join("d");
        std::fs::write(filled.join("f3"), "of somebody else").unwrap();
        std::fs::create_dir(filled.join("g1")).unwrap();
        publish_all(&context);
        assert_eq!(std::fs::read(filled.join("f3")).unwrap(), b"x", "replaced, as any file");
        assert_eq!(names(&filled).len(), 10);
        assert_eq!(names(home.path()), ["d"]);
        let (operation, code) = (Operation::Rename, FaultCode::DirectoryInTheWay);
        assert_eq!(batches[0].faults(), []);
        assert_eq!(batches[1].faults(), [EntryFault { entry: 1, operation, code }]);
    }

    #[test]
    fn a_guessed_file_that_is_there_by_now_stays() {
        let home = tempfile::tempdir().unwrap();
        for new in [true, false] {
            let directory = home.path().join("d");
            if !new {
                std::fs::remove_dir_all(&directory).unwrap();
                std::fs::create_dir(&directory).unwrap();
            }
            let context = transfer(home.path());
            let mut placer = Placer::new(&context);
            let batch = PendingBatch::new(ItemId(1), Known::PerhapsThere, None);
            placer.place_group(files("d", "f", 8), 0, &batch, &mut &[b'x'; 8][..]);
            let there = directory.join("f3");
            std::fs::write(&there, "y").unwrap();
            set_new_file_metadata(File::open(&there).unwrap(), &metadata(0o644)).unwrap();
            publish_all(&context);
            assert_eq!(std::fs::read(&there).unwrap(), b"y");
            let (operation, code) = ALREADY_THERE;
            assert_eq!(batch.faults(), [EntryFault { entry: 3, operation, code }]);
            assert_eq!(names(&directory).len(), 8);
        }
    }

    #[test]
    fn what_appears_while_it_comes_stays_if_nothing_is_to_be_replaced() {
        for overwrite in [Overwrite::Nothing, Overwrite::Older] {
            let home = tempfile::tempdir().unwrap();
            std::fs::create_dir(home.path().join("d")).unwrap();
            let context = Context { overwrite, ..transfer(home.path()) };
            let batch = begin(&mut Placer::new(&context), files("d", "f", 2));
            // newer than what comes
            std::fs::write(home.path().join("d/f1"), "y").unwrap();
            publish_all(&context);
            assert_eq!(std::fs::read(home.path().join("d/f1")).unwrap(), b"y");
            let (operation, code) = ALREADY_THERE;
            assert_eq!(batch.faults(), [EntryFault { entry: 1, operation, code }]);
            assert_eq!(names(&home.path().join("d")), ["f0", "f1"]);
        }
    }

    /// What is below has its name there already, in the directory that does not get its own.
    #[test]
    fn what_is_below_a_directory_that_cannot_go_where_it_should_has_failed() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batches = [
            begin(&mut placer, files("d", "f", 8)),
            begin(&mut placer, files("d/few", "g", 2)),
            begin(&mut placer, files("d/many", "h", 9)),
            begin(&mut placer, files("d/many/deep", "i", 1)),
            begin(&mut placer, files("d/other", "j", 9)),
        ];
        for taken in ["few", "many"] {
            std::fs::write(home.path().join("d").join(taken), "of somebody else").unwrap();
        }
        publish_all(&context);
        let failed = batches.map(|batch| batch.faults().len());
        assert_eq!(failed, [0, 2, 9, 1, 0]);
        assert_eq!(names(&home.path().join("d")).len(), 8 + 3);
        assert_eq!(names(&home.path().join("d/other")).len(), 9);
    }

    /// A writer has the staging directory open while that is taken apart.
    #[test]
    fn links_and_directories_that_come_while_a_directory_is_merged_arrive() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let first = begin(&mut placer, files("d", "f", 8));
        std::fs::write(home.path().join("d/foreign"), "of somebody else").unwrap();
        let (publishing, links) = (AtomicBool::new(true), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut placer = Placer::new(&context);
                while publishing.load(Ordering::Relaxed) {
                    let number = links.load(Ordering::Relaxed);
                    let link =
                        BatchEntry::Symlink(name(&format!("l{number}")), metadata(0o777), Box::from(*b"x"));
                    let below = BatchEntry::Directory(name(&format!("e{number}")), metadata(0o755));
                    let group = DirectoryGroup { directory: path("d"), entries: vec![link, below] };
                    assert_eq!(begin(&mut placer, group).faults(), []);
                    links.store(number + 1, Ordering::Relaxed);
                }
            });
            while links.load(Ordering::Relaxed) < 50 {
                std::thread::yield_now();
            }
            publish_all(&context);
            publishing.store(false, Ordering::Relaxed);
        });
        assert_eq!(first.faults(), []);
        let there = names(&home.path().join("d"));
        assert_eq!(there.len(), 8 + 1 + 2 * links.into_inner() as usize, "{there:?}");
        assert_eq!(names(home.path()), ["d"]);
    }

    /// It is begun while the directory above it is being published, and that is merged.
    #[test]
    fn a_staging_directory_below_one_that_is_merged_gets_its_name_too() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let above = begin(&mut placer, files("d", "f", 8));
        let first = context.publisher.take();
        let batches = [begin(&mut placer, files("d/x", "g", 8)), begin(&mut placer, files("d/x/y", "h", 3))];
        std::fs::write(home.path().join("d/foreign"), "of somebody else").unwrap();
        first.publish(&context, None).into_iter().for_each(|batch| batch.release(&context));
        publish_all(&context);
        assert_eq!(above.faults(), []);
        assert!(batches.iter().all(|batch| batch.faults().is_empty()));
        let there = |directory: &str| names(&home.path().join(directory)).len();
        assert_eq!(["d", "d/x", "d/x/y"].map(there), [8 + 2, 8 + 1, 3]);
    }

    #[test]
    fn what_is_below_a_staging_directory_that_somebody_has_moved_has_failed() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batches = [begin(&mut placer, files("d", "f", 8)), begin(&mut placer, files("d/x", "g", 2))];
        let hidden = names(home.path()).into_iter().find(|name| name.starts_with(".zmove-")).unwrap();
        std::fs::rename(home.path().join(hidden), home.path().join("elsewhere")).unwrap();
        publish_all(&context);
        assert_eq!(batches.map(|batch| batch.faults().len()), [8, 2]);
    }

    #[test]
    fn what_appears_below_a_new_directory_stays_if_nothing_is_to_be_replaced() {
        for overwrite in [Overwrite::Nothing, Overwrite::Older] {
            let home = tempfile::tempdir().unwrap();
            let context = Context { overwrite, ..transfer(home.path()) };
            let mut placer = Placer::new(&context);
            let batches =
                [begin(&mut placer, files("d", "f", 8)), begin(&mut placer, files("d/few", "g", 2))];
            std::fs::create_dir(home.path().join("d/few")).unwrap();
            // newer than what comes
            std::fs::write(home.path().join("d/few/g1"), "y").unwrap();
            publish_all(&context);
            assert_eq!(std::fs::read(home.path().join("d/few/g1")).unwrap(), b"y");
            let (operation, code) = ALREADY_THERE;
            assert_eq!(batches[0].faults(), []);
            assert_eq!(batches[1].faults(), [EntryFault { entry: 1, operation, code }]);
            assert_eq!(names(&home.path().join("d/few")), ["g0", "g1"]);
        }
    }

    #[test]
    fn a_directory_takes_the_place_of_a_file_also_when_no_more_can_be_staged() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a"), "old").unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let full = (0..).map(|number| begin(&mut placer, files(&format!("n{number}"), "f", 8)));
        let mut batches: Vec<_> = full.take(200).collect();
        batches.push(begin(&mut placer, files("a/x", "f", 2)));
        publish_all(&context);
        assert!(batches.iter().all(|batch| batch.faults().is_empty()));
        assert_eq!(names(&home.path().join("a/x")), ["f0", "f1"]);
    }

    #[test]
    fn directories_beyond_those_that_are_remembered_are_swept_too() {
        let home = tempfile::tempdir().unwrap();
        let publisher = transfer(home.path()).publisher;
        assert!((0..300_000).all(|number| publisher.begin_sweep(&path(&number.to_string()))));
        assert!(!publisher.begin_sweep(&path("7")));
    }

    #[test]
    fn of_one_name_in_two_batches_the_last_stays() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let first = begin(&mut placer, files("d", "f", 8));
        let second = PendingBatch::new(ItemId(2), Known::Needed, None);
        placer.place_group(files("d", "f", 9), 0, &second, &mut &[b'y'; 9][..]);
        publish_all(&context);
        assert_eq!((first.faults(), second.faults()), (Vec::new(), Vec::new()));
        let all = names(&home.path().join("d"));
        assert_eq!(all.len(), 9);
        assert!(all.iter().all(|name| std::fs::read(home.path().join("d").join(name)).unwrap() == b"y"));
    }

    #[test]
    fn files_are_placed_when_somebody_has_removed_their_staging_directory() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let lost = begin(&mut placer, files("d", "f", 8));
        let hidden = names(home.path()).into_iter().find(|name| name != "d").unwrap();
        std::fs::remove_dir_all(home.path().join(hidden)).unwrap();
        publish_all(&context);
        assert_eq!(lost.faults().len(), 8, "a fault for each that is gone");
        assert_eq!(place(&mut placer, files("d", "g", 9)), []);
        assert_eq!(names(&home.path().join("d")).len(), 9);
    }

    #[test]
    fn what_a_writer_that_panics_was_filling_gets_no_name() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let whole = begin(&mut placer, files("d", "f", 8));
        // it goes without a word, as when its writer panics
        drop(placer.staging(&path("d"), 1).unwrap());
        publish_all(&context);
        assert_eq!(names(&home.path().join("d")), [""; 0]);
        assert_eq!(whole.faults().len(), 8);
        assert_eq!(names(home.path()), ["d"]);
    }

    /// The kernel tells of a failed flush once, and then calls the pages clean.
    #[test]
    fn after_a_flush_that_failed_only_what_is_on_the_storage_gets_its_name() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("there")).unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batches = ["there", "new"].map(|directory| begin(&mut placer, files(directory, "f", 8)));
        let hidden = |directory: &str| {
            let directory = home.path().join(directory);
            let name = names(&directory).into_iter().find(|name| name.starts_with(".zmove-")).unwrap();
            directory.join(name)
        };
        // as if it had not come to the storage
        std::fs::write(hidden("there"), "0").unwrap();
        std::fs::write(hidden("").join("f5"), "0").unwrap();
        context.publisher.suspect();
        publish_all(&context);
        for (batch, directory) in batches.iter().zip(["there", "new"]) {
            let faults = batch.faults();
            assert_eq!((faults.len(), faults[0].operation), (1, Operation::Flush), "{directory}");
            assert_eq!(names(&home.path().join(directory)).len(), 7);
        }
    }

    #[test]
    fn while_a_flush_is_late_files_are_flushed_one_by_one() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("there")).unwrap();
        let file_systems = FileSystems::that_are_late();
        let context = Context { durability: Durability::End, file_systems, ..transfer(home.path()) };
        let mut placer = Placer::new(&context);
        let batches = ["there", "new"].map(|directory| begin(&mut placer, files(directory, "f", 8)));
        let hidden = names(home.path()).into_iter().find(|name| name.starts_with(".zmove-")).unwrap();
        // as if it had not come to the storage
        std::fs::write(home.path().join(hidden).join("f5"), "0").unwrap();
        publish_all(&context);
        assert_eq!(batches.map(|batch| batch.faults().len()), [0, 1]);
        assert_eq!(["there", "new"].map(|directory| names(&home.path().join(directory)).len()), [8, 7]);
    }
}
