//! One push from start to end: starts the threads, keeps the conversation, stops the threads.
//!
//! **Invariant:** when [`Push::run`] returns, all its threads have ended, whichever way the push went.

pub(crate) mod config;
pub(crate) mod run;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use zmove_disk::is_passing;
use zmove_scan::{Scan, Tally, scan, scan_list};
use zmove_transport::{ControlReader, Inbox, LaneBreaker, LaneError, LaneSink};
use zmove_types::{ByteCount, Event, Observer, RateLimit, Sample};
use zmove_wire::limits::LANES_UNASKED_MAX;
use zmove_wire::{
    Cipher, Extraneous, Finished, Greeting, Open, Opened, Purpose, Role, ToReceiver, ToSender, Waiting,
};

use crate::account::bottleneck::{Stages, Times};
use crate::account::manifest::Manifest;
use crate::account::summary::Summary;
use crate::control::replies;
use crate::control::{self, Account, Link};
use crate::error::SessionError;
use crate::mirror::Mirror;
use crate::plan::pack::packs_of;
use crate::plan::planner::Task;
use crate::preview;
use crate::push::config::{PushJob, SenderConfig};
use crate::push::run::{Earlier, Heard, Run};
use crate::send::lane_set::{Broken, LaneSet, end_unused};
use crate::shared::Shared;
use crate::tune::path::PathReport;
use crate::tune::steering::Steering;

/// How many lanes a push can use, as far as its scan has come.
#[derive(Clone, Debug)]
pub struct Need(Arc<Tally>);

impl Need {
    /// The most lanes that can have something to carry; none while the scan goes on.
    #[must_use]
    pub fn lanes(&self) -> Option<u16> {
        self.0.whole().map(|found| u16::try_from(packs_of(found)).unwrap_or(u16::MAX))
    }
}

/// A push whose scan is under way.
#[derive(Debug)]
pub struct Push {
    pub(crate) scan: Scan,
    pub(crate) open: Open,
    pub(crate) mirror: Option<Mirror>,
    pub(crate) sources_missing: u64,
    pub(crate) config: SenderConfig,
    pub(crate) started: Instant,
}

impl Push {
    /// Starts to walk the sources for a session of `run`; the receiver may be dialled meanwhile. `started` is when this
    /// session began.
    #[must_use]
    pub fn start(job: PushJob, mut config: SenderConfig, run: &mut Run, started: Instant) -> Self {
        let PushJob { sources, target, shape, compare, delta, durability, overwrite, purpose, .. } = job;
        let inplace = job.inplace;
        config.scan.apart = Some(is_passing);
        let selection = config.scan.selection.clone();
        let file_systems = config.scan.file_systems;
        let mirror = job.mirror.map(|removals| Mirror {
            roots: sources.clone(),
            selection,
            file_systems,
            identity: run.identity(&removals.own_directories),
            removals,
            purpose,
        });
        config.scan.identity = mirror.as_ref().map(|mirror| Arc::clone(&mirror.identity));
        let extraneous = if mirror.is_some() { Extraneous::Goes } else { Extraneous::Stays };
        let scan = match job.list {
            Some(list) => scan_list(list, &config.scan),
            None => scan(sources, &config.scan),
        };
        let run = [0; 16];
        let open =
            Open { target, shape, compare, durability, delta, run, overwrite, purpose, extraneous, inplace };
        Self { scan, open, mirror, sources_missing: job.sources_missing, config, started }
    }

    /// How many lanes it can use.
    #[must_use]
    pub fn need(&self) -> Need {
        Need(self.scan.tally())
    }

    /// Sends everything over `link`, as one session of `run`.
    ///
    /// # Errors
    /// [`SessionError`] when the push did not come to its end, [`SessionError::Interrupted`] once `stop` resolves. What
    /// failed of single files is told to `observer` and counted in the summary.
    pub async fn run(
        self,
        run: &mut Run,
        link: Link,
        observer: Arc<dyn Observer>,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, SessionError> {
        if self.open.purpose == Purpose::Preview {
            return preview::run(self, run, link, observer, stop).await;
        }
        let Link { transfer, cipher, version, control: (reader, mut writer), lanes, supply } = link;
        let task = Task { compare: self.open.compare, mirror: self.mirror };
        let greeting = Greeting { cipher, ..Greeting::new(Role::Control, transfer) };
        let open = Open { run: run.id(transfer), ..self.open };
        control::ask(&mut writer, greeting, open, version).await?;
        let (outgoing_in, outgoing) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(self.config, version, observer, outgoing_in, self.started));
        shared.counters.scan_errors.store(self.sources_missing, Ordering::Relaxed);
        shared.counters.doomed.store(run.earlier.doomed, Ordering::Relaxed);
        let (reply_sender, replies) = replies::channel();
        let lane_set =
            LaneSet::start(&shared, self.scan, replies, task).inspect_err(|_no_thread| shared.stop())?;
        *shared.book() = std::mem::take(&mut run.book);
        let mut running = Running {
            inbox: None,
            heard: Heard::Nothing,
            run_started: run.started,
            earlier: run.earlier.clone(),
            writer: tokio::spawn(control::write_all(writer, outgoing)),
            lanes,
            lanes_open: true,
            steering: Steering::new(supply),
            lanes_early: cipher == Cipher::Tls,
            lanes_max: LANES_UNASKED_MAX,
            patience: run.patience,
            lane_set,
            account: Account::new(shared, reply_sender),
        };
        let ended = tokio::select! {
            ended = running.drive(reader) => ended,
            () = stop => Err(SessionError::Interrupted),
        };
        running.close(ended, run).await
    }
}

/// A push under way.
struct Running {
    /// None until the receiver has given leave.
    inbox: Option<Inbox<ToSender>>,
    heard: Heard,
    run_started: Instant,
    earlier: Earlier,
    writer: tokio::task::JoinHandle<()>,
    lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    lanes_open: bool,
    steering: Steering,
    /// Nothing goes out in clear before the receiver has agreed to that.
    lanes_early: bool,
    lanes_max: u16,
    /// How long to wait for the transfer's turn.
    patience: Duration,
    lane_set: LaneSet,
    account: Account,
}

impl Running {
    /// Runs until the receiver has said its last word.
    async fn drive(&mut self, reader: ControlReader) -> Result<Finished, SessionError> {
        let (inbox, opened) = self.await_leave(reader).await?;
        self.inbox = Some(inbox);
        self.heard = Heard::Leave;
        self.need_lanes()?;
        self.lanes_max = opened.lanes_max;
        self.account.shared.book().single_name = opened.single_name.map(|name| name.0);
        // the planner has gone only when the session is being stopped
        let _stopping = self.account.reply_sender.state.send(opened.state);
        self.steering.begin(&self.account.shared, self.lanes_max);
        let mut ticks = tokio::time::interval(LIMIT_INTERVAL);
        let mut steps = tokio::time::interval(STEERING_INTERVAL);
        // a rate over hardly any time is none
        steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut samples = self.account.shared.config.sample_interval.map(tokio::time::interval);
        let mut before = Reading::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let now = Reading::take(&self.lane_set, &self.account.shared);
                    let by = now.limit_since(&before);
                    self.account.shared.observer.on(&Event::Limited { by });
                    before = now;
                }
                _ = steps.tick() => self.steering.step(&mut self.lane_set, &self.account.shared)?,
                () = next(&mut samples) => self.tell_sample(),
                lane = self.lanes.recv(), if self.lanes_open => {
                    self.take_lane(lane);
                    self.need_lanes()?;
                }
                Some(broken) = self.lane_set.broken.recv() => {
                    if let Some(error) = self.lose_lane(broken) {
                        return self.explain(error).await;
                    }
                }
                message = hear(&mut self.inbox) => {
                    let message = message?;
                    self.note_answer(&message);
                    if let Some(finished) = self.account.take(message)? {
                        if samples.is_some() {
                            self.tell_sample();
                        }
                        return Ok(finished);
                    }
                }
            }
        }
    }

    /// Tells that connections are good for something, the first time that this is seen.
    fn note_answer(&mut self, message: &ToSender) {
        if self.heard < Heard::Answer && !matches!(message, ToSender::Refused(_)) {
            self.heard = Heard::Answer;
            self.account.shared.observer.on(&Event::Answered);
        }
    }

    fn tell_sample(&self) {
        self.account.shared.observer.on(&Event::Sampled(self.sample()));
    }

    /// How far each stage is, over all sessions.
    fn sample(&self) -> Sample {
        let shared = &self.account.shared;
        let path = PathReport::gather(self.lane_set.probes());
        self.earlier.with(Sample {
            elapsed: self.run_started.elapsed(),
            bytes_read: shared.counters.bytes_read.load(Ordering::Relaxed),
            bytes_handed_over: shared.counters.bytes_handed_over.load(Ordering::Relaxed),
            bytes_acked: path.as_ref().map(|path| path.bytes_acked.iter().sum()),
            bytes_stored: shared.counters.bytes_stored.load(Ordering::Relaxed),
            packs_waiting: shared.plan.packs_waiting(),
            frames_waiting: self.lane_set.frames_waiting(),
            items_outstanding: shared.ledger().outstanding(),
            lanes: self.lane_set.lanes_up(),
            segments_retransmitted: path.map(|path| path.segments_retransmitted),
        })
    }

    /// Waits for leave; meanwhile the first encrypted lanes carry what is guessed to be needed. A lane that breaks now says less than
    /// the refusal that is about to come.
    async fn await_leave(
        &mut self,
        reader: ControlReader,
    ) -> Result<(Inbox<ToSender>, Opened), SessionError> {
        let version = self.account.shared.version;
        let (waits_in, mut waits) = mpsc::unbounded_channel();
        let leave = control::leave(reader, version, self.patience, waits_in);
        tokio::pin!(leave);
        let mut in_line = false;
        loop {
            let room = self.lanes_early && self.lane_set.lanes_up() < usize::from(self.lanes_max);
            tokio::select! {
                left = &mut leave => {
                    // a turn that came at once
                    if let Ok(waiting) = waits.try_recv() {
                        self.stand_in_line(&waiting);
                        in_line = true;
                    }
                    if in_line && left.is_ok() {
                        self.steering.dial_again();
                    }
                    return left;
                }
                Some(waiting) = waits.recv() => {
                    self.stand_in_line(&waiting);
                    in_line = true;
                }
                lane = self.lanes.recv(), if self.lanes_open && (room || in_line) => {
                    if in_line { self.let_lane_go(lane) } else { self.take_lane(lane) }
                }
            }
        }
    }

    /// The receiver takes no lanes yet: what those had goes by others, which are dialled when the turn has come.
    fn stand_in_line(&mut self, waiting: &Waiting) {
        control::tell_waiting(&*self.account.shared.observer, waiting);
        self.lane_set.doubt_lanes();
    }

    /// A lane that came up in vain: the receiver closes it, too.
    fn let_lane_go(&mut self, lane: Option<Result<Box<dyn LaneSink>, LaneError>>) {
        self.steering.lane_came();
        match lane {
            Some(Ok(surplus)) => end_unused(surplus),
            Some(Err(error)) => self.lane_set.last_error = Some(error),
            None => self.lanes_open = false,
        }
    }

    /// One lane that does not come up is no loss while others do.
    fn take_lane(&mut self, lane: Option<Result<Box<dyn LaneSink>, LaneError>>) {
        self.steering.lane_came();
        match lane {
            Some(Ok(sink)) if self.lane_set.lanes_up() < usize::from(self.lanes_max) => {
                self.steering.prepare(sink.as_ref());
                self.lane_set.add_lane(&self.account.shared, sink);
                let lanes = self.lane_set.lanes_up();
                self.account.shared.observer.on(&Event::LaneUp { lanes });
            }
            Some(Ok(surplus)) => end_unused(surplus),
            Some(Err(error)) => self.lane_set.last_error = Some(error),
            None => self.lanes_open = false,
        }
    }

    /// Without lanes, and with none to come, nothing will move.
    fn need_lanes(&mut self) -> Result<(), SessionError> {
        if self.steering.lanes_to_come(self.lanes_open) || self.lane_set.lanes_up() > 0 {
            return Ok(());
        }
        Err(self.lane_set.last_error.take().map_or(SessionError::NoLane, SessionError::Lane))
    }

    /// Goes on without a lane whose connection is lost, while there are others: what it had goes by them. Returns why that
    /// cannot be.
    fn lose_lane(&mut self, Broken { lane, error }: Broken) -> Option<LaneError> {
        let Some(lane) = lane.filter(|_| error.is_lost()) else { return Some(error) };
        self.lane_set.lose_lane(lane);
        let shared = &self.account.shared;
        let lanes = self.lane_set.lanes_up();
        if lanes == 0 && !self.steering.is_dialling_again() {
            return Some(error);
        }
        let lost = shared.lane_items.lose(lane).into_iter();
        let ledger = shared.ledger();
        let items = lost.filter(|item| ledger.is_outstanding(*item)).map(|item| item.0).collect();
        drop(ledger);
        shared.send(ToReceiver::LaneLost { items });
        shared.observer.on(&Event::LaneUp { lanes });
        None
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

    async fn close(
        self,
        ended: Result<Finished, SessionError>,
        run: &mut Run,
    ) -> Result<Summary, SessionError> {
        let (elapsed, judged) = (run.started.elapsed(), self.account.shared.started.elapsed());
        self.account.shared.stop();
        let breakers = self.lane_set.breakers();
        let lanes = self.lane_set.lanes_most();
        let learnt = self.steering.learnt();
        run.note(self.heard);
        run.earlier.reached = self.sample();
        if ended.is_err() {
            breakers.iter().for_each(LaneBreaker::trip);
            self.writer.abort();
            // the peer sees the end of the connection now, and lets go of its lanes
            drop(self.inbox);
        } else {
            // another lane has brought what these may still hold
            self.lane_set.break_lanes(&self.account.shared.stragglers.lanes_with_copies());
            // a receiver that says all is done and yet does not read its lanes is not waited for
            tokio::spawn(async move {
                tokio::time::sleep(GOODBYE_TIMEOUT).await;
                breakers.iter().for_each(LaneBreaker::trip);
            });
        }
        let lane_set = self.lane_set;
        drop(self.account.reply_sender);
        let (reading, paced) = (Reading::take(&lane_set, &self.account.shared), self.account.paced);
        let times_beyond_range = self.account.times_beyond_range;
        let left_out = lane_set.left_out();
        tokio::task::spawn_blocking(move || lane_set.join()).await.expect("a push's threads do not panic");
        let shared = self.account.shared;
        let finished = ended.inspect_err(|_broken_off| leave(&shared, lanes, run))?;
        let manifest = shared.book().manifest.take();
        let manifest_left_out = manifest.map_or(Ok(0), Manifest::finish).map_err(SessionError::Manifest)?;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let Earlier { files, bytes, partial_bytes, removed, resent, repeated, .. } = run.earlier;
        // what this session has gone on with and another of this run has brought
        let resumed = count(&shared.counters.resumed);
        let resumed_own = resumed.min(partial_bytes);
        let summary = Summary {
            files: files + count(&shared.counters.files),
            bytes: bytes + count(&shared.counters.bytes) + resumed_own,
            // what this run has moved before was there for its last session
            skipped: count(&shared.counters.skipped).saturating_sub(files),
            bytes_resumed: resumed - resumed_own,
            bytes_matched: count(&shared.counters.matched),
            specials: count(&shared.counters.specials),
            failed: count(&shared.counters.failed),
            vanished: count(&shared.counters.vanished),
            resent: resent + count(&shared.counters.resent),
            repeated: repeated + count(&shared.counters.repeated),
            reconnects: run.reconnects(),
            lanes: lanes.max(run.earlier.lanes),
            elapsed,
            judged,
            first_byte: run.earlier.first_byte.or(shared.first_byte()),
            flush: Duration::from_micros(finished.flush_us),
            sender_cpu: run.cpu(),
            receiver_cpu: Duration::from_micros(finished.cpu_us),
            manifest_left_out,
            times_beyond_range,
            bottleneck: reading.times(judged, lanes, &finished, paced).bottleneck(),
            path: reading.path,
            removed: removed + count(&shared.counters.removed),
            spared: count(&shared.counters.spared),
            kept_by_change: count(&shared.counters.kept_by_change),
            preview: None,
            learnt,
            left_out,
        };
        // the last hold on the queue of messages: the writer says goodbye, which changes nothing if nobody hears it
        drop(shared);
        let _goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, self.writer).await;
        Ok(summary)
    }
}

/// Leaves to `run` what the next session has to know of one that broke off.
fn leave(shared: &Shared, lanes: usize, run: &mut Run) {
    let mut book = std::mem::take(&mut *shared.book());
    shared.ledger().unsettled().for_each(|work| book.leave_open(work));
    let large = shared.large.lock().unwrap_or_else(PoisonError::into_inner);
    large.values().for_each(|file| book.leave_large_open(file));
    book.break_off();
    run.book = book;
    run.earlier.add(&shared.counters, lanes, shared.first_byte());
}

/// The next moment to tell a sample, if samples were asked for.
async fn next(samples: &mut Option<tokio::time::Interval>) {
    match samples {
        Some(samples) => drop(samples.tick().await),
        None => std::future::pending().await,
    }
}

/// The receiver's next message.
async fn hear(inbox: &mut Option<Inbox<ToSender>>) -> Result<ToSender, SessionError> {
    control::receive(inbox.as_mut().expect("leave comes with the inbox")).await
}

/// Lanes that bring so much of the rate that they are held to are held up by that, and not by the path: they share it evenly,
/// so that those whose work is done leave theirs.
const AT_RATE_SHARE: f64 = 0.8;
/// How often the user is told what limits the rate.
const LIMIT_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is decided what the push should have; see [`tune`](crate::tune).
const STEERING_INTERVAL: Duration = Duration::from_millis(250);
/// A receiver that looks at its target for longer will not come back to it.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(2);

/// What this side knows at one moment of where the time went.
#[derive(Default)]
struct Reading {
    stages: Stages,
    path: Option<PathReport>,
    first_byte: Option<Duration>,
    handed_over: Option<Duration>,
    /// What the lanes have been given, in bytes.
    bytes_handed_over: u64,
    /// The rate that they are held to.
    rate_max: Option<RateLimit>,
}

impl Reading {
    /// How this side's stages have spent their time, and what the path did.
    fn take(lane_set: &LaneSet, shared: &Shared) -> Self {
        let (read, lane) = shared.stage_times();
        Self {
            stages: Stages { scan: lane_set.scan_times(), read, lane, ..Stages::default() },
            path: PathReport::gather(lane_set.probes()),
            first_byte: shared.first_byte(),
            handed_over: shared.handed_over(),
            bytes_handed_over: shared.counters.bytes_handed_over.load(Ordering::Relaxed),
            rate_max: shared.config.rate_max,
        }
    }

    /// All that is known at the end.
    fn times(&self, wall: Duration, lanes: usize, finished: &Finished, paced: Duration) -> Times {
        let path = self.path.as_ref();
        let on_the_wire = path.and_then(|path| path.since_data_sent).map(|ago| wall.saturating_sub(ago));
        let sent = on_the_wire.max(self.handed_over).unwrap_or(wall);
        let sending = sent.saturating_sub(self.first_byte.unwrap_or_default());
        let mut stages = self.stages.with_report(finished);
        stages.receive.paced = paced;
        Times {
            wall,
            first_byte: self.first_byte,
            handed_over: self.handed_over,
            on_the_wire,
            round_trip: path.and_then(|path| path.round_trip_min).unwrap_or_default(),
            flush: Duration::from_micros(finished.flush_us),
            lanes,
            stages,
            at_own_rate: self.is_at_own_rate(self.bytes_handed_over, sending),
        }
    }

    /// What limited the rate in the interval that began with `before`.
    fn limit_since(&self, before: &Self) -> &'static str {
        let stages = self.stages.since(&before.stages);
        let first_byte = self.first_byte.map(|_| Duration::ZERO);
        let path =
            self.path.as_ref().map(|path| before.path.as_ref().map_or(path.clone(), |b| path.since(b)));
        let at_own_rate =
            self.is_at_own_rate(self.bytes_handed_over - before.bytes_handed_over, LIMIT_INTERVAL);
        let times = Times { wall: LIMIT_INTERVAL, first_byte, stages, at_own_rate, ..Times::default() };
        times.live_limit(path.as_ref())
    }

    /// Whether `bytes` in `time` come to the rate that the lanes are held to.
    fn is_at_own_rate(&self, bytes: u64, time: Duration) -> bool {
        let enough = |max: RateLimit| ByteCount(max.bytes_per_second()).as_f64() * AT_RATE_SHARE;
        self.rate_max.is_some_and(|max| ByteCount(bytes).as_f64() >= enough(max) * time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_at_four_fifths_of_their_rate_are_held_up_by_it() {
        let held = Reading { rate_max: Some("80MB".parse().unwrap()), ..Reading::default() };
        let second = Duration::from_secs(1);
        let at = |reading: &Reading, bytes| reading.is_at_own_rate(bytes, second);
        assert_eq!([63_000_000, 64_000_000, 80_000_000].map(|bytes| at(&held, bytes)), [false, true, true]);
        assert!(!at(&Reading::default(), u64::MAX));
    }
}
