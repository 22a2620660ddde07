//! Parts of large files, and their records in journals. A part is the hidden file that holds the groups of an
//! incomplete large file.
//!
//! A large file is written under a hidden name, which it keeps if the transfer is interrupted. Each of its groups is
//! journaled after it was written. A later transfer of the same owner to the same target resumes from these groups if
//! its source file is exactly the same (size, modification and change time, inode).
//!
//! Flushed groups are trusted. All other groups are read back and compared, because a reboot or the removal of a device
//! loses unflushed data. With rolling flushes, only a few groups are unflushed. With `--durability none`, all groups
//! are unflushed. All groups of a part are read back if the part's change time differs from the one that its transfer
//! recorded at the end. Then either another program has written to the part, or the receiver was killed before it could
//! record the time.
//!
//! If a journal cannot be written, the transfer continues without it, and the daemon logs the error.
//!
//! **Invariant:** a group that is reported to a sender as held has the reported hash. It was written and journaled. In
//! addition, either it was flushed and the part has not changed, or the group was read back from the storage and hashed
//! again.

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
use crate::rights::quota::{Charge, Quota};
use crate::store::large_files::received_hashes::GROUP_KEPT_BYTES;
use crate::store::target::file_systems::Flush;
use crate::sync::run_on_several;
use zmove_types::Lock;

/// The parts of one transfer.
#[derive(Debug)]
pub(crate) struct PartStore {
    /// The directory that contains the journals. `None` if no journal is kept.
    journals: Option<PathBuf>,
    /// The lease that permits writing to parts. After its end, a later transfer may take over the parts.
    lease: Lease,
    begin: Begin,
    /// Whether groups may be lost in spite of a successful flush. This is the case if a flush of the target does not
    /// cover a part, or if an earlier flush has failed.
    unflushed: AtomicBool,
    quota: Quota,
    /// In a shared job: parts that other receivers also write.
    pub(crate) shared: Option<SharedParts>,
    state: Lock<PartsState>,
}

#[derive(Debug, Default)]
struct PartsState {
    journal: Option<Arc<Journal>>,
    /// The error that stopped journaling. The existing journal and its parts stay locked.
    trouble: Option<JournalError>,
    /// The newest part of each file from earlier transfers, by the final path of the file.
    earlier: HashMap<RelPath, Earlier>,
    /// Older parts of files that also have a newer part in `earlier`.
    older: Vec<(RelPath, Earlier)>,
    /// Journals of earlier transfers. Each stays locked until this transfer ends or the journal lists no more files.
    orphans: Vec<Option<Orphan>>,
    /// Parts whose groups were reported to the sender as held. A part is removed from this map when the sender declares
    /// its file.
    prepared: HashMap<RelPath, Prepared>,
    /// Files that have ended but whose parts could not be removed.
    staying: HashSet<FileId>,
    /// Memory reserved for this state.
    held: Option<Charge>,
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
pub(crate) struct ResumedPart {
    pub(crate) staged: Staged,
    /// The groups that the part already contains, with their chaining values.
    pub(crate) groups: Vec<(u32, Cv)>,
}

/// Maximum number of threads that read back one part. For each key, at most one thread per core hashes at a time. More
/// threads are useful because some wait for the storage.
const READERS_MAX: usize = 4;

/// Files smaller than this are sent again completely, because a journal would cost more than it saves.
pub(crate) const JOURNALLED_BYTES_MIN: u64 = 16 << 20;

impl PartStore {
    /// Creates the part store of a transfer. It includes the parts of earlier transfers of the same owner at the same
    /// target. `quota` is charged for their memory. If this would exceed the quota, no file is resumed.
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
                // Device numbers may change at a reboot, so a matching path is enough.
                let same_place = other.device == begin.device || other.target == begin.target;
                same_place && (&other.owner, other.inode) == (&begin.owner, begin.inode)
            };
            match orphans_like(directory, &begin, ours) {
                // Journals that cannot be read are left for `zmove journal`.
                Ok(orphans) => state.find_earlier(orphans.into_iter().filter_map(Result::ok)),
                Err(error) => state.trouble = Some(error),
            }
        }
        match quota.charge_memory(state.bytes()) {
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

    /// Releases the locks of all journals, so that another process can take them over. Nothing more is journaled.
    pub(crate) fn unlock_journals(&self) {
        let mut state = self.state.lock();
        state.trouble = Some(JournalError::LeftBehind);
        state.journal.iter().for_each(|journal| journal.unlock());
        state.orphans.iter().flatten().for_each(Orphan::unlock);
    }

    /// Returns whether earlier transfers have left parts.
    pub(crate) fn has_earlier(&self) -> bool {
        !self.state.lock().earlier.is_empty()
    }

    /// Returns the reason why the journal is missing or incomplete, or `None` if it is complete.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.as_ref().map(ToString::to_string)
    }

    /// Returns the groups of a file that are already stored and need not be sent, with their chaining values. Always
    /// omits at least one group, because a file is completed when its last group is received.
    ///
    /// Each thread that reads groups back calls `hashing` first. The thread stops when the function returned by
    /// `hashing` returns true.
    pub(crate) fn claim<Stop: Fn() -> bool>(
        &self,
        path: &RelPath,
        directory: &Arc<OwnedFd>,
        source: &SourceVersion,
        direct: Direct,
        hashing: impl Fn() -> Stop + Sync,
    ) -> BTreeMap<u32, Cv> {
        let Ok(descriptors) = self.quota.charge_file() else {
            return BTreeMap::new();
        };
        let Some(mut earlier) = self.take_earlier(path) else {
            return BTreeMap::new();
        };
        // A part that cannot be opened now is kept in its journal for a later transfer.
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
            // Unflushed groups may be lost even without a reboot, if a device was disconnected and reconnected.
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

    /// Reads back these groups and returns those that are stored correctly. Uses several threads, because a killed
    /// process may have left any number of unflushed groups. Returns `None` if the memory for reading cannot be
    /// reserved.
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
        let _booked = self.quota.charge_memory(BUFFER_BYTES).ok()?;
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
                .charge_thread()
                .zip(self.quota.charge_memory(BUFFER_BYTES).ok())
        };
        let helpers = (1..READERS_MAX.min(groups.len())).map_while(hold);
        Some(
            run_on_several("zmove-resume", helpers, look)
                .into_iter()
                .collect(),
        )
    }

    /// Returns the part from which a newly declared file resumes.
    pub(crate) fn resume(
        &self,
        id: FileId,
        path: &RelPath,
        head: &FileHead,
    ) -> Option<ResumedPart> {
        let Prepared { earlier, staged } = self.state.lock().prepared.remove(path)?;
        if earlier.file.part.source != source_of(head) {
            return None;
        }
        // The part may have begun as a copy of an old version of the file, which may have data where the new version
        // has holes.
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
        Some(ResumedPart {
            staged,
            groups: earlier
                .file
                .groups
                .into_iter()
                .map(|(index, (cv, _))| (index, cv))
                .collect(),
        })
    }

    /// Creates the part of a new large file. If the part is journaled, it gets a persistent name.
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
        let descriptors = self.quota.charge_file()?;
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
        match journal.record_part(id.0, &part) {
            // Only a part in a journal may get a persistent name. Any other part would be kept forever.
            Ok(()) => staged.make_lasting(&self.lease, part.part)?,
            Err(error) => self.note(error),
        }
        Ok(staged)
    }

    /// Adds a record to the journal of a session in a shared job. Without the record, the session cannot continue its
    /// work.
    ///
    /// # Errors
    /// The record could not be written.
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
    /// In a shared job, returns an error if the record cannot be written, for example because the journal is full. In
    /// that case, the group counts as not written.
    pub(crate) fn written(&self, id: FileId, group: u32, cv: Cv) -> io::Result<()> {
        let Some(shared) = &self.shared else {
            self.record(|journal| journal.record_groups(id.0, group, &[cv]));
            return Ok(());
        };
        // Only the parts in this map are flushed, so groups of other parts do not count as written.
        let mut written = shared.written.lock();
        let Some(part) = written.get_mut(&id).filter(|part| !part.is_closing) else {
            return Ok(());
        };
        part.is_dirty = true;
        self.record_work(|journal| journal.record_groups(id.0, group, &[cv]))
    }

    /// Releases the storage that was preallocated for the journal of a session in a shared job. Call this when the
    /// session is about to end.
    pub(crate) fn release_allocation(&self) {
        // If this fails, the removal of the journal frees the space.
        let _best_effort = self.running().map(|journal| journal.release_allocation());
    }

    /// Records that nothing more will be written to the part of a file.
    pub(crate) fn left(&self, id: FileId, there: &FileIdentity) {
        if self.shared.is_some() {
            return;
        }
        self.record(|journal| journal.record_left(id.0, there.ctime));
    }

    /// Removes the part of a file that was given up. If that fails, the part is kept in the journal for a later
    /// transfer.
    pub(crate) fn remove(&self, id: FileId, part: &Staged) {
        // The part is kept, because groups of other receivers still count.
        if let Some(shared) = &self.shared {
            return shared.ended(id);
        }
        if part.remove().is_err() {
            self.stays(id);
        }
    }

    /// Records that the part of a file still exists although the file has ended.
    pub(crate) fn stays(&self, id: FileId) {
        self.state.lock().staying.insert(id);
    }

    /// Records that a file was renamed into place or given up permanently.
    pub(crate) fn ended(&self, id: FileId) {
        if let Some(shared) = &self.shared {
            return shared.ended(id);
        }
        if !self.state.lock().staying.remove(&id) {
            self.record(|journal| journal.record_end(id.0));
        }
    }

    /// Returns the current position in the journal. Call this before a flush, and pass the position to
    /// [`flushed`](Self::flushed) after the flush.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.running().map(|journal| journal.mark())
    }

    /// Records that all writes to the target's own file system before `mark` have been flushed.
    pub(crate) fn flushed(&self, mark: Mark) {
        if !self.unflushed.load(Ordering::Relaxed) {
            self.record(|journal| journal.record_flushed(mark));
        }
    }

    /// Records that a flush has failed. After that, a successful flush does not prove that data is durable. The kernel
    /// reports a write error only once and may discard the data, so the next flush can succeed without it.
    pub(crate) fn flush_failed(&self) {
        self.shared.iter().for_each(SharedParts::flush_failed);
        self.unflushed.store(true, Ordering::Relaxed);
    }

    /// Removes journals that list no unfinished files. Call this at the end of the transfer.
    pub(crate) fn finish(&self) {
        if let Some(shared) = &self.shared {
            // If the flush fails, the groups count as not written. The flush is attempted even so, because other
            // receivers may already have published the file.
            let _does_not_count = shared.flush();
            return;
        }
        let mut state = self.state.lock();
        let is_empty = |orphan: &mut Orphan| orphan.unfinished().files.is_empty();
        let emptied = state
            .orphans
            .iter_mut()
            .filter_map(|orphan| orphan.take_if(is_empty));
        // A journal that cannot be removed is harmless, because it no longer lists any files.
        emptied.for_each(|orphan| drop(orphan.remove()));
        if let Some(journal) = state.journal.take_if(|journal| journal.is_idle()) {
            let _of_nothing = journal.remove();
        }
    }

    /// Checks whether a flush of the target also covers a part. Must be called before the part is journaled. A flush
    /// does not cover a part on another file system. On a file system that is flushed file by file, a part is flushed
    /// only when it is complete.
    fn look_where(&self, staged: &Staged) {
        let is_with_target =
            rustix::fs::fstat(staged.file()).is_ok_and(|it| it.st_dev == self.begin.device);
        if !is_with_target || Flush::of(staged.file()) == Flush::PerFile {
            self.unflushed.store(true, Ordering::Relaxed);
        }
    }

    /// Removes parts that no transfer will resume, because their file was published as a smaller file or in a batch.
    /// Must be called before the modification times of directories are set.
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
            // All other parts are kept in their journals for a later transfer.
            self.drop_if_overtaken(target, &path, &earlier);
        }
    }

    fn drop_if_overtaken(&self, target: &Tree, path: &RelPath, earlier: &Earlier) -> bool {
        let Some(part) = overtaken(target, path, &earlier.file.part) else {
            return false;
        };
        self.remove_earlier(earlier, &part)
    }

    /// Removes the part first and then its record. In the reverse order, a crash between the two steps would leave the
    /// part forever. Returns whether the part was removed.
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

    /// Returns the journal, and creates it if necessary.
    fn journal(&self) -> Option<Arc<Journal>> {
        let directory = self.journals.as_ref()?;
        let mut state = self.state.lock();
        if state.journal.is_none() && state.trouble.is_none() {
            match Journal::create_within(directory, &self.begin, self.quota.journal_limits()) {
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

    /// Records the reason why the journal can no longer be written. The journal is kept, because its records are still
    /// valid.
    fn note(&self, error: JournalError) {
        self.state.lock().trouble = Some(error);
    }
}

/// Memory used by a file of an earlier transfer, in addition to its path and groups.
const FILE_KEPT_BYTES: usize = 256;

impl PartsState {
    fn running(&self) -> Option<Arc<Journal>> {
        self.journal.clone().filter(|_| self.trouble.is_none())
    }

    /// Returns the memory used by the state of earlier transfers.
    fn bytes(&self) -> usize {
        let older = self.older.iter().map(|(path, earlier)| (path, earlier));
        let files = self.earlier.iter().chain(older);
        // Each file is stored twice: in this state and in the contents of its journal.
        let each = files.map(|(path, earlier)| {
            2 * (FILE_KEPT_BYTES
                + 2 * path.as_bytes().len()
                + GROUP_KEPT_BYTES * earlier.file.groups.len())
        });
        each.sum()
    }

    fn find_earlier(&mut self, orphans: impl Iterator<Item = Orphan>) {
        let mut orphans: Vec<_> = orphans.collect();
        // If two parts have the same path, the newest part is used.
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
                    // The transfer that took over this part was killed before it could record that in the older
                    // journal.
                    Some(before) if before.file.part.inode == inode => self.forget(&before),
                    Some(before) => self.older.push((path, before)),
                    None => {}
                }
            }
        }
    }

    /// Records that a part of an earlier transfer was taken over or no longer exists.
    fn forget(&mut self, earlier: &Earlier) {
        if let Some(orphan) = &mut self.orphans[earlier.orphan] {
            // If this fails, a later transfer finds that the part no longer exists.
            let _told_again = orphan.record_end(earlier.file.file);
        }
    }
}

/// Returns the first record of a transfer's journal. The record contains the path of the target, for messages and for a
/// later removal of parts.
pub(crate) fn begin(transfer: TransferId, owner: String, target: &Tree) -> Begin {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", target.fd().as_raw_fd()))
        .unwrap_or_default();
    // `fstat` on an open directory does not fail.
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

/// Reopens a part and returns it with its current status. Returns `None` if the part no longer exists, or if the file
/// with its name is not the part in the journal.
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

/// Opens a part that is obsolete because its file was published.
fn overtaken(target: &Tree, path: &RelPath, part: &PartFile) -> Option<Staged> {
    let directory = target.open_directory(&path.parent()?).ok()?;
    let (staged, identity) = reopen(target.lease(), &directory, part, Direct::Off)
        .ok()
        .flatten()?;
    is_overtaken(&directory, &path.file_name()?, &identity).then_some(staged)
}

/// Returns whether a file with the part's final name was created or changed after the last write to the part.
pub(crate) fn is_overtaken(directory: &OwnedFd, name: &Name, part: &FileIdentity) -> bool {
    let moment = |identity: &FileIdentity| (identity.ctime.seconds, identity.ctime.nanos);
    let there = FileIdentity::at(directory, name)
        .ok()
        .filter(|there| there.regular);
    there.is_some_and(|there| moment(&there) > moment(part))
}

/// Returns whether a part is unchanged since its transfer recorded the end of writing. Returns false if the file system
/// stores whole seconds, because another program may have written in the same second.
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
