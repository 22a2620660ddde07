//! Puts the entries of a verified batch into place, one at a time, each with a fault of its own if it fails.
//!
//! The files of a directory that this transfer has made and that is still untouched are created in a nursery and get
//! their names together; all others are staged one by one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{
    ContentsWriter, DirectoryCache, FileIdentity, Nursery, Staged, Tree, place_symlink, retouch,
    set_new_file_metadata,
};
use zmove_types::{Metadata, Name, RelPath};
use zmove_wire::{BatchEntry, DirectoryGroup, Durability, FaultCode, FileEntry, Operation, Overwrite};

use crate::compare::is_kept;
use crate::nurseries::{Closed, Fate, Filled, Nurseries, Unsettled};
use crate::store::Context;
use crate::untouched::Untouched;

/// One writer's hands: the transfer and the directories it has open.
#[derive(Debug)]
pub(crate) struct Placer<'a> {
    context: &'a Context,
    directories: DirectoryCache<'a>,
    contents: ContentsWriter,
    /// Batches whose files have got their names: to be let go of where no lock is held.
    placed: Vec<Arc<Unsettled>>,
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

impl<'a> Placer<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        let contents = ContentsWriter::new(context.direct);
        let directories = DirectoryCache::new(&context.target.tree);
        Self { context, directories, contents, placed: Vec::new() }
    }

    /// Places a group's entries, of which the first has number `first` in its batch and whose files' contents are at the
    /// front of `data`. Some may get their names later, when their nursery is [published](Self::publish_all).
    pub(crate) fn place_group(
        &mut self,
        group: DirectoryGroup,
        first: u32,
        batch: &Arc<Unsettled>,
        data: &mut &[u8],
    ) {
        let path = group.directory;
        let files = group.entries.iter().filter(|entry| matches!(entry, BatchEntry::File(_))).count();
        let numbered = (first..).zip(group.entries);
        let mut entries =
            numbered.map(|(number, entry)| (number, take_data(&entry, data), entry)).collect::<Vec<_>>();
        if let Some(nursery) = self.nursery(&path, files) {
            entries = self.fill(&path, nursery, batch, entries);
        }
        if entries.is_empty() {
            return;
        }
        let mut opened = self.directory(&path);
        for (number, bytes, entry) in entries {
            if batch.known == Known::PerhapsThere
                && let BatchEntry::File(file) = &entry
                && self.is_there(&opened, &path, file)
            {
                batch.fault(number, ALREADY_THERE);
                continue;
            }
            let placed = self
                .put(&path, &mut opened, |placer, directory| placer.place(directory, &path, &entry, bytes));
            if let Err((operation, error)) = placed {
                batch.fault(number, failure(operation, &error));
            }
        }
    }

    /// Whether a file is at the target as it should be.
    fn is_there(&self, opened: &io::Result<Arc<OwnedFd>>, path: &RelPath, file: &FileEntry) -> bool {
        let Ok(directory) = opened else { return false };
        let name = self.context.target.name(path, &file.name);
        let overwrite = self.context.overwrite;
        is_kept(
            overwrite,
            directory,
            name,
            u64::from(file.bytes),
            &self.context.set_ids.of_file(file.metadata),
        )
    }

    /// A directory of the target, made if need be. From now on others may hold it open, so it is no longer replaced.
    pub(crate) fn directory(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if let Some(directory) = self.directories.get(path) {
            return Ok(directory);
        }
        if self.context.overwrite == Overwrite::Nothing
            && let Err(error) = self.context.target.tree.open_directory(path)
            && matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP))
        {
            // what is in the way stays
            return Err(Errno::NOTDIR.into());
        }
        self.publish(|nurseries, untouched| {
            nurseries.close(untouched, |nursery| path.as_path().starts_with(nursery.as_path()))
        });
        self.context.untouched.open(path, || self.directories.ensure(path))
    }

    /// As [`directory`](Self::directory), never one that another transfer has replaced since it was opened here.
    pub(crate) fn directory_now(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        self.directories.let_go_if_replaced(path);
        self.directory(path)
    }

    /// The nursery of a directory, where it is open or one can be begun for so many files.
    fn nursery(&mut self, path: &RelPath, files: usize) -> Option<Arc<Nursery>> {
        let nurseries = &self.context.nurseries;
        if files > 0
            && let Some(open) = nurseries.join(path)
        {
            return Some(open);
        }
        let (Some(parent), Some(name), TOGETHER_FILES_MIN..) = (path.parent(), path.file_name(), files)
        else {
            return None;
        };
        let parent = self.directory(&parent).ok()?;
        if !self.context.untouched.holds(path) && !self.make_new(&parent, path, &name).ok()? {
            return None;
        }
        self.publish(Nurseries::close_for_another);
        nurseries.begin(path, &self.context.untouched, || Nursery::begin(&parent, &name))
    }

    /// Makes the files among these entries in a nursery; returns the others, and the files that it does not take.
    fn fill<'d>(
        &self,
        path: &RelPath,
        nursery: Arc<Nursery>,
        batch: &Arc<Unsettled>,
        entries: Vec<(u32, &'d [u8], BatchEntry)>,
    ) -> Vec<(u32, &'d [u8], BatchEntry)> {
        let (mut files, mut others, mut spoiled) = (Vec::new(), Vec::new(), false);
        for (number, bytes, entry) in entries {
            let BatchEntry::File(file) = entry else {
                others.push((number, bytes, entry));
                continue;
            };
            match self.make_in(&nursery, &file, bytes) {
                Ok(()) => files.push((number, file)),
                Err(Unmade::NotTaken) => others.push((number, bytes, BatchEntry::File(file))),
                Err(Unmade::Failed { why: (operation, error), left }) => {
                    batch.fault(number, failure(operation, &error));
                    spoiled |= left;
                }
            }
        }
        let filled = Filled { batch: Arc::clone(batch), files };
        self.context.nurseries.leave(path, nursery, filled, spoiled);
        others
    }

    /// Publishes the nurseries that nobody is filling. To be called before a writer waits for work, and at the end.
    pub(crate) fn publish_all(&mut self) {
        self.publish(|nurseries, untouched| nurseries.close(untouched, |_path| true));
        self.release();
    }

    /// Publishes the nurseries that have been open for long. To be called after each piece of work.
    pub(crate) fn publish_old(&mut self) {
        self.publish(Nurseries::close_old);
        self.release();
    }

    /// Not to be called under a lock: telling the session may wait for it.
    fn release(&mut self) {
        self.placed.drain(..).for_each(|batch| batch.release(self.context));
    }

    fn publish(&mut self, close: impl FnOnce(&Nurseries, &Untouched) -> Vec<Closed>) {
        let context = self.context;
        for Closed { path, filled, fate } in close(&context.nurseries, &context.untouched) {
            match fate {
                Fate::Published(directory) => {
                    context.meter.stored(filled.iter().map(|filled| filled.files.len()).sum());
                    self.directories.insert(path, directory);
                }
                Fate::Overtaken(nursery) => self.move_out(&path, &nursery, &filled),
            }
            self.placed.extend(filled.into_iter().map(|filled| filled.batch));
        }
    }

    /// Gives each file of a nursery its name in a directory that may hold others by now.
    fn move_out(&mut self, path: &RelPath, nursery: &Nursery, filled: &[Filled]) {
        let mut opened = self.directory(path);
        for Filled { batch, files } in filled {
            for (number, file) in files {
                if batch.known == Known::PerhapsThere && self.is_there(&opened, path, file) {
                    batch.fault(*number, ALREADY_THERE);
                    continue;
                }
                let moved = self.put(path, &mut opened, |_placer, directory| {
                    nursery.move_out(&file.name, directory).map_err(|error| (Operation::Rename, error))
                });
                match moved {
                    Ok(()) => self.context.meter.stored(1),
                    Err((operation, error)) => batch.fault(*number, failure(operation, &error)),
                }
            }
        }
    }

    /// Makes a directory that is not there yet; `false` when it is, or something else.
    fn make_new(&self, parent: &OwnedFd, path: &RelPath, name: &Name) -> io::Result<bool> {
        let made = self.context.untouched.make(path, || Tree::make_new(parent.as_fd(), name))?;
        if !made {
            Nursery::sweep(parent.as_fd(), name);
        }
        Ok(made)
    }

    /// Puts something into a directory; once more where another transfer has made the directory anew since it was opened.
    fn put(
        &mut self,
        path: &RelPath,
        opened: &mut io::Result<Arc<OwnedFd>>,
        into: impl Fn(&mut Self, &Arc<OwnedFd>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let put = |placer: &mut Self, opened: &io::Result<Arc<OwnedFd>>| match opened {
            Ok(directory) => into(placer, directory),
            Err(error) => Err((Operation::MakeDirectory, again(error))),
        };
        let done = put(self, opened);
        if done.is_err() && self.directories.let_go_if_replaced(path) {
            *opened = self.directory(path);
            return put(self, opened);
        }
        done
    }

    fn place(
        &mut self,
        directory: &Arc<OwnedFd>,
        path: &RelPath,
        entry: &BatchEntry,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let context = self.context;
        match entry {
            BatchEntry::Itself(metadata) => context.remember_directory(path.clone(), *metadata),
            BatchEntry::Directory(name, metadata) => {
                self.place_directory(directory, path, name, *metadata)?
            }
            BatchEntry::Symlink(name, metadata, target) => {
                let name = context.target.name(path, name);
                if context.overwrite == Overwrite::Nothing && FileIdentity::at(directory, name).is_ok() {
                    return Ok(());
                }
                place_symlink(directory.as_fd(), name, target, metadata.mtime, &context.temp_names)
                    .map_err(|error| (Operation::Symlink, error))?;
            }
            BatchEntry::File(file) => {
                let name = context.target.name(path, &file.name);
                self.place_file(directory, name, &context.set_ids.of_file(file.metadata), bytes)?;
                context.meter.stored(1);
            }
            BatchEntry::Retouch(name, metadata) => {
                let name = context.target.name(path, name);
                retouch(directory.as_fd(), name, &context.set_ids.of_file(*metadata))
                    .map_err(|error| (Operation::SetMetadata, error))?;
            }
        }
        Ok(())
    }

    fn place_directory(
        &mut self,
        parent: &OwnedFd,
        parent_path: &RelPath,
        name: &Name,
        metadata: Metadata,
    ) -> Result<(), Failure> {
        let cannot = |error| (Operation::MakeDirectory, error);
        let path = parent_path.join(name).map_err(|_| cannot(Errno::NAMETOOLONG.into()))?;
        if !self.context.untouched.holds(&path) && !self.make_new(parent, &path, name).map_err(cannot)? {
            self.directory(&path).map_err(cannot)?;
        }
        self.context.remember_directory(path, metadata);
        Ok(())
    }

    /// A whole file in a nursery.
    fn make_in(&self, nursery: &Nursery, file: &FileEntry, bytes: &[u8]) -> Result<(), Unmade> {
        let metadata = self.context.set_ids.of_file(file.metadata);
        // somebody may have removed the nursery, or the file system may take two names for one: by itself the file may succeed
        let created = nursery.create(&file.name, metadata.mode).map_err(|_error| Unmade::NotTaken)?;
        self.write_whole(nursery, &created, &metadata, bytes)
            .map_err(|why| Unmade::Failed { why, left: nursery.discard(&file.name).is_err() })
    }

    fn write_whole(
        &self,
        nursery: &Nursery,
        file: &File,
        metadata: &Metadata,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.contents.write(file, bytes).map_err(|error| (Operation::Write, error))?;
        nursery.set_metadata(file, metadata).map_err(|error| (Operation::SetMetadata, error))?;
        flush(file, self.context.durability == Durability::File)
    }

    fn place_file(
        &self,
        directory: &Arc<OwnedFd>,
        name: &Name,
        metadata: &Metadata,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let context = self.context;
        let existing = context.begin_in_place(directory, name, (bytes.len() as u64, metadata))?;
        let staged = match existing {
            Some(staged) => staged,
            None => Staged::create(directory, metadata.mode, &context.temp_names)
                .map_err(|error| (Operation::Create, error))?,
        };
        self.contents.write(staged.file(), bytes).map_err(|error| (Operation::Write, error))?;
        commit(context, staged, name, metadata, context.durability == Durability::File)
    }
}

/// A file that did not become whole in its nursery.
enum Unmade {
    /// It was not begun.
    NotTaken,
    /// `left`: whether something of it is still there.
    Failed { why: Failure, left: bool },
}

/// A file that was guessed and need not have been sent.
const ALREADY_THERE: (Operation, FaultCode) = (Operation::Create, FaultCode::AlreadyThere);

/// A group with fewer files is not worth a directory of its own.
const TOGETHER_FILES_MIN: usize = 8;

/// Metadata, flush if asked, final name: the end of every file that is made anew; and of one that is changed in its place.
pub(crate) fn commit(
    context: &Context,
    staged: Staged,
    name: &Name,
    metadata: &Metadata,
    flush_first: bool,
) -> Result<(), Failure> {
    if staged.is_in_place() {
        let finish = |staged: &Staged| finish_contents(staged.file(), metadata, false);
        return context.finish_in_place(staged, name, finish);
    }
    finish_contents(staged.file(), metadata, flush_first)?;
    staged.commit(name, &context.temp_names).map_err(|error| (Operation::Rename, error))
}

/// Metadata, and a flush if asked: what a file gets before its final name.
fn finish_contents(file: &File, metadata: &Metadata, flushed: bool) -> Result<(), Failure> {
    set_new_file_metadata(file, metadata).map_err(|error| (Operation::SetMetadata, error))?;
    flush(file, flushed)
}

fn flush(file: &File, flushed: bool) -> Result<(), Failure> {
    if flushed {
        file.sync_data().map_err(|error| (Operation::Flush, error))?;
    }
    Ok(())
}

/// A failure as the sender is told it, where that says more than an error number.
pub(crate) fn failure(operation: Operation, error: &io::Error) -> (Operation, FaultCode) {
    match (operation, Errno::from_io_error(error)) {
        (Operation::Rename | Operation::Symlink, Some(Errno::ISDIR)) => {
            (operation, FaultCode::DirectoryInTheWay)
        }
        (Operation::OpenInPlace, Some(Errno::WOULDBLOCK)) => (operation, FaultCode::Locked),
        (Operation::Verify, Some(Errno::STALE)) => (operation, FaultCode::Replaced),
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
    use zmove_chunk::file_root;
    use zmove_types::{ItemId, Timestamp};
    use zmove_wire::{EntryFault, Extraneous, Open, Purpose, TargetShape};

    use crate::config::ReceiverConfig;
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
        context(transfer, &open, (target, parts), &ReceiverConfig::default(), outcomes)
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

    /// Places a group and publishes what is open.
    fn place(placer: &mut Placer<'_>, group: DirectoryGroup) -> Vec<EntryFault> {
        let batch = begin(placer, group);
        placer.publish_all();
        batch.faults()
    }

    /// Places a group as far as that goes before anything is published.
    fn begin(placer: &mut Placer<'_>, group: DirectoryGroup) -> Arc<Unsettled> {
        let batch = Unsettled::new(ItemId(1), Known::Needed);
        placer.place_group(group, 0, &batch, &mut &[b'x'; 64][..]);
        batch
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
    fn a_directory_that_is_called_as_a_nursery_might_be_is_data() {
        let home = tempfile::tempdir().unwrap();
        for (first, second) in [("d", ".zmove-new-d"), (".zmove-new-d", "d")] {
            let context = transfer(home.path());
            let mut placer = Placer::new(&context);
            for directory in [first, second] {
                assert_eq!(place(&mut placer, files(directory, "f", 8)), []);
            }
            for directory in [first, second] {
                assert_eq!(place(&mut placer, directory_entry("", directory)), []);
            }
            for file in (0..8).map(|number| home.path().join(format!(".zmove-new-d/f{number}"))) {
                assert!(file.exists(), "{} after {first}", file.display());
            }
        }
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
        };
        second.files.declare(id, head, |_| (None, None)).unwrap();
        let file = second.files.find(id).unwrap().unwrap();
        let opened = guest.directory(&path("d")).unwrap();
        let staged = Staged::create(&opened, 0o600, &second.temp_names).unwrap();
        assert_eq!(place(&mut maker, files("d", "f", 8)), []);
        finish_file(&second, &mut guest, &file, Complete(staged));
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
    fn batches_of_one_new_directory_share_a_nursery() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let (mut first, mut second) = (Placer::new(&context), Placer::new(&context));
        let one = begin(&mut first, files("d", "f", 8));
        let other = begin(&mut second, files("d", "g", 1));
        assert_eq!(names(&home.path().join("d")), [""; 0], "nothing has its name");
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (2, 2), "nothing is settled");
        first.publish_all();
        assert_eq!(names(&home.path().join("d")).len(), 9);
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1));
        assert_eq!(names(home.path()), ["d"]);
    }

    #[test]
    fn who_opens_a_directory_finds_what_has_come_of_it() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batch = begin(&mut placer, files("d", "f", 8));
        Placer::new(&context).directory(&path("d/below")).unwrap();
        assert_eq!(names(&home.path().join("d")).len(), 9);
        assert_eq!(Arc::strong_count(&batch), 1);
        assert_eq!(place(&mut placer, files("d", "g", 8)), []);
        assert_eq!(names(&home.path().join("d")).len(), 17);
    }

    #[test]
    fn files_of_a_nursery_whose_directory_was_filled_meanwhile_go_there_one_by_one() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batches = [begin(&mut placer, files("d", "f", 8)), begin(&mut placer, files("d", "g", 2))];
        let filled = home.path().join("d");
        std::fs::write(filled.join("f3"), "of somebody else").unwrap();
        std::fs::create_dir(filled.join("g1")).unwrap();
        placer.publish_all();
        assert_eq!(std::fs::read(filled.join("f3")).unwrap(), b"x", "replaced, as any file");
        assert_eq!(names(&filled).len(), 10);
        assert_eq!(names(home.path()), ["d"]);
        let (operation, code) = (Operation::Rename, FaultCode::DirectoryInTheWay);
        assert_eq!(batches[0].faults(), []);
        assert_eq!(batches[1].faults(), [EntryFault { entry: 1, operation, code }]);
    }

    #[test]
    fn a_guessed_file_that_is_there_stays_when_its_nursery_comes_too_late() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let batch = Unsettled::new(ItemId(1), Known::PerhapsThere);
        placer.place_group(files("d", "f", 8), 0, &batch, &mut &[b'x'; 8][..]);
        let there = home.path().join("d/f3");
        std::fs::write(&there, "y").unwrap();
        let file = File::open(&there).unwrap();
        set_new_file_metadata(&file, &metadata(0o644)).unwrap();
        placer.publish_all();
        assert_eq!(std::fs::read(&there).unwrap(), b"y");
        let (operation, code) = ALREADY_THERE;
        assert_eq!(batch.faults(), [EntryFault { entry: 3, operation, code }]);
    }

    #[test]
    fn of_one_name_in_two_batches_the_last_stays() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let first = begin(&mut placer, files("d", "f", 8));
        let second = Unsettled::new(ItemId(2), Known::Needed);
        placer.place_group(files("d", "f", 9), 0, &second, &mut &[b'y'; 9][..]);
        placer.publish_all();
        assert_eq!((first.faults(), second.faults()), (Vec::new(), Vec::new()));
        let all = names(&home.path().join("d"));
        assert_eq!(all.len(), 9);
        assert!(all.iter().all(|name| std::fs::read(home.path().join("d").join(name)).unwrap() == b"y"));
    }

    #[test]
    fn files_are_placed_when_somebody_has_removed_their_nursery() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let lost = begin(&mut placer, files("d", "f", 8));
        let hidden = names(home.path()).into_iter().find(|name| name != "d").unwrap();
        std::fs::remove_dir_all(home.path().join(hidden)).unwrap();
        let later = begin(&mut placer, files("d", "g", 9));
        placer.publish_all();
        assert_eq!((lost.faults().len(), later.faults()), (8, Vec::new()), "a fault for each that is gone");
        assert_eq!(names(&home.path().join("d")).len(), 9);
    }

    #[test]
    fn an_old_nursery_takes_no_more_and_its_files_get_their_names() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let (mut placer, mut other) = (Placer::new(&context), Placer::new(&context));
        let first = begin(&mut placer, files("d", "f", 8));
        let held = other.nursery(&path("d"), 1).unwrap();
        context.nurseries.make_old();
        let second = begin(&mut placer, files("d", "g", 8));
        assert_eq!(names(&home.path().join("d")).len(), 8, "without the nursery, which another fills");
        let filled = Filled { batch: Unsettled::new(ItemId(2), Known::Needed), files: Vec::new() };
        context.nurseries.leave(&path("d"), held, filled, false);
        other.publish_old();
        assert_eq!((first.faults(), second.faults()), (Vec::new(), Vec::new()));
        assert_eq!(names(&home.path().join("d")).len(), 16);
        assert_eq!(names(home.path()), ["d"]);
    }

    #[test]
    fn what_a_writer_that_panics_was_filling_gets_no_name() {
        let home = tempfile::tempdir().unwrap();
        let context = transfer(home.path());
        let mut placer = Placer::new(&context);
        let whole = begin(&mut placer, files("d", "f", 8));
        // it never leaves
        let panicked = placer.nursery(&path("d"), 1).unwrap();
        placer.publish_all();
        assert_eq!(names(&home.path().join("d")), [""; 0]);
        assert_eq!(Arc::strong_count(&whole), 2);
        drop((panicked, context));
        assert_eq!(names(home.path()), ["d"], "it goes with the transfer");
    }
}
