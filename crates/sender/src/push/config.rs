//! The settings of a sender.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub(crate) use zmove_disk::BUFFER_BYTES;
use zmove_disk::{Direct, FileIo, StorageEngine, StorageMemory, cores};
use zmove_scan::{ScanConfig, unfinished};
use zmove_transport::{CONTROL_SILENCE_MAX, SharedRate};
use zmove_types::{Accounts, Kinds, NoAccounts, RateLimit, Timestamp};
use zmove_wire::{Mapping, Open, Zeros};

use crate::plan::pack::PackSizes;

/// The settings of a sender.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// Threads that read and hash at the start. Default: the number of cores, 2 to 16.
    pub readers: usize,
    /// The most threads that read where storage needs depth. Default: 32. Each may hold a buffer.
    pub readers_max: usize,
    /// Buffers of one group (4 MiB) between readers and lanes. Default: 24. With more than 16 lanes there are as many
    /// as lanes and 8 more. Memory at worst: 4 MiB each.
    pub buffers_max: usize,
    /// The sizes of the first and the last packs. Default: for lanes.
    pub pack_sizes: PackSizes,
    /// How the sources are walked.
    pub scan: ScanConfig,
    /// Whom entries are said to belong to, where owners are kept. Default: their numbers.
    pub owners: Owners,
    /// What becomes of zeros that are allocated. Default: they are data.
    pub zeros: Zeros,
    /// What entries get where their own is not kept. Default: they keep their own.
    pub instead: Instead,
    /// How often [`Event::Sampled`](zmove_types::Event::Sampled) is told. Default: never. Shorter shows more and
    /// costs a system call for each lane each time. Not zero.
    pub sample_interval: Option<Duration>,
    /// How long a receiver of a shared job may leave a ping without an answer before it counts as away. Default:
    /// [`CONTROL_SILENCE_MAX`]. Shorter takes a path that stands still for a receiver that is away. Not zero.
    pub silence_max: Duration,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether large files pass by the page cache. Default: where it pays.
    pub direct: Direct,
    /// What was found of the sources' storages before. Default: nothing, and nothing is remembered.
    pub storage: StorageMemory,
    /// What all lanes together may carry, with the headers of the packets. Default: as much as there is.
    pub rate_max: Option<RateLimit>,
    /// A rate that is kept together with other pushes. Default: none.
    pub rate_shared: Option<SharedRate>,
}

impl SenderConfig {
    /// Has the sources walked for this opening: without what transfers have left unfinished, and with the attributes
    /// that are to be kept.
    pub fn walk_for(&mut self, open: &Open) {
        self.scan.apart = Some(unfinished);
        self.scan.xattrs = Some(open.keeping.kinds.common(Kinds::ANY_XATTR));
    }
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            readers: cores().clamp(2, 16),
            readers_max: 32,
            buffers_max: 24,
            pack_sizes: PackSizes::ForLanes,
            scan: ScanConfig::default(),
            owners: Owners::default(),
            zeros: Zeros::default(),
            instead: Instead::default(),
            sample_interval: None,
            silence_max: CONTROL_SILENCE_MAX,
            file_io: Arc::new(StorageEngine::default()),
            direct: Direct::default(),
            storage: StorageMemory::default(),
            rate_max: None,
            rate_shared: None,
        }
    }
}

/// Whom entries are said to belong to.
#[derive(Clone, Debug)]
pub struct Owners {
    /// The names that users and groups have here. Default: none, so that numbers count.
    pub accounts: Arc<dyn Accounts>,
    /// What users are at the target, the first that applies. Default: what they are here.
    pub users: Vec<Mapping>,
    /// What groups are at the target, the first that applies. Default: what they are here.
    pub groups: Vec<Mapping>,
}

impl Default for Owners {
    fn default() -> Self {
        Self {
            accounts: Arc::new(NoAccounts),
            users: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// What entries get where their own is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instead {
    /// The modification time of all of them. Default: each its own.
    pub mtime: Option<Timestamp>,
    /// The umask, which leaves permission bits of 0666, and of 0777 for directories. Default: each its own.
    pub umask: Option<u32>,
}
