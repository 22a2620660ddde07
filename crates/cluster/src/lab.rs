//! Fixtures for the tests of this crate: a job, an unreachable receiver, and sessions that never begin.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use zmove_engine::{DialSettings, NoListener, Remote, SenderConfig};
use zmove_scan::MarkedPath;
use zmove_sender::{Feeder, Push};
use zmove_types::{Beginning, NoObserver, Observer, RelPath, SharedJobId};
use zmove_wire::Open;

use crate::job::{Receiver, SharedJob};
use crate::mover::Mover;
use crate::queue::{ItemWork, LocalQueue, WorkItem};
use crate::session::{JobEvents, SessionEvents};

pub(crate) const JOB: SharedJobId = SharedJobId([7; 16]);

/// Returns the top directory of a source, without a recorded state.
pub(crate) fn root() -> MarkedPath {
    let path = RelPath::root();
    MarkedPath { path, mark: None }
}

/// Creates an item of the first pass for this source.
pub(crate) fn item_of(source: u32, work: ItemWork) -> WorkItem {
    WorkItem {
        pass: 1,
        source,
        work,
    }
}

/// Creates a job without sources.
pub(crate) fn job() -> SharedJob {
    SharedJob::new(
        JOB,
        Vec::new(),
        Open::new(b"t".to_vec(), [0; 16]),
        SenderConfig::default(),
    )
}

pub(crate) fn receiver() -> Receiver {
    let remote = Remote {
        host: "h".into(),
        port: 1,
        path: b"t".to_vec(),
        login: None,
    };
    Receiver {
        home: PathBuf::new(),
        remote,
        settings: DialSettings::default(),
    }
}

pub(crate) fn job_events(observer: Arc<dyn Observer>) -> Arc<JobEvents> {
    JobEvents::new(
        observer,
        Arc::new(NoListener),
        Arc::default(),
        Arc::default(),
    )
}

pub(crate) fn session_events() -> Arc<SessionEvents> {
    job_events(Arc::new(NoObserver)).within(0, &receiver())
}

/// Creates a mover whose session is over.
pub(crate) fn mover() -> Mover<LocalQueue> {
    let queue = Arc::new(LocalQueue::default());
    Mover::new(Arc::new(job()), queue, feeder(), session_events())
}

/// Creates the feeder of a session that is over.
pub(crate) fn feeder() -> Feeder {
    pushed().1
}

/// Creates a session that has not begun, and its feeder.
pub(crate) fn pushed() -> (Push, Feeder) {
    Push::with_feeder(
        job().opening(Beginning::Allowed),
        SenderConfig::default(),
        Instant::now(),
    )
}
