//! The stages of one push, from the scan to the lanes. They are started, stopped and joined together.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use zmove_disk::StorageThreads;
use zmove_scan::Scan;
use zmove_transport::LaneSink;
use zmove_types::BufferPool;
use zmove_wire::Limit;

use crate::account::receipts::Receipts;
use crate::control::replies::Replies;
use crate::error::SessionError;
use crate::inspect::hashing::Hashing;
use crate::plan::pack::Packer;
use crate::plan::planner::{Task, inspect_all, plan_all};
use crate::push::config::{BUFFER_BYTES, SenderConfig};
use crate::push::session::Session;
use crate::push::threads::{PushThreads, WorkerFailure};
use crate::read::reader::{ReaderContext, read_all};
use crate::read::reader_count::ReaderCount;
use crate::send::lane::LaneContext;
use crate::send::lane_set::LaneSet;

/// The stages of one push and their shared state.
pub(crate) struct Pipeline {
    pub(crate) config: SenderConfig,
    pub(crate) session: Arc<Session>,
    pub(crate) lane_set: LaneSet,
    /// Reports of lanes that broke, and of threads that panicked.
    pub(crate) broken: UnboundedReceiver<WorkerFailure>,
    readers: Arc<ReaderContext>,
    threads: PushThreads,
    pub(crate) scan: Scan,
    pool: BufferPool,
}

impl Pipeline {
    /// Starts the planner and, unless the push only inspects, the readers. Lanes are added as they connect.
    pub(crate) fn start(
        config: SenderConfig,
        receipts: &Receipts,
        scan: Scan,
        replies: Replies,
        task: Task,
    ) -> Result<Self, SessionError> {
        let session = Arc::clone(&receipts.session);
        if let Some(limit) = config.rate_max {
            session.rate.lower(limit, Limit::OwnRate);
        }
        if let Some(whole) = &config.rate_shared {
            session.rate.shared.set_parent(whole.clone());
        }
        let (frames_in, frames) = crossbeam_channel::bounded(config.readers);
        let (broken_in, broken) = mpsc::unbounded_channel();
        let pool = BufferPool::new(BUFFER_BYTES, config.buffers_max);
        let readers = Arc::new(ReaderContext {
            session: Arc::clone(&session),
            pool: pool.clone(),
            config: config.clone(),
            reader_count: ReaderCount::default(),
            threads: StorageThreads::default(),
            file_system: OnceLock::new(),
            frames: frames_in,
        });
        let lane_context = LaneContext {
            session: Arc::clone(&session),
            frames,
        };
        let mut pipeline = Self {
            session: Arc::clone(&session),
            lane_set: LaneSet::new(lane_context, broken_in.clone()),
            broken,
            readers,
            threads: PushThreads::new(broken_in),
            scan,
            pool,
            config,
        };
        let readers = if task.inspects {
            0
        } else {
            pipeline.config.readers
        };
        let started = pipeline
            .start_planner(replies, task)
            .map_err(SessionError::Thread)
            .and_then(|()| pipeline.set_readers(readers));
        started.inspect_err(|_no_thread| pipeline.stop())?;
        Ok(pipeline)
    }

    /// Starts the planner and, for a verification, the hashing threads.
    fn start_planner(&mut self, replies: Replies, task: Task) -> io::Result<()> {
        let session = Arc::clone(&self.session);
        let scan = self.scan.clone();
        let name = "zmove-plan".to_owned();
        if !task.inspects {
            let packer = Packer::new(self.config.pack_sizes);
            let plan = move || plan_all(&session, packer, &scan, &replies, &task);
            return self.threads.spawn(name, plan);
        }
        let hashing = if task.verifies {
            Some(Hashing::start(&session, &self.config, &mut self.threads)?)
        } else {
            None
        };
        let inspect = move || inspect_all(&session, &scan, &replies, &task, hashing);
        self.threads.spawn(name, inspect)
    }

    /// Sets the number of readers to `wanted`. Surplus readers end after their current work. If some readers cannot be
    /// started, the push continues with fewer readers. Returns an error only if no reader runs.
    pub(crate) fn set_readers(&mut self, wanted: usize) -> Result<(), SessionError> {
        let running = self.readers.reader_count.set_wanted(wanted);
        for number in running..wanted {
            let context = Arc::clone(&self.readers);
            let started = self.threads.spawn(format!("zmove-read-{number}"), move || {
                read_all(&context, number)
            });
            if let Err(source) = started {
                self.readers.reader_count.stop_before(number);
                return if number == 0 {
                    Err(SessionError::Thread(source))
                } else {
                    Ok(())
                };
            }
        }
        Ok(())
    }

    /// Starts a lane; see [`LaneSet::add`].
    pub(crate) fn add_lane(&mut self, sink: Box<dyn LaneSink>) {
        self.lane_set.add(sink, &mut self.threads);
        let lanes = self.lane_set.lanes_up();
        if lanes > usize::from(zmove_wire::limits::LANES_UNREQUESTED_MAX) {
            // Each lane holds one buffer while it sends.
            self.pool.raise(lanes + BUFFERS_BESIDE_LANES);
        }
    }

    /// Drops connections and threads that have ended. Also measures the throughput of each lane, so it must be called
    /// at regular intervals.
    pub(crate) fn tidy(&mut self) {
        self.lane_set.tidy();
        self.threads.tidy();
    }

    /// Makes all threads stop soon.
    pub(crate) fn stop(&self) {
        self.session.in_flight.stop();
        self.session.queue.plan.abandon();
        self.pool.close();
    }

    /// Waits for all threads to end.
    pub(crate) fn join(self) {
        let Self {
            lane_set,
            readers,
            threads,
            scan,
            ..
        } = self;
        // A lane ends when no reader can bring it frames, and a reader ends when no lane takes frames. The lanes are
        // held until both have ended, because a lane without a holder ends after its current frame.
        let _lanes = lane_set.close();
        drop(readers);
        drop(scan);
        threads.join();
    }
}

/// Number of buffers that readers can fill while each lane holds one buffer.
const BUFFERS_BESIDE_LANES: usize = 8;
