//! The job of a push, and the walk of its sources, which begins before the receiver is dialled.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zmove_scan::{PathList, Scan, ScanRoot, WalkTally, scan, scan_list};
use zmove_transport::SharedRate;
use zmove_wire::{Extraneous, Intent, Open};

use crate::mirror::{Mirror, Removals, SourceWalk};
use crate::plan::pack::packs_of;
use crate::plan::planner::Task;
use crate::push::config::SenderConfig;
use crate::push::feed::{FeedRequest, Feeder};
use crate::push::run::Run;

/// One push.
#[derive(Debug)]
pub struct PushJob {
    /// The sources, and where they go below the target.
    pub sources: Vec<ScanRoot>,
    /// The opening for the receiver. Its `run` and `extraneous` are filled in.
    pub open: Open,
    /// Whether entries that are at the target alone are removed, and which of them.
    pub mirror: Option<Removals>,
    /// The number of sources that did not exist; each counts as an error of the scan.
    pub sources_missing: u64,
    /// The list of files to send, in place of all of the sources.
    pub list: Option<PathList>,
}

/// A push whose scan is under way.
#[derive(Debug)]
pub struct Push {
    pub(crate) scan: Scan,
    pub(crate) open: Open,
    pub(crate) task: Task,
    pub(crate) sources_missing: u64,
    pub(crate) config: SenderConfig,
    pub(crate) started: Instant,
    /// What is asked for beside, where the push is fed by pieces.
    pub(crate) asked: Option<mpsc::UnboundedReceiver<FeedRequest>>,
    /// What the lanes keep, once there is a session, for the end at which the push is fed.
    pub(crate) rate: Option<Arc<OnceLock<SharedRate>>>,
}

impl Push {
    /// Starts to walk the sources for a session of `run`; the receiver may be dialled meanwhile. `started` is the
    /// moment when this session began.
    #[must_use]
    pub fn start(job: PushJob, mut config: SenderConfig, run: &mut Run, started: Instant) -> Self {
        let PushJob {
            sources,
            open,
            mirror,
            sources_missing,
            list,
        } = job;
        config.walk_for(&open);
        // A list has each name that is to be sent.
        let rereads = list.is_none() && open.intent != Intent::Inspect;
        if mirror.is_some() || rereads {
            config.scan.first_walk = Some(run.first_walk(mirror.as_ref()));
        }
        let sources = SourceWalk {
            roots: sources,
            config: config.scan.clone(),
        };
        let extraneous = if mirror.is_some() {
            Extraneous::Goes
        } else {
            Extraneous::Stays
        };
        let open = Open { extraneous, ..open };
        let task = Task {
            mirror: mirror.map(|removals| Mirror {
                sources: sources.clone(),
                removals,
                intent: open.intent,
            }),
            reread: rereads.then(|| sources.clone()),
            ..Task::of(&open)
        };
        let scan = match list {
            Some(list) => scan_list(list, &config.scan),
            None => scan(sources.roots, &config.scan),
        };
        Self {
            scan,
            open,
            task,
            sources_missing,
            config,
            started,
            asked: None,
            rate: None,
        }
    }

    /// A push that walks nothing, and is fed by pieces.
    #[must_use]
    pub fn fed(open: Open, config: SenderConfig, started: Instant) -> (Self, Feeder) {
        let (feeder, feed) = Feeder::new();
        let task = Task {
            fed: Some(feed.fed),
            ..Task::of(&open)
        };
        let push = Self {
            scan: Scan::none(),
            open,
            task,
            sources_missing: 0,
            config,
            started,
            asked: Some(feed.asked),
            rate: Some(feed.rate),
        };
        (push, feeder)
    }

    /// The same push, without a time before its session in which a user was asked for something.
    #[must_use]
    pub fn without(self, asked: Duration) -> Self {
        Self {
            started: self.started + asked,
            ..self
        }
    }

    /// The number of lanes that the push can use.
    #[must_use]
    pub fn need(&self) -> Need {
        Need(self.scan.tally())
    }
}

/// The number of lanes that a push can use, as far as its scan has come.
#[derive(Clone, Debug)]
pub struct Need(Arc<WalkTally>);

impl Need {
    /// The most lanes that can have something to carry; `None` while the scan goes on.
    #[must_use]
    pub fn lanes(&self) -> Option<u16> {
        self.0
            .whole()
            .map(|found| u16::try_from(packs_of(found)).unwrap_or(u16::MAX))
    }

    /// How many bytes the files have that were found so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.so_far().bytes
    }
}
