//! The head of a job: puts in the first item, looks how far the job is, and ends it.
//!
//! ```text
//!  Working: queue idle? ──► count ─┬─ all has ended ──► Leaving ──► Finishing ──► Finished ──► Ordered ──► Closed
//!              ▲                   └─ something is missing ──► walk once more ──┐
//!              └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Where the journals contradict each other, since the sources have changed between two times that work was done, no
//! walk heals that: the next one begins another pass, which goes through all and counts by itself.
//!
//! **Invariant:** the job has ended when the journals of the receivers say so, whatever the queue says. The queue only
//! tells when it is worth looking.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use zmove_engine::{Listener, SessionFate};
use zmove_sender::SessionError;
use zmove_types::{Beginning, Event, NoObserver, Observer};
use zmove_wire::{RefusalCode, SharedJobCount, SharedJobOrder};

use crate::error::{MOVER_PANICKED, SessionEnd, Stop, WorkError};
use crate::finish::Finishing;
use crate::job::SharedJob;
use crate::node::{Node, Sessions};
use crate::one_target::Witness;
use crate::orders::Orders;
use crate::session::{ENDS_WITHIN, JobEvents, SessionEvents, in_session};
use crate::work::{Work, WorkItem};
use crate::work_queue::{LEASE, WorkQueue};

/// The node that leads a job.
#[derive(Debug)]
pub struct Head<W> {
    /// What it does as any node.
    pub node: Node<W>,
    /// The number of the receiver that is asked first to begin the job. Default: the first.
    pub begins_at: usize,
    /// How long all movers but the first wait for other nodes, and do nothing where there are enough by then. Default:
    /// they do not wait.
    pub others_come_within: Duration,
    /// Told when the job has begun at the target.
    pub begun: watch::Sender<bool>,
    /// The other nodes of the job. Default: none.
    pub others: watch::Receiver<Others>,
}

/// How many other nodes a job has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The number of those that do some of the work now.
    pub at_work: usize,
    /// The number of those, at work or not, of which not all sessions are known to have ended as they should.
    pub unfinished: usize,
}

/// A job that has come to its end.
#[derive(Clone, Debug)]
pub struct JobEnd {
    /// What the journals of the receivers say.
    pub count: SharedJobCount,
    /// How often the sources have been walked: more than once where the queue has lost something.
    pub walks: u32,
}

/// Why a job has not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No receiver has opened a session of the job, or can be reached: nothing is left of it anywhere.
    #[error(transparent)]
    NotBegun(Box<SessionEnd>),
    /// No receiver goes on with the job, of which something may have begun at one.
    #[error("{error}")]
    PerhapsBegun {
        /// Why the last one does not.
        #[source]
        error: Box<SessionEnd>,
        /// The number of a receiver that does not have it. Another job may begin there; this one may not, since what
        /// goes to whoever has it would go to another directory where they do not share one.
        absent_at: Option<usize>,
    },
    /// No receiver goes on with it.
    #[error("no receiver goes on: {0}; run the same command again")]
    Lost(#[source] Box<SessionEnd>),
    /// There is no room at the target, not even for what tells how far the job is.
    #[error("{0}; what is whole stays: make room, and run the same command again")]
    NoRoom(#[source] Box<SessionEnd>),
    /// Not all receivers have one directory at the target.
    #[error(transparent)]
    NotShared(Box<SessionEnd>),
    /// The queue fails: its broker is away, or refuses.
    #[error("{0}; run the same command again")]
    Queue(#[source] WorkError),
    /// The user has ended it.
    #[error("interrupted")]
    Interrupted,
}

impl<W: WorkQueue> Head<W> {
    /// The head of a job that nobody else takes part in.
    #[must_use]
    pub fn new(node: Node<W>) -> Self {
        Self {
            node,
            begins_at: 0,
            others_come_within: Duration::ZERO,
            begun: watch::Sender::new(false),
            others: watch::Sender::default().subscribe(),
        }
    }

    /// Leads the job to its end.
    ///
    /// # Errors
    /// The job does not begin, no receiver goes on, there is no room there, the queue fails, or `stop` resolves.
    pub async fn run(
        &self,
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
        stop: impl Future<Output = ()>,
    ) -> Result<JobEnd, JobError> {
        let events = self.node.events(observer, listener);
        let mut course = Course::new();
        for number in 0..self.node.movers {
            let standby = Standby {
                number,
                begun: self.begun.subscribe(),
                over: course.over.subscribe(),
                others: self.others.clone(),
                others_come_within: self.others_come_within,
            };
            let sessions = self.node.sessions(number, events.clone());
            course.movers.spawn(async {
                if standby.until_needed().await {
                    Box::pin(sessions.moving()).await
                } else {
                    Ok(())
                }
            });
        }
        for (number, receiver) in self.node.receivers.iter().enumerate() {
            let witness = Witness {
                job: Arc::clone(&self.node.job),
                receiver: receiver.clone(),
                number,
                events: events.clone(),
                begun: self.begun.subscribe(),
                over: course.over.subscribe(),
                movers_left: course.movers_left.subscribe(),
                patience: self.node.patience,
            };
            course.witnesses.spawn(witness.sees_job());
        }
        let listener = Arc::clone(&events.listener);
        let ended = tokio::select! {
            ended = self.lead(self.node.sessions(self.begins_at, events), &mut course) => ended,
            () = stop => Err(JobError::Interrupted),
        };
        if ended.is_err() {
            let may_have_begun = self.may_have_begun(&course);
            drop(course);
            let closing = async {
                if may_have_begun {
                    self.close_at_a_receiver(listener).await;
                }
            };
            // where the queue does not hear it, movers find that the job is over at the receivers
            let closing = async { tokio::join!(self.node.queue.close(), closing) };
            let _best_effort = timeout(CLOSE_MAX, closing).await;
        }
        ended
    }

    /// Ends the job at the first receiver that does so. What is left of one that is not ended keeps the next push
    /// waiting until it is known to be dead.
    async fn close_at_a_receiver(&self, listener: Arc<dyn Listener + Send + Sync>) {
        let job = self.node.job.last_epoch();
        let events = JobEvents::new(
            Arc::new(NoObserver),
            listener,
            Arc::default(),
            Arc::default(),
        );
        let receivers = self.node.receivers.iter().enumerate();
        let mut closing: FuturesUnordered<_> = receivers
            .map(async |(number, receiver)| {
                let session = events.within(number, receiver);
                in_session(
                    receiver,
                    &job,
                    Beginning::UnderWay,
                    &session,
                    async |feeder| {
                        Orders {
                            feeder,
                            answers_within: CLOSE_MAX,
                        }
                        .give(SharedJobOrder::Close)
                        .await?;
                        session.await_end();
                        Ok(())
                    },
                )
                .await
            })
            .collect();
        while let Some(closed) = closing.next().await {
            if closed.is_ok() {
                return;
            }
        }
    }

    /// Whether something of the job may have begun at a receiver: an opening that was lost may have been carried out.
    fn may_have_begun(&self, course: &Course) -> bool {
        course.has_opened || *self.begun.borrow() || self.node.served.has_lost_sessions()
    }

    /// Why the job has not come to its end, where no session is tried any more after this.
    fn failure(&self, error: SessionEnd, course: &Course) -> JobError {
        match error.into_queue_failure() {
            Ok(error) => JobError::Queue(error),
            Err(error) if !self.may_have_begun(course) => JobError::NotBegun(Box::new(error)),
            Err(error) if error.is_no_room() => JobError::NoRoom(Box::new(error)),
            Err(error @ SessionEnd::Stop(Stop::NotShared { .. })) => {
                JobError::NotShared(Box::new(error))
            }
            Err(error) if *self.begun.borrow() => JobError::Lost(Box::new(error)),
            Err(error) => {
                let absent_at = course.absent_at.filter(|_| !course.has_opened);
                JobError::PerhapsBegun {
                    error: Box::new(error),
                    absent_at,
                }
            }
        }
    }

    /// Leads the job in sessions, one after the other.
    async fn lead(
        &self,
        mut sessions: Sessions<W>,
        course: &mut Course,
    ) -> Result<JobEnd, JobError> {
        let last_epoch = self.node.job.last_epoch();
        loop {
            let (receiver, events) = sessions.next();
            let job = if course.is_fenced {
                &last_epoch
            } else {
                &*self.node.job
            };
            // A job that is under way, or may be, must not begin anew in another directory, which this receiver may
            // have: two would pass for one.
            let beginning = if self.may_have_begun(course) {
                Beginning::UnderWay
            } else {
                Beginning::Allowed
            };
            let ended = {
                let session = pin!(in_session(&receiver, job, beginning, &events, |feeder| {
                    let orders = Orders {
                        feeder,
                        answers_within: course.answers_within,
                    };
                    self.lead_in(orders, &events, course)
                }));
                sessions.outages.watch(session).await
            };
            course.has_opened |= events.fate() != SessionFate::NotBegun;
            // the receiver may have closed the job by the order before, and the answer was lost
            let was_closed = |error: &SessionEnd| {
                course.stage == Stage::Ordered && (is_closed(error) || error.is_absent())
            };
            if course.stage == Stage::Closed || ended.as_ref().is_err_and(was_closed) {
                return Ok(JobEnd {
                    count: std::mem::take(&mut course.count),
                    walks: course.walks.done,
                });
            }
            match ended {
                // the next epoch is begun where the job's directory is
                Ok(()) => sessions.stay_with(&events),
                Err(error) => {
                    if error.is_absent() {
                        course.absent_at.get_or_insert(events.number);
                    }
                    course.lose_session(&error);
                    sessions.is_under_way = *self.begun.borrow();
                    let paused = sessions.pause(&events, error).await;
                    paused.map_err(|error| self.failure(*error, course))?;
                }
            }
        }
    }

    /// Leads the job for one session: to its end; or, where another session may still be at work, to the point from
    /// which on the head has to have an epoch of its own.
    async fn lead_in(
        &self,
        orders: Orders,
        events: &SessionEvents,
        course: &mut Course,
    ) -> Result<(), Stop> {
        loop {
            course.stage = match course.stage {
                Stage::Working => {
                    course.count = self.conduct(&orders, events, course).await?;
                    self.node.queue.close().await?;
                    course.over.send_replace(true);
                    Stage::Leaving
                }
                Stage::Leaving => {
                    course.is_fenced = !self.all_have_left(events, course).await?;
                    if course.is_fenced {
                        course.stage = Stage::Finishing;
                        return Ok(());
                    }
                    Stage::Finishing
                }
                Stage::Finishing => {
                    let finishing = course
                        .finishing
                        .get_or_insert_with(|| Finishing::of(&self.node.job));
                    course.count.counts.failed +=
                        finishing.run(&self.node.job, &orders, events).await?;
                    // what directories did not get has been recorded since all work ended
                    course.count.not_kept = orders.count().await?.not_kept;
                    Stage::Finished
                }
                Stage::Finished | Stage::Ordered => {
                    course.stage = Stage::Ordered;
                    orders.give(SharedJobOrder::Close).await?;
                    events.await_end();
                    Stage::Closed
                }
                Stage::Closed => return Ok(()),
            }
        }
    }

    /// Whether all sessions but this have ended as they should, once those of this node have: first of its movers,
    /// which have [`ENDS_WITHIN`] for that, then of the witnesses, each of which has a limit of its own, then of other
    /// nodes, which have as long as movers.
    ///
    /// # Errors
    /// A receiver does not see the job.
    async fn all_have_left(
        &self,
        events: &SessionEvents,
        course: &mut Course,
    ) -> Result<bool, Stop> {
        let movers_have = timeout(ENDS_WITHIN, async {
            while course.movers.join_next().await.is_some() {}
        })
        .await;
        if movers_have.is_err() {
            events.warn_of_hanging();
            course.movers.shutdown().await;
        }
        course.movers_left.send_replace(true);
        while let Some(witness) = course.witnesses.join_next().await {
            self.check_one_target(witness, events)?;
        }
        let mut others = self.others.clone();
        let none_ends_any_more =
            others.wait_for(|others| others.at_work == 0 || others.unfinished == 0);
        if timeout(ENDS_WITHIN, none_ends_any_more).await.is_err() {
            let message = format!(
                "nodes have not said for {} s that their part has ended: nobody waits for them any longer",
                ENDS_WITHIN.as_secs()
            );
            events.on(&Event::Warned { message });
        }
        let all_others_have = self.others.borrow().unfinished == 0;
        // those are lost that movers had when they were ended
        Ok(all_others_have && !self.node.served.has_lost_sessions())
    }

    /// Checks, by what a witness says, that its receiver has the directory in which the job is under way: that of the
    /// receiver of these events.
    fn check_one_target(
        &self,
        witness: Result<Result<(), String>, JoinError>,
        events: &SessionEvents,
    ) -> Result<(), Stop> {
        match witness {
            Ok(Ok(())) => Ok(()),
            Ok(Err(unseen_at)) => {
                let (seen_at, target) = (events.receiver.clone(), self.node.job.target());
                Err(Stop::NotShared {
                    unseen_at,
                    seen_at,
                    target,
                })
            }
            Err(_panic) => Err(Stop::Panicked("a witness panicked")),
        }
    }

    /// Sees to it that all work ends; returns what the journals say then.
    async fn conduct(
        &self,
        orders: &Orders,
        events: &SessionEvents,
        course: &mut Course,
    ) -> Result<SharedJobCount, Stop> {
        // an answer shows that the session has begun; what all nodes have done meanwhile counts for the head
        let counted = orders.count().await?;
        let ended = (counted.pass, counted.work_ended);
        if ended > course.ended_most {
            course.ended_most = ended;
            events.note_use();
        }
        self.begun.send_replace(true);
        loop {
            if self.node.queue.waiting().await?.is_idle() {
                let counted = orders.count().await?;
                if counted.pass == course.walks.pass && counted.is_finished() {
                    return Ok(counted);
                }
                self.node
                    .queue
                    .put(vec![course.walks.next_walk(&self.node.job, &counted)?])
                    .await?;
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                Some(witness) = course.witnesses.join_next() => self.check_one_target(witness, events)?,
                Some(ended) = course.movers.join_next() => match ended {
                    Ok(Err(error)) if course.movers.is_empty() => return Err(Stop::Movers(Box::new(error))),
                    Ok(Ok(()) | Err(_)) => {}
                    Err(_panic) => return Err(MOVER_PANICKED),
                },
            }
        }
    }
}

/// A mover of the head that waits until it has something to do.
struct Standby {
    number: usize,
    begun: watch::Receiver<bool>,
    over: watch::Receiver<bool>,
    others: watch::Receiver<Others>,
    /// How long others may take to come.
    others_come_within: Duration,
}

impl Standby {
    /// Returns once the mover is needed, or with `false` if it never is. It is where the job has begun and fewer other
    /// nodes are at work than this mover's number says: each of them serves one receiver, and this mover would take
    /// their work.
    async fn until_needed(mut self) -> bool {
        if self.begun.wait_for(|begun| *begun).await.is_err() {
            return false;
        }
        if self.number == 0 || self.others_come_within.is_zero() {
            return true;
        }
        let are_too_few = async {
            sleep(self.others_come_within).await;
            // where nobody counts them any more, there are none
            drop(
                self.others
                    .wait_for(|others| others.at_work < self.number)
                    .await,
            );
        };
        tokio::select! {
            biased;
            // a job that is over before is not held up
            _ = self.over.wait_for(|over| *over) => false,
            () = are_too_few => true,
        }
    }
}

/// How far a job is: a session that breaks takes nothing of it back.
struct Course {
    stage: Stage,
    /// Whether the head's sessions are in the next epoch, which shuts out all sessions of this one.
    is_fenced: bool,
    /// What the journals of the receivers say, once all work has ended.
    count: SharedJobCount,
    walks: Walks,
    /// The most work that had ended when a session began, and its pass.
    ended_most: (u32, u64),
    movers: JoinSet<Result<(), SessionEnd>>,
    /// Set when they have ended their sessions, or taken too long to.
    movers_left: watch::Sender<bool>,
    /// The receivers that have not yet been found to see the job.
    witnesses: JoinSet<Result<(), String>>,
    /// Set when all work has ended, and the queue knows that the job is over.
    over: watch::Sender<bool>,
    /// How far directories have mode and time; `None` before any has.
    finishing: Option<Finishing>,
    /// Whether a session has been opened, so that the job is under way at the target.
    has_opened: bool,
    /// The number of the first receiver that has said that it does not have the job.
    absent_at: Option<usize>,
    /// How long a receiver may take to answer an order: twice as long after each that has taken longer, since there
    /// may be much to do.
    answers_within: Duration,
}

/// The stages of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Work is under way.
    Working,
    /// All work has ended; sessions of movers have not.
    Leaving,
    /// No other session writes any more, and directories get mode and time.
    Finishing,
    /// All directories have mode and time.
    Finished,
    /// A receiver has been told to close the job, which has perhaps been done.
    Ordered,
    /// The job is closed.
    Closed,
}

impl Course {
    /// A session has been lost by this.
    fn lose_session(&mut self, error: &SessionEnd) {
        // an order of it may still be carried out
        self.is_fenced |= self.stage >= Stage::Finishing;
        if matches!(error, SessionEnd::Stop(Stop::Hangs(_))) {
            self.answers_within = self.answers_within.saturating_mul(2);
        }
    }

    fn new() -> Self {
        Self {
            stage: Stage::Working,
            is_fenced: false,
            count: SharedJobCount::default(),
            walks: Walks::default(),
            ended_most: (0, 0),
            movers: JoinSet::new(),
            movers_left: watch::Sender::new(false),
            witnesses: JoinSet::new(),
            over: watch::Sender::new(false),
            finishing: None,
            has_opened: false,
            absent_at: None,
            answers_within: ORDER_MAX,
        }
    }
}

/// The walks of a job's sources.
struct Walks {
    done: u32,
    /// The pass that is under way: each goes through all work once more, and only the newest one counts.
    pass: u32,
    /// How much of the pass had ended before the last walk.
    ended_before: u64,
    /// How many walks in a row have added nothing.
    in_vain: u32,
}

impl Default for Walks {
    fn default() -> Self {
        Self {
            done: 0,
            pass: 1,
            ended_before: 0,
            in_vain: 0,
        }
    }
}

impl Walks {
    /// What is to be done where nobody has anything to do, and the journals say that something is missing. They
    /// contradict each other where the sources have changed; and where no walk adds anything, work may have ended whose
    /// parent nobody finds any more. Another pass does without what such work has told.
    ///
    /// # Errors
    /// Something stays missing that no walk finds, or the sources change in each pass: another job does it.
    fn next_walk(&mut self, job: &SharedJob, count: &SharedJobCount) -> Result<WorkItem, Stop> {
        let is_of_pass = count.pass == self.pass;
        let ended = if is_of_pass { count.work_ended } else { 0 };
        let as_before = self.done > 0 && self.ended_before == ended;
        self.ended_before = ended;
        self.in_vain = if as_before { self.in_vain + 1 } else { 0 };
        let is_in_vain = self.in_vain >= WALKS_IN_VAIN_MAX;
        if is_in_vain && self.pass > 1 {
            return Err(Stop::Missing);
        }
        if is_in_vain || is_of_pass && count.is_contradictory() {
            if self.pass >= PASSES_MAX {
                return Err(Stop::Contradictory(self.pass));
            }
            self.pass += 1;
            self.in_vain = 0;
            self.ended_before = 0;
        }
        self.done += 1;
        let begin = WorkItem::first(job.id, Work::Begin(job.source_count()), self.done);
        Ok(WorkItem {
            marks: job.source_marks.clone(),
            ..begin.in_pass(job.id, self.pass)
        })
    }
}

/// Whether a session that was to close a job has failed because the job is closed.
fn is_closed(error: &SessionEnd) -> bool {
    match error {
        SessionEnd::Session(SessionError::Refused(refusal)) => refusal.code == RefusalCode::Ended,
        // nobody begins a newer epoch of a job but its head, and who closes what that has left
        SessionEnd::Stop(stop) => matches!(stop, Stop::Fenced),
        SessionEnd::Connect(_)
        | SessionEnd::Session(_)
        | SessionEnd::NoRoom { .. }
        | SessionEnd::InVain { .. } => false,
    }
}

/// So many walks in a row find nothing of what is missing before the job is given up: a queue that loses much does not
/// lose the same each time.
const WALKS_IN_VAIN_MAX: u32 = 10;
/// So many passes find that the sources have changed, and work was done twice meanwhile, before the job is given up.
const PASSES_MAX: u32 = 10;
/// How long a job that is given up tries to tell the queue so: somebody waits for the prompt.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How long a receiver may take to answer an order at first: twice as long as a node keeps what it does not go on with,
/// since what was left there is flushed before.
pub(crate) const ORDER_MAX: Duration = Duration::from_secs(2 * LEASE.as_secs());
/// How often the queue is asked whether it is idle.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use zmove_engine::NoListener;
    use zmove_sender::SessionOver;
    use zmove_wire::{FaultCode, Operation, Refusal};

    use super::*;
    use crate::lab::{JOB, job, receiver};
    use crate::local_queue::LocalQueue;
    use crate::session::Up;

    const REFUSALS: [RefusalCode; 11] = [
        RefusalCode::UnknownKey,
        RefusalCode::Denied,
        RefusalCode::Target,
        RefusalCode::Busy,
        RefusalCode::Protocol,
        RefusalCode::Failed,
        RefusalCode::Stopping,
        RefusalCode::Broken,
        RefusalCode::Full,
        RefusalCode::Ended,
        RefusalCode::NotUnderWay,
    ];

    #[test]
    fn a_refusal_by_whoever_may_have_begun_the_job_counts_as_a_lost_session() {
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
    fn only_the_word_that_a_job_has_ended_says_that_it_is_closed() {
        let refused = |code| {
            let refusal = Refusal {
                code,
                text: String::new(),
            };
            is_closed(&SessionEnd::Session(SessionError::Refused(refusal)))
        };
        let closed: Vec<_> = REFUSALS.into_iter().filter(|code| refused(*code)).collect();
        assert_eq!(closed, [RefusalCode::Ended]);
        assert!(is_closed(&Stop::Fenced.into()));
    }

    #[test]
    fn what_a_job_has_come_to_tells_what_may_be_left_of_it() {
        let head = head();
        let mut course = Course {
            absent_at: Some(1),
            ..Course::new()
        };
        let failure = |course: &Course, error| head.failure(error, course);
        let over = || Stop::Session(SessionOver).into();
        let (operation, code) = (Operation::Write, FaultCode::Os(28));
        let no_room = || SessionEnd::NoRoom {
            receiver: "h:1".into(),
            target: "t".into(),
            operation,
            code,
        };
        assert!(matches!(failure(&course, no_room()), JobError::NotBegun(_)));
        head.node.served.lose_session();
        assert!(matches!(
            failure(&course, over()),
            JobError::PerhapsBegun {
                absent_at: Some(1),
                ..
            }
        ));
        course.has_opened = true;
        assert!(matches!(
            failure(&course, over()),
            JobError::PerhapsBegun {
                absent_at: None,
                ..
            }
        ));
        head.begun.send_replace(true);
        assert!(matches!(failure(&course, no_room()), JobError::NoRoom(_)));
        assert!(matches!(failure(&course, over()), JobError::Lost(_)));
    }

    fn head() -> Head<LocalQueue> {
        Head::new(Node::new(
            job(),
            Arc::new(LocalQueue::new(JOB)),
            Vec::new(),
            0,
            Duration::ZERO,
        ))
    }

    fn session(head: &Head<LocalQueue>) -> Arc<SessionEvents> {
        head.node
            .events(Arc::new(NoObserver), Arc::new(NoListener))
            .within(0, &receiver())
    }

    fn walks_again(count: impl Fn(&Walks) -> SharedJobCount) -> (Walks, Stop) {
        let job = job();
        let mut walks = Walks::default();
        loop {
            let counted = count(&walks);
            match walks.next_walk(&job, &counted) {
                Ok(item) => assert_eq!((item.pass, item.walk), (walks.pass, walks.done)),
                Err(stop) => return (walks, stop),
            }
        }
    }

    #[test]
    fn walks_that_add_nothing_end_the_job_after_a_second_pass() {
        let lost = |walks: &Walks| SharedJobCount {
            pass: walks.pass,
            work_ended: 3,
            work_announced: 5,
            ..SharedJobCount::default()
        };
        let (walks, stop) = walks_again(lost);
        assert!(matches!(stop, Stop::Missing), "{stop}");
        assert_eq!((walks.pass, walks.done), (2, 2 * WALKS_IN_VAIN_MAX + 1));
        let nothing_of_the_second = |_: &Walks| SharedJobCount {
            pass: 1,
            ..lost(&walks)
        };
        let (walks, stop) = walks_again(nothing_of_the_second);
        assert!(matches!(stop, Stop::Missing), "{stop}");
        assert_eq!((walks.pass, walks.done), (2, 2 * WALKS_IN_VAIN_MAX));
    }

    #[test]
    fn a_queue_that_loses_much_has_as_many_walks_as_it_takes() {
        const ADDING: u32 = 50;
        let (walks, stop) = walks_again(|walks| SharedJobCount {
            pass: walks.pass,
            work_ended: walks.done.min(ADDING).into(),
            work_announced: 99,
            ..SharedJobCount::default()
        });
        assert!(matches!(stop, Stop::Missing), "{stop}");
        assert_eq!(
            (walks.pass, walks.done),
            (2, ADDING + 2 * WALKS_IN_VAIN_MAX + 1)
        );
    }

    #[test]
    fn ends_that_contradict_each_other_begin_another_pass_at_once_and_are_bounded() {
        let (walks, stop) = walks_again(|walks| SharedJobCount {
            pass: walks.pass,
            work_ended: 3,
            work_announced: 5,
            contradictions: 1,
            ..SharedJobCount::default()
        });
        assert!(matches!(stop, Stop::Contradictory(PASSES_MAX)), "{stop}");
        assert_eq!((walks.pass, walks.done), (PASSES_MAX, PASSES_MAX - 1));
        let of_the_first = |_: &Walks| SharedJobCount {
            pass: 1,
            contradictions: 1,
            ..SharedJobCount::default()
        };
        let (walks, stop) = walks_again(of_the_first);
        assert!(matches!(stop, Stop::Missing) && walks.pass == 2, "{stop}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_at_the_end_for_sessions_that_do_not_end_and_these_may_be_at_work() {
        let nodes = watch::Sender::default();
        let head = Head {
            others: nodes.subscribe(),
            ..head()
        };
        let session = session(&head);
        let left = async |at_work, unfinished, mover: Option<(Duration, bool)>| {
            nodes.send_replace(Others {
                at_work,
                unfinished,
            });
            let began = Instant::now();
            let mut course = Course::new();
            if let Some((ends_after, is_up)) = mover {
                let session = Arc::clone(&session);
                course.movers.spawn(async move {
                    let _up = is_up.then(|| Up::new(&session));
                    sleep(ends_after).await;
                    Ok(())
                });
            }
            (
                head.all_have_left(&session, &mut course).await.unwrap(),
                began.elapsed(),
            )
        };
        assert_eq!(left(0, 0, None).await, (true, Duration::ZERO));
        assert_eq!(
            left(0, 1, None).await,
            (false, Duration::ZERO),
            "a node that is lost"
        );
        assert_eq!(
            left(1, 1, None).await,
            (false, ENDS_WITHIN),
            "a node that does not say that it has ended"
        );
        assert_eq!(
            left(0, 0, Some((ENDS_WITHIN / 2, false))).await,
            (true, ENDS_WITHIN / 2)
        );
        let connects = Some((Duration::MAX, false));
        assert_eq!(
            left(0, 0, connects).await,
            (true, ENDS_WITHIN),
            "a mover that no receiver answers"
        );
        let hangs = Some((Duration::MAX, true));
        assert_eq!(
            left(0, 0, hangs).await,
            (false, ENDS_WITHIN),
            "a mover that hangs in a session"
        );
        assert_eq!(
            left(0, 0, None).await,
            (false, Duration::ZERO),
            "it stays lost"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_does_not_see_the_job_ends_it_also_when_all_work_has_ended() {
        let head = head();
        let mut course = Course::new();
        let mut movers_left = course.movers_left.subscribe();
        course.witnesses.spawn(async move {
            movers_left.wait_for(|left| *left).await.unwrap();
            Err("elsewhere".to_owned())
        });
        let ended = head.all_have_left(&session(&head), &mut course).await;
        let Err(Stop::NotShared {
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

    #[test]
    fn the_head_shuts_out_a_lost_session_that_may_carry_out_an_order_for_directories_and_waits_longer()
     {
        let after = |stage, error: Stop| {
            let mut course = Course {
                stage,
                ..Course::new()
            };
            course.lose_session(&error.into());
            (course.is_fenced, course.answers_within)
        };
        let is_over = || Stop::Session(SessionOver);
        for stage in [Stage::Working, Stage::Leaving] {
            assert_eq!(after(stage, is_over()), (false, ORDER_MAX));
        }
        for stage in [Stage::Finishing, Stage::Finished, Stage::Ordered] {
            assert_eq!(after(stage, is_over()), (true, ORDER_MAX));
        }
        assert_eq!(
            after(Stage::Working, Stop::Hangs(ORDER_MAX)),
            (false, 2 * ORDER_MAX)
        );
    }

    fn standby(others: &watch::Sender<Others>, over: &watch::Sender<bool>) -> Standby {
        Standby {
            number: 1,
            begun: watch::Sender::new(true).subscribe(),
            over: over.subscribe(),
            others: others.subscribe(),
            others_come_within: Duration::from_secs(2),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_that_waits_whether_it_is_needed_does_not_hold_up_a_job_that_is_over() {
        let (others, over) = (watch::Sender::default(), watch::Sender::new(false));
        let began = Instant::now();
        let needed = standby(&others, &over).until_needed();
        let needed = timeout(Duration::from_secs(9), needed);
        let (is_needed, _before) = tokio::join!(needed, async { over.send_replace(true) });
        assert!(!is_needed.unwrap() && began.elapsed() == Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_serves_the_receiver_of_a_node_that_is_at_work_no_more() {
        let one = Others {
            at_work: 1,
            unfinished: 1,
        };
        let (others, over) = (watch::Sender::new(one), watch::Sender::new(false));
        let began = Instant::now();
        let needed = tokio::spawn(standby(&others, &over).until_needed());
        sleep(Duration::from_secs(60)).await;
        assert!(!needed.is_finished());
        others.send_replace(Others {
            at_work: 0,
            unfinished: 1,
        });
        assert!(needed.await.unwrap());
        assert_eq!(began.elapsed(), Duration::from_secs(60));
    }
}
