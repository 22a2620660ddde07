//! A push job and the walk of its sources, which begins before the receiver is dialed.

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

/// The sources, target and options of one push.
#[derive(Debug)]
pub struct PushJob {
    /// The sources and their paths below the target.
    pub sources: Vec<ScanRoot>,
    /// The opening for the receiver. The push fills in `run` and `extraneous`.
    pub open: Open,
    /// Which entries that exist only at the target are removed, if any.
    pub mirror: Option<Removals>,
    /// Number of sources that did not exist. Each of them counts as a scan error.
    pub sources_missing: u64,
    /// The list of files to send, instead of everything in the sources.
    pub list: Option<PathList>,
}

/// A push whose scan is running.
#[derive(Debug)]
pub struct Push {
    pub(crate) scan: Scan,
    pub(crate) open: Open,
    pub(crate) task: Task,
    pub(crate) sources_missing: u64,
    pub(crate) config: SenderConfig,
    pub(crate) started: Instant,
    /// Requests of the feeder other than pieces to send. `None` if the push is not fed.
    pub(crate) asked: Option<mpsc::UnboundedReceiver<FeedRequest>>,
    /// Slot in which the session stores the rate limit of its lanes for the feeder.
    pub(crate) rate: Option<Arc<OnceLock<SharedRate>>>,
}

impl Push {
    /// Starts to walk the sources for a session of `run`. The receiver may be dialed while the walk runs. `started` is
    /// the time at which this session began.
    #[must_use]
    pub fn start(job: PushJob, mut config: SenderConfig, run: &mut Run, started: Instant) -> Self {
        let PushJob {
            sources,
            open,
            mirror,
            sources_missing,
            list,
        } = job;
        config.configure_walk(&open);
        // A list contains every name to send, so no directory needs to be reread.
        let rereads = list.is_none() && open.intent != Intent::Inspect;
        if mirror.is_some() || rereads {
            config.scan.walk_record = Some(run.walk_record(mirror.as_ref()));
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

    /// Creates a push that walks nothing and is fed piece by piece.
    #[must_use]
    pub fn with_feeder(open: Open, config: SenderConfig, started: Instant) -> (Self, Feeder) {
        let (feeder, feed) = Feeder::new();
        let task = Task {
            fed: Some(feed.fed),
            ..Task::of(&open)
        };
        let push = Self {
            scan: Scan::never(),
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

    /// Excludes the time of a prompt before the session from the duration of the push. `asked` is the length of that
    /// time.
    #[must_use]
    pub fn exclude_prompt_time(self, asked: Duration) -> Self {
        Self {
            started: self.started + asked,
            ..self
        }
    }

    /// Returns a handle that reports how many lanes the push can use.
    #[must_use]
    pub fn lane_demand(&self) -> LaneDemand {
        LaneDemand(self.scan.tally())
    }
}

/// The number of lanes that a push can use, derived from the progress of its scan.
#[derive(Clone, Debug)]
pub struct LaneDemand(Arc<WalkTally>);

impl LaneDemand {
    /// Returns the maximum number of lanes that can have data to send, or `None` while the scan runs.
    #[must_use]
    pub fn lanes(&self) -> Option<u16> {
        self.0
            .final_totals()
            .map(|found| u16::try_from(packs_of(found)).unwrap_or(u16::MAX))
    }

    /// Returns the total size in bytes of the files found so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.current_totals().bytes
    }
}
