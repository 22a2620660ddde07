//! The settings of a sender.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub(crate) use zmove_disk::BUFFER_BYTES;
use zmove_disk::{Direct, FileIo, StorageEngine, ThreadCountCache, cores};
use zmove_scan::{ScanConfig, unfinished};
use zmove_transport::{CONTROL_SILENCE_MAX, SharedRate};
use zmove_types::{Accounts, MetadataKinds, NoAccounts, RateLimit, Timestamp};
use zmove_wire::{Mapping, Open, Zeros};

use crate::plan::pack::PackSizes;

/// The settings of a sender.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// Number of threads that read and hash at the start. Default: the number of cores, clamped to 2–16.
    pub readers: usize,
    /// Maximum number of reader threads if the storage needs a deep queue. Default: 32. Each thread may hold one
    /// buffer.
    pub readers_max: usize,
    /// Number of 4 MiB buffers (one group each) between readers and lanes. Default: 24. With more than 16 lanes, the
    /// number is raised to at least the number of lanes plus 8. Maximum memory: 4 MiB per buffer.
    pub buffers_max: usize,
    /// Sizes of the first and the last packs. Default: `PackSizes::ForLanes`.
    pub pack_sizes: PackSizes,
    /// Configuration of the walk of the sources.
    pub scan: ScanConfig,
    /// How users and groups are identified if owners are kept. Default: by number.
    pub owners: OwnerMapping,
    /// How allocated zeros are handled. Default: they are sent as data.
    pub zeros: Zeros,
    /// Values for attributes that are not kept. Default: the values of the source.
    pub instead: FallbackAttributes,
    /// Interval between [`Event::Sampled`](zmove_types::Event::Sampled) events. Default: no such events are sent. A
    /// shorter interval shows more detail, and each sample costs one system call per lane. Must not be zero.
    pub sample_interval: Option<Duration>,
    /// Maximum time for which a receiver of a shared job may leave a ping unanswered. After that, the receiver counts
    /// as unreachable. Default: [`CONTROL_SILENCE_MAX`]. With a shorter limit, a receiver also counts as unreachable if
    /// the path merely stalls. Must not be zero.
    pub silence_max: Duration,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether reads of large files bypass the page cache. Default: the page cache is bypassed only on storage where
    /// that is faster.
    pub direct: Direct,
    /// Measurements of the sources' storage from earlier runs. Default: there are none, and new measurements are not
    /// stored.
    pub storage: ThreadCountCache,
    /// Maximum rate of all lanes together, including packet headers. Default: unlimited.
    pub rate_max: Option<RateLimit>,
    /// A rate limit shared with other pushes. Default: none.
    pub rate_shared: Option<SharedRate>,
}

impl SenderConfig {
    /// Configures the walk of the sources for this opening. The walk skips unfinished files of other transfers and
    /// reads the attributes that are to be kept.
    pub fn configure_walk(&mut self, open: &Open) {
        self.scan.skip_filter = Some(unfinished);
        self.scan.xattrs = Some(open.keeping.kinds.common(MetadataKinds::ANY_XATTR));
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
            owners: OwnerMapping::default(),
            zeros: Zeros::default(),
            instead: FallbackAttributes::default(),
            sample_interval: None,
            silence_max: CONTROL_SILENCE_MAX,
            file_io: Arc::new(StorageEngine::default()),
            direct: Direct::default(),
            storage: ThreadCountCache::default(),
            rate_max: None,
            rate_shared: None,
        }
    }
}

/// How the users and groups of entries are identified at the receiver.
#[derive(Clone, Debug)]
pub struct OwnerMapping {
    /// Source of user and group names on this host. Default: none, so that numbers are sent.
    pub accounts: Arc<dyn Accounts>,
    /// Mappings of users to users at the target; the first match applies. Default: users are not mapped.
    pub users: Vec<Mapping>,
    /// Mappings of groups to groups at the target; the first match applies. Default: groups are not mapped.
    pub groups: Vec<Mapping>,
}

impl Default for OwnerMapping {
    fn default() -> Self {
        Self {
            accounts: Arc::new(NoAccounts),
            users: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// Values for attributes of the source that are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackAttributes {
    /// Modification time of all entries. Default: the time of the source entry.
    pub mtime: Option<Timestamp>,
    /// The umask from which modes are derived: 0777 for directories and 0666 for other entries, without the bits of the
    /// umask. Default: the mode of the source entry.
    pub umask: Option<u32>,
}
