//! One push from start to end: starts the threads, keeps the conversation, stops the threads.
//!
//! **Invariant:** when [`Push::run`] returns, all its threads have ended, whichever way the push went.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use zmove_scan::{Scan, scan};
use zmove_transport::{ControlReader, Inbox, LaneBreaker, LaneError, LaneSink};
use zmove_types::{Event, Observer};
use zmove_wire::limits::LANES_UNASKED_MAX;
use zmove_wire::{Cipher, Compare, Finished, Greeting, Open, Opened, Role, ToSender};

use crate::config::{PushJob, SenderConfig};
use crate::control::{self, Account, Link};
use crate::error::SessionError;
use crate::lanes::{self, Cargo};
use crate::manifest::Manifest;
use crate::planner::{self, News, plan_all};
use crate::reader::read_all;
use crate::shared::Shared;
use crate::summary::{Stages, Summary};

/// A push whose scan is under way.
#[derive(Debug)]
pub struct Push {
    scan: Scan,
    open: Open,
    manifest: Option<Manifest>,
    config: SenderConfig,
    started: Instant,
    cpu_started: Duration,
}

impl Push {
    /// Starts to walk the sources; the receiver may be dialled meanwhile. `started` is when the user began to wait.
    #[must_use]
    pub fn start(job: PushJob, config: SenderConfig, started: Instant) -> Self {
        let PushJob { sources, target, shape, compare, durability, manifest } = job;
        let scan = scan(sources, &config.scan);
        let open = Open { target, shape, compare, durability };
        Self { scan, open, manifest, config, started, cpu_started: cpu_time() }
    }

    /// Sends everything over `link`.
    ///
    /// # Errors
    /// [`SessionError`] when the push did not come to its end, [`SessionError::Interrupted`] once `stop` resolves. What
    /// failed of single files is told to `observer` and counted in the summary.
    pub async fn run(
        self,
        link: Link,
        observer: Arc<dyn Observer>,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, SessionError> {
        let Link { transfer, cipher, control: (reader, mut writer), lanes } = link;
        let compare = self.open.compare;
        let greeting = Greeting { cipher, ..Greeting::new(Role::Control, transfer) };
        control::ask(&mut writer, greeting, self.open).await?;
        let (outgoing_in, outgoing) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(self.config, observer, outgoing_in, self.started));
        let (teller, news) = planner::news();
        let crew = Crew::start(&shared, self.scan, news, compare)?;
        let account = Account { shared, manifest: self.manifest, teller, single_name: None };
        let mut running = Running {
            inbox: None,
            writer: tokio::spawn(control::write_all(writer, outgoing)),
            lanes,
            lanes_open: true,
            lanes_early: cipher == Cipher::Tls,
            lanes_max: LANES_UNASKED_MAX,
            crew,
            account,
        };
        let ended = tokio::select! {
            ended = running.drive(reader) => ended,
            () = stop => Err(SessionError::Interrupted),
        };
        let summary = running.close(ended).await?;
        Ok(Summary { sender_cpu: cpu_time().saturating_sub(self.cpu_started), ..summary })
    }
}

/// A push under way.
struct Running {
    /// None until the receiver has given leave.
    inbox: Option<Inbox<ToSender>>,
    writer: tokio::task::JoinHandle<()>,
    lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    lanes_open: bool,
    /// Nothing goes out in clear before the receiver has agreed to that.
    lanes_early: bool,
    lanes_max: u16,
    crew: Crew,
    account: Account,
}

impl Running {
    /// Runs until the receiver has said its last word.
    async fn drive(&mut self, reader: ControlReader) -> Result<Finished, SessionError> {
        let (inbox, opened) = self.await_leave(reader).await?;
        self.inbox = Some(inbox);
        self.need_lanes()?;
        self.lanes_max = opened.lanes_max;
        self.account.single_name = opened.single_name.map(|name| name.0);
        // the planner has gone only when the session is being stopped
        let _stopping = self.account.teller.state.send(opened.state);
        let mut ticks = tokio::time::interval(LIMIT_INTERVAL);
        let mut before = Stages::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let now = self.crew.stages(&self.account.shared);
                    let by = now.since(&before).live_limit();
                    self.account.shared.observer.on(&Event::Limited { by });
                    before = now;
                }
                lane = self.lanes.recv(), if self.lanes_open => {
                    self.take_lane(lane)?;
                    self.need_lanes()?;
                }
                Some(error) = self.crew.broken.recv() => return self.explain(error).await,
                message = hear(&mut self.inbox) => {
                    if let Some(finished) = self.account.take(message?)? {
                        return Ok(finished);
                    }
                }
            }
        }
    }

    /// Waits for leave; meanwhile the first encrypted lanes carry what is guessed to be needed. A lane that breaks now says less than
    /// the refusal that is about to come.
    async fn await_leave(
        &mut self,
        reader: ControlReader,
    ) -> Result<(Inbox<ToSender>, Opened), SessionError> {
        let leave = control::leave(reader);
        tokio::pin!(leave);
        loop {
            let room = self.lanes_early && self.crew.breakers.len() < usize::from(self.lanes_max);
            tokio::select! {
                left = &mut leave => return left,
                lane = self.lanes.recv(), if self.lanes_open && room => self.take_lane(lane)?,
            }
        }
    }

    /// One lane that does not come up is no loss while others do.
    fn take_lane(&mut self, lane: Option<Result<Box<dyn LaneSink>, LaneError>>) -> Result<(), SessionError> {
        match lane {
            Some(Ok(sink)) if self.crew.breakers.len() < usize::from(self.lanes_max) => {
                self.crew.add_lane(&self.account.shared, sink)?;
                let lanes = self.crew.breakers.len();
                self.account.shared.observer.on(&Event::LaneUp { lanes });
                Ok(())
            }
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => {
                self.crew.last_error = Some(error);
                Ok(())
            }
            None => {
                self.lanes_open = false;
                Ok(())
            }
        }
    }

    /// Without lanes, and with none to come, nothing will move.
    fn need_lanes(&mut self) -> Result<(), SessionError> {
        if self.lanes_open || !self.crew.breakers.is_empty() {
            return Ok(());
        }
        Err(self.crew.last_error.take().map_or(SessionError::NoLane, SessionError::Lane))
    }

    /// A broken lane is often only the first sign of what the control connection can tell better.
    async fn explain(&mut self, lane_error: LaneError) -> Result<Finished, SessionError> {
        let said = async {
            loop {
                if let Some(finished) = self.account.take(hear(&mut self.inbox).await?)? {
                    return Ok(finished);
                }
            }
        };
        tokio::time::timeout(EXPLANATION_TIMEOUT, said).await.unwrap_or(Err(lane_error.into()))
    }

    async fn close(self, ended: Result<Finished, SessionError>) -> Result<Summary, SessionError> {
        let elapsed = self.account.shared.started.elapsed();
        self.account.shared.stop();
        let breakers = self.crew.breakers.clone();
        let lanes = breakers.len();
        if ended.is_err() {
            breakers.iter().for_each(LaneBreaker::trip);
            self.writer.abort();
            // the peer sees the end of the connection now, and lets go of its lanes
            drop(self.inbox);
        } else {
            // a receiver that says all is done and yet does not read its lanes is not waited for
            tokio::spawn(async move {
                tokio::time::sleep(GOODBYE_TIMEOUT).await;
                breakers.iter().for_each(LaneBreaker::trip);
            });
        }
        let crew = self.crew;
        drop(self.account.teller);
        let stages = crew.stages(&self.account.shared);
        tokio::task::spawn_blocking(move || crew.join()).await.expect("a push's threads do not panic");
        let finished = ended?;
        let shared = self.account.shared;
        let manifest_left_out =
            self.account.manifest.map_or(Ok(0), Manifest::finish).map_err(SessionError::Manifest)?;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let summary = Summary {
            files: count(&shared.counters.files),
            bytes: count(&shared.counters.bytes),
            skipped: count(&shared.counters.skipped),
            specials: count(&shared.counters.specials),
            failed: count(&shared.counters.failed),
            vanished: count(&shared.counters.vanished),
            resent: count(&shared.counters.resent),
            lanes,
            elapsed,
            first_byte: shared.first_byte(),
            flush: Duration::from_micros(finished.flush_us),
            sender_cpu: Duration::ZERO,
            receiver_cpu: Duration::from_micros(finished.cpu_us),
            manifest_left_out,
            verdict: stages.with_report(&finished).verdict(),
        };
        // the last hold on the queue of messages: the writer says goodbye, which changes nothing if nobody hears it
        drop(shared);
        let _goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, self.writer).await;
        Ok(summary)
    }
}

/// The receiver's next message.
async fn hear(inbox: &mut Option<Inbox<ToSender>>) -> Result<ToSender, SessionError> {
    control::receive(inbox.as_mut().expect("leave comes with the inbox")).await
}

/// How often the user is told what limits the rate.
const LIMIT_INTERVAL: Duration = Duration::from_secs(1);
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(2);

/// The threads of one push.
struct Crew {
    cargo: crossbeam_channel::Receiver<Cargo>,
    threads: Vec<JoinHandle<()>>,
    scan: Scan,
    breakers: Vec<LaneBreaker>,
    broken_in: mpsc::UnboundedSender<LaneError>,
    broken: UnboundedReceiver<LaneError>,
    last_error: Option<LaneError>,
}

impl Crew {
    fn start(shared: &Arc<Shared>, scan: Scan, news: News, compare: Compare) -> Result<Self, SessionError> {
        let (cargo_in, cargo) = crossbeam_channel::bounded(shared.config.readers);
        let (broken_in, broken) = mpsc::unbounded_channel();
        let mut crew = Self {
            cargo,
            threads: Vec::new(),
            scan: scan.clone(),
            breakers: Vec::new(),
            broken_in,
            broken,
            last_error: None,
        };
        let planner = Arc::clone(shared);
        crew.spawn("zmove-plan".into(), move || plan_all(&planner, &scan, &news, compare))?;
        for number in 0..shared.config.readers {
            let (shared, cargo) = (Arc::clone(shared), cargo_in.clone());
            crew.spawn(format!("zmove-read-{number}"), move || read_all(&shared, &cargo))?;
        }
        Ok(crew)
    }

    fn add_lane(&mut self, shared: &Arc<Shared>, sink: Box<dyn LaneSink>) -> Result<(), SessionError> {
        self.breakers.push(sink.breaker());
        let (shared, cargo, broken) = (Arc::clone(shared), self.cargo.clone(), self.broken_in.clone());
        let number = self.breakers.len();
        self.spawn(format!("zmove-lane-{number}"), move || {
            if let Err(error) = lanes::run_lane(&shared, sink, &cargo)
                && !shared.is_stopping()
            {
                let _session_over = broken.send(error);
            }
        })
    }

    fn spawn(&mut self, name: String, work: impl FnOnce() + Send + 'static) -> Result<(), SessionError> {
        let guard = PanicGuard(self.broken_in.clone());
        let guarded = move || {
            let _guard = guard;
            work();
        };
        let thread = std::thread::Builder::new().name(name).spawn(guarded).map_err(SessionError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }

    /// How this side's stages have spent their time.
    fn stages(&self, shared: &Shared) -> Stages {
        Stages {
            scan: self.scan.times(),
            read: shared.read_clock.times(),
            lane: shared.lane_clock.times(),
            ..Stages::default()
        }
    }

    /// Waits for all threads.
    fn join(self) {
        drop(self.scan);
        drop(self.cargo);
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Ends the push when one of its threads panics, rather than let it wait for ever.
struct PanicGuard(mpsc::UnboundedSender<LaneError>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let source = std::io::Error::other("a thread of the sender panicked");
            let _session_over = self.0.send(LaneError::Io { source });
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
