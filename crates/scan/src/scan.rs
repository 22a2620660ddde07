//! A running scan, as seen by its consumer.
//!
//! **Invariant:** the threads of the walk end when the walk is complete, or soon after the last consumer is dropped.

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

/// The stream of items that a walk emits. All clones share the stream, and each item goes to one of the clones. The
/// walk stops when the last clone and the last receiver are dropped.
#[derive(Clone, Debug)]
pub struct Scan {
    receiver: Receiver<ScanItem>,
    tally: Arc<WalkTally>,
}

/// Starts to walk `roots` and returns immediately.
///
/// The walk has its own thread pool, because its threads block if the consumer is slow. If the threads cannot be
/// started, the stream consists of one [`ScanError::Threads`].
#[must_use]
pub fn scan(roots: Vec<ScanRoot>, config: &ScanConfig) -> Scan {
    start(config, |pool, walk| {
        roots.into_iter().for_each(|root| {
            let walk = Arc::clone(&walk);
            pool.spawn(move || Worker::run(&walk, |worker| worker.visit_root(&root)));
        });
    })
}

/// Starts to visit only the paths in `list`, and returns immediately. The parent directories of these paths are
/// emitted. The contents of a listed directory are not.
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
    match start_pool(config.threads.max(1)) {
        // The threads of the pool end when the handle of the pool is dropped and all its jobs have ended.
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

/// Creates a pool of `threads` threads, or of fewer if the system cannot start that many.
fn start_pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("zmove-scan-{index}"))
        .build();
    if pool.is_err() && threads > 1 {
        return start_pool(threads / 2);
    }
    pool
}

impl Scan {
    /// Returns a scan that never emits an item and never ends.
    #[must_use]
    pub fn never() -> Self {
        Self {
            receiver: crossbeam_channel::never(),
            tally: Arc::default(),
        }
    }

    /// Returns the queue, for `select!` and timeouts.
    #[must_use]
    pub fn receiver(&self) -> &Receiver<ScanItem> {
        &self.receiver
    }

    /// Returns the counts of entries found so far, including those that no consumer has received yet.
    #[must_use]
    pub fn tally(&self) -> Arc<WalkTally> {
        Arc::clone(&self.tally)
    }

    /// Returns the number of entries that the selection has excluded so far. An excluded directory counts as one entry,
    /// regardless of its contents.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.tally.left_out()
    }

    /// Returns the number of parts of unfinished transfers that have been skipped so far, and the path of one of them.
    #[must_use]
    pub fn parts(&self) -> UnfinishedParts {
        self.tally.parts()
    }

    /// Returns the time for which the threads of the walk have been working on the file system or blocked by the
    /// consumer. A walk has no upstream stage, so its threads never wait for input.
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
