//! The work of one node in a job. The node has movers, and each mover has consecutive sessions with the receivers.
//!
//! ```text
//!  the job begins ──► session with a receiver ──┬─ the job is over ──► end
//!                         ▲                     ├─ its own receiver is back ──► the next session is with that
//!                         │                     └─ it is lost, or refused ─┬─ no use, or too long ──► the error
//!                         └── the next receiver, after a wait ◄────────────┘
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zmove_engine::{Listener, Outages, RetryAction, SessionProgress, Timeout};
use zmove_sender::SessionError;
use zmove_types::{Beginning, Event, Observer};

use crate::error::{MOVER_PANICKED, SessionEnd, WorkError};
use crate::job::{NodeRole, Receiver, SharedJob};
use crate::mover::{Mover, MoverEnd};
use crate::queue::WorkQueue;
use crate::session::{JobEvents, SeenMessages, SessionEvents, SessionResults, ask, in_session};

/// A node of a job, whose movers run in this process.
#[derive(Debug)]
pub struct Node<W> {
    /// The job.
    pub job: Arc<SharedJob>,
    /// The queue.
    pub queue: Arc<W>,
    /// The receivers. Each mover starts with a different one, and continues with the next one if it fails.
    pub receivers: Arc<[Receiver]>,
    /// Number of movers of this node.
    pub movers: usize,
    /// How long the node keeps trying when no receiver is available.
    pub patience: Duration,
    /// Results of this node's sessions.
    pub served: Arc<SessionResults>,
    /// Failures that any node has reported. The head reports and counts each of them once. Default: none.
    pub told: Arc<SeenMessages>,
    /// Set when the movers of this node should finish their items and leave the job.
    pub leaves: watch::Sender<bool>,
}

impl<W: WorkQueue> Node<W> {
    /// Creates a node that has done nothing yet.
    #[must_use]
    pub fn new(
        job: SharedJob,
        queue: Arc<W>,
        receivers: Vec<Receiver>,
        movers: usize,
        patience: Duration,
    ) -> Self {
        let (served, told, leaves) = Default::default();
        Self {
            job: Arc::new(job),
            queue,
            receivers: receivers.into(),
            movers,
            patience,
            served,
            told,
            leaves,
        }
    }

    /// Works on a job that another node leads. `number` is the number of this node.
    ///
    /// # Errors
    /// No receiver is available any more.
    pub async fn take_part(
        &self,
        number: usize,
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
    ) -> Result<(), SessionEnd> {
        let events = self.events(observer, listener);
        let mut movers = JoinSet::new();
        for mover in 0..self.movers {
            movers.spawn(
                self.sessions(number * self.movers + mover, events.clone())
                    .moving(),
            );
        }
        let mut ended = Ok(());
        while let Some(mover) = movers.join_next().await {
            ended = ended.and(mover.unwrap_or_else(|_panic| Err(MOVER_PANICKED)));
        }
        ended
    }

    pub(crate) fn events(
        &self,
        observer: Arc<dyn Observer>,
        listener: Arc<dyn Listener + Send + Sync>,
    ) -> Arc<JobEvents> {
        JobEvents::new(
            observer,
            listener,
            Arc::clone(&self.served),
            Arc::clone(&self.told),
        )
    }

    /// Returns the sessions of one mover, or of the head. The first session uses the receiver with the number `first`.
    pub(crate) fn sessions(&self, first: usize, events: Arc<JobEvents>) -> MoverSessions<W> {
        let patience = Timeout(self.patience);
        MoverSessions {
            job: Arc::clone(&self.job),
            queue: Arc::clone(&self.queue),
            receivers: Arc::clone(&self.receivers),
            next: first,
            patience,
            outages: Outages::new(patience).with_max_wait(WAIT_MAX),
            is_under_way: false,
            refusals: 0,
            pass: AtomicU32::new(1),
            leaves: self.leaves.subscribe(),
            events,
        }
    }
}

/// Consecutive sessions. When a session fails, the next one is with the next receiver.
pub(crate) struct MoverSessions<W> {
    job: Arc<SharedJob>,
    queue: Arc<W>,
    receivers: Arc<[Receiver]>,
    /// Index of the next session's receiver. It keeps increasing beyond the number of receivers.
    next: usize,
    patience: Timeout,
    /// Tracks periods in which this mover completed no work. The head itself completes no work items, and a mover may
    /// complete none for a long time.
    pub(crate) outages: Outages,
    /// Whether the job is known to be running. Until it is, each receiver is tried only once, so that a wrong name is
    /// reported immediately. This also holds for a node that joins late, because no other node waits for it.
    pub(crate) is_under_way: bool,
    /// Number of consecutive sessions that failed permanently. Any failure counts until the job is known to be running.
    refusals: usize,
    /// The newest pass from which the mover has received an item.
    pass: AtomicU32,
    /// Set when the node leaves the job.
    leaves: watch::Receiver<bool>,
    events: Arc<JobEvents>,
}

impl<W: WorkQueue> MoverSessions<W> {
    fn next_number(&self) -> usize {
        self.next % self.receivers.len()
    }

    /// Returns the receiver of the next session, and the events of that session.
    pub(crate) fn next(&mut self) -> (Receiver, Arc<SessionEvents>) {
        let number = self.next_number();
        self.next += 1;
        let receiver = self.receivers[number].clone();
        let events = self.events.within(number, &receiver);
        (receiver, events)
    }

    /// Processes items in consecutive sessions until the job is over. Each mover returns to its first receiver when
    /// that receiver works again. Otherwise, all movers would end up at one receiver and fail together with it.
    pub(crate) async fn moving(mut self) -> Result<(), SessionEnd> {
        self.is_under_way = self.job.view == NodeRole::Head;
        let own = self.next_number();
        let mut leaves = self.leaves.clone();
        while !*leaves.borrow() {
            let (receiver, events) = self.next();
            let own_is_well = self.is_well(own);
            let should_leave = async {
                tokio::select! {
                    () = own_is_well, if events.number != own => {}
                    _ = leaves.wait_for(|leaves| *leaves) => events.await_end(),
                }
            };
            let session = in_session(
                &receiver,
                &self.job,
                Beginning::UnderWay,
                &events,
                |feeder| {
                    let queue = Arc::clone(&self.queue);
                    let mover =
                        Mover::new(Arc::clone(&self.job), queue, feeder, Arc::clone(&events));
                    mover.run(should_leave, &self.pass)
                },
            );
            let ended = self.outages.watch(pin!(session)).await;
            match ended {
                Ok(MoverEnd::Over) => return Ok(()),
                Ok(MoverEnd::Left) => (self.next, self.refusals) = (own, 0),
                // The head has closed the job while an item was still running.
                Err(SessionEnd::Queue(WorkError::Over)) => {
                    self.events.served.record_lost_session();
                    return Ok(());
                }
                Err(error) => {
                    self.is_under_way |= events.outcome() != SessionProgress::NotBegun;
                    self.pause(&events, error).await.map_err(|error| *error)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until a receiver that failed accepts sessions again.
    fn is_well(&self, number: usize) -> impl Future<Output = ()> + use<W> {
        let receiver = self.receivers[number].clone();
        let job = Arc::clone(&self.job);
        let events = self.events.clone();
        async move {
            let mut wait = BACK_AFTER;
            loop {
                sleep(wait).await;
                let session = events.within(number, &receiver);
                let asked = ask(receiver.clone(), Arc::clone(&job), Arc::clone(&session));
                if asked.await.is_ok() {
                    session.record_progress();
                    break;
                }
                wait = (wait * 2).min(BACK_AFTER_MAX);
            }
        }
    }

    /// Waits before the next session. Fails if another session would be useless, or if the timeout has been reached.
    pub(crate) async fn pause(
        &mut self,
        session: &SessionEvents,
        error: SessionEnd,
    ) -> Result<(), Box<SessionEnd>> {
        let fate = session.outcome();
        session.note_lost(&error);
        let before = if fate == SessionProgress::Progressed {
            0
        } else {
            self.refusals
        };
        self.refusals = if error.is_final() || !self.is_under_way {
            before + 1
        } else {
            0
        };
        if error.ends_all() || self.refusals >= self.receivers.len() {
            return Err(Box::new(error));
        }
        let RetryAction::Retry(retry_at, _) = self.outages.lost(fate) else {
            return Err(self.given_up(error));
        };
        let number = session.number;
        if self.events.mark_useless(number, &error) {
            let failed = failure_at(&self.receivers[number], &error);
            let then = match &*self.receivers {
                all if self.events.is_every_receiver_useless(all.len()) => {
                    format!(
                        "no receiver is left: trying again for up to {}",
                        self.patience
                    )
                }
                all => format!("{} is tried next", all[self.next_number()].remote),
            };
            self.events.observer.on(&Event::Warned {
                message: format!("{failed}; {then}"),
            });
        }
        if self.outages.wait(retry_at).await {
            Ok(())
        } else {
            Err(self.given_up(error))
        }
    }

    /// Returns the reason for giving up.
    fn given_up(&self, last: SessionEnd) -> Box<SessionEnd> {
        Box::new(match self.outages.fruitless_sessions() {
            0 | 1 => last,
            sessions => SessionEnd::InVain {
                sessions,
                last: Box::new(last),
            },
        })
    }
}

/// Formats the error of a session with the receiver's name, unless the error already contains it.
pub(crate) fn failure_at(receiver: &Receiver, error: &SessionEnd) -> String {
    match error {
        SessionEnd::Connect(_)
        | SessionEnd::Session(SessionError::Refused(_))
        | SessionEnd::NoRoom { .. } => error.to_string(),
        _ => format!("{}: {error}", receiver.remote),
    }
}

/// How long a mover stays away from its first receiver before it probes that receiver. The interval doubles each time,
/// up to the maximum.
const BACK_AFTER: Duration = Duration::from_secs(10);
const BACK_AFTER_MAX: Duration = Duration::from_secs(300);
/// Maximum wait before the next session. Usually, another receiver is available.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use zmove_engine::NoListener;
    use zmove_types::NoObserver;
    use zmove_wire::{Refusal, RefusalCode};

    use super::*;
    use crate::lab::{job, receiver};
    use crate::queue::LocalQueue;

    fn node(receivers: usize, patience: Duration) -> Node<LocalQueue> {
        Node::new(
            job(),
            Arc::new(LocalQueue::default()),
            vec![receiver(); receivers],
            1,
            patience,
        )
    }

    fn under_way(node: &Node<LocalQueue>) -> MoverSessions<LocalQueue> {
        let mut sessions =
            node.sessions(0, node.events(Arc::new(NoObserver), Arc::new(NoListener)));
        sessions.is_under_way = true;
        sessions
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_end_a_mover_when_all_receivers_have_refused_in_a_row() {
        let node = node(2, Duration::from_secs(600));
        let mut sessions = under_way(&node);
        let mut goes_on = async |is_of_use: bool| {
            let (_receiver, session) = sessions.next();
            if is_of_use {
                session.record_progress();
            }
            let refusal = Refusal {
                code: RefusalCode::Denied,
                text: String::new(),
            };
            let refused = SessionEnd::Session(SessionError::Refused(refusal));
            sessions.pause(&session, refused).await.is_ok()
        };
        assert!(
            goes_on(false).await && goes_on(true).await,
            "the second one has been of use before"
        );
        assert!(!goes_on(false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_that_begin_and_are_lost_are_counted_when_nobody_waits_any_longer() {
        let patience = Duration::from_secs(5);
        let node = node(2, patience);
        let given_up = async |begins: bool| {
            let mut sessions = under_way(&node);
            for number in 1_u32.. {
                let (_receiver, session) = sessions.next();
                if begins {
                    session.on(&Event::Answered);
                }
                let lost = SessionEnd::OrderTimeout(patience);
                if let Err(end) = sessions.pause(&session, lost).await {
                    return (number, *end);
                }
            }
            unreachable!("the patience has an end")
        };
        let (number, end) = given_up(true).await;
        let SessionEnd::InVain { sessions, last } = end else {
            panic!("{end}")
        };
        assert!(number > 1 && sessions == number, "{sessions} of {number}");
        assert!(matches!(*last, SessionEnd::OrderTimeout(_)), "{last}");
        let (_, end) = given_up(false).await;
        assert!(matches!(end, SessionEnd::OrderTimeout(_)), "{end}");
    }
}
