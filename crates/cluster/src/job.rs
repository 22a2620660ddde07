//! The data about a multi-node job that each of its movers needs.

mod head_lease;
mod tally;

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use zmove_disk::Lease;
use zmove_engine::{DialSettings, Remote, SenderConfig};
use zmove_scan::{
    DirectoryMark, MarkedPath, Portion, PortionEntries, PortionSize, ScanConfig, ScanRoot,
    mark_root,
};
use zmove_types::{Beginning, Escaped, GROUP_BYTES, Lock, Name, RelPath, SharedJobId};
use zmove_wire::limits::JOB_GRANT_BYTES_MAX;
use zmove_wire::{JobGrant, Open, SharedJobOpening, SignedJobGrant, TargetShape};

use crate::error::{SessionEnd, WorkError};

pub use self::head_lease::HeadLease;
pub use self::tally::Tally;

/// The data about a multi-node job that each of its movers needs.
#[derive(Clone, Debug)]
pub struct SharedJob {
    /// Id of the job.
    pub id: SharedJobId,
    /// The sources, with the same paths on all sending nodes.
    pub sources: Vec<ScanRoot>,
    /// The opening that is sent to each receiver.
    pub open: Open,
    /// Settings for reading and sending the sources.
    pub config: SenderConfig,
    /// Grant that authorizes this node. Default: none, so that receivers must allow the node's own key.
    pub grant: CurrentGrant,
    /// State of each source as the head has seen it. Default: unknown, so that directories are not compared between
    /// nodes.
    pub source_marks: Vec<Option<DirectoryMark>>,
    /// Role of this node, which decides how the node proceeds if its sources differ from those of another node.
    /// Default: head.
    pub view: NodeRole,
    /// Lease that the node holds from the head. Default: a lease that never expires, for the head itself.
    pub head: Lease,
}

/// A receiver of a job, and its connection settings.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The directory with this side's key and the pinned keys.
    pub home: PathBuf,
    /// The receiver.
    pub remote: Remote,
    /// Connection settings.
    pub settings: DialSettings,
}

/// The role of a node in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeRole {
    /// This node leads the job. It creates the queue, recreates it if the broker has lost it, and closes it. Its view
    /// of the sources is authoritative. Entries that another node found in a different state fail, because that node
    /// may have sent them in that state.
    #[default]
    Head,
    /// This node takes part in the job of a head. It leaves the job if it sees different sources.
    Follower,
}

/// The newest grant of a node. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CurrentGrant(Arc<Lock<Option<Arc<SignedJobGrant>>>>);

impl CurrentGrant {
    /// Replaces the grant.
    pub fn renew(&self, grant: SignedJobGrant) {
        *self.0.lock() = Some(Arc::new(grant));
    }

    /// Returns the current grant.
    #[must_use]
    pub fn current(&self) -> Option<Arc<SignedJobGrant>> {
        self.0.lock().clone()
    }

    /// Returns when the grant expires, in seconds since 1970, or `None` if there is no grant.
    #[must_use]
    pub fn ends(&self) -> Option<u64> {
        Some(self.current()?.grant.not_after)
    }
}

impl SharedJob {
    /// Creates a job, with the scan configuration that `open` requires.
    #[must_use]
    pub fn new(
        id: SharedJobId,
        sources: Vec<ScanRoot>,
        open: Open,
        mut config: SenderConfig,
    ) -> Self {
        config.configure_walk(&open);
        let source_marks = vec![None; sources.len()];
        Self {
            id,
            sources,
            open,
            config,
            grant: CurrentGrant::default(),
            source_marks,
            view: NodeRole::default(),
            head: Lease::constant(),
        }
    }

    /// Records the state of the sources, so that all nodes can compare it with their own view. Blocks on file
    /// operations.
    #[must_use]
    pub fn with_marks(self) -> Self {
        let source_marks = self.sources.iter().map(mark_root).collect();
        Self {
            source_marks,
            ..self
        }
    }

    /// Creates the grant with which the node with key `node` may use the given receivers. `valid` is in seconds since
    /// 1970. The grant lists the names at the top level of the target. It allows any name if a source has no name
    /// there, or if the list would be too long.
    #[must_use]
    pub fn grant_for(
        &self,
        node: [u8; 32],
        receivers: Vec<[u8; 32]>,
        valid: Range<u64>,
    ) -> JobGrant {
        let tops = self.tops().unwrap_or_default();
        let tops = tops.into_iter().collect();
        let of_node = Self {
            view: NodeRole::Follower,
            ..self.clone()
        };
        let mut grant = JobGrant {
            node,
            receivers,
            open: Open {
                shape: TargetShape::Directory { tops },
                ..of_node.opening(Beginning::UnderWay)
            },
            not_before: valid.start,
            not_after: valid.end,
        };
        if grant.encode().len() > JOB_GRANT_BYTES_MAX {
            grant.open.shape = TargetShape::Directory { tops: Vec::new() };
        }
        grant
    }

    /// Returns the names of the sources at the top level of the target, or `None` if a source has no name there.
    pub(crate) fn tops(&self) -> Option<Vec<Name>> {
        self.sources
            .iter()
            .map(|source| source.prefix.file_name())
            .collect()
    }

    /// Returns the opening of a session. `beginning` decides whether the session may start the job or only join it.
    pub(crate) fn opening(&self, beginning: Beginning) -> Open {
        let part = SharedJobOpening {
            job: self.id,
            beginning,
            leads: self.view == NodeRole::Head,
        };
        Open {
            shared_job: Some(Box::new(part)),
            ..self.open.clone()
        }
    }

    /// Returns the target, formatted for display.
    pub(crate) fn target(&self) -> String {
        Escaped::path(OsStr::from_bytes(&self.open.target)).to_string()
    }

    /// Returns the source with this number.
    pub(crate) fn root_of(&self, source: u32) -> Option<&ScanRoot> {
        self.sources.get(usize::try_from(source).ok()?)
    }

    /// Scans a source on a blocking thread. A node that is not the head leaves the job if a directory differs from its
    /// description in the work item.
    pub(crate) async fn scan(
        &self,
        source: u32,
        scan: impl FnOnce(&ScanRoot, &ScanConfig) -> Portion + Send + 'static,
    ) -> Result<Portion, SessionEnd> {
        let root = self.root_of(source).ok_or(NO_SOURCE)?;
        let at = root.clone();
        let config = self.config.scan.clone();
        let scanned = spawn_blocking(move || scan(&at, &config)).await;
        let portion = scanned.map_err(|_panic| SessionEnd::Panicked("a walk panicked"))?;
        let differs = || {
            portion
                .difference()
                .or_else(|| portion.failure_at(&root.source))
        };
        match differs().filter(|_| self.view == NodeRole::Follower) {
            Some(error) => Err(SessionEnd::SourcesDiffer(error.to_string())),
            None => Ok(portion),
        }
    }

    /// Returns the error for a job whose queue lost items in each of its passes. The items that the last pass lost are
    /// unknown.
    pub(crate) fn given_up_after(&self, passes: u32) -> WorkError {
        let paths = self.sources.iter().map(|source| &source.source);
        let mut unconfirmed: Vec<_> = paths
            .take(SOURCES_NAMED_MAX)
            .map(|path| format!("'{}'", Escaped::path(path)))
            .collect();
        let more = self.sources.len() - unconfirmed.len();
        if more > 0 {
            unconfirmed.push(format!("{more} more"));
        }
        WorkError::RepeatedLosses {
            passes,
            unconfirmed: unconfirmed.join(", "),
        }
    }

    /// Returns the top directories of all sources, in the state that the head has seen.
    pub(crate) fn tops_of_sources(&self) -> impl Iterator<Item = MarkedPath> {
        self.source_marks.iter().map(|&mark| MarkedPath {
            path: RelPath::root(),
            mark,
        })
    }
}

/// Maximum number of sources that an error lists.
const SOURCES_NAMED_MAX: usize = 10;
const NO_SOURCE: SessionEnd =
    SessionEnd::PeerMisbehaved("a work item is about a source that the job does not have");

/// Maximum size of a work item: a third of a second at 400 Mbit/s. The size is small enough that no node works much
/// longer than the other nodes at the end of a job.
pub(crate) const ITEM: PortionSize = PortionSize {
    entries: 1000,
    bytes: 4 * GROUP_BYTES,
    large_bytes: 16 * GROUP_BYTES,
    wanted: PortionEntries::All,
};
