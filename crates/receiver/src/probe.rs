//! A conversation that measures the path: what comes over lanes is checked, counted and thrown away.
//!
//! **Invariant:** nothing that comes is stored, and what a sweep writes is removed; time and bytes are bounded; and when [`run`]
//! returns, the threads and tasks it started have ended.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zmove_transport::{ControlError, ControlWriter, LaneBreaker, LaneError, LaneSource};
use zmove_types::{BufferPool, Doing};
use zmove_wire::limits::{LANES_UNASKED_MAX, PROBE_BYTES_MAX, PROBE_SECONDS_MAX, SAMPLES_OUTSTANDING_MAX};
use zmove_wire::{
    Finished, Moment, Open, Opened, Sampled, TargetState, ToReceiver, ToSender, WireError, encode_message,
};

use crate::account::Account;
use crate::account::messages::Messages;
use crate::account::windows::open_window;
use crate::config::{BUFFER_BYTES, ReceiverConfig};
use crate::error::SessionError;
use crate::meters::TransferMeter;
use crate::session::close::{CLOSE_TIMEOUT, SessionReport, cpu_time, micros, refusal_of, refuse};
use crate::session::verify::is_filler;
use crate::store::target::Access;
use crate::store::target::read_only::Seen;

mod sweeping;

use sweeping::{Place, Sweeping};

/// The ways of one conversation.
pub(crate) struct Ways {
    pub(crate) writer: ControlWriter,
    pub(crate) inbox: Messages,
    pub(crate) lanes: mpsc::Receiver<Box<dyn LaneSource>>,
}

/// Counts until the sender has seen enough. Only who may write to the target is let in.
pub(crate) async fn run(
    mut ways: Ways,
    open: Open,
    access: Access,
    config: &ReceiverConfig,
    stop: impl Future<Output = ()>,
) -> Result<SessionReport, SessionError> {
    config.meter.probes();
    let target = open.target.clone();
    let seen = tokio::task::spawn_blocking(move || Seen::look(&open, &access)).await;
    let seen = match seen.unwrap_or_else(|_panic| Err(refusal_of(&SessionError::Panicked))) {
        Ok(seen) => seen,
        Err(refusal) => return refuse(&mut ways.writer, ways.inbox, refusal).await,
    };
    let lanes_max = config.lanes_max.max(LANES_UNASKED_MAX);
    let opened = Opened { state: TargetState::Empty, lanes_max, single_name: None };
    ways.writer.send(&encode_message(&ToSender::Opened(opened))).await?;
    let (told, news) = mpsc::channel(usize::from(lanes_max));
    let tally = Tally::new(PROBE_BYTES_MAX, usize::from(lanes_max), Arc::clone(&config.meter));
    let lane_set = LaneSet {
        tally: Arc::new(tally),
        account: config.account.clone(),
        told,
        threads: Vec::new(),
        up: HashMap::new(),
        begun: 0,
        ended: 0,
    };
    let place = seen.tree.map(|tree| Place { tree, shown: shown(&target), config: config.clone() });
    let mut probe = Probe {
        ways,
        lane_set,
        news,
        lanes_max: usize::from(lanes_max),
        waiting: Vec::new(),
        sweeping: Sweeping::new(place),
    };
    let ended = tokio::select! {
        ended = probe.converse() => ended,
        () = tokio::time::sleep(Duration::from_secs(PROBE_SECONDS_MAX)) => Err(SessionError::ProbeTooLong),
        () = stop => Err(SessionError::Stopping),
    };
    probe.close(&ended).await;
    ended.map(|()| SessionReport { target, ..SessionReport::default() })
}

fn shown(target: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if target.is_empty() { b"." } else { target }))
}

/// A probe under way.
struct Probe {
    ways: Ways,
    lane_set: LaneSet,
    news: mpsc::Receiver<LaneEnded>,
    lanes_max: usize,
    /// Samples that wait for so many lanes to end.
    waiting: Vec<(u64, u32)>,
    sweeping: Sweeping,
}

impl Probe {
    async fn converse(&mut self) -> Result<(), SessionError> {
        loop {
            tokio::select! {
                Some(lane) = self.ways.lanes.recv(), if self.lane_set.up.len() < self.lanes_max => {
                    self.lane_set.add(lane)?;
                }
                Some(LaneEnded { number, ended }) = self.news.recv() => {
                    self.lane_set.ended(number);
                    ended?;
                    self.answer_those_that_waited().await?;
                }
                swept = self.sweeping.done() => {
                    self.ways.writer.send(&encode_message(&ToSender::Swept(swept?))).await?;
                }
                message = self.ways.inbox.recv() => match message.ok_or(ControlError::Closed)??.message {
                    ToReceiver::Sample { sample, when: Moment::Now } => self.answer(sample).await?,
                    ToReceiver::Sample { sample, when: Moment::Ended(lanes) } => {
                        self.wait(sample, lanes)?;
                        self.answer_those_that_waited().await?;
                    }
                    ToReceiver::Sweep(order) => self.sweeping.begin(order)?,
                    ToReceiver::Announce { items: 0, mismatches: 0 } if !self.sweeping.is_under_way() => break,
                    _ => return Err(WireError::OutOfOrder { what: "a message of a probe" }.into()),
                },
            }
        }
        let finished = Finished { cpu_us: self.lane_set.tally.cpu_us(), ..Finished::default() };
        self.ways.writer.send(&encode_message(&ToSender::Finished(finished))).await?;
        Ok(self.ways.writer.finish().await?)
    }

    fn wait(&mut self, sample: u64, lanes: u32) -> Result<(), WireError> {
        if self.waiting.len() >= SAMPLES_OUTSTANDING_MAX {
            return Err(WireError::OutOfOrder { what: "a sample before the earlier ones are answered" });
        }
        self.waiting.push((sample, lanes));
        Ok(())
    }

    async fn answer_those_that_waited(&mut self) -> Result<(), ControlError> {
        let ended = self.lane_set.ended;
        let (due, left) = self.waiting.iter().partition(|(_, lanes)| *lanes <= ended);
        self.waiting = left;
        let due: Vec<(u64, u32)> = due;
        for (sample, _) in due {
            self.answer(sample).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, sample: u64) -> Result<(), ControlError> {
        let sampled = self.lane_set.tally.sample(sample);
        self.ways.writer.send(&encode_message(&ToSender::Sampled(sampled))).await
    }

    /// Stops everything: after a good end the peer closes first, so that nothing it said is left unread.
    async fn close(mut self, ended: &Result<(), SessionError>) {
        self.sweeping.stop();
        let said = async {
            if let Err(error) = ended {
                self.ways.writer.send(&encode_message(&ToSender::Refused(refusal_of(error)))).await?;
                return self.ways.writer.finish().await;
            }
            while let Some(Ok(_)) = self.ways.inbox.recv().await {}
            Ok(())
        };
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, said).await;
        drop((self.ways, self.news));
        self.sweeping.end().await;
        let lane_set = self.lane_set;
        tokio::task::spawn_blocking(move || lane_set.end()).await.expect("it does not panic");
    }
}

/// How one lane went.
#[derive(Debug)]
struct LaneEnded {
    number: u32,
    ended: Result<(), SessionError>,
}

/// The threads of one probe.
struct LaneSet {
    tally: Arc<Tally>,
    account: Account,
    told: mpsc::Sender<LaneEnded>,
    threads: Vec<JoinHandle<()>>,
    /// Of the lanes that are up, by number.
    up: HashMap<u32, LaneBreaker>,
    begun: u32,
    ended: u32,
}

impl LaneSet {
    fn add(&mut self, mut source: Box<dyn LaneSource>) -> Result<(), SessionError> {
        let window = open_window(source.as_mut(), self.up.len(), &self.account);
        let number = self.begun;
        self.begun = number.wrapping_add(1);
        self.up.insert(number, source.breaker());
        self.tally.meter.lanes_are(self.up.len());
        let (tally, told) = (Arc::clone(&self.tally), self.told.clone());
        self.threads.retain(|thread| !thread.is_finished());
        let run = move || {
            let _until_it_ends = window;
            let mut guard = EndGuard { number, told, ended: Some(Err(SessionError::Panicked)) };
            guard.ended = Some(tally.count_all(source));
        };
        let thread = std::thread::Builder::new().name(format!("zmove-lane-{number}")).spawn(run);
        self.threads.push(thread.map_err(SessionError::Thread)?);
        Ok(())
    }

    fn ended(&mut self, number: u32) {
        self.up.remove(&number);
        self.ended += 1;
        self.tally.meter.lanes_are(self.up.len());
    }

    /// Breaks what is still up.
    fn end(self) {
        self.tally.stopping.store(true, Ordering::Relaxed);
        self.tally.pool.close();
        self.up.values().for_each(LaneBreaker::trip);
        for thread in self.threads {
            // one that has panicked has told so
            let _by_its_guard = thread.join();
        }
    }
}

/// Tells how a lane went, also when its thread panics.
struct EndGuard {
    number: u32,
    told: mpsc::Sender<LaneEnded>,
    ended: Option<Result<(), SessionError>>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let ended = self.ended.take().unwrap_or(Ok(()));
        // when the probe is over nobody listens
        let _probe_over = self.told.blocking_send(LaneEnded { number: self.number, ended });
    }
}

/// What has come.
#[derive(Debug)]
struct Tally {
    began: Instant,
    cpu_began: Duration,
    bytes_max: u64,
    bytes: AtomicU64,
    first: OnceLock<Instant>,
    pool: BufferPool,
    meter: Arc<TransferMeter>,
    stopping: AtomicBool,
}

impl Tally {
    fn new(bytes_max: u64, lanes_max: usize, meter: Arc<TransferMeter>) -> Self {
        Self {
            began: Instant::now(),
            cpu_began: cpu_time(),
            bytes_max,
            bytes: AtomicU64::new(0),
            first: OnceLock::new(),
            // each lane holds one while it receives
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
                // what breaks while everything is being stopped is no news
                Err(_) if self.stopping.load(Ordering::Relaxed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if !is_filler(&frame) {
                let what = "what is no filler, or arrived damaged,";
                return Err(LaneError::from(WireError::OutOfOrder { what }).into());
            }
            self.count(frame.data.len() as u64)?;
            watch.lap(Doing::Busy);
        }
    }

    fn count(&self, bytes: u64) -> Result<(), SessionError> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.first.get_or_init(Instant::now);
        self.meter.filled(bytes);
        if before + bytes > self.bytes_max { Err(SessionError::ProbeTooLarge) } else { Ok(()) }
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
