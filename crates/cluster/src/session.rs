//! Sessions with the receivers of a job, and orders to a receiver.
//!
//! **Invariant:** each order of the head has a time limit. A receiver answers pings even if its storage hangs. In that
//! case, the head tries another receiver.

mod events;
mod seen_messages;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;
use zmove_engine::{Connector, DialSettings, Notice};
use zmove_sender::{Feeder, Link, Push, Run, SessionError, Summary};
use zmove_types::Beginning;
use zmove_wire::{NotKept, Refusal, SharedJobOrder, SharedJobResult};

use crate::error::{SessionEnd, refused};
use crate::job::{Receiver, SharedJob};
use crate::queue::LEASE;

use self::events::ANSWERS_WITHIN;

pub use self::events::SessionResults;
pub(crate) use self::events::{ENDS_WITHIN, JobEvents, SessionEvents};
pub use self::seen_messages::SeenMessages;

/// Runs `work` in a session with a receiver.
pub(crate) async fn in_session<T, Doing: Future<Output = Result<T, SessionEnd>>>(
    receiver: &Receiver,
    job: &SharedJob,
    beginning: Beginning,
    events: &Arc<SessionEvents>,
    work: impl FnOnce(Feeder) -> Doing,
) -> Result<T, SessionEnd> {
    let Receiver {
        home,
        remote,
        settings,
    } = receiver;
    let settings = &DialSettings {
        job_grant: job.grant.current(),
        ..settings.clone()
    };
    let connector = Connector {
        home,
        remote,
        settings,
        listener: &*events.events.listener,
    };
    let mut connecting = Box::pin(connector.connect(None));
    let mut reached = match timeout(ANSWERS_WITHIN, &mut connecting).await {
        Ok(reached) => reached,
        Err(_elapsed) => {
            events.warn_of_no_answer();
            connecting.await
        }
    }?;
    let head = job.head.clone();
    reached.link.control.0.answer_if(move || head.holds());
    let mut up = ConnectedSession::new(events);
    let (push, feeder) =
        Push::with_feeder(job.opening(beginning), job.config.clone(), Instant::now());
    let (break_off, broken_off) = oneshot::channel::<()>();
    let stop = async {
        // The sender of this channel is also dropped when the work is done, which ends the session too.
        let _told_or_dropped = broken_off.await;
    };
    let mut session = spawn_session(push, reached.link, Arc::clone(events), stop);
    let ended = tokio::select! {
        ended = &mut session => match ended {
            Ok(_summary) => Err(SessionEnd::PeerMisbehaved("the receiver ended the session early")),
            Err(error) => Err(SessionEnd::from(error)),
        },
        never = events.warn_of_no_opening() => match never {},
        done = work(feeder) => end(session, break_off, events, done).await,
    };
    if let Some(cause) = reached.route.close().await {
        let notice = Notice::BlackHole { cause };
        events.events.listener.hear(&notice);
    }
    // Keep this after the last await. If the future is dropped earlier, it is unknown whether the session has ended.
    up.has_ended = true;
    drop(up);
    ended.map_err(|end| with_receiver(end, &events.receiver, job))
}

/// Adds the receiver's name to an error if the receiver has no space or refuses the session. Several receivers may fail
/// in this way for different reasons.
fn with_receiver(end: SessionEnd, receiver: &str, job: &SharedJob) -> SessionEnd {
    if let Some((operation, code)) = end.found_no_room() {
        return SessionEnd::NoRoom {
            receiver: receiver.to_owned(),
            target: job.target(),
            operation,
            code,
        };
    }
    match end {
        SessionEnd::Session(SessionError::Refused(Refusal { code, text })) => {
            SessionError::Refused(Refusal {
                code,
                text: format!("{text} (at {receiver})"),
            })
            .into()
        }
        end => end,
    }
}

/// Asks a receiver in a separate session whether it sees the job and accepts sessions.
pub(crate) async fn ask(
    receiver: Receiver,
    job: Arc<SharedJob>,
    events: Arc<SessionEvents>,
) -> Result<(), SessionEnd> {
    let ping = async |feeder: Feeder| {
        Orders {
            feeder,
            answers_within: ENDS_MAX,
        }
        .give(SharedJobOrder::Ping)
        .await
    };
    let asked = in_session(&receiver, &job, Beginning::UnderWay, &events, ping).await;
    asked.inspect_err(|error| events.note_lost(error))
}

/// Gives orders in one session. Clones share the session.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) feeder: Feeder,
    /// Time limit for the answer to each order.
    pub(crate) answers_within: Duration,
}

impl Orders {
    /// Gives an order and returns the answer.
    pub(crate) async fn answer(
        &self,
        order: SharedJobOrder,
    ) -> Result<SharedJobResult, SessionEnd> {
        let answer = timeout(self.answers_within, self.feeder.order(order, None)).await;
        Ok(answer.map_err(|_elapsed| SessionEnd::OrderTimeout(self.answers_within))??)
    }

    /// Gives an order whose answer contains no data.
    pub(crate) async fn give(&self, order: SharedJobOrder) -> Result<(), SessionEnd> {
        match self.answer(order).await? {
            SharedJobResult::Done => Ok(()),
            other => Err(refused(other)),
        }
    }

    /// Orders the receiver to publish and flush all its data. Returns the metadata that could not be preserved.
    pub(crate) async fn settle(&self) -> Result<Vec<NotKept>, SessionEnd> {
        settled(self.answer(SharedJobOrder::Settle).await?)
    }
}

/// Returns the metadata that could not be preserved from the answer to a settle order.
pub(crate) fn settled(result: SharedJobResult) -> Result<Vec<NotKept>, SessionEnd> {
    match result {
        SharedJobResult::Settled(not_kept) => Ok(not_kept),
        other => Err(refused(other)),
    }
}

/// A connected session. If this is dropped before `has_ended` is set, the session counts as lost.
pub(crate) struct ConnectedSession<'a> {
    session: &'a SessionEvents,
    has_ended: bool,
}

impl<'a> ConnectedSession<'a> {
    pub(crate) fn new(session: &'a SessionEvents) -> Self {
        session.update_receiver(|known| known.up_at.push(session.receiver.clone()));
        Self {
            session,
            has_ended: false,
        }
    }
}

impl Drop for ConnectedSession<'_> {
    fn drop(&mut self) {
        let Self { session, has_ended } = self;
        session.update_receiver(|known| known.up_at.pop());
        if !*has_ended {
            session.events.served.record_lost_session();
        }
    }
}

/// Runs a session in a separate task. If the returned future is dropped, the task still runs to the session's end,
/// where it stops the session's threads and notifies the receiver.
fn spawn_session(
    push: Push,
    link: Link,
    events: Arc<SessionEvents>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = Result<Summary, SessionError>> + Unpin {
    let session = tokio::spawn(async move {
        let mut run = Run::begin(None, Instant::now());
        let observer = Arc::clone(&events);
        let ended = push.run(&mut run, link, observer, stop).await;
        if run.standing.begun > 0 {
            let mut state = events.state.lock();
            state.answered.get_or_insert_with(tokio::time::Instant::now);
        }
        ended
    });
    Box::pin(async move {
        session
            .await
            .unwrap_or_else(|failed| match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_cancelled) => Err(SessionError::Interrupted),
            })
    })
}

/// Waits for the end of a session whose work has ended, and returns the result of the work. Interrupts the session if
/// the work has failed, or if the session takes too long, for example because its storage hangs. The data of completed
/// work has already been flushed by orders, so nothing depends on the session's end.
async fn end<T, S>(
    mut session: impl Future<Output = Result<S, SessionError>> + Unpin,
    break_off: oneshot::Sender<()>,
    events: &SessionEvents,
    done: Result<T, SessionEnd>,
) -> Result<T, SessionEnd> {
    let ends_within = match &done {
        Ok(_) if events.state.lock().is_awaited => ENDS_WITHIN,
        Ok(_) => ENDS_MAX,
        // The work may learn that the session is over before the session reports its error.
        Err(SessionEnd::SessionOver(_)) => ERROR_REPORT_TIMEOUT,
        Err(_) => Duration::ZERO,
    };
    let ended = timeout(ends_within, &mut session).await;
    if ended.is_err() {
        drop(break_off);
        let _interrupted = session.await;
    }
    match (done, ended) {
        (Ok(done), Ok(ended)) => Ok(ended.map(|_| done)?),
        (Ok(done), Err(_elapsed)) => {
            events.events.served.record_lost_session();
            Ok(done)
        }
        (Err(SessionEnd::SessionOver(_)), Ok(Err(error))) => Err(error.into()),
        (Err(end), _) => Err(end),
    }
}

/// Time limit for any session to end. The receiver may have a lot of data to flush.
const ENDS_MAX: Duration = Duration::from_secs(2 * LEASE.as_secs());
/// Time limit for a session to report its error.
const ERROR_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::session_events;

    #[tokio::test(start_paused = true)]
    async fn a_session_that_does_not_end_when_all_is_done_is_broken_off_and_lost() {
        let ends = async |is_awaited: bool, within| {
            let session_events = session_events();
            if is_awaited {
                session_events.await_end();
            }
            let (break_off, broken_off) = oneshot::channel();
            let session = Box::pin(async {
                let _broken_off = timeout(within, broken_off).await;
                Ok(())
            });
            let began = tokio::time::Instant::now();
            end(session, break_off, &session_events, Ok(()))
                .await
                .unwrap();
            (
                began.elapsed(),
                session_events.events.served.has_lost_sessions(),
            )
        };
        assert_eq!(ends(true, ENDS_WITHIN / 2).await, (ENDS_WITHIN / 2, false));
        assert_eq!(ends(true, Duration::MAX).await, (ENDS_WITHIN, true));
        assert_eq!(ends(false, ENDS_MAX / 2).await, (ENDS_MAX / 2, false));
        assert_eq!(ends(false, Duration::MAX).await, (ENDS_MAX, true));
    }
}
