//! The head of a job: puts in the first item, looks how far the job is, and ends it.
//!
//! ```text
//!  begin ──► queue idle? ──► count ─┬─ all has ended ──────────────► close
//!              ▲                    ├─ all but what finishes it ──► put that in ──┐
//!              │                    └─ something is missing ──► walk once more ───┤
//!              └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! **Invariant:** the job has ended when the journals of the receivers say so, whatever the queue says. The queue only
//! tells when it is worth looking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use zmove_engine::Listener;
use zmove_sender::{Feeder, SessionError};
use zmove_types::{Event, NoObserver, Observer};
use zmove_wire::{SharedJobCount, SharedJobOrder, SharedJobResult};

use crate::job::SharedJob;
use crate::mover::{Mover, Stop, refused};
use crate::receiver::{Ears, Part, Receiver, SessionEnd, Skipped, in_session};
use crate::source::WorkSource;
use crate::work::{Work, WorkItem};

/// A job that is led from here, with movers of this process.
#[derive(Debug)]
pub struct Lead<W> {
    /// The job.
    pub job: Arc<SharedJob>,
    /// The queue.
    pub source: Arc<W>,
    /// The receivers; each mover begins with another of them, and goes on with the next where it fails.
    pub receivers: Arc<[Receiver]>,
    /// How many movers this process has.
    pub movers: usize,
    /// How long the job goes on when no receiver does.
    pub patience: Duration,
}

/// A job that has come to its end.
#[derive(Clone, Copy, Debug)]
pub struct JobEnd {
    /// What the journals of the receivers say.
    pub count: SharedJobCount,
    /// What was there already.
    pub skipped: Skipped,
    /// How often the sources have been walked: more than once where the queue has lost something.
    pub walks: u32,
}

/// Why a job has not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// It has not begun: no receiver takes it, or can be reached.
    #[error(transparent)]
    NotBegun(Box<SessionEnd>),
    /// No receiver goes on with it.
    #[error("no receiver goes on: {0}; run the same command again")]
    Lost(#[source] Box<SessionEnd>),
    /// The user has ended it.
    #[error("interrupted")]
    Interrupted,
}

impl<W: WorkSource> Lead<W> {
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
        let ears = Ears { observer, listener, skipped: Arc::default(), has_lost_sessions: Arc::default() };
        let (begun_in, begun) = watch::channel(false);
        let mut movers = JoinSet::new();
        for number in 0..self.movers {
            movers.spawn(self.patient(number, ears.clone()).moving(begun.clone()));
        }
        let has_lost_sessions = Arc::clone(&ears.has_lost_sessions);
        let mut progress =
            Progress { begun: begun_in, walks: 0, finishing: false, movers, has_lost_sessions };
        let patient = self.patient(0, ears);
        let ended = tokio::select! {
            ended = self.lead(patient, &mut progress) => ended,
            () = stop => Err(JobError::Interrupted),
        };
        if ended.is_err() {
            let _movers_end_anyway = self.source.close().await;
        }
        ended
    }

    fn patient(&self, number: usize, ears: Ears) -> Patient<W> {
        Patient {
            job: Arc::clone(&self.job),
            source: Arc::clone(&self.source),
            receivers: Arc::clone(&self.receivers),
            next: number,
            patience: self.patience,
            ears,
        }
    }

    async fn lead(&self, mut patient: Patient<W>, progress: &mut Progress) -> Result<JobEnd, JobError> {
        let mut outage = Outage::default();
        let mut count = SharedJobCount::default();
        loop {
            let (receiver, ears) = (patient.next_receiver(), patient.ears.clone());
            let session = in_session(&receiver, &self.job, Part::Head, &ears, |feeder| {
                self.lead_in(feeder, progress, (&mut outage, &mut count))
            });
            match session.await {
                Ok(()) => {
                    let skipped = patient.ears.skipped.so_far();
                    return Ok(JobEnd { count, skipped, walks: progress.walks });
                }
                Err(error) => {
                    let has_begun = *progress.begun.borrow();
                    patient.pause(error, &mut outage, has_begun).await.map_err(|error| {
                        if has_begun { JobError::Lost(error) } else { JobError::NotBegun(error) }
                    })?;
                }
            }
        }
    }

    /// Leads the job in one session, as far as that goes.
    async fn lead_in(
        &self,
        feeder: Feeder,
        progress: &mut Progress,
        (outage, count): (&mut Outage, &mut SharedJobCount),
    ) -> Result<(), Stop> {
        *count = self.conduct(&feeder, progress, outage).await?;
        self.source.close().await?;
        // their sessions end before the job's directory goes
        while progress.movers.join_next().await.is_some() {}
        match feeder.order(SharedJobOrder::Close, None).await? {
            SharedJobResult::Done => {}
            other => return Err(refused(other)),
        }
        if !progress.has_lost_sessions.load(Ordering::Relaxed) {
            // no opening of a session is still on its way
            let _stays_for_a_while_then = feeder.order(SharedJobOrder::Forget, None).await?;
        }
        Ok(())
    }

    /// Sees to it that all work ends; returns what the journals say then.
    async fn conduct(
        &self,
        feeder: &Feeder,
        progress: &mut Progress,
        outage: &mut Outage,
    ) -> Result<SharedJobCount, Stop> {
        // an answer shows that the session has begun
        count(feeder).await?;
        outage.ends();
        let _movers_may_have_gone = progress.begun.send(true);
        loop {
            if self.source.waiting().await?.is_idle() {
                let counted = count(feeder).await?;
                if counted.is_finished() {
                    return Ok(counted);
                }
                self.source.put(vec![progress.next(&self.job, &counted)]).await?;
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                Some(ended) = progress.movers.join_next() => match ended {
                    Ok(Err(error)) if progress.movers.is_empty() => return Err(Stop::Movers(Box::new(error))),
                    Ok(Ok(()) | Err(_)) => {}
                    Err(_panic) => return Err(Stop::Nonsense("a mover panicked")),
                },
            }
        }
    }
}

/// How far the head is.
struct Progress {
    /// Told when the job has begun at the target.
    begun: watch::Sender<bool>,
    walks: u32,
    /// Whether what finishes the job has been put in since the last walk began.
    finishing: bool,
    movers: JoinSet<Result<(), SessionEnd>>,
    /// Whether any session has ended otherwise than it should.
    has_lost_sessions: Arc<AtomicBool>,
}

impl Progress {
    /// What is to be done where nobody has anything to do, and the journals say this.
    fn next(&mut self, job: &SharedJob, count: &SharedJobCount) -> WorkItem {
        let sources = job.source_count();
        let first = |walk| WorkItem::first(job.id, Work::Begin(sources), walk);
        if count.missing_work() == Some(1) && !self.finishing && self.walks > 0 {
            self.finishing = true;
            return first(self.walks).child(job.id, Work::finish(sources));
        }
        self.finishing = false;
        self.walks += 1;
        first(self.walks)
    }
}

/// One that goes on with the next receiver where one fails.
struct Patient<W> {
    job: Arc<SharedJob>,
    source: Arc<W>,
    receivers: Arc<[Receiver]>,
    next: usize,
    patience: Duration,
    ears: Ears,
}

/// The time without a session in which anything was done.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    /// How many sessions have failed for good, one after the other.
    refusals: usize,
}

impl Outage {
    fn ends(&mut self) {
        *self = Self::default();
    }
}

impl<W: WorkSource> Patient<W> {
    fn next_receiver(&mut self) -> Receiver {
        let receiver = &self.receivers[self.next % self.receivers.len()];
        self.next += 1;
        receiver.clone()
    }

    /// Does items in sessions, one after the other, until the job is over.
    async fn moving(mut self, mut begun: watch::Receiver<bool>) -> Result<(), SessionEnd> {
        if begun.wait_for(|begun| *begun).await.is_err() {
            return Ok(());
        }
        let mut outage = Outage::default();
        loop {
            let (receiver, ears) = (self.next_receiver(), self.ears.clone());
            let session = in_session(&receiver, &self.job, Part::Mover, &ears, |feeder| {
                let (job, source) = (Arc::clone(&self.job), Arc::clone(&self.source));
                Mover::new(job, source, feeder, Arc::clone(&ears.observer)).run(|| outage.ends())
            });
            match session.await {
                Ok(()) => return Ok(()),
                Err(error) => self.pause(error, &mut outage, true).await.map_err(|error| *error)?,
            }
        }
    }

    /// Waits before the next session; fails when that has no use, or has lasted too long. Before the job has begun each
    /// receiver is tried once, so that a wrong name is told at once.
    async fn pause(
        &self,
        error: SessionEnd,
        outage: &mut Outage,
        has_begun: bool,
    ) -> Result<(), Box<SessionEnd>> {
        self.ears.has_lost_sessions.store(true, Ordering::Relaxed);
        let since = *outage.since.get_or_insert_with(Instant::now);
        outage.refusals = if error.is_final() || !has_begun { outage.refusals + 1 } else { 0 };
        let ends_all = matches!(error, SessionEnd::Stop(Stop::Fenced | Stop::Movers(_)));
        if ends_all || outage.refusals >= self.receivers.len() || since.elapsed() >= self.patience {
            return Err(Box::new(error));
        }
        let message = format!("{error}; the job goes on with the next receiver");
        self.ears.observer.on(&Event::Warned { message });
        sleep(PAUSE).await;
        Ok(())
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
    let observer = Arc::new(NoObserver);
    let ears = Ears { observer, listener, skipped: Arc::default(), has_lost_sessions: Arc::default() };
    let close = async |feeder: Feeder| match feeder.order(SharedJobOrder::Close, None).await? {
        SharedJobResult::Done => Ok(()),
        other => Err(refused(other)),
    };
    let mut ended = Ok(());
    for receiver in receivers {
        ended = in_session(receiver, job, Part::Head, &ears, close).await;
        match &ended {
            // that it has ended already is a refusal, too
            Ok(()) | Err(SessionEnd::Session(SessionError::Refused(_))) => break,
            Err(_) => {}
        }
    }
    ended.map_err(Box::new)
}

async fn count(feeder: &Feeder) -> Result<SharedJobCount, Stop> {
    match feeder.order(SharedJobOrder::Count, None).await? {
        SharedJobResult::Counted(count) => Ok(count),
        other => Err(refused(other)),
    }
}

/// How often the queue is asked whether it is idle.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long one waits before the next session.
const PAUSE: Duration = Duration::from_millis(500);
