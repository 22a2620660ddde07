//! Sessions with the receivers of a job.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::oneshot;
use zmove_engine::{Connector, DialSettings, Listener, Push, Remote, Run};
use zmove_sender::{Feeder, Link};
use zmove_types::{Event, Lock, Observer};

use crate::error::{SessionEnd, Stop};
use crate::job::{Part, SharedJob};

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

/// The listeners to what happens in sessions, and what of it concerns the whole job.
#[derive(Clone)]
pub(crate) struct Ears {
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) listener: Arc<dyn Listener + Send + Sync>,
    pub(crate) skipped: Arc<SkippedCount>,
    /// Set when a session has ended otherwise than it should.
    pub(crate) has_lost_sessions: Arc<AtomicBool>,
}

impl Ears {
    pub(crate) fn new(observer: Arc<dyn Observer>, listener: Arc<dyn Listener + Send + Sync>) -> Self {
        Self { observer, listener, skipped: Arc::default(), has_lost_sessions: Arc::default() }
    }
}

/// The work that has ended in the sessions of this process.
#[derive(Debug, Default)]
pub struct Served {
    items: AtomicU64,
    receivers: Lock<BTreeSet<usize>>,
}

impl Served {
    /// Notes that work has ended by the receiver of this number.
    pub(crate) fn note(&self, receiver: usize) {
        self.items.fetch_add(1, Ordering::Relaxed);
        self.receivers.lock().insert(receiver);
    }

    /// How many work items have ended.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// How many receivers have served.
    #[must_use]
    pub fn receivers(&self) -> usize {
        self.receivers.lock().len()
    }
}

/// What was at the target already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The number of files.
    pub files: u64,
    /// The bytes of these files.
    pub bytes: u64,
}

impl Skipped {
    /// What an event of this kind says of whole files: bytes without a file are groups of a large one, or holes.
    #[must_use]
    pub const fn of(files: u64, bytes: u64) -> Self {
        Self { files, bytes: if files > 0 { bytes } else { 0 } }
    }
}

/// Counts what was at the target already, over all sessions.
#[derive(Debug, Default)]
pub(crate) struct SkippedCount {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl SkippedCount {
    fn add(&self, Skipped { files, bytes }: Skipped) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn so_far(&self) -> Skipped {
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Skipped { files: number(&self.files), bytes: number(&self.bytes) }
    }
}

/// Does some work in a session with a receiver.
pub(crate) async fn in_session<Doing: Future<Output = Result<(), Stop>>>(
    receiver: &Receiver,
    job: &SharedJob,
    part: Part,
    ears: &Ears,
    work: impl FnOnce(Feeder) -> Doing,
) -> Result<(), SessionEnd> {
    let Receiver { home, remote, settings } = receiver;
    let settings = &DialSettings { job_grant: job.grant.current(), ..settings.clone() };
    let connector = Connector { home, remote, settings, listener: &*ears.listener };
    let reached = Box::pin(connector.connect(None)).await?;
    let (push, feeder) = Push::fed(job.opening(part), job.config.clone(), Instant::now());
    let mut run = Run::begin(None, Instant::now());
    let (break_off, broken_off) = oneshot::channel::<()>();
    let stop = async {
        // resolves also when the other end is dropped, which it is when there is nothing more to do
        let _told_or_dropped = broken_off.await;
    };
    let observer = Arc::new(OfOneSession(ears.clone()));
    let link = Link { quota: None, ..reached.link };
    let ended = {
        let mut session = Box::pin(push.run(&mut run, link, observer, stop));
        tokio::select! {
            ended = &mut session => match ended {
                Ok(_summary) => Err(Stop::Nonsense("the receiver has ended the session early").into()),
                Err(error) => Err(SessionEnd::from(error)),
            },
            done = work(feeder) => match done {
                Ok(()) => session.await.map(drop).map_err(SessionEnd::from),
                Err(stop) => {
                    drop(break_off);
                    let _interrupted = session.await;
                    Err(stop.into())
                }
            },
        }
    };
    reached.dialler.close().await;
    if let Some(ssh) = reached.ssh {
        ssh.end().await;
    }
    ended
}

/// What of the events of one session says something of the job.
struct OfOneSession(Ears);

impl Observer for OfOneSession {
    fn on(&self, event: &Event) {
        let is_of_the_job = matches!(
            event,
            Event::Found { .. }
                | Event::Stored { .. }
                | Event::Skipped { .. }
                | Event::Resent { .. }
                | Event::Failed { .. }
                | Event::NotKept { .. }
                | Event::Warned { .. }
                | Event::Limited { .. }
        );
        if let Event::Skipped { files, bytes } = event {
            self.0.skipped.add(Skipped::of(*files, *bytes));
        }
        if is_of_the_job {
            self.0.observer.on(event);
        }
    }
}
