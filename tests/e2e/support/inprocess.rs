//! Both roles in this process over the memory transport, with access to the lanes, the storage and the events.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::mpsc;
use zmove_receiver::{ReceiverConfig, Session, run_session};
use zmove_scan::ScanRoot;
use zmove_sender::{
    LaneCount, LaneSupply, Link, LossReaction, NoQuota, Push, PushJob, Removals, Run, SenderConfig,
    SessionError, Summary,
};
use zmove_transport::{LaneError, LaneSink, LaneSource, memory_control, memory_lane};
use zmove_types::{Event, Observer, RelPath, TransferId};
use zmove_wire::{Cipher, Open, Overwrite};

use crate::support::harness::runtime;
use crate::support::quiet_machine::share_machine;

/// Maximum number of lanes. No test needs as many.
const LANES_MAX: usize = 64;

/// A push inside this process from the contents of one directory to another directory.
pub(crate) struct InProcess {
    pub(crate) config: SenderConfig,
    pub(crate) receiver: ReceiverConfig,
    pub(crate) lanes: usize,
    pub(crate) delta: bool,
    pub(crate) overwrite: Overwrite,
    pub(crate) inplace: bool,
    pub(crate) mirror: Option<Removals>,
    pub(crate) wrap: Wrap,
    pub(crate) wrap_source: WrapSource,
    /// Whether further lanes can be requested. Every second dial fails.
    pub(crate) more: bool,
    pub(crate) on_event: Box<dyn Fn(&Event) + Send + Sync>,
}

/// Wraps the sending end of each lane.
pub(crate) type Wrap = Box<dyn Fn(Box<dyn LaneSink>) -> Box<dyn LaneSink>>;

/// Wraps the receiving end of each lane.
pub(crate) type WrapSource = Box<dyn Fn(Box<dyn LaneSource>) -> Box<dyn LaneSource>>;

/// The result and the events of a push.
pub(crate) struct Pushed {
    pub(crate) ended: Result<Summary, SessionError>,
    pub(crate) events: Vec<Event>,
}

struct Witness {
    events: Mutex<Vec<Event>>,
    on_event: Box<dyn Fn(&Event) + Send + Sync>,
}

impl Witness {
    fn new(on_event: Box<dyn Fn(&Event) + Send + Sync>) -> Self {
        Self {
            events: Mutex::default(),
            on_event,
        }
    }
}

impl Default for InProcess {
    fn default() -> Self {
        share_machine();
        Self {
            config: SenderConfig::default(),
            receiver: ReceiverConfig::default(),
            lanes: 2,
            delta: false,
            overwrite: Overwrite::Differing,
            inplace: false,
            mirror: None,
            wrap: Box::new(|sink| sink),
            wrap_source: Box::new(|source| source),
            more: false,
            on_event: Box::new(|_| ()),
        }
    }
}

impl InProcess {
    pub(crate) fn push(self, source: &Path, target: &Path) -> Pushed {
        let Self {
            delta,
            overwrite,
            inplace,
            ..
        } = self;
        let mirror = self.mirror.clone();
        let target = target.to_str().unwrap();
        let job = job(source, target);
        let open = Open {
            delta,
            overwrite,
            inplace,
            ..job.open
        };
        self.push_job(PushJob {
            open,
            mirror,
            ..job
        })
    }

    /// Pushes the sources of a job.
    pub(crate) fn push_job(self, job: PushJob) -> Pushed {
        let Self {
            config,
            receiver,
            lanes,
            wrap,
            wrap_source,
            more,
            on_event,
            ..
        } = self;
        let witness = Arc::new(Witness::new(on_event));
        let started = Instant::now();
        let mut run = Run::begin(None, started);
        let push = Push::start(job, config, &mut run, started);
        let ended = runtime().block_on(async {
            let (near, mut far) = memory_control();
            let (sinks_in, sinks) = mpsc::channel(LANES_MAX);
            let (sources_in, sources) = mpsc::channel(LANES_MAX);
            for _ in 0..lanes {
                let (sink, source) = memory_lane();
                sinks_in.try_send(Ok(wrap(sink))).unwrap();
                sources_in.try_send(wrap_source(source)).unwrap();
            }
            let (more_in, mut wanted) = mpsc::unbounded_channel::<u16>();
            let supply = more.then(|| supply(more_in, lanes));
            let dialling = async move {
                while let Some(more) = wanted.recv().await {
                    for number in 0..more {
                        let (sink, source) = memory_lane();
                        let failed = number % 2 == 1;
                        let dialled = if failed {
                            Err(LaneError::Closed)
                        } else {
                            Ok(wrap(sink))
                        };
                        sources_in.try_send(wrap_source(source)).unwrap();
                        // No more lanes are accepted once the push has ended.
                        let _push_over = sinks_in.send(dialled).await;
                    }
                }
            };
            let transfer = TransferId([7; 16]);
            let receiving = tokio::spawn(async move {
                far.0.greeting().await.unwrap();
                let session = Session {
                    config: receiver,
                    ..Session::new(transfer, far, sources)
                };
                run_session(session, std::future::pending()).await
            });
            let link = Link {
                transfer,
                cipher: Cipher::Tls,
                control: near,
                lanes: sinks,
                supply,
                relay: None,
                quota: Arc::new(NoQuota),
            };
            let observer = Arc::clone(&witness) as Arc<dyn Observer>;
            let pushing = push.run(&mut run, link, observer, std::future::pending());
            let (ended, ()) = tokio::join!(pushing, dialling);
            let received = receiving.await.unwrap();
            assert_eq!(received.is_ok(), ended.is_ok(), "{received:?}");
            ended
        });
        Pushed {
            ended,
            events: std::mem::take(&mut *witness.events.lock().unwrap()),
        }
    }
}

/// Supplies further lanes, at most as many as the initial ones.
fn supply(more: mpsc::UnboundedSender<u16>, lanes: usize) -> LaneSupply {
    let asked = u16::try_from(lanes).unwrap();
    LaneSupply {
        more,
        asked,
        again: 0,
        number: LaneCount::Tuned { least: asked },
        congestion: LossReaction::default(),
    }
}

/// The default job of a push.
pub(crate) fn job(source: &Path, target: impl Into<Vec<u8>>) -> PushJob {
    PushJob {
        sources: vec![ScanRoot::new(source.join(""), RelPath::root())],
        open: Open::new(target.into(), [0; 16]),
        mirror: None,
        sources_missing: 0,
        list: None,
    }
}

impl Observer for Witness {
    fn on(&self, event: &Event) {
        (self.on_event)(event);
        self.events.lock().unwrap().push(event.clone());
    }
}

impl Pushed {
    /// Returns the items that were sent again.
    pub(crate) fn resent<'a>(&'a self) -> Vec<&'a str> {
        let what = |event: &'a Event| match event {
            Event::Resent { what } => Some(what.as_str()),
            _ => None,
        };
        self.events.iter().filter_map(what).collect()
    }

    /// Returns the messages of the failures.
    pub(crate) fn failed<'a>(&'a self) -> Vec<&'a str> {
        let message = |event: &'a Event| match event {
            Event::Failed { message } => Some(message.as_str()),
            _ => None,
        };
        self.events.iter().filter_map(message).collect()
    }

    /// Asserts that the push ended, removed this many entries, and failed for that many.
    #[track_caller]
    pub(crate) fn assert_removed_and_failed(&self, removed: u64, failed: u64) {
        let counters = &self.summary().counters;
        let counts = [counters.removed, counters.failed];
        assert_eq!(counts, [removed, failed], "{:?}", self.failed());
    }

    #[track_caller]
    pub(crate) fn summary(&self) -> &Summary {
        self.ended
            .as_ref()
            .unwrap_or_else(|error| panic!("the push broke off: {error}"))
    }
}
