//! The settings of a receiver.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) use zmove_disk::BUFFER_BYTES;
use zmove_disk::{Direct, FileIo, RemovalBudget, StorageEngine, StorageMemory, Tree, cores};
use zmove_types::{Accounts, Brought, Lock, NoAccounts, RelPath, Root};
use zmove_wire::{SweepOrder, Swept};

use crate::comparison::entries::listed::ListedFiles;
use crate::meters::TransferMeter;
use crate::rights::grant::{Allowance, Grants, Rights};
use crate::rights::quota::Quota;
use crate::rights::top_names::TopNames;
use crate::session::leases::target_sessions::TargetSessions;

/// Somebody who hears of the regular files that get their names.
pub trait NamedFiles: std::fmt::Debug + Send + Sync {
    /// The file of this path at the source has its name. Called before the sender is told; must not block.
    fn named(&self, path: RelPath, root: Root);
}

/// A directory whose storage is measured, and how transfers use that storage.
#[derive(Debug)]
pub struct SweepTarget {
    /// The open directory.
    pub tree: Tree,
    /// The path of the directory, for messages.
    pub shown: PathBuf,
    /// Threads that write.
    pub threads: usize,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether large files pass by the page cache.
    pub direct: Direct,
}

/// Measures storage within the bounds of the order, until the flag is set. It removes whatever it has written.
pub type MeasureStorage = fn(SweepTarget, SweepOrder, &AtomicBool) -> Swept;

/// The settings of one receiving session.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Threads that write. Default: the number of cores, 2 to 8. More help storage that needs depth; a writer adds no
    /// memory.
    pub writers: usize,
    /// Buffers of one group (4 MiB) that wait between lanes and writers. Default: 32. With more than 24 lanes there are
    /// as many as lanes and 8 more, up to [`memory_max`](Self::memory_max). Memory at worst: 4 MiB each.
    pub buffers_max: usize,
    /// The most buffers, however many lanes there are. Default: 72.
    pub memory_max: usize,
    /// The most lanes of one transfer. Default: 64.
    pub lanes_max: u16,
    /// Whether a daemon takes lanes in clear from senders that ask for them. Default: no, such transfers are refused.
    pub allow_clear: bool,
    /// The directory where journals of unfinished large files are kept, so that a later transfer can go on with them.
    /// Default: none is kept.
    pub journals: Option<PathBuf>,
    /// How long a cleaning keeps the part of a large file after its last change. Default: 7 days.
    pub parts_kept: Duration,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether large files pass by the page cache. Default: where it pays.
    pub direct: Direct,
    /// What was found of targets' storages before. Default: nothing, and nothing is remembered.
    pub storage: StorageMemory,
    /// The function that measures the target's storage for a probe. Default: none, and the probe reports that.
    pub measure_storage: Option<MeasureStorage>,
    /// What the sender may do. Default: what this process may, except to set owners.
    pub rights: Rights,
    /// The meaning of names of users and groups on this host. Default: none, so that numbers count.
    pub accounts: Arc<dyn Accounts>,
    /// The sessions of this process that work at targets. Default: none but its own; clones of one configuration share
    /// them.
    pub target_sessions: TargetSessions,
    /// The quota on which the session's memory, descriptors and threads are booked. Default: one of its own, with the
    /// default limits.
    pub quota: Quota,
    /// The names that the sender may bring at the top of the target. Default: any.
    pub top_names: TopNames,
    /// The files that a preview is about, in the place of what is at the target. Default: the target.
    pub listed: Option<Arc<ListedFiles>>,
    /// The grants by which the peer may open a transfer. Default: none, so that only its own rights count.
    pub grants: Option<Arc<dyn Grants>>,
    /// What the transfer may store. Default: as much as comes.
    pub allowance: Option<Arc<Allowance>>,
    /// The entries that the run may still remove. Default: as many as its opening says.
    pub removals: Option<Arc<RemovalBudget>>,
    /// The listener to the files that get their names. Default: none.
    pub named: Option<Arc<dyn NamedFiles>>,
    /// What the sessions of the run have brought, to which this one adds. Default: nobody asks.
    pub brought: Option<Arc<Lock<Brought>>>,
    /// The counters of the session. Default: counters that nobody reads; each session needs its own.
    pub meter: Arc<TransferMeter>,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            writers: cores().clamp(2, 8),
            buffers_max: 32,
            memory_max: 72,
            lanes_max: zmove_wire::limits::LANES_MAX,
            allow_clear: false,
            journals: None,
            parts_kept: Duration::from_secs(7 * 24 * 60 * 60),
            file_io: Arc::new(StorageEngine::default()),
            direct: Direct::default(),
            storage: StorageMemory::default(),
            measure_storage: None,
            rights: Rights::default(),
            accounts: Arc::new(NoAccounts),
            target_sessions: TargetSessions::default(),
            quota: Quota::default(),
            top_names: TopNames::default(),
            listed: None,
            grants: None,
            allowance: None,
            removals: None,
            named: None,
            brought: None,
            meter: Arc::default(),
        }
    }
}

impl ReceiverConfig {
    /// The directory at a target, to be measured.
    pub(crate) fn sweep_target(&self, tree: Tree, shown: PathBuf) -> SweepTarget {
        SweepTarget {
            tree,
            shown,
            threads: self.writers,
            file_io: Arc::clone(&self.file_io),
            direct: self.direct,
        }
    }
}
