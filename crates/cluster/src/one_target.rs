//! Whether the receivers of a job have one directory at the target.
//!
//! A host on which the storage is not mounted has an empty directory in its place. Where it begins the job, all goes to
//! its own disk; and who of two is right nobody here can know. So a receiver that does not see the job ends it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{SessionEnd, Stop};
use crate::job::SharedJob;
use crate::session::{ENDS_WITHIN, JobEvents, Receiver, ask};

/// A receiver that has to see the job, by a mover's session or one that is there to ask it.
pub(crate) struct Witness {
    pub(crate) job: Arc<SharedJob>,
    pub(crate) receiver: Receiver,
    /// The receiver's number.
    pub(crate) number: usize,
    pub(crate) events: JobEvents,
    /// Set when the job has begun.
    pub(crate) begun: watch::Receiver<bool>,
    /// Set when the movers of this process have left, of which none comes to the receiver any more.
    pub(crate) movers_left: watch::Receiver<bool>,
    /// How long a receiver may say that it does not see the job, if that is less than [`SHOWS_WITHIN`].
    pub(crate) patience: Duration,
}

impl Witness {
    /// Asks the receiver until it sees the job. One that cannot be asked is passed over when the job is at its end.
    ///
    /// # Errors
    /// It does not see the job: the receiver's name.
    pub(crate) async fn sees_job(mut self) -> Result<(), String> {
        if self.begun.wait_for(|begun| *begun).await.is_err() {
            return Ok(());
        }
        self.pause(MOVERS_COME_WITHIN).await;
        let (mut unseen_since, mut is_away) = (None, false);
        while !self.events.has_seen_job(self.number) {
            let Err(error) = self.ask(is_away).await else { break };
            is_away = error.is_away();
            if self.events.has_missed_job(self.number) {
                let since = *unseen_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SHOWS_WITHIN.min(self.patience) {
                    return Err(self.receiver.remote.to_string());
                }
                sleep(ASKED_AGAIN_AFTER).await;
            } else if *self.movers_left.borrow() {
                // movers have told why
                break;
            } else {
                self.pause(TRIED_AGAIN_AFTER).await;
            }
        }
        Ok(())
    }

    /// Waits for so long, or until no mover comes any more.
    async fn pause(&mut self, time: Duration) {
        drop(timeout(time, self.movers_left.wait_for(|left| *left)).await);
    }

    /// Asks once. At the end of the job one that was away is not waited for, nor for long one that hangs, unless it has
    /// said that the job is not there.
    async fn ask(&mut self, is_away: bool) -> Result<(), SessionEnd> {
        let session = self.events.within(self.number, &self.receiver);
        let patience = if is_away { Duration::ZERO } else { ENDS_WITHIN };
        let at_end = async {
            drop(self.movers_left.wait_for(|left| *left).await);
            sleep(patience).await;
        };
        let has_missed_job = self.events.has_missed_job(self.number);
        tokio::select! {
            asked = ask(&self.receiver, &self.job, &session) => asked,
            () = at_end, if !has_missed_job => Err(Stop::Hangs(patience).into()),
        }
    }
}

/// How long the movers of this process, which may be enough, have for their first sessions.
const MOVERS_COME_WITHIN: Duration = Duration::from_secs(1);
/// How long a directory that one host has made may stay unseen by another: a client of NFS that has looked there before
/// takes its word for a minute (acdirmax of nfs(5)).
const SHOWS_WITHIN: Duration = Duration::from_secs(70);
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);
