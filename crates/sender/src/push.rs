//! One push from start to end: its threads, its control conversation and its shutdown.
//!
//! **Invariant:** when [`Push::run`] returns, all threads of the push have ended, whatever its result.

pub(crate) mod config;
pub(crate) mod echoes;
pub(crate) mod feed;
pub(crate) mod job;
pub(crate) mod piece;
pub(crate) mod pipeline;
mod reading;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod threads;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use zmove_transport::{ControlReader, Inbox, LaneBreaker, LaneError, LaneSink, blocking};
use zmove_types::{Counters, Event, Observer, RateLimit, Sample, Side};
use zmove_wire::limits::LANES_UNREQUESTED_MAX;
use zmove_wire::{
    Cipher, Extraneous, Finished, FoundSoFar, Limit, Open, Opened, Refusal, RefusalCode,
    SharedJobOrder, SharedJobResult, Summary, TargetShape, TargetState, ToReceiver, ToSender,
    Waiting, WireError, out_of_order,
};

use self::echoes::Echoes;
use self::feed::FeedRequest;
use self::job::Push;
use self::pipeline::Pipeline;
use self::reading::{LIMIT_INTERVAL, StageSnapshot};
use self::run::Run;
use self::session::Session;
use self::threads::WorkerFailure;
use crate::account::manifest::Manifest;
use crate::account::receipts::Receipts;
use crate::control::link::{Link, may_begin_job};
use crate::control::relay::{PeerQuota, ReceivedMessage, inbox};
use crate::control::replies::EntryReply;
use crate::control::{self, GOODBYE_TIMEOUT, MessageWriter};
use crate::error::SessionError;
use crate::read::extras::Extras;
use crate::send::lane_set::end_unused;
use crate::tune::path;
use crate::tune::steering::Steering;

impl Push {
    /// Sends everything over `link`, as one session of `run`.
    ///
    /// # Errors
    /// Returns a [`SessionError`] if the push did not complete, and [`SessionError::Interrupted`] once `stop` resolves.
    /// Failures of single files are reported to `observer` and counted in the summary.
    pub async fn run(
        self,
        run: &mut Run,
        mut link: Link,
        observer: Arc<dyn Observer>,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, SessionError> {
        // The sessions of a shared job run in parallel, so no session of the job follows another. An inspection
        // publishes nothing.
        let follows = self.open.shared_job.is_none() && !self.task.inspects;
        let open = Open {
            run: run.id(link.transfer),
            earlier: run.earlier_session().filter(|_| follows),
            ..self.open.clone()
        };
        let echoes = Echoes::default();
        let noted = echoes.clone();
        link.control.0.answer_if(move || noted.note());
        link.ask(open, self.config.silence_max).await?;
        let (mut running, reader) = self.begin(run, link, echoes, observer)?;
        let ended = tokio::select! {
            ended = running.drive(reader) => ended,
            () = stop => Err(SessionError::Interrupted),
        };
        running.close(ended).await
    }

    /// Starts the threads of a session whose opening has been sent.
    fn begin(
        self,
        run: &mut Run,
        link: Link,
        echoes: Echoes,
        observer: Arc<dyn Observer>,
    ) -> Result<(RunningPush<'_>, ControlReader), SessionError> {
        let known_state = known_state(&self.open, &link);
        let begins_job = may_begin_job(&self.open);
        let Link {
            cipher,
            control: (reader, writer),
            lanes,
            supply,
            relay,
            quota,
            ..
        } = link;
        let extras = Extras::new(self.open.keeping, &self.config);
        let (receipts, replies, outgoing) =
            Receipts::begin(observer, extras, self.started, quota.clone());
        if let Some(known) = self.rate {
            drop(known.set(receipts.session.rate.shared.clone()));
        }
        let totals = &receipts.session.account.totals;
        totals.scan_errors.set(self.sources_missing);
        totals.extraneous.set(run.earlier.extraneous);
        run.files.begin(self.open.overwrite);
        *receipts.session.account.files() = std::mem::take(&mut run.files);
        let inspects = self.task.inspects;
        run.standing.inspects = inspects;
        let started = Pipeline::start(self.config, &receipts, self.scan, replies, self.task);
        let pipeline = started.inspect_err(|_no_thread| {
            run.files = std::mem::take(&mut *receipts.session.account.files())
        })?;
        let running = RunningPush {
            run,
            inbox: None,
            answered: None,
            echoes,
            process: None,
            message_writer: MessageWriter::start(writer, outgoing, relay),
            lanes,
            lanes_open: true,
            steering: Steering::new(supply),
            lanes_early: cipher == Cipher::Tls,
            lanes_max: if inspects { 0 } else { LANES_UNREQUESTED_MAX },
            known_state,
            begins_job,
            pipeline,
            receipts,
            quota,
            asked: self.asked,
        };
        Ok((running, reader))
    }
}

/// Returns the state of the target if the receiver has dialed this sender and included the state in its request. Files
/// may then be sent before the receiver opens the transfer. A file that turns out to exist at the target is replaced
/// like any other file. The state is not used for a mirror, because a mirror must first list the entries that exist
/// only at the target.
fn known_state(open: &Open, link: &Link) -> Option<TargetState> {
    let is_directory = matches!(open.shape, TargetShape::Directory { .. });
    let may_begin = link.relay.is_some() && is_directory && open.extraneous == Extraneous::Stays;
    open.known_state.filter(|_| may_begin)
}

/// A running push.
struct RunningPush<'a> {
    run: &'a mut Run,
    /// `None` until the receiver has opened the transfer.
    inbox: Option<Inbox<ReceivedMessage>>,
    /// Time of the receiver's first answer to a message of this session.
    answered: Option<Instant>,
    echoes: Echoes,
    /// The receiver's process, once the receiver has opened the transfer.
    process: Option<String>,
    message_writer: MessageWriter,
    lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    lanes_open: bool,
    steering: Steering,
    /// Whether lanes may send before the receiver has opened the transfer. Unencrypted lanes must wait, because the
    /// receiver must first agree to send without encryption.
    lanes_early: bool,
    /// Maximum number of lanes. Zero for an inspection.
    lanes_max: u16,
    /// The state of the target, if the receiver has dialed and included the state in its request. The request has
    /// already taken half a round trip. With this state, the files need not wait another round trip until the receiver
    /// opens the transfer.
    known_state: Option<TargetState>,
    /// Whether the opening may begin a shared job.
    begins_job: bool,
    pipeline: Pipeline,
    receipts: Receipts,
    quota: Arc<dyn PeerQuota>,
    /// Requests of the feeder other than pieces to send. `None` if the push is not fed.
    asked: Option<mpsc::UnboundedReceiver<FeedRequest>>,
}

impl RunningPush<'_> {
    /// Runs until the receiver's last message.
    async fn drive(&mut self, reader: ControlReader) -> Result<Finished, SessionError> {
        self.open(reader).await?;
        let mut ticks = tokio::time::interval(LIMIT_INTERVAL);
        let mut steps = tokio::time::interval(STEERING_INTERVAL);
        let mut counts = tokio::time::interval(COUNTING_INTERVAL);
        counts.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A rate measured over a very short interval is meaningless.
        steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut samples = self
            .pipeline
            .config
            .sample_interval
            .filter(|_| !self.run.standing.inspects)
            .map(tokio::time::interval);
        let mut pings = self
            .asked
            .is_some()
            .then(|| ping_interval(self.pipeline.config.silence_max));
        let mut ping = None;
        let mut before = StageSnapshot::default();
        // A receiver that dialed this sender receives these counts through relay messages.
        let hears_found = !self.message_writer.was_dialled() && !self.run.standing.inspects;
        let mut tellings = tokio::time::interval(FOUND_INTERVAL);
        let mut found = FoundSoFar::default();
        loop {
            tokio::select! {
                _ = ticks.tick(), if !self.run.standing.inspects => {
                    let now = StageSnapshot::take(&self.pipeline);
                    let by = now.limit_since(&before).into();
                    self.pipeline.session.account.report(Event::Limited { by });
                    before = now;
                }
                _ = counts.tick() => self.steering.count_acked(&self.pipeline),
                _ = steps.tick() => self.steering.step(&mut self.pipeline)?,
                _ = tellings.tick(), if hears_found => self.send_found_counts(&mut found),
                () = next(&mut samples) => self.report_sample(),
                () = next(&mut pings) => self.ping(&mut ping)?,
                Some(asked) = next_feed_request(&mut self.asked) => self.handle_feed_request(asked),
                lane = self.lanes.recv(), if self.lanes_open => {
                    self.handle_lane(lane, self.lanes_max);
                    self.require_lanes()?;
                }
                Some(broken) = self.pipeline.broken.recv() => {
                    if let Some(error) = self.lose_lane(broken) {
                        return self.explain(error.into()).await;
                    }
                }
                Some(error) = self.message_writer.write_error.recv() => return self.explain(error.into()).await,
                message = receive(&mut self.inbox) => {
                    if let Some(finished) = self.handle_message(message?)? {
                        if samples.is_some() {
                            self.report_sample();
                        }
                        return Ok(finished);
                    }
                }
            }
        }
    }

    /// Waits until the receiver has opened the transfer, and applies the properties of the receiver and its target that
    /// the answer contains.
    async fn open(&mut self, reader: ControlReader) -> Result<(), SessionError> {
        if let Some(state) = self.known_state {
            self.pass_target_state(state)?;
        }
        let (inbox, opened) = self.await_permission(reader).await?;
        // A fed session does not know how much other senders send to this target.
        if let Some(bytes) = opened.free_bytes.filter(|_| self.asked.is_none()) {
            self.pipeline.session.account.set_target_free(bytes);
        }
        self.inbox = Some(inbox);
        self.process = Some(opened.process);
        self.run.note_opened();
        self.require_lanes()?;
        self.pipeline.session.account.files().single_name = opened.single_name;
        if self.known_state.is_none() {
            self.pass_target_state(opened.state)?;
        }
        if !self.run.standing.inspects {
            self.lanes_max = opened.lanes_max;
            self.steering.begin(&self.pipeline.config, self.lanes_max);
        }
        Ok(())
    }

    fn pass_target_state(&self, state: TargetState) -> Result<(), WireError> {
        self.receipts
            .reply_sender
            .entry_reply(EntryReply::State(state))
    }

    /// Processes a message from the receiver. Returns the receiver's last message when it arrives.
    fn handle_message(&mut self, message: ToSender) -> Result<Option<Finished>, SessionError> {
        self.note_answer(&message);
        if message == ToSender::LaneFailed {
            self.lane_failed()?;
            return Ok(None);
        }
        self.receipts.handle(message)
    }

    /// Sends a ping to the receiver of a shared job, after checking the answer to the previous ping. Acknowledged bytes
    /// do not prove that the receiver runs, because the kernel continues to acknowledge them while the process is
    /// stopped.
    fn ping(&mut self, before: &mut Option<Ping>) -> Result<(), SessionError> {
        if let Some(Ping { answer, missed }) = before
            && answer.try_recv() == Err(TryRecvError::Empty)
        {
            *missed += 1;
            if *missed == PINGS_MISSED_WARN {
                let most = self.pipeline.config.silence_max;
                let message = format!(
                    "receiver: no answer for {} s; the push waits for up to {} s",
                    (most * PINGS_MISSED_WARN / PINGS_MISSED_MAX).as_secs(),
                    most.as_secs()
                );
                self.pipeline
                    .session
                    .account
                    .report(Event::Warned { message });
            }
            return if *missed < PINGS_MISSED_MAX {
                Ok(())
            } else {
                Err(SessionError::Silent)
            };
        }
        // A session that is about to end sends no more pings.
        if self.asked.as_ref().is_some_and(|asked| !asked.is_closed()) {
            let (answered, answer) = oneshot::channel();
            self.receipts.order(SharedJobOrder::Ping, None, answered);
            *before = Some(Ping { answer, missed: 0 });
        }
        Ok(())
    }

    fn handle_feed_request(&mut self, asked: FeedRequest) {
        match asked {
            FeedRequest::Order(order, names, answer) => self.receipts.order(order, names, answer),
            FeedRequest::Directories(found, answer) => {
                let session = Arc::clone(&self.pipeline.session);
                // Reading attributes may block.
                tokio::task::spawn_blocking(move || {
                    let _nobody_waits = answer.send(session.directory_batches(&found));
                });
            }
            FeedRequest::Declaration(directory, entry, answer) => {
                let session = Arc::clone(&self.pipeline.session);
                let direct = self.pipeline.config.direct;
                // Finding holes may take long.
                tokio::task::spawn_blocking(move || {
                    let _nobody_waits = answer.send(session.declare(&directory, *entry, direct));
                });
            }
        }
    }

    /// Reports the receiver's first answer to a message of this session.
    fn note_answer(&mut self, message: &ToSender) {
        if self.answered.is_none() && !matches!(message, ToSender::Refused(_)) {
            self.answered = Some(Instant::now());
            self.pipeline.session.account.report(Event::Answered);
        }
    }

    /// Sends the receiver the counts of entries found, if they differ from `before`.
    fn send_found_counts(&self, before: &mut FoundSoFar) {
        let Session {
            account, in_flight, ..
        } = &*self.pipeline.session;
        let found = account.found();
        if std::mem::replace(before, found) != found {
            in_flight.send_before_end(ToReceiver::Found(found));
        }
    }

    fn report_sample(&self) {
        self.pipeline
            .session
            .account
            .report(Event::Sampled(self.sample()));
    }

    /// Returns the progress of each stage, summed over all sessions.
    fn sample(&self) -> Sample {
        let Pipeline {
            session, lane_set, ..
        } = &self.pipeline;
        let Session {
            account,
            in_flight,
            queue,
            ..
        } = &**session;
        let path = path::gather(lane_set.probes());
        self.run.earlier.with(Sample {
            elapsed: self.run.started.elapsed(),
            bytes_read: account.totals.bytes_read.get(),
            bytes_handed_over: account.totals.bytes_handed_over.get(),
            bytes_acked: path.as_ref().map(|path| path.bytes_acked.iter().sum()),
            bytes_stored: account.totals.bytes_stored.get(),
            packs_waiting: queue.plan.packs_waiting(),
            frames_waiting: lane_set.frames_waiting(),
            items_outstanding: in_flight.item_count(),
            lanes: lane_set.lanes_up(),
            segments_retransmitted: path.map(|path| path.segments_retransmitted),
        })
    }

    /// Waits for the permission to begin. During the wait, the first encrypted lanes send data that the receiver will
    /// probably need. If a lane breaks during the wait, its error is ignored, because a refusal that follows gives a
    /// better explanation.
    async fn await_permission(
        &mut self,
        mut reader: ControlReader,
    ) -> Result<(Inbox<ReceivedMessage>, Opened), SessionError> {
        let (waits_in, mut waits) = mpsc::unbounded_channel();
        let session = Arc::clone(&self.pipeline.session);
        let was_dialled = self.message_writer.was_dialled();
        let quota = self.quota.clone();
        let greeted = async move {
            if !was_dialled {
                reader.greeting().await?;
            }
            Ok(inbox(reader, quota))
        };
        let hear = move |said: &ToSender| match said {
            // Sending fails only when the session is over.
            ToSender::Waiting(waiting) => drop(waits_in.send(waiting.clone())),
            ToSender::RateMax { bytes_per_second } => {
                let limit = RateLimit::nearest(*bytes_per_second);
                session.rate.lower(limit, Limit::AllowedRate);
            }
            ToSender::HeldUp { text } => {
                let by = text.clone();
                session.account.report(Event::HeldUp { by });
            }
            _ => {}
        };
        let permission = control::await_opened(greeted, self.run.standing.patience, hear);
        tokio::pin!(permission);
        let mut in_line = false;
        let mut ticks = tokio::time::interval(LIMIT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room =
                self.lanes_early && self.pipeline.lane_set.lanes_up() < usize::from(self.lanes_max);
            tokio::select! {
                left = &mut permission => {
                    // The notice to wait may have arrived together with the permission.
                    if let Ok(waiting) = waits.try_recv() {
                        self.enter_queue(&waiting);
                        in_line = true;
                    }
                    if in_line && left.is_ok() && !self.run.standing.inspects {
                        while let Ok(lane) = self.lanes.try_recv() {
                            self.handle_lane(Some(lane), 0);
                        }
                        self.steering.redial_all();
                    }
                    return left.map_err(|error| match error {
                        // The opening was sent, so the receiver may have begun the job before this sender left the
                        // queue.
                        SessionError::Refused(Refusal { code: RefusalCode::Full, text }) if self.begins_job => {
                            SessionError::Refused(Refusal { code: RefusalCode::Broken, text })
                        }
                        error => error,
                    });
                }
                Some(waiting) = waits.recv() => {
                    self.enter_queue(&waiting);
                    in_line = true;
                }
                lane = self.lanes.recv(), if self.lanes_open && (room || in_line) => {
                    // The receiver also closes lanes that connect while the transfer is queued.
                    self.handle_lane(lane, if in_line { 0 } else { self.lanes_max });
                }
                // The lanes' threads end soon after the push has entered the queue.
                _ = ticks.tick(), if in_line => self.pipeline.tidy(),
            }
        }
    }

    /// Gives up the lanes, because the receiver accepts none while the transfer is queued. When the receiver takes the
    /// transfer from the queue, new lanes are dialed. They send the work of the old lanes.
    fn enter_queue(&mut self, waiting: &Waiting) {
        let message = waiting.to_string();
        self.pipeline
            .session
            .account
            .report(Event::Waiting { message });
        self.pipeline.lane_set.give_up_lanes();
        self.pipeline.tidy();
    }

    /// Starts a lane, unless `most` lanes are already up. If a lane fails to connect, the failure is ignored while
    /// other lanes are up.
    fn handle_lane(&mut self, lane: Option<Result<Box<dyn LaneSink>, LaneError>>, most: u16) {
        self.steering.note_lane_result();
        match lane {
            Some(Ok(sink)) if self.pipeline.lane_set.lanes_up() < usize::from(most) => {
                self.steering.prepare(sink.as_ref());
                self.pipeline.add_lane(sink);
                let lanes = self.pipeline.lane_set.lanes_up();
                self.pipeline
                    .session
                    .account
                    .report(Event::LaneUp { lanes });
            }
            Some(Ok(surplus)) => end_unused(surplus),
            Some(Err(error)) => self.pipeline.lane_set.last_error = Some(error),
            None => self.lanes_open = false,
        }
    }

    /// Stops waiting for a lane that the receiver failed to dial.
    fn lane_failed(&mut self) -> Result<(), SessionError> {
        if !self.message_writer.was_dialled() {
            return out_of_order("a lane that the receiver has dialled");
        }
        self.handle_lane(Some(Err(LaneError::Closed)), self.lanes_max);
        self.require_lanes()
    }

    /// Returns an error if no lane is up and none is expected, because nothing could be sent.
    fn require_lanes(&mut self) -> Result<(), SessionError> {
        let has_some = self.pipeline.lane_set.lanes_up() > 0;
        if self.run.standing.inspects || has_some || self.steering.expects_lanes(self.lanes_open) {
            return Ok(());
        }
        Err(self
            .pipeline
            .lane_set
            .last_error
            .take()
            .map_or(SessionError::NoLane, SessionError::Lane))
    }

    /// Handles the loss of a lane's connection. While other lanes are up, they take over the lost lane's work and the
    /// push continues. Returns the error if the push cannot continue.
    fn lose_lane(&mut self, WorkerFailure { lane, error }: WorkerFailure) -> Option<LaneError> {
        let Some(lane) = lane.filter(|_| error.is_lost()) else {
            return Some(error);
        };
        self.pipeline.lane_set.lose_lane(lane);
        let Session {
            account, in_flight, ..
        } = &*self.pipeline.session;
        let lanes = self.pipeline.lane_set.lanes_up();
        if lanes == 0 && !self.steering.is_redialing_all() {
            return Some(error);
        }
        let items = in_flight
            .lose_lane(lane)
            .into_iter()
            .map(|item| item.0)
            .collect();
        in_flight.send(ToReceiver::LaneLost { items });
        account.report(Event::LaneUp { lanes });
        None
    }

    /// Processes the messages that the receiver still sends after a connection was lost.
    async fn explain(&mut self, error: SessionError) -> Result<Finished, SessionError> {
        let inbox = self
            .inbox
            .as_mut()
            .expect("the permission comes with the inbox");
        control::await_explanation(self.receipts.handle_rest(inbox), error).await
    }

    /// Breaks the lanes after a failed push. After a successful push, the lanes end gracefully. If the receiver does
    /// not read them, they are broken after `GOODBYE_TIMEOUT`.
    fn end_lanes(&self, ended: &Result<Finished, SessionError>) {
        let Pipeline {
            lane_set, session, ..
        } = &self.pipeline;
        let breakers = lane_set.breakers();
        if ended.is_err() {
            return breakers.iter().for_each(LaneBreaker::trip);
        }
        // Other lanes have delivered all the data that these lanes may still hold.
        lane_set.break_lanes(&session.in_flight.lanes_with_copies());
        // Do not wait forever for a receiver that has sent `Finished` but does not read its lanes.
        tokio::spawn(async move {
            tokio::time::sleep(GOODBYE_TIMEOUT).await;
            breakers.iter().for_each(LaneBreaker::trip);
        });
    }

    async fn close(
        mut self,
        ended: Result<Finished, SessionError>,
    ) -> Result<Summary, SessionError> {
        let elapsed = self.run.started.elapsed();
        let measured = self.pipeline.session.timeline.started.elapsed();
        self.pipeline.stop();
        let lanes = self.pipeline.lane_set.lanes_peak;
        let learnt = self.steering.learnt();
        let at_best = self.steering.at_best();
        let reached = self.sample();
        self.end_lanes(&ended);
        let run = self.run;
        if let Some(first) = self.answered {
            run.standing.note_answered(first.elapsed());
        }
        let last_echo = self.echoes.end();
        if !is_confirmed(&ended) {
            run.note_unended(self.process, last_echo);
        }
        run.earlier.reached = reached;
        if let Err(error) = &ended {
            self.message_writer.end(Err(error)).await;
            // The peer now sees the end of the connection, and closes its lanes.
            drop(self.inbox);
        }
        let Receipts {
            counters,
            ref mut signed,
            ..
        } = self.receipts;
        let receipt = signed.take();
        // This ends the planner's wait for replies.
        drop(self.receipts);
        let pipeline = self.pipeline;
        let reading = StageSnapshot::take(&pipeline);
        let left_out = pipeline.scan.left_out();
        let session = Arc::clone(&pipeline.session);
        blocking(move || pipeline.join()).await;
        let account = &session.account;
        let finished = ended.inspect_err(|_broken_off| save_interrupted(&session, lanes, run))?;
        let manifest = account.files().manifest.take();
        let wants_all = manifest.is_some();
        let manifest_left_out = manifest
            .map_or(Ok(0), Manifest::finish)
            .map_err(SessionError::Manifest)?;
        let totals = &account.totals;
        let counters = run.earlier.counters_with(Counters {
            lanes: lanes as u64,
            left_out,
            reconnects: run.standing.reconnects(),
            manifest_left_out,
            manifest_unread: if wants_all { totals.unlisted() } else { 0 },
            ..totals.counters.read().with(Side::Receiver, &counters)
        });
        let summary = Summary {
            counters,
            receipt,
            elapsed,
            measured,
            first_byte: run.earlier.first_byte.or(session.timeline.first_byte()),
            flush: Duration::from_micros(finished.flush_us),
            sender_cpu: run.cpu(),
            is_preview: run.standing.inspects,
            receiver_cpu: Duration::from_micros(finished.cpu_us),
            bottleneck: reading.times(measured, lanes, &finished).bottleneck(),
            path: reading.path,
            learnt,
            at_best,
            ..totals.summary()
        };
        // The session holds the last sender of the message queue. Dropping it makes the writer end the connection,
        // whether or not the peer notices.
        drop(session);
        self.message_writer.end(Ok(&summary)).await;
        Ok(summary)
    }
}

/// Returns whether the receiver has confirmed that its session has ended. A sender that leaves the queue does not learn
/// whether the receiver has begun the session in the meantime.
fn is_confirmed(ended: &Result<Finished, SessionError>) -> bool {
    match ended {
        Ok(_) => true,
        Err(SessionError::Refused(refusal)) => refusal.code != RefusalCode::Full,
        Err(_) => false,
    }
}

/// Stores in `run` the state of an interrupted session that the next session needs.
fn save_interrupted(session: &Session, lanes: usize, run: &mut Run) {
    let Session {
        account,
        in_flight,
        timeline,
        ..
    } = session;
    let mut files = std::mem::take(&mut *account.files());
    in_flight.remember_open(&mut files);
    files.note_interrupted();
    run.files = files;
    run.add(&account.totals, lanes, timeline.first_byte());
}

/// A ping sent to the receiver.
struct Ping {
    answer: oneshot::Receiver<SharedJobResult>,
    /// Number of ticks that have passed without an answer. Ticks are counted instead of elapsed time, because a push
    /// that was itself suspended could not have processed an answer during the suspension.
    missed: u32,
}

/// Returns a timer that ticks at the ping interval for a receiver that may stay silent for `silence_max`. After a
/// suspension of this process, the timer ticks once instead of once for each missed tick.
fn ping_interval(silence_max: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(silence_max / PINGS_MISSED_MAX);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Number of ticks without an answer to a ping after which the user is warned.
const PINGS_MISSED_WARN: u32 = 2;
/// Number of ticks without an answer to a ping after which the receiver counts as unreachable.
const PINGS_MISSED_MAX: u32 = 6;

/// Waits for the next tick, or forever if there is no interval.
async fn next(ticks: &mut Option<tokio::time::Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

/// Returns the next request of the feeder. Waits forever once no more requests can arrive.
async fn next_feed_request(
    asked: &mut Option<mpsc::UnboundedReceiver<FeedRequest>>,
) -> Option<FeedRequest> {
    match asked {
        Some(receiver) => {
            let next = receiver.recv().await;
            if next.is_none() {
                *asked = None;
            }
            next
        }
        None => std::future::pending().await,
    }
}

/// Receives the receiver's next message.
async fn receive(inbox: &mut Option<Inbox<ReceivedMessage>>) -> Result<ToSender, SessionError> {
    control::receive(inbox.as_mut().expect("the permission comes with the inbox")).await
}

/// Interval between two decisions of the tuner; see [`tune`](crate::tune).
const STEERING_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the receiver is sent the counts of entries found.
const FOUND_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which acknowledged bytes are counted. It is a fraction of a long round trip. Querying a lane takes about
/// a microsecond.
const COUNTING_INTERVAL: Duration = Duration::from_millis(25);
