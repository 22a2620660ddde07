//! A session with a transfer in progress. Handles the sender's messages and the outcomes of the threads, and reports
//! the results of items to the sender.
//!
//! **Invariant:** the memory of a report is reserved before the report is queued, and released only after it has been
//! sent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zmove_disk::Task;
use zmove_transport::{ControlError, LaneSource, blocking};
use zmove_types::{Counters, FileId, StageTimes};
use zmove_wire::limits::{ITEMS_OUTSTANDING_MAX, LANES_UNREQUESTED_MAX, within};
use zmove_wire::session::{ReceiverAction, ReceiverTransfer};
use zmove_wire::{
    Answer, EntryFault, Extraneous, FaultCode, FileDone, Finished, Open, Operation, Question,
    Remove, Request, SharedJobAnswer, SharedJobOrder, SharedJobRequest, SharedJobResult,
    SignedReceipt, StageReport, StoredItem, ToReceiver, ToSender,
};

use crate::comparison::entries::send::answer;
use crate::comparison::mirror::{WorkBudget, extraneous, remove_all};
use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::rights::grant::{Fate, Grants, PendingId, Stored};
use crate::rights::quota::Charge;
use crate::rights::quota::limits::BUFFERS_BESIDE_LANES;
use crate::rights::quota::messages::ChargedMessage;
use crate::session::connections::{Connections, SessionReport, cpu_time, micros, next};
use crate::session::finish;
use crate::session::lanes::run_lane;
use crate::session::leases::keeping::KeptLease;
use crate::session::lost_lanes::LostLanes;
use crate::session::requests::OpenRequests;
use crate::session::threads::{LaneThreads, PanicGuard, Workers, guarded, join, spawn};
use crate::store::publishing::{self, discard_all};
use crate::store::reports::{ChargedReport, ThreadReport};
use crate::store::transfer::Transfer;
use crate::store::writer::{WriterJob, write_all};

/// The task that runs [`finish::finish`].
type Finishing = tokio::task::JoinHandle<io::Result<(Duration, Vec<ThreadReport>)>>;

/// Maximum number of outcomes that are handled before the next message is sent. This combines many receipts in one
/// message.
const OUTCOMES_PER_TURN: usize = 1024;

/// The threads of one transfer.
#[derive(Debug)]
pub(super) struct SessionThreads {
    queue: crossbeam_channel::Sender<WriterJob>,
    threads: Vec<JoinHandle<()>>,
    lanes: LaneThreads,
    memory_max: usize,
    writers: u32,
    started: Instant,
}

impl SessionThreads {
    pub(super) fn start(
        transfer: &Arc<Transfer>,
        config: &ReceiverConfig,
    ) -> Result<Self, SessionError> {
        let (queue, jobs) = crossbeam_channel::bounded(config.writers);
        let mut threads = Self {
            queue,
            threads: Vec::new(),
            lanes: LaneThreads::new(config),
            memory_max: config.memory_max,
            writers: 0,
            started: Instant::now(),
        };
        match threads.start_writers(transfer, &jobs, config.writers) {
            Ok(()) => Ok(threads),
            Err(error) => {
                drop(jobs);
                threads.join(transfer);
                Err(error)
            }
        }
    }

    /// Starts the publisher and `wanted` writers. Starts fewer writers if the system cannot start more threads.
    fn start_writers(
        &mut self,
        transfer: &Arc<Transfer>,
        jobs: &crossbeam_channel::Receiver<WriterJob>,
        wanted: usize,
    ) -> Result<(), SessionError> {
        self.spawn("zmove-publish".into(), transfer, publishing::run)?;
        if let Some(heartbeat_writer) = transfer.heartbeat_writer() {
            let lease = transfer.target.tree.lease().clone();
            let beat = move |_: &Transfer| heartbeat_writer.run(&lease);
            self.spawn("zmove-heartbeat".into(), transfer, beat)?;
        }
        for number in 0..wanted {
            let jobs = jobs.clone();
            let write = move |transfer: &Transfer| write_all(transfer, &jobs);
            match self.spawn(format!("zmove-write-{number}"), transfer, write) {
                Err(error) if number == 0 => return Err(error),
                Err(_fewer_write) => break,
                Ok(()) => self.writers += 1,
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        transfer: &Arc<Transfer>,
        work: impl FnOnce(&Transfer) + Send + 'static,
    ) -> Result<(), SessionError> {
        self.threads.push(spawn(name, guarded(transfer, work))?);
        Ok(())
    }

    fn add_lane(
        &mut self,
        transfer: &Arc<Transfer>,
        source: Box<dyn LaneSource>,
    ) -> Result<(), SessionError> {
        let lanes = self.lanes.count() + 1;
        if lanes > usize::from(LANES_UNREQUESTED_MAX) {
            // Each lane holds one buffer while it receives.
            transfer
                .pool
                .raise((lanes + BUFFERS_BESIDE_LANES).min(self.memory_max));
        }
        let transfer = Arc::clone(transfer);
        let queue = self.queue.clone();
        self.lanes.add(source, move |number, source| {
            let _guard = PanicGuard(&transfer.reports);
            run_lane(&transfer, number, source, &queue);
        })
    }

    /// Returns the times of the writers after all work is done. `finishing` is the time for finishing the target.
    ///
    /// A writer records a wait only when the wait ends, so unrecorded time counts as waiting. All writers count as busy
    /// while directories are finished and the storage is flushed.
    fn store_times(&self, booked: StageTimes, finishing: Duration) -> StageTimes {
        let busy = booked.busy + finishing * self.writers;
        let waited = (self.started.elapsed() * self.writers).saturating_sub(busy + booked.blocked);
        StageTimes {
            busy,
            starved: booked.starved.max(waited),
            ..booked
        }
    }

    fn join(self, transfer: &Transfer) {
        transfer.publisher.stop();
        if let Some(heartbeat_writer) = transfer.heartbeat_writer() {
            heartbeat_writer.stop();
        }
        drop(self.queue);
        self.lanes.join();
        join(self.threads);
    }
}

/// A session with a transfer in progress.
pub(super) struct RunningSession {
    connections: Connections,
    outcomes: mpsc::Receiver<ChargedReport>,
    threads: SessionThreads,
    pub(super) transfer: Arc<Transfer>,
    ledger: ReceiverTransfer,
    /// Memory reserved for messages of the ledger that were not sent yet.
    unsent: Charge,
    report: SessionReport,
    requests: OpenRequests,
    /// The threads that answer requests.
    workers: Workers,
    /// The task that sets the times of directories and performs the last flush, while it runs.
    finishing: Option<Finishing>,
    lost: LostLanes,
    lanes_max: usize,
    /// The grants of the peer, if the transfer was opened by one.
    pub(super) grants: Option<Arc<dyn Grants>>,
    /// For a transfer opened by a grant: the totals that were last recorded, as stored files and remaining removals.
    noted: Option<(Stored, u64)>,
}

impl RunningSession {
    /// Creates the session for a transfer whose threads are running.
    pub(super) fn new(
        connections: Connections,
        outcomes: mpsc::Receiver<ChargedReport>,
        transfer: Arc<Transfer>,
        threads: SessionThreads,
        open: &Open,
        config: ReceiverConfig,
    ) -> Self {
        let is_granted = open.grant.is_some();
        Self {
            connections,
            outcomes,
            threads,
            transfer,
            ledger: ReceiverTransfer::default(),
            unsent: config.quota.empty_charge(),
            report: SessionReport::default(),
            requests: OpenRequests::default(),
            workers: Workers::new(&config.quota),
            finishing: None,
            lost: LostLanes::default(),
            lanes_max: usize::from(config.lanes_max.max(LANES_UNREQUESTED_MAX)),
            grants: config.grants.filter(|_| is_granted),
            noted: None,
        }
    }

    /// Runs until the transfer is complete and `Finished` has been sent.
    pub(super) async fn drive(&mut self, cpu_started: Duration) -> Result<(), SessionError> {
        loop {
            tokio::select! {
                // A sender that replaces a lane dials the new lane before the old lane has ended.
                Some(lane) = self.connections.lanes.recv(), if self.threads.lanes.count() < self.lanes_max => {
                    self.threads.add_lane(&self.transfer, lane)?;
                }
                Some(()) = next(&mut self.connections.failed_lanes) => self.ledger.queue_message(ToSender::LaneFailed),
                Some(outcome) = self.outcomes.recv() => self.take_outcomes(outcome)?,
                Some(text) = next(&mut self.connections.wait_notices) => self.ledger.queue_message(ToSender::HeldUp { text }),
                error = self.lost.overdue() => return Err(error),
                message = self.connections.inbox.recv() => self.take_message(message.ok_or(ControlError::Closed)??)?,
            }
            self.note_stored().await;
            while let Some(action) = self.ledger.poll()? {
                match action {
                    ReceiverAction::Send(message) => self.connections.send(&message).await?,
                    ReceiverAction::Finish => return self.finish(cpu_started).await,
                }
            }
            self.unsent.clear();
        }
    }

    /// Records stored and removed entries before the sender is notified, so that they are counted even if this process
    /// is killed. The order matters, because a sender never resends a file that was reported as stored.
    async fn note_stored(&mut self) {
        let stored = self.transfer.meter.stored_total();
        let so_far = (stored, self.transfer.removals.left());
        if let Some(grants) = self.grants.clone()
            && self.noted != Some(so_far)
        {
            self.noted = Some(so_far);
            let noting = tokio::task::spawn_blocking(move || grants.note(stored));
            // A panic has already been reported. It only means that some entries are not counted.
            let _best_effort = noting.await;
        }
    }

    fn take_message(
        &mut self,
        ChargedMessage { message, held }: ChargedMessage,
    ) -> Result<(), SessionError> {
        // The names are checked here and not during decoding, because the allowed names are known only after the first
        // messages.
        self.transfer.top_names.check_message(&message)?;
        match message {
            ToReceiver::Open(_) => Err(SessionError::out_of_order("a second opening")),
            ToReceiver::Request(request) => self.take_request(request, held),
            ToReceiver::Remove(remove) => self.remove(remove, held),
            ToReceiver::Relay(_) => Err(SessionError::out_of_order("a relay message in a push")),
            ToReceiver::Found(found) => {
                self.transfer.meter.set_found(found);
                Ok(())
            }
            ToReceiver::Abandon { file } => {
                self.transfer.files.register_abandoned(FileId(file))?;
                self.transfer.settle(PendingId::File(file), Fate::Dropped);
                let Some(file) = self.transfer.files.retire(FileId(file)) else {
                    return Ok(());
                };
                self.workers.start_for(&self.transfer, move |transfer| {
                    transfer.discard_retired(&file)
                })
            }
            ToReceiver::LaneLost { items } => self.take_lost(items),
            ToReceiver::SharedJob(request) => self.take_order(request, held),
            ToReceiver::Announce { items, mismatches } => {
                Ok(self.ledger.announced(items, mismatches)?)
            }
            ToReceiver::Sample { .. } | ToReceiver::Sweep(_) => {
                Err(SessionError::out_of_order("a probe message in a transfer"))
            }
        }
    }

    /// Reports the items of a lost lane that were not received. Received items are already stored or queued for a
    /// writer.
    fn take_lost(&mut self, items: Vec<u64>) -> Result<(), SessionError> {
        within("lost items", items.len(), ITEMS_OUTSTANDING_MAX)?;
        self.lost.note_reported();
        for item in items {
            if self.transfer.accept_item(item)? {
                self.ledger.settled(StoredItem {
                    item,
                    mismatch: true,
                    faults: Vec::new(),
                })?;
            }
        }
        Ok(())
    }

    fn take_request(
        &mut self,
        Request { number, question }: Request,
        held: Charge,
    ) -> Result<(), SessionError> {
        let open = self.requests.ask(&question)?;
        let may_list = self.transfer.target.view.policy.rules.extraneous == Extraneous::Goes;
        match question {
            Question::Send(groups) => self.start(held, move |transfer| {
                answer(transfer, number, &groups, open);
            }),
            Question::Extraneous(ranges) if may_list => {
                self.start(held, move |transfer| {
                    let mut held = transfer.quota.empty_charge();
                    let mut budget = WorkBudget::new(transfer.turn(Task::Read), &mut held);
                    let tree = Some(&transfer.target.tree);
                    let names = extraneous(tree, &ranges, &transfer.aliased, &mut budget);
                    // The turn ends first, because reporting may have to wait.
                    drop(budget);
                    let answer = Answer::Extraneous(names);
                    let reply = ThreadReport::reply(number, answer);
                    transfer.reports.report_charged(reply, held, Some(open));
                })
            }
            Question::Report(_) | Question::Hash(_) | Question::Extraneous(_) => Err(
                SessionError::out_of_order("a request that the opening message does not allow"),
            ),
        }
    }

    /// Starts to work on a request. The memory of the request stays reserved until it is answered.
    fn start(
        &mut self,
        held: Charge,
        work: impl FnOnce(&Transfer) + Send + 'static,
    ) -> Result<(), SessionError> {
        self.workers.start_for(&self.transfer, move |transfer| {
            let _until_it_is_answered = held;
            work(transfer);
        })
    }

    /// Starts a task that removes the listed names.
    fn remove(&mut self, remove: Remove, held: Charge) -> Result<(), SessionError> {
        remove.check()?;
        let open = self.requests.remove()?;
        if self.transfer.target.view.policy.rules.extraneous == Extraneous::Stays {
            return Err(SessionError::out_of_order("a list of names to remove"));
        }
        self.start(held, move |transfer| {
            let removed = ToSender::Removed {
                remove: remove.remove,
                entries: remove_all(transfer, &remove),
            };
            transfer.reports.send(removed, Some(open));
        })
    }

    fn take_order(&mut self, request: SharedJobRequest, held: Charge) -> Result<(), SessionError> {
        if self.transfer.target.shared_job.is_none() {
            return Err(SessionError::out_of_order(
                "an order about a job of several receivers",
            ));
        }
        if request.order == SharedJobOrder::Ping {
            // A ping is answered immediately, because the answer must not wait for storage.
            let answer = SharedJobAnswer {
                number: request.number,
                result: SharedJobResult::Done,
            };
            self.ledger.queue_message(ToSender::SharedJob(answer));
            return Ok(());
        }
        let open = self.requests.order()?;
        self.start(held, move |transfer| {
            let Some(job) = &transfer.target.shared_job else {
                return;
            };
            match job.execute(transfer, request.order) {
                Ok(result) => {
                    let answer = SharedJobAnswer {
                        number: request.number,
                        result,
                    };
                    transfer
                        .reports
                        .send(ToSender::SharedJob(answer), Some(open));
                }
                Err(error) => transfer.reports.report(ThreadReport::OverLimit(error)),
            }
        })
    }

    fn take_outcomes(&mut self, first: ChargedReport) -> Result<(), SessionError> {
        let mut next = Some(first);
        for _ in 0..OUTCOMES_PER_TURN {
            match next {
                Some(report) => self.take_report(report)?,
                None => break,
            }
            next = self.outcomes.try_recv().ok();
        }
        next.map_or(Ok(()), |report| self.take_report(report))
    }

    /// Handles a report. Its memory stays reserved until the ledger was sent, because the peer may not read.
    fn take_report(&mut self, report: ChargedReport) -> Result<(), SessionError> {
        self.unsent.join(report.held);
        self.take_outcome(report.outcome)
    }

    fn take_outcome(&mut self, outcome: ThreadReport) -> Result<(), SessionError> {
        match outcome {
            ThreadReport::Item(item) => {
                let fate = if item.mismatch {
                    Fate::Dropped
                } else {
                    Fate::Stored
                };
                self.transfer.settle(PendingId::Item(item.item), fate);
                self.take_settled(item)?;
            }
            ThreadReport::Stored(item, faults) => {
                self.take_settled(StoredItem {
                    item: item.0,
                    mismatch: false,
                    faults,
                })?;
            }
            // The list includes faults that were reported when the item was stored. The sender counts each fault once.
            ThreadReport::Published(item, faults) => {
                self.transfer
                    .settle(PendingId::Item(item.0), Fate::StoredExcept(&faults));
                self.count_failures(&faults);
                self.ledger.published(item.0, faults);
            }
            ThreadReport::File(file) => self.take_file(file),
            ThreadReport::Fault(fault) => {
                self.transfer
                    .meter
                    .failed_at(fault.operation, fault.code, || Some(fault.path.clone()));
                self.count(fault.operation, fault.code);
                self.ledger.queue_message(ToSender::Fault(fault));
            }
            ThreadReport::Message(message) => self.ledger.queue_message(message),
            ThreadReport::LaneEnded {
                number,
                has_delivered,
                ended,
            } => {
                self.threads.lanes.ended(number);
                self.take_ended_lane(has_delivered, ended)?;
            }
            ThreadReport::OverLimit(error) => return Err(error.into()),
            ThreadReport::Panicked => return Err(SessionError::Panicked),
        }
        Ok(())
    }

    fn take_file(&mut self, file: FileDone) {
        let fate = if file.fault.is_none() {
            Fate::Stored
        } else {
            Fate::Dropped
        };
        self.transfer.settle(PendingId::File(file.file), fate);
        if let Some((operation, code)) = file.fault
            && is_failure(operation, code)
        {
            self.count(operation, code);
        }
        self.ledger.file_done(file);
    }

    fn take_ended_lane(
        &mut self,
        has_delivered: bool,
        ended: Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let may_be_unknown = !has_delivered && self.connections.failed_lanes.is_some();
        match ended {
            Err(error) if error.is_lost() && may_be_unknown => {
                self.ledger.queue_message(ToSender::LaneFailed);
            }
            Err(error) if error.is_lost() => self.lost.note(error),
            ended => ended?,
        }
        Ok(())
    }

    fn take_settled(&mut self, item: StoredItem) -> Result<(), SessionError> {
        // If a batch will be published, its faults are counted then.
        let faults = if item.mismatch {
            item.faults.clone()
        } else {
            Vec::new()
        };
        if self.ledger.settled(item)? {
            self.report.items += 1;
            self.count_failures(&faults);
        }
        Ok(())
    }

    /// Counts the faults that are failures.
    fn count_failures(&mut self, faults: &[EntryFault]) {
        faults
            .iter()
            .filter(|fault| is_failure(fault.operation, fault.code))
            .for_each(|fault| self.count(fault.operation, fault.code));
    }

    /// Counts a failed entry.
    fn count(&mut self, operation: Operation, code: FaultCode) {
        self.report.faults += 1;
        self.transfer.meter.count_failure(operation, code);
    }

    async fn finish(&mut self, cpu_started: Duration) -> Result<(), SessionError> {
        if !self.requests.is_mirror_idle() {
            return Err(SessionError::out_of_order(
                "the end of the session before all removals",
            ));
        }
        self.finish_comparing().await?;
        let finishing = Instant::now();
        let flush = self.publish_rest().await?;
        let report = Finished {
            receive: stage_report(&self.transfer.meter.receive.times()),
            store: stage_report(
                &self
                    .threads
                    .store_times(self.transfer.meter.store.times(), finishing.elapsed()),
            ),
            flush_us: micros(flush),
            cpu_us: micros(cpu_time().saturating_sub(cpu_started)),
        };
        self.report_counts().await?;
        if let Some(receipt) = self.receipt().await {
            self.connections.send(&ToSender::Receipt(receipt)).await?;
        }
        Ok(self
            .connections
            .send_last(&ToSender::Finished(report))
            .await?)
    }

    /// Waits for the threads that answer requests and discard the parts of abandoned files.
    async fn finish_comparing(&mut self) -> Result<(), SessionError> {
        let comparing = std::mem::replace(&mut self.workers, Workers::new(&self.transfer.quota));
        let mut compared = std::pin::pin!(comparing.complete());
        loop {
            tokio::select! {
                () = &mut compared => break,
                Some(report) = self.outcomes.recv() => self.take_last(report)?,
            }
            self.send_all().await?;
        }
        Ok(())
    }

    /// Publishes the remaining files, and reports the results of all items to the sender. Returns the duration of the
    /// last flush.
    async fn publish_rest(&mut self) -> Result<Duration, SessionError> {
        let transfer = Arc::clone(&self.transfer);
        self.finishing = Some(tokio::task::spawn_blocking(move || {
            finish::finish(&transfer)
        }));
        let finished = loop {
            tokio::select! {
                finished = self.finishing.as_mut().expect("set just above") => break finished,
                // These reports are handled and sent immediately, because they may exceed the capacity of the queue.
                Some(report) = self.outcomes.recv() => self.take_last(report)?,
            }
            self.send_all().await?;
        };
        self.finishing = None;
        let finished = finished.map_err(|_panic| SessionError::Panicked)?;
        let (flush, last) = finished.map_err(SessionError::Flush)?;
        while let Ok(report) = self.outcomes.try_recv() {
            self.take_last(report)?;
        }
        last.into_iter()
            .try_for_each(|outcome| self.take_outcome(outcome))?;
        self.send_all().await?;
        Ok(flush)
    }

    /// Sends the counters to the sender, before the end.
    async fn report_counts(&mut self) -> Result<(), SessionError> {
        let counters = self.transfer.target.counters.read();
        if counters != Counters::default() {
            self.connections
                .send(&ToSender::Counters(counters.into()))
                .await?;
        }
        let counts = self.transfer.target.view.policy.counts();
        if !counts.is_empty() {
            self.connections.send(&ToSender::NotKept { counts }).await?;
        }
        Ok(())
    }

    /// Returns the receipt for a completely flushed transfer that was opened by a grant.
    async fn receipt(&mut self) -> Option<SignedReceipt> {
        let grants = self.grants.clone()?;
        let stored = self.transfer.meter.stored_total();
        let faults = self.report.faults;
        tokio::task::spawn_blocking(move || grants.receipt(stored, faults))
            .await
            .ok()
            .flatten()
    }

    /// Handles an outcome that is reported after all data was received. A broken lane is not an error any more.
    fn take_last(&mut self, report: ChargedReport) -> Result<(), SessionError> {
        if matches!(report.outcome, ThreadReport::LaneEnded { .. }) {
            Ok(())
        } else {
            self.take_report(report)
        }
    }

    async fn send_all(&mut self) -> Result<(), SessionError> {
        while let Some(ReceiverAction::Send(message)) = self.ledger.poll()? {
            self.connections.send(&message).await?;
        }
        self.unsent.clear();
        Ok(())
    }

    /// Ends the session: stops its threads and tasks, and waits for them.
    pub(super) async fn close(
        mut self,
        ended: Result<(), SessionError>,
        kept: KeptLease,
    ) -> Result<SessionReport, SessionError> {
        self.transfer.stopping.store(true, Ordering::Relaxed);
        self.transfer.stop_waiting();
        // After this point, nothing is published, and threads that wait for an echo of the sender continue.
        drop(kept);
        self.connections.end_session(&ended).await;
        self.transfer.pool.close();
        self.connections.lanes.close();
        self.outcomes.close();
        self.threads.lanes.trip();
        // The peer sees the end of the connection and closes its lanes.
        drop(self.connections);
        let threads = self.threads;
        let transfer = Arc::clone(&self.transfer);
        let broken = ended.is_err();
        let stopped = move || {
            threads.join(&transfer);
            if broken {
                discard_all(&transfer);
                transfer.drop_overtaken();
            }
        };
        blocking(stopped).await;
        if let Some(finishing) = self.finishing {
            // The session does not need the result, so errors and panics are ignored.
            let _ended = finishing.await;
        }
        self.workers.end().await;
        let report = SessionReport {
            journal_trouble: self.transfer.parts.trouble(),
            ..self.report
        };
        // The transfer is dropped here, so that the next session can take over its parts and journals.
        let transfer = self.transfer;
        blocking(move || drop(transfer)).await;
        ended.map(|()| report)
    }
}

/// Returns whether a fault is a failure. Two faults are not failures: a guessed file that already exists, and a link
/// that could not be created, because the file itself is sent instead.
fn is_failure(operation: Operation, code: FaultCode) -> bool {
    code != FaultCode::AlreadyThere && operation != Operation::Link
}

fn stage_report(times: &StageTimes) -> StageReport {
    StageReport {
        busy_us: micros(times.busy),
        starved_us: micros(times.starved),
        blocked_us: micros(times.blocked),
        paced_us: micros(times.paced),
    }
}
