//! Writes a journal. Each event is one record, and each record is one write.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use rustix::fs::{FallocateFlags, Mode};
use zmove_disk::{create_at, unlink_at};
use zmove_types::{Cv, Name, Timestamp};

use crate::resume::runs_of;

use super::locked_file::{self, HeldFile, LockedFile};
use super::naming::{NameHashes, NamedJournal, SUFFIX, SUFFIX_NEW, journals, path_with};
use super::reader::replay;
use super::record::{BootId, GROUPS_MAX, Record};
use super::{Begin, FILES_MAX, JournalError, PartFile, UnfinishedFile};

use zmove_types::Lock;

/// The journal of a running transfer. The file is kept on drop, so that another run can resume from it. See
/// [`remove`](Self::remove).
#[derive(Debug)]
pub struct Journal {
    place: JournalLocation,
    path: PathBuf,
    state: Lock<JournalState>,
    /// Size in bytes at which the journal accepts no more parts and groups.
    bytes_max: u64,
}

/// The place where a journal is stored.
#[derive(Debug)]
enum JournalLocation {
    /// In this directory. The journal is locked.
    Own(PathBuf),
    /// In the directory of a shared job, where other receivers read the journal. It is not locked, because locks may
    /// not work across hosts. Records are only appended.
    Job(Arc<OwnedFd>),
}

/// Limits on the journals of one owner. They are checked when a new journal is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLimits {
    /// Maximum number of journals.
    pub journals: usize,
    /// Maximum total size of all journals, in bytes.
    pub bytes: u64,
}

/// A position in a journal. It is after all records that were added before the call of [`Journal::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    generation: u64,
    position: u64,
}

#[derive(Debug)]
struct JournalState {
    file: Arc<HeldFile>,
    /// Number of times the journal has been rewritten. Positions of other generations are invalid.
    generation: u64,
    /// The offset of the next record.
    end: u64,
    /// The end of the last record that a flush can cover.
    coverable_end: u64,
    /// The end of the records that a flush has covered.
    flushed: u64,
    /// Unfinished files, each with the total size of its records in bytes.
    files: BTreeMap<u64, u64>,
    /// Size in bytes at which to check whether most of the journal is obsolete.
    compact_at: u64,
    /// Whether the journal's current name was flushed with its directory.
    named: bool,
    broken: bool,
    /// The offset up to which storage is preallocated for the journal.
    allocated_until: u64,
    /// Number of bytes to preallocate beyond the next record.
    allocate_ahead: u64,
}

/// One journal may use at most 1/4 of the bytes that all journals of its owner may use. [`JournalError::ShareFull`]
/// states this share.
const OWNER_SHARES: u64 = 4;
/// Minimum size at which a journal is rewritten, in bytes.
const COMPACT_BYTES_MIN: u64 = 8 << 20;
/// Number of bytes to preallocate beyond the end of a job session's journal. A smaller reserve would allow fewer
/// records when the target is full. A larger reserve would take space from files until the job ends.
const ALLOCATE_AHEAD_BYTES: u64 = 256 << 10;
/// A journal preallocates at most 1/16 of the free space, because every session has a journal.
const ALLOCATE_SHARE: u64 = 16;
/// A journal is rewritten if at most 1/4 of its bytes belong to unfinished files.
const COMPACT_SHARE: u64 = 4;

impl Journal {
    /// Creates the journal of a transfer. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// [`JournalError::TooLong`] if the owner or target is too long, or [`JournalError::Io`] with the system's error.
    /// That error is `AlreadyExists` if the transfer already has a journal.
    pub fn create(directory: &Path, begin: &Begin) -> Result<Self, JournalError> {
        Self::create_within(
            directory,
            begin,
            JournalLimits {
                journals: usize::MAX,
                bytes: u64::MAX,
            },
        )
    }

    /// Creates a journal like [`create`](Self::create). Fails if the limits of the owner do not allow another journal.
    ///
    /// # Errors
    /// Same as [`create`](Self::create), and [`JournalError::NoRoom`].
    pub fn create_within(
        directory: &Path,
        begin: &Begin,
        room: JournalLimits,
    ) -> Result<Self, JournalError> {
        locked_file::ensure_directory(directory)?;
        check_room(directory, begin, room)?;
        let first = Record::Begin(begin.clone(), BootId::current());
        let [path, new] = [SUFFIX, SUFFIX_NEW].map(|suffix| path_with(directory, begin, suffix));
        let held = LockedFile::create(&new)?;
        let mut state = JournalState::new(held.file);
        // The journal is created under a temporary name, so that it is never empty or unlocked under its final name.
        let begun = state
            .append(&first, &new)
            .and_then(|()| fs::hard_link(&new, &path).map_err(JournalError::io("create", &path)));
        let removed = fs::remove_file(&new).map_err(JournalError::io("remove", &new));
        begun.and(removed)?;
        Ok(Self {
            place: JournalLocation::Own(directory.to_owned()),
            path,
            state: Lock::new(state),
            bytes_max: room.bytes / OWNER_SHARES,
        })
    }

    /// Creates the journal of a session in the directory of a job. No other session may use this name.
    ///
    /// # Errors
    /// Same as [`create`](Self::create).
    pub(crate) fn create_in_job(
        directory: &Arc<OwnedFd>,
        name: &Name,
        begin: &Begin,
        bytes_max: u64,
    ) -> Result<Self, JournalError> {
        let path = PathBuf::from(name.as_os_str());
        let made = create_at(directory, name, Mode::RUSR | Mode::WUSR);
        let file = made.map_err(JournalError::io("create", &path))?;
        let mut state = JournalState {
            compact_at: u64::MAX,
            allocated_until: 0,
            ..JournalState::new(HeldFile(file))
        };
        let begun = state.append(&Record::Begin(begin.clone(), BootId::current()), &path);
        if begun.is_err() {
            let _best_effort = unlink_at(directory, name);
        }
        begun?;
        Ok(Self {
            place: JournalLocation::Job(Arc::clone(directory)),
            path,
            state: Lock::new(state),
            bytes_max,
        })
    }

    /// Releases the lock, so that another process can take over the journal.
    pub(crate) fn unlock(&self) {
        locked_file::unlock(&self.state.lock().file);
    }

    /// Releases the preallocated storage, because only a few records will follow.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn release_allocation(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.allocated_until = u64::MAX;
        state.file.set_len(state.end)
    }

    fn check_room(&self, state: &JournalState) -> Result<(), JournalError> {
        if state.end >= self.bytes_max {
            return Err(JournalError::ShareFull {
                path: self.path.clone(),
                share: match self.place {
                    JournalLocation::Own(_) => "a quarter",
                    JournalLocation::Job(_) => "all",
                },
                limit: self.bytes_max,
            });
        }
        Ok(())
    }

    /// Records that a large file begins or begins again.
    ///
    /// # Errors
    /// [`JournalError::TooManyFiles`] if [`FILES_MAX`] other files are unfinished, [`JournalError::ShareFull`], or the
    /// system's error.
    pub fn record_part(&self, file: u64, part: &PartFile) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if state.files.len() >= FILES_MAX && !state.files.contains_key(&file) {
            return Err(JournalError::TooManyFiles { limit: FILES_MAX });
        }
        self.check_room(&state)?;
        state.append_for_file(file, &Record::Part(file, part.clone()), &self.path)
    }

    /// Records that consecutive groups of `file`, starting at `first`, were written to the kernel. Ignores groups of a
    /// file that has not begun or has ended.
    ///
    /// # Errors
    /// [`JournalError::ShareFull`] or the system's error. Some of the groups may then be missing.
    pub fn record_groups(&self, file: u64, first: u32, cvs: &[Cv]) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if !state.files.contains_key(&file) {
            return Ok(());
        }
        self.check_room(&state)?;
        for (first, cvs) in (first..=u32::MAX)
            .step_by(GROUPS_MAX)
            .zip(cvs.chunks(GROUPS_MAX))
        {
            let groups = Record::Groups {
                file,
                first,
                cvs: cvs.to_vec(),
                flushed: false,
            };
            state.append_for_file(file, &groups, &self.path)?;
        }
        Ok(())
    }

    /// Returns the current position. All records so far are in the kernel, so a flush that begins after this call
    /// covers them.
    #[must_use]
    pub fn mark(&self) -> Mark {
        let state = self.state.lock();
        Mark {
            generation: state.generation,
            position: state.coverable_end,
        }
    }

    /// Records that everything before `upto` is on stable storage, and flushes the journal.
    ///
    /// # Errors
    /// The system's error.
    pub fn record_flushed(&self, upto: Mark) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        // A position from before the last rewrite is ignored. The next flush covers its groups.
        if upto.generation != state.generation || upto.position <= state.flushed {
            return Ok(());
        }
        let flushed = Record::Flushed {
            upto: upto.position,
        };
        state.append(&flushed, &self.path)?;
        state.flushed = upto.position;
        self.sync(state)
    }

    /// Records that a file was renamed into place or given up, so that it no longer has a part.
    ///
    /// # Errors
    /// The system's error.
    pub fn record_end(&self, file: u64) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if state.files.remove(&file).is_none() {
            return Ok(());
        }
        state.append(&Record::Ended { file }, &self.path)?;
        state.coverable_end = state.end;
        if state.end >= state.compact_at {
            self.compact(&mut state);
        }
        Ok(())
    }

    /// Records that the transfer has finished writing to the part of a file. The part now has this change time.
    ///
    /// # Errors
    /// The system's error.
    pub fn record_left(&self, file: u64, ctime: Timestamp) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if !state.files.contains_key(&file) {
            return Ok(());
        }
        state.append(&Record::Left { file, ctime }, &self.path)
    }

    /// Adds a file from another journal with its number in this transfer. Flushes this journal, so that the other
    /// journal can be removed. The caller must omit groups that may be lost, such as groups that were not flushed
    /// before a reboot.
    ///
    /// # Errors
    /// Same as [`record_part`](Self::record_part).
    pub fn adopt(&self, file: u64, unfinished: &UnfinishedFile) -> Result<(), JournalError> {
        self.record_part(file, &unfinished.part)?;
        let mut state = self.state.lock();
        for run in runs(file, unfinished) {
            state.append_for_file(file, &run, &self.path)?;
        }
        self.sync(state)
    }

    /// Returns whether all files in the journal have ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.lock().files.is_empty()
    }

    /// Removes the journal. Call this only if no file is unfinished. Later records are lost.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self) -> Result<(), JournalError> {
        fs::remove_file(&self.path).map_err(JournalError::io("remove", &self.path))
    }

    /// Flushes the journal, and its directory if the name is new. Other threads can write during the flush.
    fn sync(&self, state: MutexGuard<'_, JournalState>) -> Result<(), JournalError> {
        let file = Arc::clone(&state.file);
        let generation = state.generation;
        let named = state.named;
        drop(state);
        file.sync_data()
            .map_err(JournalError::io("flush", &self.path))?;
        if !named {
            match &self.place {
                JournalLocation::Own(directory) => locked_file::sync_directory(directory)?,
                JournalLocation::Job(directory) => {
                    let synced = rustix::fs::fsync(directory);
                    synced.map_err(JournalError::io("flush directory of", &self.path))?;
                }
            }
            let mut state = self.state.lock();
            state.named |= state.generation == generation;
        }
        Ok(())
    }

    /// Rewrites the journal if most of it belongs to files that have ended. If that fails, the journal stays unchanged.
    fn compact(&self, state: &mut JournalState) {
        let of_use = state.files.values().sum::<u64>();
        if of_use.saturating_mul(COMPACT_SHARE) <= state.end
            && let Ok(Some(anew)) = self.rewrite(state)
        {
            *state = anew;
        }
        state.compact_at = COMPACT_BYTES_MIN.max(state.end * 2);
    }

    /// Replaces the journal with a new one that contains only the unfinished files. Returns `None` if the current
    /// journal does not list the expected files.
    fn rewrite(&self, state: &JournalState) -> Result<Option<JournalState>, JournalError> {
        let read = || {
            let mut file: &File = &state.file;
            file.rewind()?;
            replay(file)
        };
        let unfinished = read()
            .map_err(JournalError::io("read", &self.path))??
            .unfinished(BootId::current());
        if !unfinished
            .files
            .iter()
            .map(|file| &file.file)
            .eq(state.files.keys())
        {
            return Ok(None);
        }
        let JournalLocation::Own(directory) = &self.place else {
            return Ok(None);
        };
        let path = path_with(directory, &unfinished.begin, SUFFIX_NEW);
        let held = LockedFile::create(&path)?;
        let written = write_anew(
            held,
            unfinished.begin,
            &unfinished.files,
            state.generation + 1,
        );
        let renamed = written.and_then(|anew| {
            fs::rename(&path, &self.path).map_err(JournalError::io("rename", &path))?;
            Ok(anew)
        });
        if renamed.is_err() {
            let _best_effort = fs::remove_file(&path);
        }
        renamed.map(Some)
    }
}

impl JournalState {
    fn new(file: HeldFile) -> Self {
        Self {
            file: Arc::new(file),
            generation: 0,
            end: 0,
            coverable_end: 0,
            flushed: 0,
            files: BTreeMap::new(),
            compact_at: COMPACT_BYTES_MIN,
            named: false,
            broken: false,
            allocated_until: u64::MAX,
            allocate_ahead: ALLOCATE_AHEAD_BYTES,
        }
    }

    /// Appends a record about a file.
    fn append_for_file(
        &mut self,
        file: u64,
        record: &Record,
        path: &Path,
    ) -> Result<(), JournalError> {
        let start = self.end;
        self.append(record, path)?;
        self.coverable_end = self.end;
        *self.files.entry(file).or_default() += self.end - start;
        Ok(())
    }

    /// Appends a record completely or not at all.
    fn append(&mut self, record: &Record, path: &Path) -> Result<(), JournalError> {
        let bytes = record.encode()?;
        if self.broken {
            return Err(JournalError::Broken);
        }
        self.preallocate(bytes.len() as u64);
        if let Err(error) = self.file.write_all_at(&bytes, self.end) {
            self.broken = self.file.set_len(self.end).is_err();
            return Err(JournalError::io("write", path)(error));
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Preallocates storage for later records while the file system has free space, so that failed files can still be
    /// recorded when the target is full.
    fn preallocate(&mut self, bytes: u64) {
        if self.end + bytes + self.allocate_ahead / 2 > self.allocated_until {
            let free = rustix::fs::fstatvfs(&**self.file)
                .map_or(u64::MAX, |stat| zmove_disk::free_bytes(&stat));
            self.allocate_ahead = ALLOCATE_AHEAD_BYTES.min(free / ALLOCATE_SHARE);
            let ahead = bytes + self.allocate_ahead;
            self.allocated_until = self.end + ahead;
            // Some file systems do not support preallocation. If there is no free space, the next write returns that
            // error.
            let keep_size = FallocateFlags::KEEP_SIZE;
            let _best_effort = rustix::fs::fallocate(&**self.file, keep_size, self.end, ahead);
        }
    }
}

fn check_room(directory: &Path, begin: &Begin, room: JournalLimits) -> Result<(), JournalError> {
    if room.journals == usize::MAX {
        return Ok(());
    }
    let owner = NameHashes::of(begin).owner;
    let is_own = |named: &NamedJournal| named.tags.owner == owner;
    let own: Vec<_> = journals(directory)?.filter(is_own).collect();
    if own.len() >= room.journals {
        return Err(JournalError::NoRoom {
            what: "journals",
            setting: "journals_per_identity",
            limit: room.journals as u64,
        });
    }
    // A journal that another process has just removed counts as empty.
    let bytes: u64 = own
        .iter()
        .filter_map(|named| fs::symlink_metadata(&named.path).ok())
        .map(|found| found.len())
        .sum();
    if bytes >= room.bytes {
        return Err(JournalError::NoRoom {
            what: "bytes of journals",
            setting: "journal_bytes_per_identity",
            limit: room.bytes,
        });
    }
    Ok(())
}

/// Writes the unfinished files to a new journal and flushes it.
fn write_anew(
    held: LockedFile,
    begin: Begin,
    files: &[UnfinishedFile],
    generation: u64,
) -> Result<JournalState, JournalError> {
    let mut state = JournalState {
        generation,
        ..JournalState::new(held.file)
    };
    state.append(&Record::Begin(begin, BootId::current()), &held.path)?;
    for unfinished in files {
        let UnfinishedFile { file, part, .. } = unfinished;
        state.append_for_file(*file, &Record::Part(*file, part.clone()), &held.path)?;
        for run in runs(*file, unfinished) {
            state.append_for_file(*file, &run, &held.path)?;
        }
        if let Some(ctime) = unfinished.left {
            state.append(&Record::Left { file: *file, ctime }, &held.path)?;
        }
    }
    let synced: io::Result<()> = state.file.sync_data();
    synced.map_err(JournalError::io("flush", &held.path))?;
    Ok(state)
}

/// Returns the groups of a file as records of consecutive groups, with flushed groups first.
pub(super) fn runs(file: u64, unfinished: &UnfinishedFile) -> Vec<Record> {
    let records = [true, false].into_iter().flat_map(|flushed| {
        let groups = unfinished.groups.iter();
        let groups = groups.filter(|(_, group)| group.1 == flushed);
        let groups = groups.map(|(index, (cv, _))| (*index, *cv));
        let runs = runs_of(groups, GROUPS_MAX).into_iter();
        runs.map(move |(first, cvs)| Record::Groups {
            file,
            first,
            cvs,
            flushed,
        })
    });
    records.collect()
}

#[cfg(test)]
impl Journal {
    /// Rewrites the journal immediately.
    pub(super) fn write_anew(&self) {
        let mut state = self.state.lock();
        *state = self.rewrite(&state).unwrap().unwrap();
    }

    /// Makes writes fail, as if the file system had become read-only.
    pub(super) fn make_read_only(&self) {
        let file = File::open(&self.path).unwrap();
        self.state.lock().file = Arc::new(HeldFile(file));
    }
}
