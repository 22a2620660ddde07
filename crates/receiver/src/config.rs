//! Configuration of a receiver.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) use zmove_disk::BUFFER_BYTES;
use zmove_disk::{Direct, FileIo, RemovalBudget, StorageEngine, ThreadCountCache, Tree, cores};
use zmove_types::{Accounts, DeliveryLog, Lock, NoAccounts, RelPath, Root};
use zmove_wire::{SweepOrder, Swept};

use crate::comparison::entries::listed::ListedFiles;
use crate::meters::TransferMeter;
use crate::rights::grant::{Allowance, Grants, Rights};
use crate::rights::quota::Quota;
use crate::rights::top_names::TopNames;
use crate::session::leases::target_sessions::TargetSessions;

/// A listener that is notified of each regular file that is renamed into place.
pub trait NamedFiles: std::fmt::Debug + Send + Sync {
    /// Handles the source path and the root hash of a file that was renamed into place.
    ///
    /// Called before the sender is notified. Must not block.
    fn named(&self, path: RelPath, root: Root);
}

/// A directory for measuring the storage, with the settings that transfers use for that storage.
#[derive(Debug)]
pub struct SweepTarget {
    /// The open directory.
    pub tree: Tree,
    /// The path of the directory, for messages.
    pub shown: PathBuf,
    /// Number of writer threads.
    pub threads: usize,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether large files bypass the page cache.
    pub direct: Direct,
}

/// A function that measures storage within the limits of the [`SweepOrder`]. It stops when the flag is set, and removes
/// everything that it has written.
pub type MeasureStorage = fn(SweepTarget, SweepOrder, &AtomicBool) -> Swept;

/// Configuration of one receiving session.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Number of writer threads. Default: the number of cores, at least 2 and at most 8.
    ///
    /// More writers increase the rate of storage that needs many requests in flight. They use no additional buffers.
    pub writers: usize,
    /// Number of buffers between lanes and writers, each for one group (4 MiB). Default: 32.
    ///
    /// With more than 24 lanes, the number of buffers is the number of lanes plus 8, but at most
    /// [`memory_max`](Self::memory_max).
    pub buffers_max: usize,
    /// Maximum number of buffers for any number of lanes. Default: 72, which is 288 MiB.
    pub memory_max: usize,
    /// Maximum number of lanes of one transfer. Default: 64.
    pub lanes_max: u16,
    /// Whether a daemon accepts unencrypted lanes from senders that request them. Default: no, so such transfers are
    /// refused.
    pub allow_clear: bool,
    /// Directory for the journals of unfinished large files, from which a later transfer can resume. Default: none, so
    /// no journal is kept.
    pub journals: Option<PathBuf>,
    /// How long a cleanup keeps the part of a large file after its last change. Default: 7 days.
    pub parts_kept: Duration,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether large files bypass the page cache. Default: only if bypassing is expected to be faster.
    pub direct: Direct,
    /// Measurements of target storage from earlier transfers. Default: empty, and new measurements are discarded.
    pub storage: ThreadCountCache,
    /// The function that measures the target's storage for a probe. Default: none. The probe then reports that no
    /// function exists.
    pub measure_storage: Option<MeasureStorage>,
    /// Permissions of the sender. Default: the permissions of this process, except that the sender may not set owners.
    pub rights: Rights,
    /// Mapping of user and group names to this host's IDs. Default: an empty mapping, so numeric IDs are used.
    pub accounts: Arc<dyn Accounts>,
    /// Registry of this process's sessions by target. Default: a new registry that only clones of this configuration
    /// share.
    pub target_sessions: TargetSessions,
    /// The quota that is charged for the session's memory, descriptors and threads. Default: a separate quota with the
    /// default limits.
    pub quota: Quota,
    /// Names that the sender may use as the first component of a path in the target. Default: any name.
    pub top_names: TopNames,
    /// The list of files that a verification compares with the source instead of the target. Default: none.
    pub listed: Option<Arc<ListedFiles>>,
    /// The grants by which the peer may open a transfer. Default: none, so only the peer's own permissions apply.
    pub grants: Option<Arc<dyn Grants>>,
    /// Limit on the data and entries that the transfer may store. Default: none.
    pub allowance: Option<Arc<Allowance>>,
    /// Number of entries that the run may still remove. Default: the limit in its opening.
    pub removals: Option<Arc<RemovalBudget>>,
    /// The listener that is notified of files that are renamed into place. Default: none.
    pub named: Option<Arc<dyn NamedFiles>>,
    /// Totals received by all sessions of the run. This session adds its own. Default: the totals are not recorded.
    pub delivery_log: Option<Arc<Lock<DeliveryLog>>>,
    /// The session's counters. Default: new counters that no other code reads. Sessions must not share counters.
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
            storage: ThreadCountCache::default(),
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
            delivery_log: None,
            meter: Arc::default(),
        }
    }
}

impl ReceiverConfig {
    /// Returns an open directory at a target with the settings for measuring its storage.
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
