//! Publishing: a file is renamed into place after a successful flush that began after the last write to the file.
//! Writers pass their files to the [`Publisher`], from which the thread `zmove-publish` takes them
//! ([`publishing`](crate::store::publishing)).
//!
//! ```text
//!  written ──► unpublished ──flush──► named ──► reported to the sender
//!                  │         │ fails
//!                  │         ▼
//!                  │    read back past the page cache ──differs──► removed, and reported as failed
//!                  └──── left over when the session breaks ──► removed, except large files
//! ```
//!
//! Everything written since the last cycle forms one *generation*: files under hidden names in existing directories,
//! staging directories that become new directories with one rename, and complete large files. The publisher takes the
//! generation, flushes the file systems, and renames everything into place. A cycle begins at regular intervals. It
//! begins earlier in these cases:
//!
//! - No further files arrive, or many entries wait to be published.
//! - There is no space. The cycle frees the files that are replaced, and the failed write is then retried.
//! - The sender requests removals, or the transfer ends.
//!
//! Files are flushed before they are renamed for two reasons. First, with default options, ext4 journals the size of a
//! file when write-back is submitted, not when the data is on the disk. So a power failure could leave a file with the
//! right name, size and time that contains only zeros. Second, the kernel reports a failed write-back only once and
//! then treats the pages as clean. After that, the file seems correct until its contents must be read from the disk.
//!
//! Files that were flushed individually in a side directory already have their final names (`placer/side.rs`). The
//! publisher knows only the directories of these files and flushes them with the other directories.
//!
//! A batch is reported twice. After the report *stored*, the sender may send another batch. The report *published* is
//! the final result.
//!
//! **Invariant:** in a directory that is reachable by name, a file that has not been flushed has a hidden name (except
//! with `--durability none`). So after a power failure or a failed flush, files may be missing, but no file with a
//! final name contains wrong data.
//!
//! **Invariant:** an item is reported as published only when all of its files and all their parent directories have
//! their final names. A staging directory never belongs to a later generation than an entry below it.
//!
//! No lock except `cycle` is held during a call to the storage.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_disk::{Staged, StagingDirectory};
use zmove_types::{
    ALLOCATION_BYTES, BytesByOrigin, FileId, HashOnlySet, ItemId, Metadata, Name, RelPath, Root,
};
use zmove_wire::limits::{UNPUBLISHED_ENTRIES_MAX, UNPUBLISHED_ITEMS_MAX};
use zmove_wire::{EntryFault, FileEntry};

use crate::rights::quota::messages::ELEMENT_BYTES;
use crate::rights::quota::{Charge, StagingCharge};
use crate::store::failure::FaultCause;
use crate::store::reports::ThreadReport;
use zmove_types::Lock;

/// The files that a transfer has written but not published yet. Writers and the publishing thread share this value.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    state: Lock<PublisherState>,
    /// Notified if the publishing thread has work to do, and when it has completed work.
    changed: Condvar,
    /// Notified when a thread has swept a directory (removed the entries of earlier processes in it).
    sweep_ended: Condvar,
    /// Held from the start of a flush until all entries that it covers were renamed into place.
    cycle: Lock<()>,
    /// Maximum time until files are published if no further files arrive.
    idle_max: Duration,
}

#[derive(Debug, Default)]
struct PublisherState {
    current: Generation,
    /// All staging directories that were not renamed into place yet, by their final paths.
    staged: HashMap<RelPath, Arc<StagingDirectory>>,
    /// Paths for which a staging directory is being created. A thread that needs one of these directories waits until
    /// it exists.
    beginning: HashSet<RelPath>,
    /// Directories that this transfer has created and that are still empty.
    fresh: HashSet<RelPath>,
    /// Directories that are being created, each with the number of its creation. A thread that uses such a directory
    /// before its creation has finished removes it from this map.
    making: HashMap<RelPath, u64>,
    makings: u64,
    /// Directories that a thread is sweeping (removing the entries of earlier processes).
    sweeping: HashSet<RelPath>,
    /// Swept directories, by the hash of their path. If two paths have the same hash, only the first one is swept, and
    /// the next transfer sweeps the other.
    swept: HashOnlySet,
    /// Whether staging directories accept no more files, because the current generation is about to be flushed.
    closing: bool,
    /// Numbers of the batches that writers are placing. Some of them may already have been reported as stored.
    placing: BTreeSet<u64>,
    placings: u64,
    /// Number of threads that are waiting until batches are placed.
    waiting: usize,
    requested: bool,
    stopped: bool,
    failed_flushes: u64,
}

/// Everything that one flush covers.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    pub(crate) staging: HashMap<RelPath, StagingContents>,
    pub(crate) files: Vec<HiddenFile>,
    pub(crate) large: Vec<WholeFile>,
    /// Directories in which writers have renamed files into place without the publisher.
    pub(crate) renamed_in: HashSet<RelPath>,
    /// All batches placed in this generation, including batches without files, because their directories may be below a
    /// staging directory.
    pub(crate) batches: Vec<Arc<PendingBatch>>,
    pub(crate) entries: usize,
    pub(crate) began: Option<Instant>,
    pub(crate) last_added: Option<Instant>,
    /// Whether a flush has failed after the start of this generation. If so, each file must be checked.
    pub(crate) suspect: bool,
}

/// A staging directory and the files in it.
#[derive(Debug)]
pub(crate) struct StagingContents {
    pub(crate) staging: Arc<StagingDirectory>,
    pub(crate) writers: usize,
    pub(crate) filled: Vec<SmallFile>,
    /// Incomplete files in the staging directory that could not be removed.
    pub(crate) spoiled: Vec<Name>,
    /// Whether a writer has panicked while filling the directory, so that its contents are unknown.
    pub(crate) abandoned: bool,
    pub(crate) _held: StagingCharge,
}

/// A complete small file without its final name.
#[derive(Debug)]
pub(crate) struct SmallFile {
    pub(crate) batch: Arc<PendingBatch>,
    /// Index of the file's entry in its batch.
    pub(crate) entry: u32,
    /// The file's entry in its batch, with the final name of the file.
    pub(crate) file: FileEntry,
}

/// A small file under a hidden name, outside of a staging directory.
#[derive(Debug)]
pub(crate) struct HiddenFile {
    pub(crate) directory: Arc<RelPath>,
    pub(crate) hidden: Name,
    pub(crate) small: SmallFile,
}

/// A complete large file. Unless durability is `none`, it was flushed individually.
#[derive(Debug)]
pub(crate) struct WholeFile {
    pub(crate) id: FileId,
    pub(crate) bytes: u64,
    pub(crate) origins: BytesByOrigin,
    /// Path at the source and root hash of the file. Set only if an observer is notified of published files.
    pub(crate) root: Option<(RelPath, Root)>,
    pub(crate) staged: Staged,
    pub(crate) path: RelPath,
    pub(crate) metadata: Metadata,
}

/// Whether the sender knows that the files of a batch do not exist at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedState {
    /// The files do not exist at the target, or existing files must be replaced.
    Absent,
    /// The sender has assumed that the files do not exist. A file that does exist is kept.
    Unknown,
}

/// A batch whose entries are being placed and published. The batch is reported to the sender when its last holder
/// [releases](PendingBatch::release) it.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    item: ItemId,
    pub(crate) known: ExpectedState,
    faults: Lock<Vec<EntryFault>>,
    /// Charge to the key's quota for the memory of the batch's names.
    _held: Option<Charge>,
}

/// A guard for a writer that fills a staging directory. If the guard is dropped by a panic, the directory is abandoned.
#[derive(Debug)]
pub(crate) struct StagingGuard<'a> {
    publisher: &'a Publisher,
    path: RelPath,
    pub(crate) staging: Arc<StagingDirectory>,
    has_left: bool,
}

/// The reason why the publishing thread wakes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    Time,
    Requested,
    Stopped,
}

/// Maximum time until files are published while further files arrive. A killed process loses the work of this time. A
/// longer time would not make publishing faster. A shorter time would cost more: a file that arrives after its staging
/// directory was closed takes two directory operations instead of one.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// The same time for storage with high latency. On such storage, filling a directory takes seconds, and a file that
/// arrives after its directory was published takes three more requests.
pub(crate) const WAIT_LATE_MAX: Duration = Duration::from_secs(5);
/// Memory for one batch entry from decoding until publishing, in bytes, without its name and path. It includes twice
/// the size of the entry, because a list may have that much spare capacity, and the allocator's overhead for the
/// entry's two names.
pub(crate) const UNPUBLISHED_BYTES: usize = 3 * ELEMENT_BYTES + ALLOCATION_BYTES;
const HIDDEN_NAME_BYTES: usize = 80;
const _: () = assert!(
    2 * size_of::<HiddenFile>() + HIDDEN_NAME_BYTES + 2 * ALLOCATION_BYTES <= UNPUBLISHED_BYTES
);
/// Maximum time until files are published if no further files arrive and the sender has other work to do.
pub(crate) const IDLE_MAX: Duration = Duration::from_millis(200);
/// The same time for a shared job. It is shorter than [`IDLE_MAX`], because the sender waits for publishing before it
/// marks an item as done.
pub(crate) const IDLE_MAX_IN_JOB: Duration = Duration::from_millis(10);
/// Maximum number of staging directories in one generation. Two generations may be in progress.
pub(crate) const STAGING_MAX: usize = 128;
/// Number of large files at which a generation is published early.
const LARGE_MAX: usize = 64;
/// Maximum number of new directories to remember. In other new directories, files are created one by one without a
/// staging directory.
const PATHS_MAX: usize = 16_384;
/// Maximum length of a remembered path, in bytes. Together with [`PATHS_MAX`], it limits the memory for these paths to
/// 8 MiB.
const PATH_BYTES_MAX: usize = 512;
/// Maximum number of swept directories to remember, at 16 bytes each. Other directories are swept each time they are
/// opened.
pub(crate) const SWEPT_MAX: usize = 1 << 18;
/// Number of entries at which a generation is published early.
const ENTRIES_EARLY: u64 = UNPUBLISHED_ENTRIES_MAX / 8;
/// Number of entries at which writers wait until the publisher takes the generation. Two generations may be in
/// progress. Together they have at most half of the unpublished entries that a sender allows.
const ENTRIES_MAX: u64 = UNPUBLISHED_ENTRIES_MAX / 4;
const ITEMS_EARLY: u64 = UNPUBLISHED_ITEMS_MAX / 8;
const ITEMS_MAX: u64 = UNPUBLISHED_ITEMS_MAX / 4;

impl SmallFile {
    /// Creates the record of a written file whose metadata was set. Drops the extra metadata, because only the time of
    /// the file is checked later.
    pub(crate) fn new(batch: &Arc<PendingBatch>, entry: u32, mut file: FileEntry) -> Self {
        file.metadata.extra = None;
        Self {
            batch: Arc::clone(batch),
            entry,
            file,
        }
    }
}

impl Publisher {
    /// Creates a publisher. If no further files arrive, it publishes files after `idle_max` at the latest.
    pub(crate) fn new(idle_max: Duration) -> Self {
        Self {
            idle_max,
            ..Self::default()
        }
    }

    /// Returns the deepest staging directory at or above `path`, and the rest of the path below it.
    pub(crate) fn staged_above(&self, path: &RelPath) -> Option<(Arc<OwnedFd>, RelPath)> {
        let mut state = self.state.lock();
        while state.beginning.iter().any(|above| covers(above, path)) {
            state = self.wait(state);
        }
        // A linear search is fast enough, because there are few staging directories. A path may have thousands of
        // components.
        let covering = state.staged.iter().filter(|(above, _)| covers(above, path));
        let (above, found) = covering.max_by_key(|(above, _)| above.as_bytes().len())?;
        Some((Arc::clone(found.directory()), below(path, above)))
    }

    /// Returns a guard for filling the staging directory of `path`. Returns `None` if the directory does not exist or
    /// accepts no more files.
    pub(crate) fn join(&self, path: &RelPath) -> Option<StagingGuard<'_>> {
        let mut state = self.state.lock();
        while state.beginning.contains(path) {
            state = self.wait(state);
        }
        if state.closing {
            return None;
        }
        let filling = state.current.staging.get_mut(path)?;
        filling.writers += 1;
        Some(self.guard(path, &filling.staging))
    }

    fn guard(&self, path: &RelPath, staging: &Arc<StagingDirectory>) -> StagingGuard<'_> {
        StagingGuard {
            publisher: self,
            path: path.clone(),
            staging: Arc::clone(staging),
            has_left: false,
        }
    }

    /// Calls `begin` to create a staging directory for `path`. `begin` returns the directory and the charge for its
    /// resources. Returns `None` if no staging directory can be created now, or if `begin` returns `None`.
    pub(crate) fn begin(
        &self,
        path: &RelPath,
        begin: impl FnOnce() -> Option<(StagingDirectory, StagingCharge)>,
    ) -> Option<StagingGuard<'_>> {
        let mut state = self.state.lock();
        if state.current.staging.len() >= STAGING_MAX {
            state.requested = true;
            self.changed.notify_all();
            return None;
        }
        if state.closing || state.staged.contains_key(path) || !state.beginning.insert(path.clone())
        {
            return None;
        }
        drop(state);
        let begun = BeginningGuard {
            publisher: self,
            path,
        };
        let (staging, held) = begin()?;
        let staging = Arc::new(staging);
        let mut state = self.state.lock();
        state.staged.insert(path.clone(), Arc::clone(&staging));
        let filling = StagingContents {
            staging: Arc::clone(&staging),
            writers: 1,
            filled: Vec::new(),
            spoiled: Vec::new(),
            abandoned: false,
            _held: held,
        };
        state.current.staging.insert(path.clone(), filling);
        self.touch(&mut state);
        drop(state);
        drop(begun);
        Some(self.guard(path, &staging))
    }

    /// Calls `make` to create a directory. `make` returns `false` if the directory already exists. A new directory
    /// counts as fresh unless a thread [uses](Self::mark_used) it before this call returns.
    pub(crate) fn make(
        &self,
        path: &RelPath,
        make: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<bool> {
        if path.as_bytes().len() > PATH_BYTES_MAX {
            return make();
        }
        let mut state = self.state.lock();
        state.makings += 1;
        let number = state.makings;
        state.making.insert(path.clone(), number);
        drop(state);
        let made = make();
        let mut state = self.state.lock();
        let is_unused = state.making.get(path) == Some(&number);
        if is_unused {
            state.making.remove(path);
        }
        if made.as_ref().is_ok_and(|made| *made) {
            if is_unused && state.fresh.len() < PATHS_MAX {
                state.fresh.insert(path.clone());
            }
            state.note_swept(path);
        }
        made
    }

    /// Marks a directory as used. Returns whether it was fresh, which means that this transfer has created it and has
    /// not added anything to it.
    pub(crate) fn use_fresh(&self, path: &RelPath) -> bool {
        self.state.lock().fresh.remove(path)
    }

    /// Marks a directory and all its parents as used, because an entry is about to be added to it. Missing parents are
    /// created first, so they are included.
    pub(crate) fn mark_used(&self, path: &RelPath) {
        let mut state = self.state.lock();
        if state.fresh.is_empty() && state.making.is_empty() {
            return;
        }
        for used in std::iter::successors(remembered_of(path), RelPath::parent) {
            state.fresh.remove(&used);
            state.making.remove(&used);
        }
    }

    pub(crate) fn is_fresh(&self, path: &RelPath) -> bool {
        self.state.lock().fresh.contains(path)
    }

    /// Sweeps a directory before its first use: calls `sweep`, which removes the entries of earlier processes. If
    /// another thread is already sweeping the directory, waits for that thread. A directory may be swept more than once
    /// if there are too many directories to remember.
    ///
    /// # Errors
    /// Returns the error of `sweep`. In that case, the next call sweeps the directory again.
    pub(crate) fn sweep(
        &self,
        path: &RelPath,
        sweep: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.sweeping.contains(path) {
            state = self
                .sweep_ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.swept.contains(path) {
            return Ok(());
        }
        state.sweeping.insert(path.clone());
        drop(state);
        let _sweeping = SweepGuard {
            publisher: self,
            path,
        };
        sweep()?;
        self.state.lock().note_swept(path);
        Ok(())
    }

    /// Returns the number of failed flushes so far. The caller reads it before it writes a new file, and later passes
    /// it to [`add_file`](Self::add_file).
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.state.lock().failed_flushes
    }

    /// Adds a small file to the current generation. `failed_flushes` is the number of failed flushes before the file
    /// was written. If a flush has failed since then, it may have failed for this file, so the current generation is
    /// marked as suspect.
    pub(crate) fn add_file(&self, file: HiddenFile, failed_flushes: u64) {
        let mut state = self.state.lock();
        state.current.suspect |= failed_flushes != state.failed_flushes;
        state.current.files.push(file);
        self.touch(&mut state);
    }

    /// Records that a file that was flushed individually was renamed into place in this directory.
    pub(crate) fn record_renamed_in(&self, directory: &RelPath) {
        let mut state = self.state.lock();
        if !state.current.renamed_in.contains(directory) {
            state.current.renamed_in.insert(directory.clone());
        }
        self.touch(&mut state);
    }

    /// Adds a large file to the current generation.
    pub(crate) fn add_large(&self, file: WholeFile) {
        let mut state = self.state.lock();
        state.current.large.push(file);
        state.current.entries += 1;
        self.touch(&mut state);
        self.request_if_full(&mut state);
    }

    /// Records that a writer has begun to place a batch. Dropping the returned value records the end.
    pub(crate) fn begin_batch(&self) -> Placing<'_> {
        let mut state = self.state.lock();
        state.placings += 1;
        let number = state.placings;
        state.placing.insert(number);
        Placing(self, number)
    }

    /// Waits until writers have placed all batches that were begun before this call.
    pub(crate) fn wait_until_placed(&self) {
        let mut state = self.state.lock();
        let last = state.placings;
        state.waiting += 1;
        while state.placing.first().is_some_and(|first| *first <= last) {
            state = self.wait(state);
        }
        state.waiting -= 1;
    }

    /// Adds a placed batch with `entries` entries to the current generation. The batch is reported after all earlier
    /// work was published. Blocks while too many entries or batches are unpublished.
    pub(crate) fn batch_placed(&self, batch: Arc<PendingBatch>, entries: usize) {
        let mut state = self.state.lock();
        state.current.batches.push(batch);
        state.current.entries += entries;
        self.touch(&mut state);
        self.request_if_full(&mut state);
        while state.current.is_over(ENTRIES_MAX, ITEMS_MAX) && !state.stopped {
            state.requested = true;
            self.changed.notify_all();
            state = self.wait(state);
        }
    }

    /// Stops periodic flushing and publishing.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits until the publishing thread has work to do, but not longer than `pause`.
    pub(crate) fn next(&self, pause: Duration) -> WakeReason {
        let latest = Instant::now() + pause;
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return WakeReason::Stopped;
            }
            if std::mem::take(&mut state.requested) {
                return WakeReason::Requested;
            }
            let idle = state
                .current
                .last_added
                .map(|last_added| last_added + self.idle_max);
            let until = idle.map_or(latest, |idle| idle.min(latest));
            let has_left = until.saturating_duration_since(Instant::now());
            if has_left.is_zero() {
                return WakeReason::Time;
            }
            let waited = self.changed.wait_timeout(state, has_left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether unpublished files must be published now.
    pub(crate) fn is_due(&self, wait_max: Duration) -> bool {
        let current = &self.state.lock().current;
        let longer =
            |since: Option<Instant>, time| since.is_some_and(|since| since.elapsed() >= time);
        longer(current.began, wait_max) || longer(current.last_added, self.idle_max)
    }

    /// Records that work was added to the current generation. The first work of a generation wakes the publishing
    /// thread, which might otherwise sleep too long.
    fn touch(&self, state: &mut PublisherState) {
        if state.current.touch() {
            self.changed.notify_all();
        }
    }

    fn request_if_full(&self, state: &mut PublisherState) {
        let full = state.current.is_over(ENTRIES_EARLY, ITEMS_EARLY)
            || state.current.large.len() >= LARGE_MAX;
        if full && !state.requested {
            state.requested = true;
            self.changed.notify_all();
        }
    }

    /// Records a failed flush. Data that was written so far may be lost, even if the next flush succeeds.
    pub(crate) fn suspect(&self) {
        let mut state = self.state.lock();
        state.failed_flushes += 1;
        state.current.suspect = true;
    }

    /// Removes and returns the current generation, which contains everything that was added so far. First waits for
    /// writers that are filling a staging directory.
    pub(crate) fn take_generation(&self) -> Generation {
        let mut state = self.state.lock();
        state.closing = true;
        while state
            .current
            .staging
            .values()
            .any(|filling| filling.writers > 0)
            || !state.beginning.is_empty()
        {
            state = self.wait(state);
        }
        state.closing = false;
        let taken = std::mem::take(&mut state.current);
        self.changed.notify_all();
        taken
    }

    /// Waits for the exclusive right to publish.
    pub(crate) fn lock_cycle(&self) -> MutexGuard<'_, ()> {
        self.cycle.lock()
    }

    pub(crate) fn has_unpublished(&self) -> bool {
        self.state.lock().current.began.is_some()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Records that a staging directory was renamed into place or no longer exists.
    pub(crate) fn note_staging_published(&self, path: &RelPath) {
        self.state.lock().staged.remove(path);
    }

    fn wait<'a>(&self, state: MutexGuard<'a, PublisherState>) -> MutexGuard<'a, PublisherState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A batch that a writer is placing.
#[derive(Debug)]
pub(crate) struct Placing<'a>(&'a Publisher, u64);

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.placing.remove(&self.1);
        if state.waiting > 0 {
            self.0.changed.notify_all();
        }
    }
}

/// Removes a path from `beginning` on drop, whether or not the staging directory was created.
struct BeginningGuard<'a> {
    publisher: &'a Publisher,
    path: &'a RelPath,
}

impl Drop for BeginningGuard<'_> {
    fn drop(&mut self) {
        self.publisher.state.lock().beginning.remove(self.path);
        self.publisher.changed.notify_all();
    }
}

impl StagingGuard<'_> {
    /// Adds the files that the writer has created in the staging directory to the current generation. `spoiled` lists
    /// incomplete files that could not be removed.
    pub(crate) fn leave(mut self, filled: Vec<SmallFile>, spoiled: Vec<Name>) {
        self.has_left = true;
        self.end(|filling| {
            filling.spoiled.extend(spoiled);
            filling.filled.extend(filled);
        });
    }

    fn end(&self, book: impl FnOnce(&mut StagingContents)) {
        let mut state = self.publisher.state.lock();
        let current = &mut state.current;
        if let Some(filling) = current.staging.get_mut(&self.path) {
            book(filling);
            filling.writers -= 1;
        }
        // The thread is notified only if `take_generation` is waiting or if these are the first files of a generation.
        // Writers call this function after every few files, and the publishing thread would often wake up without work.
        let is_waited_for = current.touch() || state.closing;
        drop(state);
        if is_waited_for {
            self.publisher.changed.notify_all();
        }
    }
}

impl Drop for StagingGuard<'_> {
    fn drop(&mut self) {
        if !self.has_left {
            self.end(|filling| filling.abandoned = true);
        }
    }
}

/// Marks a directory as being swept, until the guard is dropped.
struct SweepGuard<'a> {
    publisher: &'a Publisher,
    path: &'a RelPath,
}

impl Drop for SweepGuard<'_> {
    fn drop(&mut self) {
        self.publisher.state.lock().sweeping.remove(self.path);
        self.publisher.sweep_ended.notify_all();
    }
}

impl PublisherState {
    fn note_swept(&mut self, path: &RelPath) {
        if self.swept.len() < SWEPT_MAX {
            self.swept.insert(path);
        }
    }
}

impl Generation {
    /// Records that work was added. Returns whether it is the first work of this generation.
    fn touch(&mut self) -> bool {
        let now = Instant::now();
        let is_first = self.began.is_none();
        self.began.get_or_insert(now);
        self.last_added = Some(now);
        is_first
    }

    fn is_over(&self, entries: u64, items: u64) -> bool {
        self.entries as u64 >= entries || self.batches.len() as u64 >= items
    }
}

impl SmallFile {
    /// Records that the file could not be published.
    pub(crate) fn fail(&self, fault: FaultCause) {
        self.batch.fault(self.entry, fault);
    }
}

impl PendingBatch {
    pub(crate) fn new(item: ItemId, known: ExpectedState, held: Option<Charge>) -> Arc<Self> {
        Arc::new(Self {
            item,
            known,
            faults: Lock::default(),
            _held: held,
        })
    }

    /// Records that an entry of the batch could not be placed or published.
    pub(crate) fn fault(&self, entry: u32, cause: FaultCause) {
        self.faults.lock().push(cause.of_entry(entry));
    }

    /// Returns the report for this batch if this was the last reference to it, or `None` otherwise.
    pub(crate) fn release(self: Arc<Self>) -> Option<ThreadReport> {
        let Self { item, faults, .. } = Arc::into_inner(self)?;
        Some(ThreadReport::Published(item, faults.into_inner()))
    }

    /// Returns the faults recorded so far.
    pub(crate) fn faults(&self) -> Vec<EntryFault> {
        self.faults.lock().clone()
    }
}

/// Returns whether `path` is `above` or is below it.
pub(crate) fn covers(above: &RelPath, path: &RelPath) -> bool {
    let rest = path.as_bytes().strip_prefix(above.as_bytes());
    rest.is_some_and(|rest| above.is_root() || rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns `path`, or its nearest parent that is short enough to be remembered.
fn remembered_of(path: &RelPath) -> Option<RelPath> {
    let bytes = path.as_bytes();
    if bytes.len() <= PATH_BYTES_MAX {
        return Some(path.clone());
    }
    let end = bytes[..=PATH_BYTES_MAX]
        .iter()
        .rposition(|&byte| byte == b'/')?;
    RelPath::from_bytes(&bytes[..end]).ok()
}

/// Returns the part of `path` after its prefix `above`.
pub(crate) fn below(path: &RelPath, above: &RelPath) -> RelPath {
    let rest = &path.as_bytes()[above.as_bytes().len()..];
    RelPath::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest))
        .expect("the end of a path is a path")
}
