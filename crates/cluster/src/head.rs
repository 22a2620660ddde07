//! The head is the node that leads a job. It puts the first item of each pass into the queue, makes sure that the pass
//! completes, and closes the job.
//!
//! ```text
//!  a pass ──► queue idle? ─┬─ nothing was lost ──► sessions end ──► directories get mode and time ──► closed
//!    ▲                     └─ items were lost ──► another pass ──┐
//!    └───────────────────────────────────────────────────────────┘
//! ```
//!
//! **Invariant:** the job ends with the first pass in which the queue lost no item, after all work of the pass is done.
//! When the head sets the mode and time of directories, no other process writes to the target: the movers' sessions
//! have ended, and the leases of lost sessions have expired.

mod finish;
mod one_target;
mod others;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zmove_disk::LEASE_MAX;
use zmove_engine::{Listener, SessionProgress};
use zmove_types::{Beginning, Event, NoObserver, Observer};
use zmove_wire::SharedJobOrder;

use crate::error::{MOVER_PANICKED, SessionEnd, WorkError};
use crate::job::Tally;
use crate::node::{MoverSessions, Node};
use crate::queue::{ItemWork, LEASE, WorkItem, WorkQueue};
use crate::session::{ENDS_WITHIN, Orders, SessionEvents, ask, in_session};

use self::finish::{DirectoryFinisher, FinishProgress};
use self::one_target::TargetCheck;
use self::others::until_needed;

pub use self::others::Others;

/// The node that leads a job.
#[derive(Debug)]
pub struct Head<W> {
    /// The movers, receivers and queue of the head's own node.
    pub node: Node<W>,
    /// Number of the receiver at which the head first tries to start the job. Default: the first.
    pub first_receiver: usize,
    /// How long every mover of the head except the first waits for other nodes to join. Such a mover does no work if
    /// enough nodes have joined by then. Default: no wait.
    pub others_join_within: Duration,
    /// Phase of the job.
    pub phase: watch::Sender<JobPhase>,
    /// The other nodes of the job. Default: none.
    pub others: watch::Receiver<Others>,
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobPhase {
    /// The job is not known to have started at the target.
    #[default]
    Beginning,
    /// The job has started at the target.
    Begun,
    /// All work is done, and the queue knows that the job is over.
    Over,
    /// The movers of the head have ended their sessions, or the time limit for ending them has passed. No further mover
    /// will connect to a receiver.
    Left,
}

/// The result of a completed job.
#[derive(Clone, Debug)]
pub struct JobEnd {
    /// Work done by all nodes.
    pub tally: Tally,
    /// Number of passes over the sources. More than one if the queue lost items.
    pub passes: u32,
    /// Whether some items may be counted twice or not at all.
    pub is_inexact: bool,
}

/// The reason why a job was not completed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No receiver could be reached, or none has opened a session of the job. No leftovers exist at the receivers.
    #[error(transparent)]
    NotBegun(Box<SessionEnd>),
    /// No receiver continues the job, but it may have started at one of them.
    #[error("{error}")]
    PerhapsBegun {
        /// Error of the last receiver.
        #[source]
        error: Box<SessionEnd>,
        /// Number of a receiver at which the job is not running. A different job may start there, but this job may not.
        /// If the receivers do not share a directory, this job's data would be split between two directories.
        absent_at: Option<usize>,
    },
    /// No receiver continues the job.
    #[error("no receiver can continue: {0}; run the same command again to resume")]
    Lost(#[source] Box<SessionEnd>),
    /// There is no space at the target, not even for the records of the job's progress.
    #[error("{0}; complete files stay: free some space, and run the same command again")]
    NoRoom(#[source] Box<SessionEnd>),
    /// The receivers do not share a directory at the target.
    #[error(transparent)]
    NotShared(Box<SessionEnd>),
    /// The queue failed: its broker cannot be reached or refuses requests.
    #[error("{0}; run the same command again to resume")]
    Queue(#[source] WorkError),
    /// The user interrupted the job.
    #[error("interrupted")]
    Interrupted,
}

impl<W: WorkQueue> Head<W> {
    /// Creates the head of a job without other nodes.
    #[must_use]
    pub fn new(node: Node<W>) -> Self {
        Self {
            node,
            first_receiver: 0,
            others_join_within: Duration::ZERO,
            phase: watch::Sender::default(),
            others: watch::Sender::default().subscribe(),
        }
    }

    /// Leads the job until it is complete.
    ///
    /// # Errors
    /// The job cannot be started, no receiver continues, there is no space at the target, the queue fails, or `stop`
    /// resolves.
    pub async fn run(
        &self,
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
        stop: impl Future<Output = ()>,
    ) -> Result<JobEnd, JobError> {
        let events = self.node.events(observer, listener);
        let mut progress = JobProgress::default();
        for number in 0..self.node.movers {
            let needed = until_needed(
                number,
                self.phase.subscribe(),
                self.others.clone(),
                self.others_join_within,
            );
            let sessions = self.node.sessions(number, events.clone());
            progress.movers.spawn(async {
                if needed.await {
                    Box::pin(sessions.moving()).await
                } else {
                    Ok(())
                }
            });
        }
        for (number, receiver) in self.node.receivers.iter().enumerate() {
            let check = TargetCheck {
                receiver: receiver.clone(),
                number,
                events: events.clone(),
                phase: self.phase.subscribe(),
                patience: self.node.patience,
            };
            let job = Arc::clone(&self.node.job);
            let receiver = receiver.clone();
            let ask = move |session| ask(receiver.clone(), Arc::clone(&job), session);
            progress.target_checks.spawn(check.await_visible_job(ask));
        }
        let listener = Arc::clone(&events.listener);
        let ended = tokio::select! {
            ended = self.lead(self.node.sessions(self.first_receiver, events), &mut progress) => ended,
            () = stop => Err(JobError::Interrupted),
        };
        if ended.is_err() {
            let may_have_begun = self.may_have_begun(&progress);
            drop(progress);
            let closing = async {
                if may_have_begun {
                    self.close_at_a_receiver(listener).await;
                }
            };
            // If the queue cannot be closed, movers learn from the receivers that the job is over.
            let closing = async { tokio::join!(self.node.queue.close(), closing) };
            let _best_effort = timeout(CLOSE_MAX, closing).await;
        }
        ended
    }

    /// Closes the job at one of its receivers, whichever can be reached. A job that is not closed blocks the next push
    /// until the receivers consider it dead.
    async fn close_at_a_receiver(&self, listener: Arc<dyn Listener + Send + Sync>) {
        let events = self.node.events(Arc::new(NoObserver), listener);
        let receivers = self.node.receivers.iter().enumerate();
        let closing = async |number, receiver| {
            let session = events.within(number, receiver);
            let close = async |feeder| {
                let answers_within = CLOSE_MAX;
                let orders = Orders {
                    feeder,
                    answers_within,
                };
                orders.give(SharedJobOrder::Close).await?;
                session.await_end();
                Ok(())
            };
            let job = &self.node.job;
            in_session(receiver, job, Beginning::UnderWay, &session, close).await
        };
        let closing = receivers.map(|(number, receiver)| Box::pin(closing(number, receiver)));
        let _best_effort = select_ok(closing).await;
    }

    /// Returns whether the job may have been started at a receiver. A receiver may have opened the job even if its
    /// answer to the opening was lost.
    fn may_have_begun(&self, progress: &JobProgress) -> bool {
        progress.has_opened || self.is_at(JobPhase::Begun) || self.node.served.has_lost_sessions()
    }

    fn is_at(&self, phase: JobPhase) -> bool {
        *self.phase.borrow() >= phase
    }

    /// Converts the error of the last session into the reason why the job failed.
    fn failure(&self, error: Box<SessionEnd>, progress: &JobProgress) -> JobError {
        match *error {
            SessionEnd::Queue(error) => JobError::Queue(error),
            _ if !self.may_have_begun(progress) => JobError::NotBegun(error),
            SessionEnd::NoRoom { .. } => JobError::NoRoom(error),
            SessionEnd::NotShared { .. } => JobError::NotShared(error),
            _ if self.is_at(JobPhase::Begun) => JobError::Lost(error),
            _ => JobError::PerhapsBegun {
                error,
                absent_at: progress.absent_at.filter(|_| !progress.has_opened),
            },
        }
    }

    /// Leads the job in consecutive sessions.
    async fn lead(
        &self,
        mut sessions: MoverSessions<W>,
        progress: &mut JobProgress,
    ) -> Result<JobEnd, JobError> {
        let job = &self.node.job;
        loop {
            let (receiver, events) = sessions.next();
            // Do not start the job again if it is running or may be running: this receiver may have a different
            // directory. The job would then write to both directories.
            let beginning = if self.may_have_begun(progress) {
                Beginning::UnderWay
            } else {
                Beginning::Allowed
            };
            let ended = {
                let session = pin!(in_session(&receiver, job, beginning, &events, |feeder| {
                    let orders = Orders {
                        feeder,
                        answers_within: ORDER_MAX.saturating_mul(1 << progress.hung.min(16)),
                    };
                    self.lead_session(orders, &events, progress)
                }));
                sessions.outages.watch(session).await
            };
            progress.has_opened |= events.outcome() != SessionProgress::NotBegun;
            match ended {
                Err(error) if !progress.is_over_by(&error) => {
                    if error.is_absent() {
                        progress.absent_at.get_or_insert(events.number);
                    }
                    if matches!(error, SessionEnd::OrderTimeout(_)) {
                        progress.hung += 1;
                    }
                    sessions.is_under_way = self.is_at(JobPhase::Begun);
                    let paused = sessions.pause(&events, error).await;
                    paused.map_err(|error| self.failure(error, progress))?;
                }
                Ok(()) | Err(_) => return Ok(self.end_of(progress)),
            }
        }
    }

    /// Returns the result of a closed job.
    fn end_of(&self, progress: &JobProgress) -> JobEnd {
        let tally = self.tally();
        // Every item except the first is announced by another item. If the number of completed items differs from that,
        // some items were counted twice or not at all.
        let is_inexact = progress.passes > 1
            || self.others.borrow().unfinished > 0
            || tally.items != 1 + tally.announced;
        let passes = progress.passes;
        JobEnd {
            tally,
            passes,
            is_inexact,
        }
    }

    /// Returns the work done by all nodes.
    fn tally(&self) -> Tally {
        let others = self.others.borrow().tally.clone();
        self.node.served.tally().and(others)
    }

    /// Leads the job for the duration of one session.
    async fn lead_session(
        &self,
        orders: Orders,
        events: &SessionEvents,
        progress: &mut JobProgress,
    ) -> Result<(), SessionEnd> {
        if !self.is_at(JobPhase::Over) {
            self.run_passes(&orders, events, progress).await?;
            self.node.queue.close().await?;
            self.phase.send_replace(JobPhase::Over);
        }
        self.await_other_writers(events, progress).await?;
        let finishing = DirectoryFinisher {
            job: &self.node.job,
            orders: &orders,
            events,
        };
        finishing.run(&mut progress.finished).await?;
        events.add_not_preserved(orders.settle().await?);
        progress.close = Close::Ordered;
        orders.give(SharedJobOrder::Close).await?;
        progress.close = Close::Done;
        events.await_end();
        Ok(())
    }

    /// Waits until no other session can write: connected sessions have ended, and the leases of all lost sessions have
    /// expired, on this node and on others.
    ///
    /// # Errors
    /// A receiver does not see the job.
    async fn await_other_writers(
        &self,
        events: &SessionEvents,
        progress: &mut JobProgress,
    ) -> Result<(), SessionEnd> {
        let others = if let Some(others) = progress.others_write_until {
            others
        } else {
            self.await_ends(events, progress).await?;
            let is_one_lost = self.others.borrow().unfinished > 0;
            let lost = if is_one_lost {
                NODES_WRITE_MAX
            } else {
                Duration::ZERO
            };
            *progress.others_write_until.insert(Instant::now() + lost)
        };
        let own = self.node.served.last_lost().map(|lost| lost + LEASE_MAX);
        let until = own.unwrap_or(others).max(others);
        let rest = until.saturating_duration_since(Instant::now());
        if rest > REPORTED_WAIT_MIN {
            let message = format!(
                "sessions were lost: the modes and times of directories are set in {} s, when the lost sessions can \
                 no longer write",
                rest.as_secs() + 1
            );
            events.on(&Event::Warned { message });
        }
        sleep_until(until).await;
        Ok(())
    }

    /// Waits for sessions to end, in this order: the sessions of this node's movers for up to [`ENDS_WITHIN`], the
    /// target checks, each with its own time limit, and the sessions of other nodes for up to [`ENDS_WITHIN`].
    async fn await_ends(
        &self,
        events: &SessionEvents,
        progress: &mut JobProgress,
    ) -> Result<(), SessionEnd> {
        let movers_have = timeout(ENDS_WITHIN, async {
            while progress.movers.join_next().await.is_some() {}
        })
        .await;
        if movers_have.is_err() {
            events.warn_of_hanging();
            progress.movers.shutdown().await;
        }
        self.phase.send_replace(JobPhase::Left);
        while let Some(witness) = progress.target_checks.join_next().await {
            self.check_one_target(witness, events)?;
        }
        let mut others = self.others.clone();
        let none_ends_any_more =
            others.wait_for(|others| others.at_work == 0 || others.unfinished == 0);
        if timeout(ENDS_WITHIN, none_ends_any_more).await.is_err() {
            let message = format!(
                "some nodes have not reported the end of their part for {} s: the push no longer waits for them",
                ENDS_WITHIN.as_secs()
            );
            events.on(&Event::Warned { message });
        }
        Ok(())
    }

    /// Checks the result of a target check. The checked receiver must have the directory in which the job runs, which
    /// is the directory of the receiver of these events.
    fn check_one_target(
        &self,
        witness: Result<Result<(), String>, JoinError>,
        events: &SessionEvents,
    ) -> Result<(), SessionEnd> {
        match witness {
            Ok(Ok(())) => Ok(()),
            Ok(Err(unseen_at)) => Err(SessionEnd::NotShared {
                unseen_at,
                seen_at: events.receiver.clone(),
                target: self.node.job.target(),
            }),
            Err(_panic) => Err(SessionEnd::Panicked("a witness panicked")),
        }
    }

    /// Runs passes until all work is done in a pass in which the queue lost nothing.
    async fn run_passes(
        &self,
        orders: &Orders,
        events: &SessionEvents,
        progress: &mut JobProgress,
    ) -> Result<(), SessionEnd> {
        // The answer shows that the session has begun. Any item that a node has completed since the last session counts
        // as progress for the head.
        orders.give(SharedJobOrder::Ping).await?;
        let items = self.tally().items;
        if items > progress.items {
            progress.items = items;
            events.record_progress();
        }
        self.phase.send_replace(JobPhase::Begun);
        let began = Instant::now();
        let job = &self.node.job;
        loop {
            if self.node.queue.waiting().await? == 0 {
                let losses = self.node.queue.losses().await?;
                if progress.losses == Some(losses) {
                    return Ok(());
                }
                if progress.passes > PASSES_AFTER_LOSS_MAX {
                    return Err(job.given_up_after(progress.passes).into());
                }
                if progress.losses.take().is_some() {
                    let message = WALKED_AGAIN.to_owned();
                    events.on(&Event::Warned { message });
                }
                progress.passes += 1;
                self.begin_pass(progress.passes, events).await?;
                progress.losses = Some(losses);
            }
            tokio::select! {
                () = sleep((began.elapsed() / 8).clamp(LOOK_EVERY_MIN, LOOK_EVERY)) => {}
                Some(witness) = progress.target_checks.join_next() => self.check_one_target(witness, events)?,
                Some(ended) = progress.movers.join_next() => match ended {
                    Ok(Err(error)) if progress.movers.is_empty() => return Err(error.of_all_movers()),
                    Ok(Ok(()) | Err(_)) => {}
                    Err(_panic) => return Err(MOVER_PANICKED),
                },
            }
        }
    }

    /// Puts the first item of a pass into the queue. Waits for space in a queue that refuses the item: without it, the
    /// queue would look like that of a complete pass.
    async fn begin_pass(&self, pass: u32, events: &SessionEvents) -> Result<(), SessionEnd> {
        let first = WorkItem {
            pass,
            source: 0,
            work: ItemWork::Begin(self.node.job.tops_of_sources().collect()),
        };
        let until = Instant::now() + ROOM_MAX;
        let mut announced = self.node.queue.put(vec![first.clone()]).await?;
        if !announced.refused.is_empty() {
            let message = "the queue is full: waiting for space".to_owned();
            events.on(&Event::Warned { message });
        }
        while !announced.refused.is_empty() {
            if Instant::now() >= until {
                return Err(WorkError::Full(ROOM_MAX).into());
            }
            sleep(LOOK_EVERY).await;
            announced = self.node.queue.put(vec![first.clone()]).await?;
        }
        Ok(())
    }
}

/// The progress of a job, which outlives a failed session.
#[derive(Default)]
struct JobProgress {
    /// Number of passes that were started, including one whose first item is not in the queue yet.
    passes: u32,
    /// Number of losses of the queue when the last pass was started, or `None` if its first item is not in the queue. A
    /// session may fail before it has put the item there.
    losses: Option<u64>,
    /// Number of completed items when the last session began.
    items: u64,
    movers: JoinSet<Result<(), SessionEnd>>,
    /// Running checks of receivers that are not yet known to see the job.
    target_checks: JoinSet<Result<(), String>>,
    /// Time until which lost sessions of other nodes may still write, or `None` until the head has waited for all other
    /// sessions to end.
    others_write_until: Option<Instant>,
    finished: FinishProgress,
    close: Close,
    /// Whether a session was opened, so that the job is running at the target.
    has_opened: bool,
    /// Number of the first receiver that reported that the job is not running there.
    absent_at: Option<usize>,
    /// Number of orders that timed out. Each timeout doubles the time limit of later orders, because the receiver may
    /// have a lot of data to flush.
    hung: u32,
}

/// Whether the job is closed at the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Close {
    #[default]
    NotOrdered,
    /// A receiver was ordered to close the job. Its answer is still missing.
    Ordered,
    Done,
}

impl JobProgress {
    /// Returns whether the job is complete although a session ended with this error.
    fn is_over_by(&self, end: &SessionEnd) -> bool {
        match self.close {
            Close::NotOrdered => false,
            // The job may have been closed, with only the answer to the order lost.
            Close::Ordered => is_closed(end),
            Close::Done => true,
        }
    }
}

/// Returns whether a session that was to close a job failed because the job is already closed.
fn is_closed(error: &SessionEnd) -> bool {
    error.is_absent() || matches!(error, SessionEnd::JobClosed)
}

const WALKED_AGAIN: &str =
    "the queue may have lost work: scanning the sources again (equal files are skipped)";
/// Maximum number of additional passes after losses before the job fails.
const PASSES_AFTER_LOSS_MAX: u32 = 5;
/// How long the receivers of a dead node may continue to write. First the node's lease from the head expires, and then
/// the receivers' lease from the node.
const NODES_WRITE_MAX: Duration = Duration::from_secs(2 * LEASE_MAX.as_secs());
/// Minimum length of a wait that is reported to the user.
const REPORTED_WAIT_MIN: Duration = Duration::from_secs(1);
/// Time limit for closing a failed job at the queue and at a receiver. The limit is short because the user is waiting
/// for the command to return.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Initial time limit for a receiver to answer an order: twice the lease of a work item, since the receiver first
/// flushes data that was left behind.
const ORDER_MAX: Duration = Duration::from_secs(2 * LEASE.as_secs());
/// Minimum interval at which the queue is asked whether it is idle. The first intervals are short, because small jobs
/// end soon.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(2);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the head waits for space in the queue for the first item of a pass.
const ROOM_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use zmove_engine::NoListener;
    use zmove_sender::{SessionEnded, SessionError};
    use zmove_wire::{FaultCode, Operation, Refusal, RefusalCode};

    use super::*;
    use crate::lab::{item_of, job, receiver, root};
    use crate::queue::LocalQueue;
    use crate::session::ConnectedSession;

    const REFUSALS: [RefusalCode; 10] = [
        RefusalCode::UnknownKey,
        RefusalCode::Denied,
        RefusalCode::Target,
        RefusalCode::Busy,
        RefusalCode::Protocol,
        RefusalCode::Failed,
        RefusalCode::Stopping,
        RefusalCode::Broken,
        RefusalCode::Full,
        RefusalCode::NotUnderWay,
    ];

    #[test]
    fn a_failed_or_broken_refusal_counts_as_a_lost_session() {
        let is_lost = |code| {
            let head = head();
            let refusal = Refusal {
                code,
                text: String::new(),
            };
            session(&head).note_lost(&SessionError::Refused(refusal).into());
            head.node.served.has_lost_sessions()
        };
        let lost: Vec<_> = REFUSALS.into_iter().filter(|code| is_lost(*code)).collect();
        assert_eq!(lost, [RefusalCode::Failed, RefusalCode::Broken]);
    }

    #[test]
    fn only_the_word_that_a_job_is_not_under_way_says_that_it_is_closed() {
        let refused = |code| {
            let refusal = Refusal {
                code,
                text: String::new(),
            };
            is_closed(&SessionEnd::Session(SessionError::Refused(refusal)))
        };
        let closed: Vec<_> = REFUSALS.into_iter().filter(|code| refused(*code)).collect();
        assert_eq!(closed, [RefusalCode::NotUnderWay]);
        assert!(is_closed(&SessionEnd::JobClosed));
    }

    #[test]
    fn a_job_error_states_whether_the_job_may_have_begun() {
        let head = head();
        let mut progress = JobProgress {
            absent_at: Some(1),
            ..JobProgress::default()
        };
        let failure = |progress: &JobProgress, error| head.failure(Box::new(error), progress);
        let over = || SessionEnded.into();
        let (operation, code) = (Operation::Write, FaultCode::Os(28));
        let no_room = || SessionEnd::NoRoom {
            receiver: "h:1".into(),
            target: "t".into(),
            operation,
            code,
        };
        assert!(matches!(
            failure(&progress, no_room()),
            JobError::NotBegun(_)
        ));
        head.node.served.record_lost_session();
        assert!(matches!(
            failure(&progress, over()),
            JobError::PerhapsBegun {
                absent_at: Some(1),
                ..
            }
        ));
        progress.has_opened = true;
        assert!(matches!(
            failure(&progress, over()),
            JobError::PerhapsBegun {
                absent_at: None,
                ..
            }
        ));
        head.phase.send_replace(JobPhase::Begun);
        assert!(matches!(failure(&progress, no_room()), JobError::NoRoom(_)));
        assert!(matches!(failure(&progress, over()), JobError::Lost(_)));
    }

    fn head() -> Head<LocalQueue> {
        Head::new(Node::new(
            job(),
            Arc::new(LocalQueue::default()),
            Vec::new(),
            0,
            Duration::ZERO,
        ))
    }

    /// Without its first item, a pass would count as complete.
    #[tokio::test(start_paused = true)]
    async fn a_pass_whose_first_item_the_queue_refuses_does_not_begin() {
        let head = head();
        let events = session(&head);
        let items = (0..).map(|source| item_of(source, ItemWork::Trees(vec![root()])));
        let all = items.take(100_000).collect();
        let mut refused = head.node.queue.put(all).await.unwrap().refused;
        assert!(!refused.is_empty(), "it is full");
        let error = head.begin_pass(1, &events).await.unwrap_err();
        assert!(matches!(
            error,
            SessionEnd::Queue(WorkError::Full(ROOM_MAX))
        ));
        refused.clear();
        let begun = async {
            let taken = head.node.queue.take().await.unwrap().unwrap();
            head.node.queue.done(taken).await.unwrap();
        };
        let (begun, ()) = tokio::join!(head.begin_pass(1, &events), begun);
        begun.unwrap();
    }

    #[test]
    fn the_future_of_a_head_can_move_between_threads() {
        fn is_send(_task: impl Send) {}
        let head = head();
        is_send(async move {
            let listener = Arc::new(NoListener);
            head.run(Arc::new(NoObserver), listener, async {}).await
        });
    }

    fn session(head: &Head<LocalQueue>) -> Arc<SessionEvents> {
        head.node
            .events(Arc::new(NoObserver), Arc::new(NoListener))
            .within(0, &receiver())
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_sets_directories_once_sessions_have_ended_or_their_leases_have() {
        let nodes = watch::Sender::default();
        let head = Head {
            others: nodes.subscribe(),
            ..head()
        };
        let session = session(&head);
        let waited = async |at_work, unfinished, mover: Option<(Duration, bool)>| {
            let tally = Tally::default();
            nodes.send_replace(Others {
                at_work,
                unfinished,
                tally,
            });
            let began = Instant::now();
            let mut progress = JobProgress::default();
            if let Some((ends_after, is_up)) = mover {
                let session = Arc::clone(&session);
                progress.movers.spawn(async move {
                    let _up = is_up.then(|| ConnectedSession::new(&session));
                    sleep(ends_after).await;
                    Ok(())
                });
            }
            head.await_other_writers(&session, &mut progress)
                .await
                .unwrap();
            began.elapsed()
        };
        assert_eq!(waited(0, 0, None).await, Duration::ZERO);
        assert_eq!(waited(0, 1, None).await, NODES_WRITE_MAX, "a node is lost");
        assert_eq!(
            waited(1, 1, None).await,
            ENDS_WITHIN + NODES_WRITE_MAX,
            "a node does not say that it has ended"
        );
        let leaves = Some((ENDS_WITHIN / 2, true));
        assert_eq!(
            waited(0, 0, leaves).await,
            ENDS_WITHIN / 2 + LEASE_MAX,
            "a session is dropped"
        );
        let connects = Some((Duration::MAX, false));
        assert_eq!(
            waited(0, 0, connects).await,
            ENDS_WITHIN,
            "no receiver answers a mover"
        );
        let hangs = Some((Duration::MAX, true));
        assert_eq!(
            waited(0, 0, hangs).await,
            ENDS_WITHIN + LEASE_MAX,
            "a mover hangs in a session"
        );
        assert_eq!(
            waited(0, 0, None).await,
            Duration::ZERO,
            "its lease has ended"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_does_not_see_the_job_ends_it_also_when_all_work_has_ended() {
        let head = head();
        let mut progress = JobProgress::default();
        let mut phase = head.phase.subscribe();
        progress.target_checks.spawn(async move {
            phase
                .wait_for(|phase| *phase == JobPhase::Left)
                .await
                .unwrap();
            Err("elsewhere".to_owned())
        });
        let ended = head
            .await_other_writers(&session(&head), &mut progress)
            .await;
        let Err(SessionEnd::NotShared {
            unseen_at,
            seen_at,
            target,
        }) = ended
        else {
            panic!("{ended:?}")
        };
        assert_eq!(
            (&*unseen_at, &*seen_at, &*target),
            ("elsewhere", "h:1", "t")
        );
    }
}
