//! The quota of one key. It counts the resources that all transfers of the key use, except for buffers and lanes, and
//! limits them (see `docs/REFERENCE.md`).
//!
//! The following are charged against the quota:
//!
//! - messages, from decoding until they are answered (`messages`)
//! - lists of the entries in a batch, until the entries are placed
//! - remembered directories and files
//! - paths of open directories
//! - answers to a peer that does not read
//! - descriptors of large files
//! - threads that inspect the target
//!
//! A task that would exceed a limit fails instead of waiting, so no key waits for another key.
//!
//! With io_uring, each key has its own ring, because unresponsive storage occupies slots of the ring.
//!
//! **Invariant:** every use of a resource is a [`Charge`], which releases the resource on drop. So no exit path of a
//! task can forget the release.

pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod windows;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;
use zmove_disk::{FileIo, FileSystemThreadCounts, StorageThreads, StorageWork, Task, Turn};
use zmove_transport::Fingerprint;
use zmove_types::RelPath;
use zmove_wire::WireError;

use crate::resume::journal::JournalLimits;
use crate::rights::quota::limits::{Limits, files_of_process};
use zmove_types::Lock;

/// The quotas of all keys that have transfers in progress.
#[derive(Debug)]
pub struct Quotas {
    by_key: Lock<HashMap<Fingerprint, Weak<QuotaState>>>,
    /// Descriptors used by all keys together.
    files: Arc<Gauge>,
}

/// The quota of one key. Clones share it. A default quota belongs to no key and has the default limits.
#[derive(Clone, Debug)]
pub struct Quota(Arc<QuotaState>);

#[derive(Debug)]
struct QuotaState {
    memory: Arc<Gauge>,
    /// The windows of lanes, in bytes. They limit the received data that is buffered in this process.
    windows: Arc<Gauge>,
    files: Arc<Gauge>,
    threads: Arc<Gauge>,
    storage_threads: StorageThreads,
    /// The threads that rename files into place.
    naming_threads: StorageThreads,
    /// The storage engine of the key's transfers.
    file_io: OnceLock<Arc<dyn FileIo>>,
    transfers_max: AtomicUsize,
    /// The limits on the key's journals. Their usage is determined from the directory.
    room: Lock<JournalLimits>,
}

/// The used amount of one resource, and its limit.
#[derive(Debug)]
struct Gauge {
    used: AtomicUsize,
    max: AtomicUsize,
    /// The gauge that limits this gauge and its siblings together. Each sibling must leave some of the total free for
    /// the others. See [`add_for_child`](Self::add_for_child).
    parent: Option<Arc<Self>>,
}

/// A reserved amount. It is released on drop.
#[derive(Debug)]
pub struct Charge {
    gauge: Arc<Gauge>,
    amount: usize,
}

/// The reservations for a thread and for the descriptors that it opens.
pub type ThreadCharge = [Charge; 2];

/// The reservations for the descriptors of a staging directory and for its path.
pub(crate) type StagingCharge = [Charge; 2];

/// Number of descriptors for writing a large file: one for the file, one that bypasses the page cache, one for its
/// directory, and two for the version that it replaces.
const DESCRIPTORS_PER_FILE: usize = 5;

/// All keys together may use 1/2 of the process's descriptors. The rest is for connections, lanes and files that are
/// open only briefly.
const SHARES_OF_PROCESS: usize = 2;

/// Windows may use 1/2 of a key's memory limit. They have their own gauge, because otherwise a key with many lanes
/// would have no memory left for messages.
const WINDOW_SHARE: usize = 2;

/// Number of descriptors that a thread opens at the same time to inspect or write entries: a file, its directory, and
/// the parent of that directory.
const DESCRIPTORS_PER_THREAD: usize = 3;

/// Number of descriptors of a staging directory: its own and that of its parent.
const DESCRIPTORS_PER_STAGING: usize = 2;

/// Number of copies of a staging directory's path: one in the list of all staging directories, and one in its
/// generation.
const PATHS_PER_STAGING: usize = 2;

impl Quotas {
    /// Returns the quota of a key, with the current limits.
    #[must_use]
    pub fn of(&self, key: Fingerprint, limits: &Limits) -> Quota {
        let mut quotas = self.by_key.lock();
        quotas.retain(|_, quota| quota.strong_count() > 0);
        let known = quotas.get(&key).and_then(Weak::upgrade);
        let state = known
            .unwrap_or_else(|| Arc::new(QuotaState::new(limits, Gauge::child_of(&self.files))));
        state.set_limits(limits);
        quotas.insert(key, Arc::downgrade(&state));
        Quota(state)
    }

    /// Returns whether the transfers of a key use more than half of its memory limit.
    #[must_use]
    pub fn is_crowded(&self, key: Fingerprint) -> bool {
        let state = self.by_key.lock().get(&key).and_then(Weak::upgrade);
        state.is_some_and(|state| state.memory.used() > state.memory.max() / 2)
    }
}

impl Default for Quotas {
    fn default() -> Self {
        let files = Gauge {
            max: AtomicUsize::new(files_of_process() / SHARES_OF_PROCESS),
            ..Gauge::default()
        };
        Self {
            by_key: Lock::default(),
            files: Arc::new(files),
        }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self(Arc::new(QuotaState::new(
            &Limits::default(),
            Gauge::default(),
        )))
    }
}

impl Quota {
    /// Reserves memory.
    ///
    /// # Errors
    /// The limit would be exceeded.
    pub fn charge_memory(&self, bytes: usize) -> Result<Charge, WireError> {
        let mut held = self.empty_charge();
        held.grow(bytes)?;
        Ok(held)
    }

    /// Returns an empty reservation of memory, which can [grow](Charge::grow).
    #[must_use]
    pub fn empty_charge(&self) -> Charge {
        Charge {
            gauge: Arc::clone(&self.0.memory),
            amount: 0,
        }
    }

    /// Reserves the window of a lane. Returns `None` if the windows would exceed their limit, which is half of the
    /// memory limit.
    pub(crate) fn charge_window(&self, bytes: usize) -> Option<Charge> {
        self.0.windows.charge(bytes)
    }

    /// Reserves the descriptors of a large file.
    ///
    /// # Errors
    /// `EMFILE`, as if the process had no descriptors left.
    pub fn charge_file(&self) -> io::Result<Charge> {
        self.0
            .files
            .charge(DESCRIPTORS_PER_FILE)
            .ok_or_else(|| Errno::MFILE.into())
    }

    /// Reserves a descriptor that stays open for a long time. Returns `None` if a limit would be exceeded.
    #[must_use]
    pub fn charge_descriptor(&self) -> Option<Charge> {
        self.0.files.charge(1)
    }

    /// Reserves the descriptors of a staging directory and the memory for its path. Returns `None` if a limit would be
    /// exceeded.
    pub(crate) fn charge_staging(&self, path: &RelPath) -> Option<StagingCharge> {
        let path_bytes = PATHS_PER_STAGING * path.as_bytes().len();
        Some([
            self.0.files.charge(DESCRIPTORS_PER_STAGING)?,
            self.0.memory.charge(path_bytes)?,
        ])
    }

    /// Reserves the descriptors of an optional staging directory. Without it, its files are renamed into place one by
    /// one. Returns `None` unless most descriptors are free, because large files need them.
    pub(crate) fn charge_spare_staging(&self, path: &RelPath) -> Option<StagingCharge> {
        self.leaves_most_descriptors()
            .then(|| self.charge_staging(path))?
    }

    /// Reserves a thread and the descriptors that it opens. Returns `None` if a limit would be exceeded.
    #[must_use]
    pub fn charge_thread(&self) -> Option<ThreadCharge> {
        Some([
            self.0.threads.charge(1)?,
            self.0.files.charge(DESCRIPTORS_PER_THREAD)?,
        ])
    }

    /// Returns the storage engine of this key's transfers: a separate one if each key needs its own, otherwise `usual`.
    #[must_use]
    pub fn file_io(&self, usual: &Arc<dyn FileIo>) -> Arc<dyn FileIo> {
        Arc::clone(
            self.0
                .file_io
                .get_or_init(|| usual.new_independent().unwrap_or_else(|| Arc::clone(usual))),
        )
    }

    /// Returns a turn (permission to run) for a thread that hashes, lists or writes for a session. The turn is over
    /// when `stopping` is set.
    pub fn turn<'a>(&'a self, task: Task, stopping: &'a AtomicBool) -> Turn<'a> {
        self.0.storage_threads.turn(task, stopping)
    }

    /// Sets the initial number of this key's threads to the number that was useful in earlier transfers on a file
    /// system. Has no effect if threads have already started.
    pub(crate) fn recall_threads(&self, of: &FileSystemThreadCounts) {
        let all = self.work_and_threads();
        all.into_iter()
            .for_each(|(work, threads)| of.recall(work, threads));
    }

    /// Stores the number of this key's threads that was useful on a file system, for later transfers.
    pub(crate) fn keep_threads(&self, of: &FileSystemThreadCounts) {
        self.work_and_threads()
            .into_iter()
            .for_each(|(work, threads)| of.keep(work, threads));
    }

    fn work_and_threads(&self) -> [(StorageWork, &StorageThreads); 3] {
        let QuotaState {
            storage_threads,
            naming_threads,
            ..
        } = &*self.0;
        [
            (StorageWork::Look, storage_threads),
            (StorageWork::Write, storage_threads),
            (StorageWork::Name, naming_threads),
        ]
    }

    /// Returns whether the storage that this key writes to has a high latency.
    pub(crate) fn has_slow_writes(&self) -> bool {
        self.0.storage_threads.is_slow(Task::Write)
    }

    /// Runs `work` on this thread and on as many other threads of the key as are useful. See
    /// [`StorageThreads::run_parallel`].
    pub(crate) fn run_parallel<T: Send>(
        &self,
        task: Task,
        name: &str,
        stopping: &AtomicBool,
        work: impl Fn(&Turn<'_>) -> T + Sync,
    ) -> Vec<T> {
        self.0
            .storage_threads
            .run_parallel(task, name, stopping, || self.charge_helper(), work)
    }

    /// Runs `work`, which renames files into place, like [`run_parallel`](Self::run_parallel). The threads have
    /// separate turns (permission to run), because writers may hold all other turns while they wait for this work.
    pub(crate) fn name_side_by_side<T: Send>(
        &self,
        work: impl Fn(&Turn<'_>) -> T + Sync,
    ) -> Vec<T> {
        let task = (Task::Write, "zmove-publish");
        self.0
            .naming_threads
            .run_parallel(task.0, task.1, &NEVER, || self.charge_helper(), work)
    }

    /// Runs `work`, which removes the leftovers of a session that has ended, on as many threads as the session used for
    /// writing. See [`run_parallel`](Self::run_parallel).
    pub(crate) fn discard_side_by_side(&self, work: impl Fn(&Turn<'_>) + Sync) {
        self.run_parallel(Task::Write, "zmove-discard", &NEVER, work);
    }

    /// Returns a turn (permission to run) for a thread that renames files into place.
    pub(crate) fn naming_turn(&self) -> Turn<'_> {
        self.0.naming_threads.turn(Task::Write, &NEVER)
    }

    /// Reserves a helper thread. Returns `None` unless most descriptors are free, because large files need them.
    #[must_use]
    pub fn charge_helper(&self) -> Option<ThreadCharge> {
        self.leaves_most_descriptors()
            .then(|| self.charge_thread())?
    }

    fn leaves_most_descriptors(&self) -> bool {
        self.0.files.used() <= self.0.files.most() / 4
    }

    /// Returns the limits on this key's journals.
    pub(crate) fn journal_limits(&self) -> JournalLimits {
        *self.0.room.lock()
    }

    /// Returns the number of directories that each of a transfer's `writers` may keep open. With this number, open
    /// directories use at most half of the key's descriptors even with the maximum number of transfers.
    pub(crate) fn directories_each(&self, writers: usize) -> usize {
        let writers = self
            .0
            .transfers_max
            .load(Ordering::Relaxed)
            .saturating_mul(writers);
        self.0.files.max() / 2 / writers.max(1)
    }
}

/// A flag that is never set, for work that continues after the end of the session.
static NEVER: AtomicBool = AtomicBool::new(false);

impl QuotaState {
    fn new(limits: &Limits, files: Gauge) -> Self {
        let state = Self {
            memory: Arc::default(),
            windows: Arc::default(),
            files: Arc::new(files),
            threads: Arc::default(),
            storage_threads: StorageThreads::limited_to_cores(),
            naming_threads: StorageThreads::limited_to_cores(),
            file_io: OnceLock::new(),
            transfers_max: AtomicUsize::new(0),
            room: Lock::new(JournalLimits::of(limits)),
        };
        state.set_limits(limits);
        state
    }

    fn set_limits(&self, limits: &Limits) {
        let memory = usize::try_from(limits.memory_per_identity.0).unwrap_or(usize::MAX);
        self.memory.max.store(memory, Ordering::Relaxed);
        self.windows
            .max
            .store(memory / WINDOW_SHARE, Ordering::Relaxed);
        self.files
            .max
            .store(limits.files_per_identity, Ordering::Relaxed);
        self.threads
            .max
            .store(limits.threads_per_identity, Ordering::Relaxed);
        self.transfers_max
            .store(limits.transfers_per_identity, Ordering::Relaxed);
        *self.room.lock() = JournalLimits::of(limits);
    }
}

impl JournalLimits {
    fn of(limits: &Limits) -> Self {
        Self {
            journals: limits.journals_per_identity,
            bytes: limits.journal_bytes_per_identity.0,
        }
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self {
            used: AtomicUsize::new(0),
            max: AtomicUsize::new(usize::MAX),
            parent: None,
        }
    }
}

impl Gauge {
    fn child_of(parent: &Arc<Self>) -> Self {
        Self {
            parent: Some(Arc::clone(parent)),
            ..Self::default()
        }
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    fn charge(self: &Arc<Self>, amount: usize) -> Option<Charge> {
        self.take(amount).then(|| Charge {
            gauge: Arc::clone(self),
            amount,
        })
    }

    fn take(&self, amount: usize) -> bool {
        let max = self.max();
        let more = |used: usize| used.checked_add(amount).filter(|used| *used <= max);
        let Ok(before) = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        else {
            return false;
        };
        let fits = self
            .parent
            .as_ref()
            .is_none_or(|parent| parent.add_for_child(amount, before + amount));
        if !fits {
            self.used.fetch_sub(amount, Ordering::Relaxed);
        }
        fits
    }

    /// Adds `amount` for a child gauge whose total usage is then `part`. Returns false if `part` would exceed half of
    /// the amount that is free without this child. So each additional child gets some of the total.
    fn add_for_child(&self, amount: usize, part: usize) -> bool {
        let max = self.max();
        let more = |used: usize| {
            let with_it = used.checked_add(amount)?;
            let others = with_it.saturating_sub(part);
            (part <= max.saturating_sub(others) / 2).then_some(with_it)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Returns the current limit of this gauge, given the usage of its siblings.
    fn most(&self) -> usize {
        let max = self.max();
        let Some(parent) = &self.parent else {
            return max;
        };
        let others = parent.used().saturating_sub(self.used());
        max.min(parent.max().saturating_sub(others) / 2)
    }

    fn release(&self, amount: usize) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.release(amount);
        }
    }
}

impl Charge {
    /// Reserves `more`.
    ///
    /// # Errors
    /// The limit would be exceeded. The existing reservation is kept.
    pub fn grow(&mut self, more: usize) -> Result<(), WireError> {
        if self.gauge.take(more) {
            self.amount += more;
            return Ok(());
        }
        Err(WireError::OverLimit {
            what: "memory of the transfers of one key (limits.memory_per_identity)",
            value: (self.gauge.used() + more) as u64,
            limit: self.gauge.max() as u64,
        })
    }

    /// Releases part of the reservation.
    pub(crate) fn shrink(&mut self, less: usize) {
        self.amount -= less;
        self.gauge.release(less);
    }

    /// Adds another reservation of the same gauge to this one.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert!(
            Arc::ptr_eq(&self.gauge, &other.gauge),
            "it is of the same quota"
        );
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Releases the whole reservation.
    pub(crate) fn clear(&mut self) {
        self.shrink(self.amount);
    }

    /// Returns the reserved amount.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.gauge.release(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::ByteCount;

    impl Quota {
        /// Returns a quota with which only one thread works at a time, regardless of the duration of its work.
        pub(crate) fn with_one_place() -> Self {
            let mut state = QuotaState::new(&Limits::default(), Gauge::default());
            state.storage_threads = StorageThreads::one_at_a_time();
            Self(Arc::new(state))
        }

        /// Makes the key's storage count as slow for writing.
        pub(crate) fn begin_to_write_late(&self) {
            self.0.storage_threads.start_with(Task::Write, 256);
        }

        pub(crate) fn memory_held(&self) -> usize {
            self.0.memory.used()
        }
    }

    #[test]
    fn what_the_transfers_of_a_key_hold_counts_together_and_comes_back() {
        let limits = Limits {
            memory_per_identity: ByteCount(100),
            files_per_identity: 2 * DESCRIPTORS_PER_FILE,
            threads_per_identity: 1,
            ..Limits::default()
        };
        let (quotas, [one, other]) = (
            Quotas::default(),
            [1, 2].map(|byte| Fingerprint([byte; 32])),
        );
        let (first, second) = (quotas.of(one, &limits), quotas.of(one, &limits));
        let mut held = first.charge_memory(60).unwrap();
        assert!(second.charge_memory(41).is_err() && held.grow(41).is_err());
        let (files, thread) = (
            [first.charge_file().unwrap(), second.charge_file().unwrap()],
            first.charge_thread(),
        );
        let error = second.charge_file().unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::MFILE));
        assert!(second.charge_thread().is_none());
        // Other keys are not affected.
        let stranger = quotas.of(other, &limits);
        drop((
            stranger.charge_memory(100).unwrap(),
            stranger.charge_file().unwrap(),
            stranger.charge_thread().unwrap(),
        ));
        drop((held, files, thread));
        drop((
            second.charge_memory(100).unwrap(),
            second.charge_file().unwrap(),
            second.charge_thread().unwrap(),
        ));
    }

    #[test]
    fn all_keys_together_leave_descriptors_to_the_process_and_each_to_the_next() {
        let most = 32 * DESCRIPTORS_PER_FILE;
        let files = Arc::new(Gauge {
            max: AtomicUsize::new(most),
            ..Gauge::default()
        });
        let quotas = Quotas {
            files: Arc::clone(&files),
            ..Quotas::default()
        };
        let limits = |files| Limits {
            files_per_identity: files * DESCRIPTORS_PER_FILE,
            ..Limits::default()
        };
        let of = |byte, limits: &Limits| quotas.of(Fingerprint([byte; 32]), limits);
        let all = |quota: &Quota| {
            let held: Vec<_> = std::iter::from_fn(|| quota.charge_file().ok()).collect();
            let error = quota.charge_file().unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::MFILE));
            held
        };
        let keys = [1, 2, 3, 4].map(|byte| of(byte, &limits(32)));
        let held: Vec<_> = keys.iter().map(all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [16, 8, 4, 2]);
        let mut held = held.into_iter();
        drop(held.next());
        assert_eq!(
            all(&keys[2]).len(),
            7,
            "half of what the others leave then, with the 4 that it has"
        );
        drop(held);
        assert_eq!(files.used.load(Ordering::Relaxed), 0);
        let few = of(5, &limits(3));
        assert_eq!(all(&few).len(), 3, "its own limit");
        let all = Quotas::default().files.max.load(Ordering::Relaxed);
        assert_eq!(all, files_of_process() / SHARES_OF_PROCESS);
    }

    #[test]
    fn large_files_find_most_descriptors_when_many_directories_are_staged() {
        let limits = Limits {
            files_per_identity: 8 * DESCRIPTORS_PER_FILE,
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let staged: Vec<_> =
            std::iter::from_fn(|| quota.charge_spare_staging(&RelPath::root())).collect();
        let files: Vec<_> = std::iter::from_fn(|| quota.charge_file().ok()).collect();
        assert!(
            !staged.is_empty() && files.len() >= 5,
            "{} {}",
            staged.len(),
            files.len()
        );
        drop(files);
        assert!(
            quota.charge_staging(&RelPath::root()).is_some(),
            "a directory that has to be staged is"
        );
    }

    #[test]
    fn large_files_find_most_descriptors_also_beside_other_keys() {
        let most = 32 * DESCRIPTORS_PER_FILE;
        let files = Arc::new(Gauge {
            max: AtomicUsize::new(most),
            ..Gauge::default()
        });
        let quotas = Quotas {
            files,
            ..Quotas::default()
        };
        let limits = Limits {
            files_per_identity: most / 2,
            ..Limits::default()
        };
        let [one, other, last] = [1, 2, 3].map(|byte| quotas.of(Fingerprint([byte; 32]), &limits));
        let _theirs: Vec<_> = [one, other]
            .iter()
            .flat_map(|quota| std::iter::from_fn(|| quota.charge_file().ok()).collect::<Vec<_>>())
            .collect();
        let staged: Vec<_> =
            std::iter::from_fn(|| last.charge_spare_staging(&RelPath::root())).collect();
        let files = std::iter::from_fn(|| last.charge_file().ok())
            .collect::<Vec<_>>()
            .len();
        assert!(!staged.is_empty() && files >= 2, "{} {files}", staged.len());
    }

    #[test]
    fn other_limits_hold_from_the_next_transfer_on() {
        let (quotas, key) = (Quotas::default(), Fingerprint([1; 32]));
        let limits = |bytes| Limits {
            memory_per_identity: ByteCount(bytes),
            ..Limits::default()
        };
        let first = quotas.of(key, &limits(10));
        let held = first.charge_memory(10).unwrap();
        drop(quotas.of(key, &limits(20)));
        let more = first.charge_memory(10).unwrap();
        drop(quotas.of(key, &limits(5)));
        drop((held, more));
        assert!(first.charge_memory(6).is_err() && first.charge_memory(5).is_ok());
    }
}
