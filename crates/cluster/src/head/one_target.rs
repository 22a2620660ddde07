//! Checks that all receivers of a job share one directory at the target.
//!
//! If the storage is not mounted on a host, an empty directory takes its place. If the job starts there, all data is
//! written to the host's own disk. The job cannot tell which of two directories is the right one. It therefore fails if
//! a receiver does not see it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use tokio::time::{Instant, sleep, timeout};
use zmove_sender::SessionEnded;
use zmove_types::Event;

use crate::error::SessionEnd;
use crate::head::JobPhase;
use crate::job::Receiver;
use crate::session::{ENDS_WITHIN, JobEvents, SessionEvents};

/// A check that a receiver sees the job, either through a mover's session or through a separate session.
pub(crate) struct TargetCheck {
    pub(crate) receiver: Receiver,
    /// Number of the receiver.
    pub(crate) number: usize,
    pub(crate) events: Arc<JobEvents>,
    /// Phase of the job.
    pub(crate) phase: watch::Receiver<JobPhase>,
    /// Maximum time for which the receiver may report that it does not see the job. [`VISIBLE_WITHIN`] applies if it is
    /// shorter.
    pub(crate) patience: Duration,
}

impl TargetCheck {
    /// Calls `ask` to query the receiver until the receiver sees the job. At the end of the job, a receiver that cannot
    /// be reached is skipped.
    ///
    /// # Errors
    /// The receiver does not see the job. The error is the receiver's name.
    pub(crate) async fn await_visible_job<Asking: Future<Output = Result<(), SessionEnd>>>(
        mut self,
        ask: impl Fn(Arc<SessionEvents>) -> Asking,
    ) -> Result<(), String> {
        if self.until(JobPhase::Begun).await.is_err() {
            return Ok(());
        }
        self.pause(MOVERS_JOIN_WITHIN).await;
        let mut unseen_since = None;
        let mut is_away = false;
        let mut has_warned = false;
        while !self.events.has_seen_job(self.number) {
            // At the end of the job, do not wait for an unreachable receiver, and wait only briefly for a receiver that
            // does not answer. Wait without limit for a receiver that has already reported that it does not see the
            // job.
            let at_end_within = match (is_away, self.events.has_missed_job(self.number)) {
                (true, _) => Some(Duration::ZERO),
                (false, true) => None,
                (false, false) => Some(ENDS_WITHIN),
            };
            let Err(error) = self.ask_once(&ask, at_end_within).await else {
                break;
            };
            is_away = error.is_away();
            // A receiver does not see the job if it has reported to a mover that the job is missing, even if it now
            // refuses for a different reason.
            if error.is_absent() || !is_away && self.events.has_missed_job(self.number) {
                let since = *unseen_since.get_or_insert_with(Instant::now);
                let patience = VISIBLE_WITHIN.min(self.patience);
                if since.elapsed() >= patience {
                    return Err(self.receiver.remote.to_string());
                }
                if self.have_movers_left() && !std::mem::replace(&mut has_warned, true) {
                    let seconds = patience.saturating_sub(since.elapsed()).as_secs();
                    let receiver = &self.receiver.remote;
                    let message = format!(
                        "{receiver} does not see the moved files yet: retrying for {seconds} s"
                    );
                    self.events.observer.on(&Event::Warned { message });
                }
                sleep(ASKED_AGAIN_AFTER).await;
                continue;
            }
            // The storage may be mounted by the time the receiver is reachable again. Give the receiver the full time
            // to see the job.
            unseen_since = None;
            if self.have_movers_left() {
                // The movers have reported the cause.
                break;
            }
            self.pause(TRIED_AGAIN_AFTER).await;
        }
        Ok(())
    }

    /// Waits for `time`, or until the movers have left.
    async fn pause(&mut self, time: Duration) {
        drop(timeout(time, self.until(JobPhase::Left)).await);
    }

    async fn until(&mut self, phase: JobPhase) -> Result<(), RecvError> {
        self.phase.wait_for(|now| *now >= phase).await.map(drop)
    }

    fn have_movers_left(&self) -> bool {
        *self.phase.borrow() == JobPhase::Left
    }

    /// Queries the receiver once. At the end of the job, a receiver that does not answer within `at_end_within` counts
    /// as unreachable.
    async fn ask_once<Asking: Future<Output = Result<(), SessionEnd>>>(
        &mut self,
        ask: impl Fn(Arc<SessionEvents>) -> Asking,
        at_end_within: Option<Duration>,
    ) -> Result<(), SessionEnd> {
        let session = self.events.within(self.number, &self.receiver);
        let at_end = async {
            let _set_or_dropped = self.until(JobPhase::Over).await;
            match at_end_within {
                Some(time) => sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            asked = ask(session) => asked,
            () = at_end => Err(SessionEnded.into()),
        }
    }
}

/// How long the movers of this process have to open their first sessions. A mover's session may make a separate check
/// unnecessary.
const MOVERS_JOIN_WITHIN: Duration = Duration::from_secs(1);
/// How long a directory created by one host may be invisible to another. An NFS client may cache an earlier lookup for
/// a minute (acdirmax in nfs(5)).
const VISIBLE_WITHIN: Duration = Duration::from_secs(70);
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use zmove_sender::SessionError;
    use zmove_types::NoObserver;
    use zmove_wire::{Refusal, RefusalCode};

    use super::*;
    use crate::lab::{job_events, receiver};

    /// Returns the result of a target check and its duration. `answers` are the receiver's answers, and the movers
    /// leave after `leave`.
    async fn said(
        patience: Duration,
        leave: Duration,
        answers: impl AsyncFn(u32, &SessionEvents) -> Result<(), SessionEnd>,
    ) -> (Result<(), String>, Duration) {
        let phase = watch::Sender::new(JobPhase::Begun);
        let witness = TargetCheck {
            receiver: receiver(),
            number: 0,
            events: job_events(Arc::new(NoObserver)),
            phase: phase.subscribe(),
            patience,
        };
        let asked = AtomicU32::new(0);
        let began = Instant::now();
        let (answers, asked) = (&answers, &asked);
        let ask = |events: Arc<SessionEvents>| async move {
            let answered = answers(asked.fetch_add(1, Ordering::Relaxed), &events).await;
            answered.inspect_err(|error| events.note_lost(error))
        };
        let said = witness.await_visible_job(ask);
        let leaving = async {
            sleep(leave).await;
            phase.send_replace(JobPhase::Left);
            std::future::pending().await
        };
        let said = tokio::select! {
            said = said => said,
            () = leaving => unreachable!("it is pending"),
        };
        (said, began.elapsed())
    }

    fn absent() -> SessionEnd {
        let refusal = Refusal {
            code: RefusalCode::NotUnderWay,
            text: String::new(),
        };
        SessionError::Refused(refusal).into()
    }

    fn away() -> SessionEnd {
        SessionEnded.into()
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_does_not_see_the_job_in_time_ends_it() {
        let never = async |_, _: &SessionEvents| Err(absent());
        let within = |(said, took): (Result<(), String>, Duration), time: Duration| {
            assert_eq!(said, Err("h:1".to_owned()));
            let begins = MOVERS_JOIN_WITHIN + time;
            assert!(
                took >= begins && took <= begins + ASKED_AGAIN_AFTER,
                "{took:?}"
            );
        };
        within(said(LONG, LONG, never).await, VISIBLE_WITHIN);
        within(
            said(Duration::from_secs(9), LONG, never).await,
            Duration::from_secs(9),
        );
        // The same applies if all work has ended in the meantime.
        let begins = VISIBLE_WITHIN.saturating_sub(MOVERS_JOIN_WITHIN);
        within(said(LONG, Duration::ZERO, never).await, begins);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_was_away_is_asked_again_and_ends_nothing() {
        let back_later =
            async |asked, _: &SessionEvents| if asked < 3 { Err(away()) } else { Ok(()) };
        let begins = MOVERS_JOIN_WITHIN + 3 * TRIED_AGAIN_AFTER;
        assert_eq!(
            said(Duration::ZERO, LONG, back_later).await,
            (Ok(()), begins)
        );
        let away_and_absent =
            async |asked, _: &SessionEvents| Err(if asked < 3 { away() } else { absent() });
        let (said, _) = said(Duration::ZERO, LONG, away_and_absent).await;
        assert!(said.is_err(), "it is back, and does not see the job");
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_has_not_seen_the_job_and_is_away_then_ends_nothing() {
        let dies = async |asked, _: &SessionEvents| Err(if asked < 3 { absent() } else { away() });
        let leave = 2 * VISIBLE_WITHIN;
        assert_eq!(said(LONG, leave, dies).await, (Ok(()), leave));
        // The receiver is unreachable for longer than a directory may be invisible.
        let away_until = 20;
        let mounts_late = async |asked, _: &SessionEvents| match asked {
            0 => Err(absent()),
            asked if asked < away_until => Err(away()),
            asked if asked < away_until + 30 => Err(absent()),
            _ => Ok(()),
        };
        assert_eq!(said(LONG, LONG, mounts_late).await.0, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_has_not_seen_the_job_and_refuses_then_ends_it() {
        let refuses = async |asked, _: &SessionEvents| {
            let refusal = Refusal {
                code: RefusalCode::Target,
                text: String::new(),
            };
            Err(if asked == 0 {
                absent()
            } else {
                SessionError::Refused(refusal).into()
            })
        };
        assert!(
            said(Duration::from_secs(9), Duration::ZERO, refuses)
                .await
                .0
                .is_err()
        );
        let has_told_a_mover = async |asked, events: &SessionEvents| {
            events.note_lost(&absent());
            refuses(asked + 1, events).await
        };
        assert!(
            said(Duration::from_secs(9), Duration::ZERO, has_told_a_mover)
                .await
                .0
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_job_waits_for_no_absent_or_hanging_receiver() {
        let hangs = async |_, _: &SessionEvents| std::future::pending().await;
        assert_eq!(
            said(LONG, Duration::ZERO, hangs).await,
            (Ok(()), ENDS_WITHIN)
        );
        assert_eq!(
            said(LONG, LONG / 4, hangs).await,
            (Ok(()), LONG / 4 + ENDS_WITHIN)
        );
        let away = async |asked, _: &SessionEvents| {
            if asked > 0 {
                std::future::pending().await
            } else {
                Err(away())
            }
        };
        let leave = MOVERS_JOIN_WITHIN + TRIED_AGAIN_AFTER * 2;
        assert_eq!(said(LONG, leave, away).await, (Ok(()), leave));
    }
}
