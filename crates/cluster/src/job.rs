//! A job of many nodes, as each of its movers knows it.

mod head_lease;
mod tally;

use std::ffi::OsStr;
use std::iter::repeat;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use zmove_disk::Lease;
use zmove_engine::{DialSettings, Remote, SenderConfig};
use zmove_scan::{
    DirectoryMark, MarkedPath, Portion, PortionSize, PortionWanted, ScanConfig, ScanRoot, mark_root,
};
use zmove_types::{Beginning, Escaped, GROUP_BYTES, Lock, Name, RelPath, SharedJobId};
use zmove_wire::limits::JOB_GRANT_BYTES_MAX;
use zmove_wire::{JobGrant, NodeName, Open, SharedJobOpening, SignedJobGrant, TargetShape};

use crate::error::{Stop, WorkError};

pub use self::head_lease::HeadLease;
pub use self::tally::Tally;

/// A job of many nodes, as each of its movers knows it.
#[derive(Clone, Debug)]
pub struct SharedJob {
    /// The job.
    pub id: SharedJobId,
    /// This node.
    pub node: NodeName,
    /// The sources, the same paths on all nodes of the senders.
    pub sources: Vec<ScanRoot>,
    /// What each receiver is asked for.
    pub open: Open,
    /// How the sources are read and sent.
    pub config: SenderConfig,
    /// The grant by which this node is let in. Default: none, so that its own key has to be.
    pub grant: HeldGrant,
    /// What the node that leads has seen of the sources. Default: nothing, and no directory is compared with what
    /// another node has seen.
    pub source_marks: Vec<Option<DirectoryMark>>,
    /// What follows where this node sees other directories than another. Default: this node leads.
    pub view: View,
    /// The lease that the node holds from the head. Default: one that never ends, since this node leads.
    pub head: Lease,
}

/// A receiver of a job, and how it is reached.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The directory with this side's key and the pinned keys.
    pub home: PathBuf,
    /// The receiver.
    pub remote: Remote,
    /// The settings of its connections.
    pub settings: DialSettings,
}

/// Whose view of the sources is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// This node's, which leads: what another has found otherwise fails here, since it may have sent what it saw.
    #[default]
    Leads,
    /// The leading node's: this one leaves the job where it sees something else.
    Follows,
}

/// The newest grant of a node. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HeldGrant(Arc<Lock<Option<Arc<SignedJobGrant>>>>);

impl HeldGrant {
    /// Holds another grant from now on.
    pub fn renew(&self, grant: SignedJobGrant) {
        *self.0.lock() = Some(Arc::new(grant));
    }

    /// The grant.
    #[must_use]
    pub fn current(&self) -> Option<Arc<SignedJobGrant>> {
        self.0.lock().clone()
    }

    /// When the grant ends, in seconds since 1970; `None` where there is none.
    #[must_use]
    pub fn ends(&self) -> Option<u64> {
        Some(self.current()?.grant.not_after)
    }
}

impl SharedJob {
    /// The job with all that its walks need.
    #[must_use]
    pub fn new(
        id: SharedJobId,
        node: NodeName,
        sources: Vec<ScanRoot>,
        open: Open,
        mut config: SenderConfig,
    ) -> Self {
        config.walk_for(&open);
        Self {
            id,
            node,
            sources,
            open,
            config,
            grant: HeldGrant::default(),
            source_marks: Vec::new(),
            view: View::default(),
            head: Lease::constant(),
        }
    }

    /// Looks at the sources, so that all nodes compare what they see with each other. May block on files.
    #[must_use]
    pub fn with_marks(self) -> Self {
        let source_marks = self.sources.iter().map(mark_root).collect();
        Self {
            source_marks,
            ..self
        }
    }

    /// The grant for the node of this key, at the receivers of these, for the time of these seconds since 1970. Of
    /// sources that have no name at the target, and of very many, any names may come.
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
            view: View::Follows,
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

    /// The names at the top of the target that the sources get; `None` where one has no name there.
    pub(crate) fn tops(&self) -> Option<Vec<Name>> {
        self.sources
            .iter()
            .map(|source| source.prefix.file_name())
            .collect()
    }

    /// The opening of a session, which may begin the job or finds it under way.
    pub(crate) fn opening(&self, beginning: Beginning) -> Open {
        let job = self.id;
        let node = self.node.clone();
        let shared_job = Some(Box::new(SharedJobOpening {
            job,
            beginning,
            leads: self.view == View::Leads,
            node,
        }));
        Open {
            shared_job,
            ..self.open.clone()
        }
    }

    /// The target, as it is told.
    pub(crate) fn target(&self) -> String {
        Escaped::path(OsStr::from_bytes(&self.open.target)).to_string()
    }

    /// The source of this number.
    pub(crate) fn root_of(&self, source: u32) -> Option<&ScanRoot> {
        self.sources.get(usize::try_from(source).ok()?)
    }

    /// Scans a source on a thread that may block. A node that follows leaves the job where it sees other directories
    /// than the ones that it is to scan.
    pub(crate) async fn scan(
        &self,
        source: u32,
        scan: impl FnOnce(&ScanRoot, &ScanConfig) -> Portion + Send + 'static,
    ) -> Result<Portion, Stop> {
        let root = self.root_of(source).ok_or(NO_SOURCE)?;
        let at = root.clone();
        let config = self.config.scan.clone();
        let scanned = spawn_blocking(move || scan(&at, &config)).await;
        let portion = scanned.map_err(|_panic| Stop::Panicked("a walk panicked"))?;
        let differs = || {
            portion
                .difference()
                .or_else(|| portion.failure_at(&root.source))
        };
        match differs().filter(|_| self.view == View::Follows) {
            Some(error) => Err(Stop::Differs(error.to_string())),
            None => Ok(portion),
        }
    }

    /// The error of a job whose queue has lost items in each of so many passes. Nobody knows which items the last one
    /// has lost.
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
        WorkError::Loses {
            passes,
            unconfirmed: unconfirmed.join(", "),
        }
    }

    /// The tops of all sources, as the node that leads has seen them.
    pub(crate) fn tops_of_sources(&self) -> impl Iterator<Item = MarkedPath> {
        let marks = self.source_marks.iter().copied().chain(repeat(None));
        self.sources.iter().zip(marks).map(|(_, mark)| MarkedPath {
            path: RelPath::root(),
            mark,
        })
    }
}

/// The maximum number of sources that one error names.
const SOURCES_NAMED_MAX: usize = 10;
const NO_SOURCE: Stop =
    Stop::PeerMisbehaved("a work item is about a source that the job does not have");

/// How much one work item has: little enough that no node is long at work after the others, a third of a second at
/// 400 Mbit/s.
pub(crate) const ITEM: PortionSize = PortionSize {
    entries: 1000,
    bytes: 4 * GROUP_BYTES,
    large_bytes: 16 * GROUP_BYTES,
    wanted: PortionWanted::All,
};
