//! A session that measures the path: data from lanes is verified, counted and discarded.
//!
//! **Invariant:** no received data is stored, and everything that a sweep writes is removed. Time and bytes are
//! limited. When [`run`] returns, the threads and tasks that it started have ended.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zmove_transport::{ControlError, LaneError, LaneSource, blocking};
use zmove_types::{BufferPool, ThreadState};
use zmove_wire::limits::{
    LANES_UNREQUESTED_MAX, PROBE_BYTES_MAX, PROBE_SECONDS_MAX, SAMPLES_OUTSTANDING_MAX,
};
use zmove_wire::{
    Finished, Open, SampleTime, Sampled, TargetState, ToReceiver, ToSender, WireError,
};

use crate::config::{BUFFER_BYTES, ReceiverConfig};
use crate::error::SessionError;
use crate::meters::TransferMeter;
use crate::session::connections::{Connections, SessionReport, cpu_time, micros, opened};
use crate::session::threads::{LaneThreads, PanicGuard};
use crate::session::verify::is_filler;
use crate::store::reports::{ChargedReport, Reports, ThreadReport};
use crate::store::target::InspectedTarget;

mod sweeping;

use sweeping::Sweeping;

/// Counts received data until the sender announces the end. Requires a key that may write to the target.
pub(crate) async fn run(
    connections: Connections,
    open: Open,
    config: &ReceiverConfig,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    config.meter.mark_as_probe();
    let target = open.target.clone();
    let access = config.rights.access.clone();
    let lanes_max = config.lanes_max.max(LANES_UNREQUESTED_MAX);
    let opened = opened(TargetState::Empty, lanes_max);
    tokio::pin!(stop);
    let look_at = move || InspectedTarget::inspect(&open, &access);
    let (connections, seen) = connections
        .open_after(stop.as_mut(), look_at, |_| opened)
        .await?;
    let (outcomes_in, outcomes) = mpsc::channel(usize::from(lanes_max));
    let tally = ProbeTally::new(
        PROBE_BYTES_MAX,
        usize::from(lanes_max),
        Arc::clone(&config.meter),
    );
    let place = seen
        .tree
        .map(|tree| config.sweep_target(tree, shown(&target)));
    let mut probe = Probe {
        connections,
        lanes: LaneThreads::new(config),
        lanes_ended: 0,
        tally: Arc::new(tally),
        reports: Reports {
            outcomes: outcomes_in,
            quota: config.quota.clone(),
        },
        outcomes,
        lanes_max: usize::from(lanes_max),
        waiting: Vec::new(),
        sweeping: Sweeping::new(place, config.measure_storage),
    };
    let ended = tokio::select! {
        ended = probe.handle_messages() => ended,
        () = tokio::time::sleep(Duration::from_secs(PROBE_SECONDS_MAX)) => Err(SessionError::ProbeTooLong),
        error = stop => Err(error),
    };
    probe.close(&ended).await;
    ended.map(|()| SessionReport::default())
}

fn shown(target: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if target.is_empty() {
        b"."
    } else {
        target
    }))
}

/// A running probe.
struct Probe {
    connections: Connections,
    lanes: LaneThreads,
    lanes_ended: u32,
    tally: Arc<ProbeTally>,
    reports: Reports,
    outcomes: mpsc::Receiver<ChargedReport>,
    lanes_max: usize,
    /// Requested samples that wait until a certain number of lanes have ended, each with that number.
    waiting: Vec<(u64, u32)>,
    sweeping: Sweeping,
}

impl Probe {
    async fn handle_messages(&mut self) -> Result<(), SessionError> {
        loop {
            tokio::select! {
                Some(lane) = self.connections.lanes.recv(), if self.lanes.count() < self.lanes_max => {
                    self.add_lane(lane)?;
                }
                Some(told) = self.outcomes.recv() => {
                    let ThreadReport::LaneEnded { number, ended, .. } = told.outcome else {
                        return Err(SessionError::Panicked);
                    };
                    self.lanes.ended(number);
                    self.lanes_ended += 1;
                    ended?;
                    self.answer_waiting_samples().await?;
                }
                swept = self.sweeping.done() => {
                    self.connections.send(&ToSender::Swept(swept?)).await?;
                }
                message = self.connections.inbox.recv() => match message.ok_or(ControlError::Closed)??.message {
                    ToReceiver::Sample { sample, when: SampleTime::Now } => self.answer(sample).await?,
                    ToReceiver::Sample { sample, when: SampleTime::Ended(lanes) } => {
                        self.wait(sample, lanes)?;
                        self.answer_waiting_samples().await?;
                    }
                    ToReceiver::Sweep(order) => self.sweeping.begin(order)?,
                    ToReceiver::Announce { items: 0, mismatches: 0 } if !self.sweeping.is_under_way() => break,
                    _ => return Err(SessionError::out_of_order("a message during a probe")),
                },
            }
        }
        let finished = Finished {
            cpu_us: self.tally.cpu_us(),
            ..Finished::default()
        };
        Ok(self
            .connections
            .send_last(&ToSender::Finished(finished))
            .await?)
    }

    fn add_lane(&mut self, lane: Box<dyn LaneSource>) -> Result<(), SessionError> {
        let tally = Arc::clone(&self.tally);
        let reports = self.reports.clone();
        self.lanes.add(lane, move |number, source| {
            let _guard = PanicGuard(&reports);
            reports.report(ThreadReport::LaneEnded {
                number,
                has_delivered: true,
                ended: tally.count_all(source),
            });
        })
    }

    fn wait(&mut self, sample: u64, lanes: u32) -> Result<(), WireError> {
        if self.waiting.len() >= SAMPLES_OUTSTANDING_MAX {
            return Err(WireError::OutOfOrder {
                what: "a sample before the replies to earlier samples",
            });
        }
        self.waiting.push((sample, lanes));
        Ok(())
    }

    async fn answer_waiting_samples(&mut self) -> Result<(), ControlError> {
        let ended = self.lanes_ended;
        let (due, left) = self.waiting.iter().partition(|(_, lanes)| *lanes <= ended);
        self.waiting = left;
        let due: Vec<(u64, u32)> = due;
        for (sample, _) in due {
            self.answer(sample).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, sample: u64) -> Result<(), ControlError> {
        let sampled = self.tally.sample(sample);
        self.connections.send(&ToSender::Sampled(sampled)).await
    }

    /// Stops the sweep and the lanes, and waits until their threads have ended.
    async fn close(mut self, ended: &Result<(), SessionError>) {
        self.sweeping.stop();
        self.connections.end_session(ended).await;
        drop((self.connections, self.outcomes));
        self.sweeping.end().await;
        self.tally.stopping.store(true, Ordering::Relaxed);
        self.tally.pool.close();
        self.lanes.trip();
        let lanes = self.lanes;
        blocking(move || lanes.join()).await;
    }
}

/// Counters of the data received by a probe.
#[derive(Debug)]
struct ProbeTally {
    began: Instant,
    cpu_began: Duration,
    bytes_max: u64,
    bytes: AtomicU64,
    first: OnceLock<Instant>,
    pool: BufferPool,
    meter: Arc<TransferMeter>,
    stopping: AtomicBool,
}

impl ProbeTally {
    fn new(bytes_max: u64, lanes_max: usize, meter: Arc<TransferMeter>) -> Self {
        Self {
            began: Instant::now(),
            cpu_began: cpu_time(),
            bytes_max,
            bytes: AtomicU64::new(0),
            first: OnceLock::new(),
            // Each lane holds one buffer while it receives.
            pool: BufferPool::new(BUFFER_BYTES, lanes_max),
            meter,
            stopping: AtomicBool::new(false),
        }
    }

    fn count_all(&self, mut source: Box<dyn LaneSource>) -> Result<(), SessionError> {
        let mut watch = self.meter.receive.start();
        loop {
            let frame = match source.receive(&self.pool, &mut watch) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                // A broken lane is not an error while the probe is stopping.
                Err(_) if self.stopping.load(Ordering::Relaxed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if !is_filler(&frame) {
                let what = "a frame that is damaged or not filler";
                return Err(LaneError::from(WireError::OutOfOrder { what }).into());
            }
            watch.set_bytes_in_progress(0);
            self.count(frame.data.len() as u64)?;
            watch.lap(ThreadState::Busy);
        }
    }

    fn count(&self, bytes: u64) -> Result<(), SessionError> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.first.get_or_init(Instant::now);
        self.meter.count_filler(bytes);
        if before + bytes > self.bytes_max {
            Err(SessionError::ProbeTooLarge)
        } else {
            Ok(())
        }
    }

    fn sample(&self, sample: u64) -> Sampled {
        let since = |moment: Instant| micros(moment.saturating_duration_since(self.began));
        Sampled {
            sample,
            clock_us: since(Instant::now()),
            first_us: self.first.get().map(|first| since(*first)),
            bytes: self.bytes.load(Ordering::Relaxed),
            cpu_us: self.cpu_us(),
        }
    }

    fn cpu_us(&self) -> u64 {
        micros(cpu_time().saturating_sub(self.cpu_began))
    }
}

#[cfg(test)]
mod tests;
