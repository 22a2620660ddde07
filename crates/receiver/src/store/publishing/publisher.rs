//! The giving of final names: after a flush that began after the last write has succeeded. Writers hand their files in
//! here, and the thread `zmove-publish` takes them ([`publishing`](crate::store::publishing)).
//!
//! ```text
//!  written ──► unpublished ──flush──► named ──► reported to the sender
//!                  │         │ fails
//!                  │         ▼
//!                  │    read back past the page cache ──differs──► removed, and reported as failed
//!                  └──── what is left when the session breaks is removed, but for large files
//! ```
//!
//! Everything written since the last publishing is one *generation*: files under hidden names in directories that were
//! there, staging directories that become new ones in one rename, and whole large files. The publisher takes the
//! generation, flushes the file systems, and gives all of it its names. It does so after a time, sooner when nothing
//! more comes, when much waits, where there is no room (replaced files then go, and the write is tried once more), when
//! the sender asks for removals, and at the end.
//!
//! The order has two reasons. ext4 with its defaults journals a file's size when write-back is submitted and not when
//! the data is on the disk, so a power cut would leave the right name, size and time over zeros. And the kernel reports
//! a failed write-back only once, and calls the pages clean: such a file is then found right, also by its contents,
//! until it has to be read from the disk.
//!
//! Files that have been flushed by themselves in a side directory have their names already; of these the publisher
//! knows the directories alone, which are flushed with the others (`placer/side.rs`).
//!
//! A batch is reported twice: as *stored*, which makes room for the next one, and as *published*, which alone counts.
//!
//! **Invariant:** in a directory that can be found, a file that has not been flushed has a hidden name
//! (`--durability none` excepted). So a power cut or a failed flush costs names that were never given, never
//! data that looks right.
//! **Invariant:** an item is reported as published when each of its files has its final name, and so have the
//! directories above. A staging directory is never of a later generation than what is below it.
//!
//! No lock but `cycle` is held across a call to the storage.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_disk::{Staged, StagingDirectory};
use zmove_types::{
    ALLOCATION_BYTES, ByteOrigins, FileId, HashOnlySet, ItemId, Metadata, Name, RelPath, Root,
};
use zmove_wire::limits::{UNPUBLISHED_ENTRIES_MAX, UNPUBLISHED_ITEMS_MAX};
use zmove_wire::{EntryFault, FileEntry};

use crate::rights::quota::messages::ELEMENT_BYTES;
use crate::rights::quota::{Booking, StagingBooking};
use crate::store::failure::FaultCause;
use crate::store::reports::Outcome;
use zmove_types::Lock;

/// The files that a transfer has written and not published yet; shared by the writers and the thread that publishes.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    state: Lock<PublisherState>,
    /// Notified when there is work for the thread that publishes, and when it has done some.
    changed: Condvar,
    /// Notified when a directory has been swept.
    sweep_ended: Condvar,
    /// Held from the begin of a flush until all that it covers has its name.
    cycle: Lock<()>,
    /// How long files wait for their names when nothing else comes.
    idle_max: Duration,
}

#[derive(Debug, Default)]
struct PublisherState {
    current: Generation,
    /// Every staging directory that has not got its name, by its final path.
    staged: HashMap<RelPath, Arc<StagingDirectory>>,
    /// Paths of which a staging directory is being made: a thread that needs one waits.
    beginning: HashSet<RelPath>,
    /// Directories that this transfer has made, and into which it has put nothing.
    fresh: HashSet<RelPath>,
    /// Directories that are being made, each with the number of this making. Where the entry has gone when the
    /// directory is made, another thread has put something into the directory already.
    making: HashMap<RelPath, u64>,
    makings: u64,
    /// Directories that a thread sweeps now.
    sweeping: HashSet<RelPath>,
    /// Directories that have been swept. Of two with the same hash one is left to the next transfer.
    swept: HashOnlySet,
    /// Staging directories take no more files: their generation is about to be flushed.
    closing: bool,
    /// The batches that writers are placing, by numbers that ascend; some may have been reported as stored already.
    placing: BTreeSet<u64>,
    placings: u64,
    /// How many threads wait for batches to be placed.
    waiting: usize,
    requested: bool,
    stopped: bool,
    failed_flushes: u64,
}

/// All that one flush covers.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    pub(crate) staging: HashMap<RelPath, Filling>,
    pub(crate) files: Vec<HiddenFile>,
    pub(crate) large: Vec<WholeFile>,
    /// Directories in which files have got their names by themselves.
    pub(crate) named_in: HashSet<RelPath>,
    /// All batches placed in the generation, also those without files: their directories may be below a staging
    /// directory.
    pub(crate) batches: Vec<Arc<PendingBatch>>,
    pub(crate) entries: usize,
    pub(crate) began: Option<Instant>,
    pub(crate) touched: Option<Instant>,
    /// Whether a flush has failed since some of it was written: then each file has to be looked at.
    pub(crate) suspect: bool,
}

/// A staging directory and the files in it.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) staging: Arc<StagingDirectory>,
    pub(crate) writers: usize,
    pub(crate) filled: Vec<SmallFile>,
    /// Files in the staging directory that are not whole and could not be removed.
    pub(crate) spoiled: Vec<Name>,
    /// Whether a writer has panicked while it filled the directory: what is in it is not known.
    pub(crate) abandoned: bool,
    pub(crate) _held: StagingBooking,
}

/// A small file that is whole and waits for its final name.
#[derive(Debug)]
pub(crate) struct SmallFile {
    pub(crate) batch: Arc<PendingBatch>,
    /// The number of the file in its batch.
    pub(crate) entry: u32,
    /// The entry of the file, with its final name.
    pub(crate) file: FileEntry,
}

/// A small file that is not in a staging directory but under a hidden name.
#[derive(Debug)]
pub(crate) struct HiddenFile {
    pub(crate) directory: Arc<RelPath>,
    pub(crate) hidden: Name,
    pub(crate) small: SmallFile,
}

/// A large file that is whole, and flushed by itself unless nothing is to be flushed.
#[derive(Debug)]
pub(crate) struct WholeFile {
    pub(crate) id: FileId,
    pub(crate) bytes: u64,
    pub(crate) origins: ByteOrigins,
    /// The path at the source and the root, where somebody hears of them.
    pub(crate) root: Option<(RelPath, Root)>,
    pub(crate) staged: Staged,
    pub(crate) path: RelPath,
    pub(crate) metadata: Metadata,
}

/// What the sender knew about a batch's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SenderKnowledge {
    /// The files do not exist at the target, or are to be replaced.
    Needed,
    /// The sender guessed that the files do not exist: one that exists already stays.
    PerhapsThere,
}

/// A batch whose entries are being placed and published. The sender is notified when the last holder
/// [releases](PendingBatch::release) it.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    item: ItemId,
    pub(crate) known: SenderKnowledge,
    faults: Lock<Vec<EntryFault>>,
    /// The memory of the names in it, booked on the key's quota.
    _held: Option<Booking>,
}

/// A guard for one writer that fills a staging directory; where a panic drops it, the directory is abandoned.
#[derive(Debug)]
pub(crate) struct FillingGuard<'a> {
    publisher: &'a Publisher,
    path: RelPath,
    pub(crate) staging: Arc<StagingDirectory>,
    left: bool,
}

/// Why the thread that publishes wakes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Time,
    Requested,
    Stopped,
}

/// How long files wait for their names while others keep coming. A process that is killed loses so much. Longer would
/// publish no faster: a file that is not in a staging directory yet when that closes costs two directory operations in
/// the place of one.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long files wait for their names on storage that answers late: there a directory is filled for seconds, and a
/// file that comes after the directory has its name costs three more requests.
pub(crate) const WAIT_LATE_MAX: Duration = Duration::from_secs(5);
/// What an entry of a batch takes from when it is decoded until it has its name, beside the bytes of its name
/// and path: at most twice what stands for it in a list that grows, its two names, and what the allocator
/// adds to these.
pub(crate) const UNPUBLISHED_BYTES: usize = 3 * ELEMENT_BYTES + ALLOCATION_BYTES;
const HIDDEN_NAME_BYTES: usize = 80;
const _: () = assert!(
    2 * size_of::<HiddenFile>() + HIDDEN_NAME_BYTES + 2 * ALLOCATION_BYTES <= UNPUBLISHED_BYTES
);
/// How long files wait for their names when nothing else comes, and the sender has other work meanwhile.
pub(crate) const IDLE_MAX: Duration = Duration::from_millis(200);
/// The same in a job of several receivers, where a sender waits for the names before it says that an item is done.
pub(crate) const IDLE_MAX_IN_JOB: Duration = Duration::from_millis(10);
/// The most staging directories of one generation, of which two may be under way.
pub(crate) const STAGING_MAX: usize = 128;
/// The number of large files for which a generation is published before its time.
const LARGE_MAX: usize = 64;
/// The most paths of new directories that are remembered. A directory beyond them is filled file by file.
const PATHS_MAX: usize = 16_384;
/// The longest path that is remembered. With the number above: 8 MiB in all, whatever a sender names.
const PATH_BYTES_MAX: usize = 512;
/// The most directories that are remembered as swept, in 16 bytes each. One beyond them is swept each time it is
/// opened.
pub(crate) const SWEPT_MAX: usize = 1 << 18;
/// A generation is published early once it has this many entries.
const ENTRIES_EARLY: u64 = UNPUBLISHED_ENTRIES_MAX / 8;
/// Once a generation has this many entries, the writers stop until it has been taken. Two generations may be
/// under way: together half of what a sender lets be unpublished.
const ENTRIES_MAX: u64 = UNPUBLISHED_ENTRIES_MAX / 4;
const ITEMS_EARLY: u64 = UNPUBLISHED_ITEMS_MAX / 8;
const ITEMS_MAX: u64 = UNPUBLISHED_ITEMS_MAX / 4;

impl SmallFile {
    /// A file that has got its metadata: of those only the time is looked at again.
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
    /// A publisher that gives files their names when nothing else has come for this time, or sooner.
    pub(crate) fn new(idle_max: Duration) -> Self {
        Self {
            idle_max,
            ..Self::default()
        }
    }

    /// The staging directory that covers `path`, and the rest of the path below it.
    pub(crate) fn staged_above(&self, path: &RelPath) -> Option<(Arc<OwnedFd>, RelPath)> {
        let mut state = self.state.lock();
        while state.beginning.iter().any(|above| covers(above, path)) {
            state = self.wait(state);
        }
        // A search of all is fine: there are few, and a path may have thousands of components.
        let covering = state.staged.iter().filter(|(above, _)| covers(above, path));
        let (above, found) = covering.max_by_key(|(above, _)| above.as_bytes().len())?;
        Some((Arc::clone(found.directory()), below(path, above)))
    }

    /// A guard for putting files into the staging directory of `path`, if there is one that still takes any.
    pub(crate) fn join(&self, path: &RelPath) -> Option<FillingGuard<'_>> {
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

    fn guard(&self, path: &RelPath, staging: &Arc<StagingDirectory>) -> FillingGuard<'_> {
        FillingGuard {
            publisher: self,
            path: path.clone(),
            staging: Arc::clone(staging),
            left: false,
        }
    }

    /// Begins a staging directory for `path` with `begin`, which also returns what is booked for it; `None` where there
    /// can be none now, or `begin` returns none.
    pub(crate) fn begin(
        &self,
        path: &RelPath,
        begin: impl FnOnce() -> Option<(StagingDirectory, StagingBooking)>,
    ) -> Option<FillingGuard<'_>> {
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
        let filling = Filling {
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

    /// Has `make` make a directory; `false` when it is there already. It counts as fresh unless somebody has
    /// [used](Self::is_used) it before this returns.
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

    /// Whether a directory has been made here and nothing has been put into it; from now on something will be.
    pub(crate) fn take_fresh(&self, path: &RelPath) -> bool {
        self.state.lock().fresh.remove(path)
    }

    /// Notes that something is about to be put into a directory, and perhaps into each one above: those that do not
    /// exist will be made.
    pub(crate) fn is_used(&self, path: &RelPath) {
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

    /// Has a directory swept before it is used: once each, or more often where there are very many. Whoever comes
    /// meanwhile waits.
    ///
    /// # Errors
    /// Those of `sweep`: then the next one sweeps.
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
        let _sweeping = Sweeping {
            publisher: self,
            path,
        };
        sweep()?;
        self.state.lock().note_swept(path);
        Ok(())
    }

    /// The number of flushes that have failed, for a file that is about to be written.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.state.lock().failed_flushes
    }

    /// Hands in a small file that waits for its name. `failed_flushes` had failed before its first byte was written:
    /// one that has failed since may have been for this file, though it belonged to no generation then.
    pub(crate) fn add_file(&self, file: HiddenFile, failed_flushes: u64) {
        let mut state = self.state.lock();
        state.current.suspect |= failed_flushes != state.failed_flushes;
        state.current.files.push(file);
        self.touch(&mut state);
    }

    /// Notes that a file which has been flushed by itself has got its name in a directory.
    pub(crate) fn has_named_in(&self, directory: &RelPath) {
        let mut state = self.state.lock();
        if !state.current.named_in.contains(directory) {
            state.current.named_in.insert(directory.clone());
        }
        self.touch(&mut state);
    }

    /// Hands in a large file that waits for its name.
    pub(crate) fn add_large(&self, file: WholeFile) {
        let mut state = self.state.lock();
        state.current.large.push(file);
        state.current.entries += 1;
        self.touch(&mut state);
        self.request_if_full(&mut state);
    }

    /// Notes that a writer begins to place a batch; it ends when the result is dropped.
    pub(crate) fn begin_batch(&self) -> Placing<'_> {
        let mut state = self.state.lock();
        state.placings += 1;
        let number = state.placings;
        state.placing.insert(number);
        Placing(self, number)
    }

    /// Waits until all batches that have come by now have been handed in.
    pub(crate) fn wait_until_placed(&self) {
        let mut state = self.state.lock();
        let last = state.placings;
        state.waiting += 1;
        while state.placing.first().is_some_and(|first| *first <= last) {
            state = self.wait(state);
        }
        state.waiting -= 1;
    }

    /// Hands in a batch of so many entries that has been placed; it is reported with all that came before. Waits while
    /// much is unpublished.
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

    /// Ends flushing and publishing by time.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the next work of the thread that publishes, for this time at most.
    pub(crate) fn next(&self, pause: Duration) -> Wake {
        let latest = Instant::now() + pause;
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Wake::Stopped;
            }
            if std::mem::take(&mut state.requested) {
                return Wake::Requested;
            }
            let idle = state.current.touched.map(|touched| touched + self.idle_max);
            let until = idle.map_or(latest, |idle| idle.min(latest));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Wake::Time;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether unpublished files have waited for long enough.
    pub(crate) fn is_due(&self, wait_max: Duration) -> bool {
        let current = &self.state.lock().current;
        let longer =
            |since: Option<Instant>, time| since.is_some_and(|since| since.elapsed() >= time);
        longer(current.began, wait_max) || longer(current.touched, self.idle_max)
    }

    /// Notes that something has come, which the thread that publishes may sleep through otherwise.
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

    /// Notes that a flush has failed: what has been written may not be on the storage, even if the next flush succeeds.
    pub(crate) fn suspect(&self) {
        let mut state = self.state.lock();
        state.failed_flushes += 1;
        state.current.suspect = true;
    }

    /// Takes all that has been written until now. Writers that fill a staging directory end that first.
    pub(crate) fn take(&self) -> Generation {
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

    /// Waits for the turn to publish, which one thread has at a time.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.cycle.lock()
    }

    pub(crate) fn has_unpublished(&self) -> bool {
        self.state.lock().current.began.is_some()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Notes that a staging directory has its name, or is gone.
    pub(crate) fn named(&self, path: &RelPath) {
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

/// A guard that takes a path out of those that are being begun, however that ends.
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

impl FillingGuard<'_> {
    /// Hands in the files that the writer has put into the directory; `spoiled` ones are there and not whole.
    pub(crate) fn leave(mut self, filled: Vec<SmallFile>, spoiled: Vec<Name>) {
        self.left = true;
        self.end(|filling| {
            filling.spoiled.extend(spoiled);
            filling.filled.extend(filled);
        });
    }

    fn end(&self, book: impl FnOnce(&mut Filling)) {
        let mut state = self.publisher.state.lock();
        let current = &mut state.current;
        if let Some(filling) = current.staging.get_mut(&self.path) {
            book(filling);
            filling.writers -= 1;
        }
        // Only `take` waits for the others, and the thread that publishes for the first. Writers come here for every
        // few files, and each notification would wake that thread, which has nothing to do yet.
        let is_waited_for = current.touch() || state.closing;
        drop(state);
        if is_waited_for {
            self.publisher.changed.notify_all();
        }
    }
}

impl Drop for FillingGuard<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.end(|filling| filling.abandoned = true);
        }
    }
}

/// A directory that is being swept, until this is dropped.
struct Sweeping<'a> {
    publisher: &'a Publisher,
    path: &'a RelPath,
}

impl Drop for Sweeping<'_> {
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
    /// Notes that something has come; returns whether it is the first.
    fn touch(&mut self) -> bool {
        let now = Instant::now();
        let is_first = self.began.is_none();
        self.began.get_or_insert(now);
        self.touched = Some(now);
        is_first
    }

    fn is_over(&self, entries: u64, items: u64) -> bool {
        self.entries as u64 >= entries || self.batches.len() as u64 >= items
    }
}

impl SmallFile {
    /// Notes that the file could not be published.
    pub(crate) fn fail(&self, fault: FaultCause) {
        self.batch.fault(self.entry, fault);
    }
}

impl PendingBatch {
    pub(crate) fn new(item: ItemId, known: SenderKnowledge, held: Option<Booking>) -> Arc<Self> {
        Arc::new(Self {
            item,
            known,
            faults: Lock::default(),
            _held: held,
        })
    }

    /// Notes that one of its entries cannot be placed, or cannot be published.
    pub(crate) fn fault(&self, entry: u32, cause: FaultCause) {
        self.faults.lock().push(cause.of_entry(entry));
    }

    /// The outcome to report, if nobody else holds the batch any more.
    pub(crate) fn release(self: Arc<Self>) -> Option<Outcome> {
        let Self { item, faults, .. } = Arc::into_inner(self)?;
        Some(Outcome::Published(item, faults.into_inner()))
    }

    /// The faults until now.
    pub(crate) fn faults(&self) -> Vec<EntryFault> {
        self.faults.lock().clone()
    }
}

/// Whether `path` is `above` or lies below it.
pub(crate) fn covers(above: &RelPath, path: &RelPath) -> bool {
    let rest = path.as_bytes().strip_prefix(above.as_bytes());
    rest.is_some_and(|rest| above.is_root() || rest.is_empty() || rest.starts_with(b"/"))
}

/// The path itself or the nearest one above that is short enough to be remembered.
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

/// The part of `path` below `above`, with which it begins.
pub(crate) fn below(path: &RelPath, above: &RelPath) -> RelPath {
    let rest = &path.as_bytes()[above.as_bytes().len()..];
    RelPath::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest))
        .expect("the end of a path is a path")
}
