//! The head of a job: puts in the first item, looks how far the job is, and ends it.
//!
//! ```text
//!  begin ──► queue idle? ──► count ─┬─ all has ended ──► movers end ──► directories are finished ──► close
//!              ▲                    └─ something is missing ──► walk once more ──┐
//!              └─────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Where the journals contradict each other, since the sources have changed between two times that work was done, no
//! walk heals that: the next one begins another pass, which goes through all and counts by itself.
//!
//! **Invariant:** the job has ended when the journals of the receivers say so, whatever the queue says. The queue only
//! tells when it is worth looking.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zmove_engine::{Listener, Next, Outages, SessionFate, Timeout};
use zmove_sender::{Feeder, SessionError};
use zmove_types::{Event, NoObserver, Observer};
use zmove_wire::{RefusalCode, SharedJobCount, SharedJobOrder, SharedJobResult};

use crate::error::{SessionEnd, Stop, WorkError, refused};
use crate::finish::Finishing;
use crate::job::{Part, SharedJob, View};
use crate::mover::Mover;
use crate::receiver::{JobEvents, Receiver, Served, SessionEvents, in_session};
use crate::told::Told;
use crate::work::{Work, WorkItem};
use crate::work_queue::WorkQueue;

/// A job that is led from here, with movers of this process.
#[derive(Debug)]
pub struct Lead<W> {
    /// The job.
    pub job: Arc<SharedJob>,
    /// The queue.
    pub queue: Arc<W>,
    /// The receivers; each mover begins with another of them, and goes on with the next where it fails.
    pub receivers: Arc<[Receiver]>,
    /// How many movers this process has.
    pub movers: usize,
    /// How long all movers but the first wait for other nodes, and do nothing where there are enough by then.
    pub others_come_within: Duration,
    /// How long the job goes on when no receiver does.
    pub patience: Duration,
    /// Told when the job has begun at the target.
    pub begun: watch::Sender<bool>,
    /// How many other nodes take part, or have ended otherwise than they should.
    pub others: watch::Receiver<usize>,
    /// What has ended in the sessions of this process.
    pub served: Arc<Served>,
    /// The failures that all have told, which are not counted again at the end. Default: none of others.
    pub told: Arc<Told>,
}

/// A job that has come to its end.
#[derive(Clone, Copy, Debug)]
pub struct JobEnd {
    /// What the journals of the receivers say.
    pub count: SharedJobCount,
    /// How often the sources have been walked: more than once where the queue has lost something.
    pub walks: u32,
}

/// Why a job has not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The job has not begun: no receiver takes it, or can be reached.
    #[error(transparent)]
    NotBegun(Box<SessionEnd>),
    /// No receiver goes on with it.
    #[error("no receiver goes on: {0}; run the same command again")]
    Lost(#[source] Box<SessionEnd>),
    /// There is no room at the target, not even for what tells how far the job is.
    #[error("{0}; what is whole stays: make room, and run the same command again")]
    NoRoom(#[source] Box<SessionEnd>),
    /// The queue fails: its broker is away, or refuses.
    #[error("{0}; run the same command again")]
    Queue(#[source] WorkError),
    /// The user has ended it.
    #[error("interrupted")]
    Interrupted,
}

impl<W: WorkQueue> Lead<W> {
    /// A job that nobody else takes part in.
    #[must_use]
    pub fn new(
        (job, queue): (SharedJob, Arc<W>),
        receivers: Vec<Receiver>,
        movers: usize,
        patience: Duration,
    ) -> Self {
        Self {
            job: Arc::new(job),
            queue,
            receivers: receivers.into(),
            movers,
            others_come_within: Duration::ZERO,
            patience,
            begun: watch::Sender::new(false),
            others: watch::Sender::new(0).subscribe(),
            served: Arc::default(),
            told: Arc::default(),
        }
    }

    /// Leads the job to its end.
    ///
    /// # Errors
    /// No receiver goes on, or `stop` resolves.
    pub async fn run(
        &self,
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
        stop: impl Future<Output = ()>,
    ) -> Result<JobEnd, JobError> {
        let events = JobEvents::new(observer, listener, Arc::clone(&self.served), Arc::clone(&self.told));
        let mut movers = JoinSet::new();
        let over = watch::Sender::new(false);
        for number in 0..self.movers {
            let mover = self.patient(number, events.clone()).moving(self.begun.subscribe());
            let others = Others { count: self.others.clone(), come_within: self.others_come_within };
            movers.spawn(unless_others_come(number, others, over.subscribe(), mover));
        }
        let mut progress = Progress::new(movers, over, Arc::clone(&events.has_lost_sessions));
        let patient = self.patient(0, events);
        let ended = tokio::select! {
            ended = self.lead(patient, &mut progress) => ended,
            () = stop => Err(JobError::Interrupted),
        };
        if ended.is_err() {
            // where the queue does not hear it, movers find that the job is over at the receivers
            let _best_effort = timeout(CLOSE_MAX, self.queue.close()).await;
        }
        ended
    }

    /// Takes part in the job, which another node leads: `number` is that of this node.
    ///
    /// # Errors
    /// No receiver goes on.
    pub async fn take_part(
        &self,
        number: usize,
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
    ) -> Result<(), SessionEnd> {
        let events = JobEvents::new(observer, listener, Arc::clone(&self.served), Arc::clone(&self.told));
        self.begun.send_replace(true);
        let mut movers = JoinSet::new();
        for mover in 0..self.movers {
            let patient = self.patient(number * self.movers + mover, events.clone());
            movers.spawn(patient.moving(self.begun.subscribe()));
        }
        let mut ended = Ok(());
        while let Some(mover) = movers.join_next().await {
            ended = ended.and(mover.unwrap_or_else(|_panic| Err(Stop::Panicked("a mover panicked").into())));
        }
        ended
    }

    fn patient(&self, number: usize, events: JobEvents) -> Patient<W> {
        let patience = Timeout(self.patience);
        Patient {
            job: Arc::clone(&self.job),
            queue: Arc::clone(&self.queue),
            receivers: Arc::clone(&self.receivers),
            next: number,
            patience,
            outages: Outages::new(patience).with_waits_within(WAIT_MAX),
            refusals: 0,
            events,
        }
    }

    async fn lead(&self, mut patient: Patient<W>, progress: &mut Progress) -> Result<JobEnd, JobError> {
        let mut count = SharedJobCount::default();
        let last_epoch = self.job.last_epoch();
        loop {
            let (number, receiver) = patient.next_receiver();
            let events = patient.events.within(number, &receiver);
            let job = if progress.needs_fence { &last_epoch } else { &*self.job };
            let ended = {
                // what is gone is not begun once more
                let part = if progress.ending >= Ending::Ordered { Part::Mover } else { Part::Head };
                let session = pin!(in_session(&receiver, job, part, &events, |feeder| {
                    self.lead_in(feeder, &events, progress, &mut count)
                }));
                patient.outages.watch(session).await
            };
            // by an order the answer to which was lost
            let was_closed = |error: &SessionEnd| progress.ending == Ending::Ordered && is_closed(error);
            if progress.ending == Ending::Closed || ended.as_ref().is_err_and(was_closed) {
                return Ok(JobEnd { count, walks: progress.walks });
            }
            match ended {
                // with the same one: it has the job's directory
                Ok(()) => patient.next = number,
                Err(error) => {
                    let has_begun = *self.begun.borrow();
                    let paused = patient.pause((&events, error), has_begun).await;
                    paused.map_err(|error| match error.into_queue_failure() {
                        Ok(error) => JobError::Queue(error),
                        Err(error) if error.is_no_room() => JobError::NoRoom(Box::new(error)),
                        Err(error) if has_begun => JobError::Lost(Box::new(error)),
                        Err(error) => JobError::NotBegun(Box::new(error)),
                    })?;
                }
            }
        }
    }

    /// Leads the job for one session. If another session may still be writing, it returns before directories are
    /// finished: they are set in the next epoch, which fences that session off.
    async fn lead_in(
        &self,
        feeder: Feeder,
        events: &SessionEvents,
        progress: &mut Progress,
        count: &mut SharedJobCount,
    ) -> Result<(), Stop> {
        // a session that breaks later than this takes nothing of it back
        if !progress.is_over() {
            *count = self.conduct(&feeder, events, progress).await?;
            self.queue.close().await?;
            progress.over.send_replace(true);
        }
        if !progress.needs_fence {
            while progress.movers.join_next().await.is_some() {}
            let mut others = self.others.clone();
            let have_ended = timeout(OTHERS_END_MAX, others.wait_for(|others| *others == 0)).await.is_ok();
            if !have_ended || progress.has_lost_sessions.load(Ordering::Relaxed) {
                progress.needs_fence = true;
                return Ok(());
            }
        }
        if progress.ending == Ending::Unfinished {
            let finishing = progress.finishing.get_or_insert_with(|| Finishing::of(&self.job));
            count.failed += finishing.run(&self.job, &feeder, events).await?;
            progress.ending = Ending::Finished;
        }
        progress.ending = Ending::Ordered;
        order(&feeder, SharedJobOrder::Close).await?;
        progress.ending = Ending::Closed;
        // the mark of the end is for openings of sessions that may still be on their way
        if !progress.needs_fence {
            order(&feeder, SharedJobOrder::Forget).await?;
        }
        Ok(())
    }

    /// Sees to it that all work ends; returns what the journals say then.
    async fn conduct(
        &self,
        feeder: &Feeder,
        events: &SessionEvents,
        progress: &mut Progress,
    ) -> Result<SharedJobCount, Stop> {
        // an answer shows that the session has begun; what all nodes have done meanwhile counts for the head
        let counted = count(feeder).await?;
        let ended = (counted.pass, counted.work_ended);
        if ended > progress.ended_most {
            progress.ended_most = ended;
            events.is_of_use();
        }
        self.begun.send_replace(true);
        loop {
            if self.queue.waiting().await?.is_idle() {
                let counted = count(feeder).await?;
                if counted.pass == progress.pass && counted.is_finished() {
                    return Ok(counted);
                }
                self.queue.put(vec![progress.walk_again(&self.job, &counted)?]).await?;
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                Some(ended) = progress.movers.join_next() => match ended {
                    Ok(Err(error)) if progress.movers.is_empty() => return Err(Stop::Movers(Box::new(error))),
                    Ok(Ok(()) | Err(_)) => {}
                    Err(_panic) => return Err(Stop::Panicked("a mover panicked")),
                },
            }
        }
    }
}

/// The other nodes that take part.
struct Others {
    count: watch::Receiver<usize>,
    /// How long they may take to come.
    come_within: Duration,
}

/// Runs mover `number` of the head once fewer than `number` other nodes take part. Each of these serves one receiver;
/// this mover would take their work.
async fn unless_others_come(
    number: usize,
    mut others: Others,
    mut over: watch::Receiver<bool>,
    mover: impl Future<Output = Result<(), SessionEnd>>,
) -> Result<(), SessionEnd> {
    if number > 0 && !others.come_within.is_zero() {
        let is_needed = async {
            sleep(others.come_within).await;
            // the head holds the other end
            drop(others.count.wait_for(|others| *others < number).await);
        };
        tokio::select! {
            biased;
            // a job that is over before is not held up
            _ = over.wait_for(|over| *over) => return Ok(()),
            () = is_needed => {}
        }
    }
    mover.await
}

/// How far the head is.
struct Progress {
    walks: u32,
    /// The pass that is under way: each goes through all work once more, and only the newest one counts.
    pass: u32,
    /// The most work that had ended when a session began, and its pass.
    ended_most: (u32, u64),
    /// How much of the pass had ended before the last walk.
    ended_before: u64,
    /// How many walks in a row have added nothing.
    in_vain: u32,
    movers: JoinSet<Result<(), SessionEnd>>,
    /// Set when all work has ended, and the queue knows that the job is over.
    over: watch::Sender<bool>,
    /// Whether a session of another may still do something, though all work has ended.
    needs_fence: bool,
    /// How far directories have mode and time; `None` before any has.
    finishing: Option<Finishing>,
    ending: Ending,
    /// Whether any session has ended otherwise than it should.
    has_lost_sessions: Arc<AtomicBool>,
}

/// How far the end of a job is that has no more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// Directories are not all set.
    Unfinished,
    /// All directories have mode and time.
    Finished,
    /// A receiver has been told to close the job, which has perhaps been done.
    Ordered,
    /// The job is closed, whatever becomes of the mark of its end.
    Closed,
}

impl Progress {
    fn new(
        movers: JoinSet<Result<(), SessionEnd>>,
        over: watch::Sender<bool>,
        has_lost_sessions: Arc<AtomicBool>,
    ) -> Self {
        Self {
            walks: 0,
            pass: 1,
            ended_most: (0, 0),
            ended_before: 0,
            in_vain: 0,
            movers,
            over,
            needs_fence: false,
            finishing: None,
            ending: Ending::Unfinished,
            has_lost_sessions,
        }
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// What is to be done where nobody has anything to do, and the journals say that something is missing. They
    /// contradict each other where the sources have changed; and where no walk adds anything, work may have ended whose
    /// parent nobody finds any more. Another pass does without what such work has told.
    ///
    /// # Errors
    /// Something stays missing that no walk finds, or the sources change in each pass: another job does it.
    fn walk_again(&mut self, job: &SharedJob, count: &SharedJobCount) -> Result<WorkItem, Stop> {
        let is_of_pass = count.pass == self.pass;
        let ended = if is_of_pass { count.work_ended } else { 0 };
        let as_before = self.walks > 0 && self.ended_before == ended;
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
        self.walks += 1;
        let begin = WorkItem::first(job.id, Work::Begin(job.source_count()), self.walks);
        Ok(WorkItem { marks: job.source_marks.clone(), ..begin.in_pass(job.id, self.pass) })
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

/// One that goes on with the next receiver where one fails.
struct Patient<W> {
    job: Arc<SharedJob>,
    queue: Arc<W>,
    receivers: Arc<[Receiver]>,
    next: usize,
    patience: Timeout,
    /// Times without a session in which work has ended. The head does none, and a mover may have none for long.
    outages: Outages,
    /// How many sessions have failed for good, one after the other.
    refusals: usize,
    events: JobEvents,
}

impl<W: WorkQueue> Patient<W> {
    fn next_number(&self) -> usize {
        self.next % self.receivers.len()
    }

    /// The next receiver, with its number.
    fn next_receiver(&mut self) -> (usize, Receiver) {
        let number = self.next_number();
        self.next += 1;
        (number, self.receivers[number].clone())
    }

    /// Does items in sessions, one after the other, until the job is over.
    async fn moving(mut self, mut begun: watch::Receiver<bool>) -> Result<(), SessionEnd> {
        if begun.wait_for(|begun| *begun).await.is_err() {
            return Ok(());
        }
        let mut has_had_session = self.job.view == View::Leads;
        loop {
            let (number, receiver) = self.next_receiver();
            let events = self.events.within(number, &receiver);
            let ended = {
                let session = pin!(in_session(&receiver, &self.job, Part::Mover, &events, |feeder| {
                    let (job, queue) = (Arc::clone(&self.job), Arc::clone(&self.queue));
                    Mover::new(job, queue, feeder, Arc::clone(&events)).run(|| events.has_ended())
                }));
                self.outages.watch(session).await
            };
            match ended {
                Ok(()) => return Ok(()),
                // the head has ended the job while something was still under way
                Err(SessionEnd::Stop(Stop::Queue(WorkError::Over))) => {
                    self.events.has_lost_sessions.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => {
                    has_had_session |= events.fate() != SessionFate::NotBegun;
                    let paused = self.pause((&events, error), has_had_session).await;
                    paused.map_err(|error| *error)?;
                }
            }
        }
    }

    /// Waits before the next session; fails when that has no use, or has lasted too long. Before the job has begun each
    /// receiver is tried once, so that a wrong name is told at once; also by a node that has just come, which nobody
    /// waits for then.
    async fn pause(
        &mut self,
        (session, error): (&SessionEvents, SessionEnd),
        has_begun: bool,
    ) -> Result<(), Box<SessionEnd>> {
        self.events.has_lost_sessions.store(true, Ordering::Relaxed);
        let fate = session.fate();
        let before = if fate == SessionFate::OfUse { 0 } else { self.refusals };
        self.refusals = if error.is_final() || !has_begun { before + 1 } else { 0 };
        if error.ends_all() || self.refusals >= self.receivers.len() {
            return Err(Box::new(error));
        }
        let Next::Retry(at, _) = self.outages.lost(fate) else { return Err(self.given_up(error)) };
        let number = session.number;
        if self.events.is_news(number, &error) {
            let at = match &error {
                SessionEnd::Connect(_says_where) => String::new(),
                _ => format!("{}: ", self.receivers[number].remote),
            };
            let next = match &*self.receivers {
                all if self.events.none_is_of_use(all.len()) => {
                    format!("no receiver is left: trying again for up to {}", self.patience)
                }
                all => format!("{} is tried next", all[self.next_number()].remote),
            };
            self.events.observer.on(&Event::Warned { message: format!("{at}{error}; {next}") });
        }
        if self.outages.wait(at).await { Ok(()) } else { Err(self.given_up(error)) }
    }

    /// Why nobody waits any longer.
    fn given_up(&self, last: SessionEnd) -> Box<SessionEnd> {
        Box::new(match self.outages.in_vain() {
            0 | 1 => last,
            sessions => SessionEnd::InVain { sessions, last: Box::new(last) },
        })
    }
}

/// Ends a job that nobody leads any more: from then on no session of it changes anything, and what it has left
/// unfinished is removed.
///
/// # Errors
/// No receiver does so; the last one's reason.
pub async fn end_abandoned(
    job: &SharedJob,
    receivers: &[Receiver],
    listener: Arc<dyn Listener + Send + Sync>,
) -> Result<(), Box<SessionEnd>> {
    let events = JobEvents::new(Arc::new(NoObserver), listener, Arc::default(), Arc::default());
    let mut ended = Ok(());
    for (number, receiver) in receivers.iter().enumerate() {
        let events = events.within(number, receiver);
        ended = in_session(receiver, job, Part::Head, &events, async |feeder| {
            order(&feeder, SharedJobOrder::Close).await
        })
        .await;
        match &ended {
            Ok(()) => break,
            Err(error) if is_closed(error) => return Ok(()),
            Err(_) => {}
        }
    }
    ended.map_err(Box::new)
}

async fn order(feeder: &Feeder, what: SharedJobOrder) -> Result<(), Stop> {
    match feeder.order(what, None).await? {
        SharedJobResult::Done => Ok(()),
        other => Err(refused(other)),
    }
}

async fn count(feeder: &Feeder) -> Result<SharedJobCount, Stop> {
    match feeder.order(SharedJobOrder::Count, None).await? {
        SharedJobResult::Counted(count) => Ok(*count),
        other => Err(refused(other)),
    }
}

/// So many walks in a row find nothing of what is missing before the job is given up: a queue that loses much does not
/// lose the same each time.
const WALKS_IN_VAIN_MAX: u32 = 10;
/// So many passes find that the sources have changed, and work was done twice meanwhile, before the job is given up.
const PASSES_MAX: u32 = 10;
/// How long the other nodes may take to end their sessions.
const OTHERS_END_MAX: Duration = Duration::from_secs(5);
/// How long a job that is given up tries to tell the queue so: somebody waits for the prompt.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How often the queue is asked whether it is idle.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The longest wait before the next session: mostly another receiver is there.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use zmove_engine::SenderConfig;
    use zmove_types::SharedJobId;
    use zmove_wire::{NodeName, Open, Refusal};

    use super::*;

    #[test]
    fn only_the_word_that_a_job_has_ended_says_that_it_is_closed() {
        let refused = |code| {
            let refusal = Refusal { code, text: String::new() };
            is_closed(&SessionEnd::Session(SessionError::Refused(refusal)))
        };
        assert!(refused(RefusalCode::Ended) && is_closed(&Stop::Fenced.into()));
        for code in [RefusalCode::Denied, RefusalCode::Target, RefusalCode::UnknownKey, RefusalCode::Busy] {
            assert!(!refused(code), "{code:?}");
        }
    }

    fn walks_again(count: impl Fn(&Progress) -> SharedJobCount) -> (Progress, Stop) {
        let node = NodeName::new("head").unwrap();
        let open = Open::new(b"t".to_vec(), [0; 16]);
        let names = (SharedJobId([7; 16]), 1, node);
        let job = SharedJob::new(names, Vec::new(), open, SenderConfig::default());
        let mut progress = Progress::new(JoinSet::new(), watch::Sender::new(false), Arc::default());
        loop {
            let counted = count(&progress);
            match progress.walk_again(&job, &counted) {
                Ok(item) => assert_eq!((item.pass, item.walk), (progress.pass, progress.walks)),
                Err(stop) => return (progress, stop),
            }
        }
    }

    #[test]
    fn walks_that_add_nothing_end_the_job_after_a_second_pass() {
        let lost = |progress: &Progress| SharedJobCount {
            pass: progress.pass,
            work_ended: 3,
            work_announced: 5,
            ..SharedJobCount::default()
        };
        let (progress, stop) = walks_again(lost);
        assert!(matches!(stop, Stop::Missing), "{stop}");
        assert_eq!((progress.pass, progress.walks), (2, 2 * WALKS_IN_VAIN_MAX + 1));
        let nothing_of_the_second = |_: &Progress| SharedJobCount { pass: 1, ..lost(&progress) };
        let (progress, stop) = walks_again(nothing_of_the_second);
        assert!(matches!(stop, Stop::Missing), "{stop}");
        assert_eq!((progress.pass, progress.walks), (2, 2 * WALKS_IN_VAIN_MAX));
    }

    #[test]
    fn a_queue_that_loses_much_has_as_many_walks_as_it_takes() {
        const ADDING: u32 = 50;
        let (progress, stop) = walks_again(|progress| SharedJobCount {
            pass: progress.pass,
            work_ended: progress.walks.min(ADDING).into(),
            work_announced: 99,
            ..SharedJobCount::default()
        });
        assert!(matches!(stop, Stop::Missing), "{stop}");
        assert_eq!((progress.pass, progress.walks), (2, ADDING + 2 * WALKS_IN_VAIN_MAX + 1));
    }

    #[test]
    fn ends_that_contradict_each_other_begin_another_pass_at_once_and_are_bounded() {
        let (progress, stop) = walks_again(|progress| SharedJobCount {
            pass: progress.pass,
            work_ended: 3,
            work_announced: 5,
            contradictions: 1,
            ..SharedJobCount::default()
        });
        assert!(matches!(stop, Stop::Contradictory(PASSES_MAX)), "{stop}");
        assert_eq!((progress.pass, progress.walks), (PASSES_MAX, PASSES_MAX - 1));
        let of_the_first =
            |_: &Progress| SharedJobCount { pass: 1, contradictions: 1, ..SharedJobCount::default() };
        let (progress, stop) = walks_again(of_the_first);
        assert!(matches!(stop, Stop::Missing) && progress.pass == 2, "{stop}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_that_waits_whether_it_is_needed_does_not_hold_up_a_job_that_is_over() {
        let count = watch::Sender::new(0);
        let over = watch::Sender::new(false);
        let began = Instant::now();
        let others = Others { count: count.subscribe(), come_within: Duration::from_secs(2) };
        let mover = unless_others_come(1, others, over.subscribe(), std::future::pending());
        let mover = timeout(Duration::from_secs(9), mover);
        let (ended, _before) = tokio::join!(mover, async { over.send_replace(true) });
        ended.unwrap().unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
