//! A running scan as its consumer sees it.
//!
//! **Invariant:** the walk holds no thread that outlives its work: the threads end when everything is walked, or
//! soon after the last consumer is gone.

use std::io;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use zmove_types::StageTimes;

use crate::config::{ScanConfig, ScanRoot};
use crate::entry::ScanItem;
use crate::error::ScanError;
use crate::sources::path_list::PathList;
use crate::walk::{UnfinishedParts, Walk, WalkTally, Worker};

/// The stream of the items that a walk finds. Clones share one stream, each item going to one of them; the walk stops
/// when the last of them and of their receivers is dropped.
#[derive(Clone, Debug)]
pub struct Scan {
    receiver: Receiver<ScanItem>,
    tally: Arc<WalkTally>,
}

/// Starts to walk `roots` and returns at once.
///
/// The walk has threads of its own, in a pool that nothing else uses, because they block when the consumer is
/// slow. If they cannot be started the stream is one [`ScanError::Threads`].
#[must_use]
pub fn scan(roots: Vec<ScanRoot>, config: &ScanConfig) -> Scan {
    start(config, |pool, walk| {
        roots.into_iter().for_each(|root| {
            let walk = Arc::clone(&walk);
            pool.spawn(move || Worker::run(&walk, |worker| worker.visit_root(&root)));
        });
    })
}

/// Starts to visit the paths of `list`, and nothing else, and returns at once. The directories above them are emitted;
/// the contents of a listed directory are not.
#[must_use]
pub fn scan_list(list: PathList, config: &ScanConfig) -> Scan {
    start(config, |pool, walk| {
        pool.spawn(move || Worker::run(&walk, |worker| worker.visit_list(list)))
    })
}

fn start(config: &ScanConfig, work: impl FnOnce(ThreadPool, Arc<Walk>)) -> Scan {
    let (output, receiver) = bounded(config.queue_batches_max.max(1));
    let scan = Scan {
        receiver,
        tally: Arc::default(),
    };
    match pool_of(config.threads.max(1)) {
        // The pool's threads end when its handle is dropped and the jobs spawned on it are done.
        Ok(pool) => work(pool, Arc::new(Walk::new(output, config, scan.tally()))),
        Err(error) => {
            let item = ScanItem::Error(ScanError::Threads {
                source: io::Error::other(error),
            });
            output
                .try_send(item)
                .expect("the queue is new and has room for one");
        }
    }
    scan
}

/// A pool of `threads` threads, or of fewer if the system starts no more.
fn pool_of(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("zmove-scan-{index}"))
        .build();
    if pool.is_err() && threads > 1 {
        return pool_of(threads / 2);
    }
    pool
}

impl Scan {
    /// No walk: nothing is ever found, and no end of it.
    #[must_use]
    pub fn none() -> Self {
        Self {
            receiver: crossbeam_channel::never(),
            tally: Arc::default(),
        }
    }

    /// The queue itself, for `select!` and time-outs.
    #[must_use]
    pub fn receiver(&self) -> &Receiver<ScanItem> {
        &self.receiver
    }

    /// The counts of what has been found so far, whether or not anybody has taken it.
    #[must_use]
    pub fn tally(&self) -> Arc<WalkTally> {
        Arc::clone(&self.tally)
    }

    /// How many entries the selection has left out so far. A directory counts once, whatever is in it.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.tally.left_out()
    }

    /// The parts of unfinished transfers that have been passed over so far.
    #[must_use]
    pub fn parts(&self) -> UnfinishedParts {
        self.tally.parts()
    }

    /// How the walk's threads have spent their time so far: busy with the file system or blocked by the
    /// consumer. A walk has no upstream, so none of it is starved.
    #[must_use]
    pub fn times(&self) -> StageTimes {
        self.tally.clock.times()
    }
}

impl Iterator for Scan {
    type Item = ScanItem;

    fn next(&mut self) -> Option<ScanItem> {
        self.receiver.recv().ok()
    }
}
