//! The parts of large files, which are files that are not whole yet, and their records in journals.
//!
//! A large file is written under a hidden name that stays when the transfer breaks, and each of its groups is
//! journalled when it has been written. A later transfer of the same owner to the same target, which asks about the
//! very same source file (size, both times, inode), resumes from the groups that are there.
//!
//! Groups that had been flushed are trusted. The others, few where flushes are rolling and all after `--durability
//! none`, are read back and compared: a reboot loses them, and so does a device that is unplugged. So are all groups of
//! a part whose change time is not the one that its transfer recorded when it left it: somebody else wrote to the part,
//! or the receiver was killed before it could record anything.
//!
//! Where a journal cannot be written the transfer goes on without one, and the daemon logs that.
//!
//! **Invariant:** a group that is reported to a sender as held has the reported hash: it was written and journalled,
//! and either nothing has happened to it since (it was flushed, and the part is as its transfer left it), or it has
//! been read back from the storage and hashed again.

pub(crate) mod shared;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::io::Errno;
use zmove_chunk::group_cv;
use zmove_disk::{Direct, FileIdentity, LastingNames, Lease, Staged, Tree};
use zmove_types::{Cv, FileId, GroupSpan, Name, RelPath, TransferId, unix_now};
use zmove_wire::FileHead;

use crate::config::BUFFER_BYTES;
use crate::resume::journal::{
    Begin, Journal, JournalError, Mark, Orphan, PartFile, SourceVersion, UnfinishedFile, birth_of,
    orphans_like,
};
use crate::resume::parts::shared::SharedParts;
use crate::rights::quota::{Booking, Quota};
use crate::store::large_files::came::GROUP_KEPT_BYTES;
use crate::store::target::file_systems::Flush;
use crate::sync::run_on_several;
use zmove_types::Lock;

/// All parts of one transfer.
#[derive(Debug)]
pub(crate) struct PartStore {
    /// The directory of the journals; without one, no journal is kept.
    journals: Option<PathBuf>,
    /// What lets a part be written that a later transfer may take over.
    lease: Lease,
    begin: Begin,
    /// Whether a flush proves nothing any more, because a part is not flushed with the target directory or a
    /// flush has failed.
    unflushed: AtomicBool,
    quota: Quota,
    /// In a job: parts that other receivers write too.
    pub(crate) shared: Option<SharedParts>,
    state: Lock<PartsState>,
}

#[derive(Debug, Default)]
struct PartsState {
    journal: Option<Arc<Journal>>,
    /// Why nothing more is journalled. The journal until then stays held, and so do its parts.
    trouble: Option<JournalError>,
    /// The parts that earlier transfers have left, by their final path.
    earlier: HashMap<RelPath, Earlier>,
    /// Older parts of files that have a newer one.
    older: Vec<(RelPath, Earlier)>,
    /// The journals of earlier transfers, held as long as this transfer lasts, or until they list nothing.
    orphans: Vec<Option<Orphan>>,
    /// The parts whose groups were reported to the sender as held, until it declares the file.
    prepared: HashMap<RelPath, Prepared>,
    /// Files that are given up and whose parts could not be removed.
    staying: HashSet<FileId>,
    /// The memory booked for this state.
    held: Option<Booking>,
}

#[derive(Debug)]
struct Earlier {
    /// The index of the journal that lists the file.
    orphan: usize,
    file: UnfinishedFile,
}

#[derive(Debug)]
struct Prepared {
    earlier: Earlier,
    staged: Staged,
}

/// A part from which a file resumes.
#[derive(Debug)]
pub(crate) struct Prior {
    pub(crate) staged: Staged,
    /// The groups that are there, with their values.
    pub(crate) groups: Vec<(u32, Cv)>,
}

/// Threads that read back one part. No more of a key hash at a time than there are cores; the others wait for the
/// storage.
const READERS_MAX: usize = 4;

/// Files of fewer bytes are sent again as a whole: for them the journal would cost more than it saves.
pub(crate) const JOURNALLED_BYTES_MIN: u64 = 16 << 20;

impl PartStore {
    /// The parts of a transfer, with what earlier ones of the same owner have left at the same target. What is held is
    /// booked on `quota`; where there is no room for what they have left, nothing is resumed.
    pub(crate) fn new(
        journals: Option<PathBuf>,
        transfer: TransferId,
        owner: String,
        target: &Tree,
        quota: &Quota,
    ) -> Self {
        let begin = begin(transfer, owner, target);
        let mut state = PartsState::default();
        if let Some(directory) = &journals {
            let ours = |other: &Begin| {
                // Devices may have other numbers after a reboot.
                let same_place = other.device == begin.device || other.target == begin.target;
                same_place && (&other.owner, other.inode) == (&begin.owner, begin.inode)
            };
            match orphans_like(directory, &begin, ours) {
                // A journal that cannot be read is left for `zmove journal`.
                Ok(orphans) => state.find_earlier(orphans.into_iter().filter_map(Result::ok)),
                Err(error) => state.trouble = Some(error),
            }
        }
        match quota.book_memory(state.bytes()) {
            Ok(held) => state.held = Some(held),
            Err(error) => {
                state = PartsState {
                    trouble: Some(error.into()),
                    ..PartsState::default()
                };
            }
        }
        Self {
            journals,
            ..Self::beginning(target.lease(), begin, quota, state)
        }
    }

    fn beginning(lease: &Lease, begin: Begin, quota: &Quota, state: PartsState) -> Self {
        Self {
            lease: lease.clone(),
            journals: None,
            begin,
            unflushed: AtomicBool::new(false),
            quota: quota.clone(),
            shared: None,
            state: Lock::new(state),
        }
    }

    /// Releases the locks of all journals, for another process to take them over. Nothing is journalled any more.
    pub(crate) fn unlock_journals(&self) {
        let mut state = self.state.lock();
        state.trouble = Some(JournalError::LeftBehind);
        state.journal.iter().for_each(|journal| journal.unlock());
        state.orphans.iter().flatten().for_each(Orphan::unlock);
    }

    /// Whether earlier transfers have left anything.
    pub(crate) fn has_earlier(&self) -> bool {
        !self.state.lock().earlier.is_empty()
    }

    /// Why no journal is kept although it should be.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.as_ref().map(ToString::to_string)
    }

    /// The values of a file's groups that are held and need not come again, by number. At least one group of
    /// the file is left out, since the last that comes is what makes a file whole. Each thread that reads groups back
    /// calls `hashing` first, and ends when the function that this returns is true.
    pub(crate) fn claim<Stop: Fn() -> bool>(
        &self,
        path: &RelPath,
        directory: &Arc<OwnedFd>,
        source: &SourceVersion,
        direct: Direct,
        hashing: impl Fn() -> Stop + Sync,
    ) -> BTreeMap<u32, Cv> {
        let Ok(descriptors) = self.quota.book_file() else {
            return BTreeMap::new();
        };
        let Some(mut earlier) = self.take_earlier(path) else {
            return BTreeMap::new();
        };
        // A part that cannot be opened now stays in its journal, for a later transfer.
        let Ok(reopened) = reopen(&self.lease, directory, &earlier.file.part, direct) else {
            return BTreeMap::new();
        };
        let Some((mut staged, there)) = reopened else {
            self.state.lock().forget(&earlier);
            return BTreeMap::new();
        };
        let is_untouched = is_as_left(&earlier.file, &there);
        staged.attach(descriptors);
        let groups = &mut earlier.file.groups;
        if there.bytes == source.bytes && earlier.file.part.source == *source {
            // Groups that were not flushed are lost also where a device has gone and come back.
            let is_trusted = |flushed: bool| is_untouched && flushed;
            let doubtful = groups
                .iter()
                .filter(|(_, (_, flushed))| !is_trusted(*flushed));
            let doubtful: Vec<_> = doubtful.map(|(index, (cv, _))| (*index, *cv)).collect();
            let Some(found) = self.find(&staged, source.bytes, &doubtful, &hashing) else {
                return BTreeMap::new();
            };
            groups.retain(|index, (_, flushed)| is_trusted(*flushed) || found.contains(index));
            if Some(groups.len()) == GroupSpan::count(source.bytes).map(|count| count as usize) {
                groups.pop_last();
            }
        } else {
            groups.clear();
        }
        let held: BTreeMap<_, _> = groups
            .iter()
            .map(|(index, (cv, _))| (*index, *cv))
            .collect();
        if !held.is_empty() {
            self.state
                .lock()
                .prepared
                .insert(path.clone(), Prepared { earlier, staged });
        } else if !hashing()() {
            self.remove_earlier(&earlier, &staged);
        }
        held
    }

    /// The groups of these that are on the storage, read by several threads: a killed process may have left any amount.
    /// `None` where there is no memory to find out.
    fn find<Stop: Fn() -> bool>(
        &self,
        staged: &Staged,
        bytes: u64,
        groups: &[(u32, Cv)],
        hashing: &(impl Fn() -> Stop + Sync),
    ) -> Option<HashSet<u32>> {
        if groups.is_empty() {
            return Some(HashSet::new());
        }
        let _booked = self.quota.book_memory(BUFFER_BYTES).ok()?;
        let next = AtomicUsize::new(0);
        let look = || {
            let stop = hashing();
            let mut buffer = vec![0; BUFFER_BYTES];
            let mut found = Vec::new();
            while !stop()
                && let Some((index, cv)) = groups.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let span = GroupSpan::of(bytes, *index);
                if span.is_some_and(|span| is_there(staged, span, *cv, &mut buffer)) {
                    found.push(*index);
                }
            }
            found
        };
        let hold = |_| {
            self.quota
                .book_thread()
                .zip(self.quota.book_memory(BUFFER_BYTES).ok())
        };
        let helpers = (1..READERS_MAX.min(groups.len())).map_while(hold);
        Some(
            run_on_several("zmove-resume", helpers, look)
                .into_iter()
                .collect(),
        )
    }

    /// The part from which a file that has just been declared resumes.
    pub(crate) fn take_up(&self, id: FileId, path: &RelPath, head: &FileHead) -> Option<Prior> {
        let Prepared { earlier, staged } = self.state.lock().prepared.remove(path)?;
        if earlier.file.part.source != source_of(head) {
            return None;
        }
        // The part may have begun as a copy of an old version.
        if head
            .data
            .as_ref()
            .is_some_and(|data| staged.make_holes(data).is_err())
        {
            return None;
        }
        self.look_where(&staged);
        match self
            .journal()
            .map(|journal| journal.adopt(id.0, &earlier.file))
        {
            Some(Ok(())) => self.state.lock().forget(&earlier),
            Some(Err(error)) => self.note(error),
            None => {}
        }
        Some(Prior {
            staged,
            groups: earlier
                .file
                .groups
                .into_iter()
                .map(|(index, (cv, _))| (index, cv))
                .collect(),
        })
    }

    /// A part for a large file that begins; under a name that lasts if it is journalled.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn create(
        &self,
        id: FileId,
        path: &RelPath,
        head: &FileHead,
        directory: &Arc<OwnedFd>,
        names: &LastingNames,
    ) -> io::Result<Staged> {
        let descriptors = self.quota.book_file()?;
        let journal = (head.bytes >= JOURNALLED_BYTES_MIN)
            .then(|| self.journal())
            .flatten();
        let mut staged = Staged::create(directory, 0o600)?;
        staged.attach(descriptors);
        let Some(journal) = journal else {
            return Ok(staged);
        };
        let identity = FileIdentity::of(staged.file())?;
        let is_free = |name: &Name| FileIdentity::at(directory, name).is_err();
        let part = std::iter::repeat_with(|| names.name())
            .find(is_free)
            .expect("there are others");
        let part = PartFile {
            path: path.clone(),
            part,
            source: source_of(head),
            inode: identity.inode,
            born: birth_of(staged.file()),
        };
        self.look_where(&staged);
        match journal.part(id.0, &part) {
            // Only a part that a journal lists may get a lasting name: another would stay for ever.
            Ok(()) => staged.last_as(&self.lease, part.part)?,
            Err(error) => self.note(error),
        }
        Ok(staged)
    }

    /// Has the journal of a session in a job record something, without which its work does not go on.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub(crate) fn record_work(
        &self,
        record: impl FnOnce(&Journal) -> Result<(), JournalError>,
    ) -> io::Result<()> {
        let journal = {
            let state = self.state.lock();
            let why_not = || {
                state
                    .trouble
                    .as_ref()
                    .map_or(Errno::IO, JournalError::errno)
            };
            state.running().ok_or_else(why_not)?
        };
        record(&journal).map_err(|error| {
            let errno = error.errno();
            self.note(error);
            errno.into()
        })
    }

    /// Records that a group has been written.
    ///
    /// # Errors
    /// In a job, where it does not count: the journal is full.
    pub(crate) fn written(&self, id: FileId, group: u32, cv: Cv) -> io::Result<()> {
        let Some(shared) = &self.shared else {
            self.record(|journal| journal.groups(id.0, group, &[cv]));
            return Ok(());
        };
        // A flush covers the parts that are held here.
        let mut written = shared.written.lock();
        let Some(part) = written.get_mut(&id).filter(|part| !part.is_closing) else {
            return Ok(());
        };
        part.is_dirty = true;
        self.record_work(|journal| journal.groups(id.0, group, &[cv]))
    }

    /// Gives back the room that the storage keeps for the journal of a session in a job, which is about to end.
    pub(crate) fn give_back_room(&self) {
        // it goes with the journal
        let _best_effort = self.running().map(|journal| journal.give_back_room());
    }

    /// Records that nothing more is written to the part of a file.
    pub(crate) fn left(&self, id: FileId, there: &FileIdentity) {
        if self.shared.is_some() {
            return;
        }
        self.record(|journal| journal.left(id.0, there.ctime));
    }

    /// Removes the part of a file that is given up. Where that fails, it stays in the journal, for a later transfer.
    pub(crate) fn remove(&self, id: FileId, part: &Staged) {
        // What others have written of it counts.
        if let Some(shared) = &self.shared {
            return shared.ended(id);
        }
        if part.remove().is_err() {
            self.stays(id);
        }
    }

    /// Notes that the part of a file is still there when the file ends.
    pub(crate) fn stays(&self, id: FileId) {
        self.state.lock().staying.insert(id);
    }

    /// Records that a file has its name, or is given up for good.
    pub(crate) fn ended(&self, id: FileId) {
        if let Some(shared) = &self.shared {
            return shared.ended(id);
        }
        if !self.state.lock().staying.remove(&id) {
            self.record(|journal| journal.ended(id.0));
        }
    }

    /// The position of the journal, to be taken before a flush.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.running().map(|journal| journal.mark())
    }

    /// Records that all that was written to the target's own file system before `mark` has been flushed.
    pub(crate) fn flushed(&self, mark: Mark) {
        if !self.unflushed.load(Ordering::Relaxed) {
            self.record(|journal| journal.flushed(mark));
        }
    }

    /// Records that a flush has failed. The kernel reports a write error once and may have thrown away what it could
    /// not write; the next flush, which covers earlier writes as well, may succeed.
    pub(crate) fn flush_failed(&self) {
        self.shared.iter().for_each(SharedParts::flush_failed);
        self.unflushed.store(true, Ordering::Relaxed);
    }

    /// Removes the journals without unfinished files at the end of the transfer.
    pub(crate) fn finish(&self) {
        if let Some(shared) = &self.shared {
            // What is not flushed does not count, but others may have named it.
            let _does_not_count = shared.flush();
            return;
        }
        let mut state = self.state.lock();
        let is_empty = |orphan: &mut Orphan| orphan.unfinished().files.is_empty();
        let emptied = state
            .orphans
            .iter_mut()
            .filter_map(|orphan| orphan.take_if(is_empty));
        // A journal that cannot be removed lists nothing.
        emptied.for_each(|orphan| drop(orphan.remove()));
        if let Some(journal) = state.journal.take_if(|journal| journal.is_idle()) {
            let _of_nothing = journal.remove();
        }
    }

    /// Checks, before anything of a part is journalled, whether the target's flush covers it. A part on another file
    /// system is not flushed with the target, and one on a file system that is flushed file by file only when it is
    /// whole.
    fn look_where(&self, staged: &Staged) {
        let is_with_target =
            rustix::fs::fstat(staged.file()).is_ok_and(|it| it.st_dev == self.begin.device);
        if !is_with_target || Flush::of(staged.file()) == Flush::Each {
            self.unflushed.store(true, Ordering::Relaxed);
        }
    }

    /// Removes parts from which nobody will resume, since their file has been published by other means: smaller, or in
    /// a batch. To be called before directories get their times.
    pub(crate) fn drop_overtaken(&self, target: &Tree) {
        let paths: Vec<_> = self.state.lock().earlier.keys().cloned().collect();
        for path in paths {
            let Some(earlier) = self.take_earlier(&path) else {
                continue;
            };
            if !self.drop_if_overtaken(target, &path, &earlier) {
                self.state.lock().earlier.insert(path, earlier);
            }
        }
        let older = std::mem::take(&mut self.state.lock().older);
        for (path, earlier) in older {
            // A part that is not overtaken stays in its journal, for a later transfer.
            self.drop_if_overtaken(target, &path, &earlier);
        }
    }

    fn drop_if_overtaken(&self, target: &Tree, path: &RelPath, earlier: &Earlier) -> bool {
        let Some(part) = overtaken(target, path, &earlier.file.part) else {
            return false;
        };
        self.remove_earlier(earlier, &part)
    }

    /// Removes first the part and then its record, or it might stay for ever. Returns whether it is gone.
    fn remove_earlier(&self, earlier: &Earlier, part: &Staged) -> bool {
        let removed = part.remove().is_ok();
        if removed {
            self.state.lock().forget(earlier);
        }
        removed
    }

    fn take_earlier(&self, path: &RelPath) -> Option<Earlier> {
        self.state.lock().earlier.remove(path)
    }

    /// The journal, created if need be.
    fn journal(&self) -> Option<Arc<Journal>> {
        let directory = self.journals.as_ref()?;
        let mut state = self.state.lock();
        if state.journal.is_none() && state.trouble.is_none() {
            match Journal::create_within(directory, &self.begin, self.quota.room()) {
                Ok(journal) => state.journal = Some(Arc::new(journal)),
                Err(error) => state.trouble = Some(error),
            }
        }
        state.running()
    }

    fn running(&self) -> Option<Arc<Journal>> {
        self.state.lock().running()
    }

    fn record(&self, write: impl FnOnce(&Journal) -> Result<(), JournalError>) {
        if let Some(Err(error)) = self.running().map(|journal| write(&journal)) {
            self.note(error);
        }
    }

    /// Notes why the journal cannot be written any more. It is kept, since its records are true.
    fn note(&self, error: JournalError) {
        self.state.lock().trouble = Some(error);
    }
}

/// The memory of a file of an earlier transfer beside its path and groups.
const FILE_KEPT_BYTES: usize = 256;

impl PartsState {
    fn running(&self) -> Option<Arc<Journal>> {
        self.journal.clone().filter(|_| self.trouble.is_none())
    }

    /// The memory of what earlier transfers have left.
    fn bytes(&self) -> usize {
        let older = self.older.iter().map(|(path, earlier)| (path, earlier));
        let files = self.earlier.iter().chain(older);
        // Each file is remembered twice: in this state and by its journal.
        let each = files.map(|(path, earlier)| {
            2 * (FILE_KEPT_BYTES
                + 2 * path.as_bytes().len()
                + GROUP_KEPT_BYTES * earlier.file.groups.len())
        });
        each.sum()
    }

    fn find_earlier(&mut self, orphans: impl Iterator<Item = Orphan>) {
        let mut orphans: Vec<_> = orphans.collect();
        // Of two parts with the same path the one that was written last counts.
        orphans.sort_by_key(Orphan::modified);
        for (number, orphan) in orphans.into_iter().enumerate() {
            let files = orphan.unfinished().files.clone();
            self.orphans.push(Some(orphan));
            for file in files {
                let path = file.part.path.clone();
                let inode = file.part.inode;
                let earlier = Earlier {
                    orphan: number,
                    file,
                };
                match self.earlier.insert(path.clone(), earlier) {
                    // The transfer that took the part over was killed before it could record that.
                    Some(before) if before.file.part.inode == inode => self.forget(&before),
                    Some(before) => self.older.push((path, before)),
                    None => {}
                }
            }
        }
    }

    /// Records that what an earlier transfer has left is taken over, or gone.
    fn forget(&mut self, earlier: &Earlier) {
        if let Some(orphan) = &mut self.orphans[earlier.orphan] {
            // Where this fails, a later transfer looks at the part again, and finds it gone.
            let _told_again = orphan.ended(earlier.file.file);
        }
    }
}

/// The first record of a transfer's journal. The target's path is for people, and for removing its parts later.
pub(crate) fn begin(transfer: TransferId, owner: String, target: &Tree) -> Begin {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", target.fd().as_raw_fd()))
        .unwrap_or_default();
    // An open directory always has a status.
    let (device, inode) =
        rustix::fs::fstat(target.fd()).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    let now = unix_now();
    Begin {
        transfer,
        owner: owner.into_bytes(),
        target: path.into_os_string().into_vec(),
        device,
        inode,
        begun: now.as_secs(),
    }
}

/// Opens a part again, and looks at its present state; `None` where it is gone, or the file there is not the part that
/// the journal lists.
fn reopen(
    lease: &Lease,
    directory: &Arc<OwnedFd>,
    part: &PartFile,
    direct: Direct,
) -> io::Result<Option<(Staged, FileIdentity)>> {
    let is_it = |found: BorrowedFd<'_>| {
        FileIdentity::of(found)
            .is_ok_and(|there| there.regular && part.is_in(there.inode, birth_of(found)))
    };
    let staged = match Staged::reopen(lease, directory, &part.part, direct, is_it) {
        Ok(staged) => staged,
        Err(error) => {
            let gone = matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOENT | Errno::LOOP | Errno::ISDIR)
            );
            return if gone { Ok(None) } else { Err(error) };
        }
    };
    let identity = FileIdentity::of(staged.file())?;
    Ok(Some((staged, identity)))
}

/// Opens the part, if it is overtaken.
fn overtaken(target: &Tree, path: &RelPath, part: &PartFile) -> Option<Staged> {
    let directory = target.open_directory(&path.parent()?).ok()?;
    let (staged, identity) = reopen(target.lease(), &directory, part, Direct::Off)
        .ok()
        .flatten()?;
    is_overtaken(&directory, &path.file_name()?, &identity).then_some(staged)
}

/// Whether the part's final path holds a file that was put there, or changed, after the part was last
/// written.
pub(crate) fn is_overtaken(directory: &OwnedFd, name: &Name, part: &FileIdentity) -> bool {
    let moment = |identity: &FileIdentity| (identity.ctime.seconds, identity.ctime.nanos);
    let there = FileIdentity::at(directory, name)
        .ok()
        .filter(|there| there.regular);
    there.is_some_and(|there| moment(&there) > moment(part))
}

/// Whether a part is unchanged since its transfer recorded that it was done with it. A file system with times in whole
/// seconds cannot show that: somebody else may have written in the same second.
fn is_as_left(file: &UnfinishedFile, there: &FileIdentity) -> bool {
    file.left == Some(there.ctime) && there.ctime.nanos > 0
}

fn is_there(staged: &Staged, span: GroupSpan, cv: Cv, buffer: &mut [u8]) -> bool {
    let bytes = &mut buffer[..span.len as usize];
    staged.file().read_exact_at(bytes, span.offset()).is_ok() && group_cv(span.index, bytes) == cv
}

pub(crate) fn source_of(head: &FileHead) -> SourceVersion {
    let FileHead {
        metadata,
        bytes,
        ctime,
        inode,
        ..
    } = head;
    SourceVersion {
        bytes: *bytes,
        mtime: metadata.mtime,
        ctime: *ctime,
        inode: *inode,
    }
}
