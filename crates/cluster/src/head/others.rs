//! The other nodes of a job, and which movers of the head they spare.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::head::JobPhase;
use crate::job::Tally;

/// The other nodes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The number of those that do some of the work now.
    pub at_work: usize,
    /// The number of those, at work or not, of which not all sessions are known to have ended as they should.
    pub unfinished: usize,
    /// What all of them have done.
    pub tally: Tally,
}

/// A mover of the head that waits until it has something to do.
pub(crate) struct Standby {
    pub(crate) number: usize,
    pub(crate) phase: watch::Receiver<JobPhase>,
    pub(crate) others: watch::Receiver<Others>,
    /// How long others may take to come.
    pub(crate) others_come_within: Duration,
}

impl Standby {
    /// Returns once the mover is needed, or with `false` if it never is. It is where the job has begun and fewer other
    /// nodes are at work than this mover's number says: each of them serves one receiver, and this mover would take
    /// their work.
    pub(crate) async fn until_needed(mut self) -> bool {
        let begun = self.phase.wait_for(|phase| *phase >= JobPhase::Begun);
        if begun.await.is_err() {
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
            _ = self.phase.wait_for(|phase| *phase >= JobPhase::Over) => false,
            () = are_too_few => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    fn standby(others: &watch::Sender<Others>, phase: &watch::Sender<JobPhase>) -> Standby {
        Standby {
            number: 1,
            phase: phase.subscribe(),
            others: others.subscribe(),
            others_come_within: Duration::from_secs(2),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_that_waits_whether_it_is_needed_does_not_hold_up_a_job_that_is_over() {
        let others = watch::Sender::default();
        let phase = watch::Sender::new(JobPhase::Begun);
        let began = Instant::now();
        let needed = standby(&others, &phase).until_needed();
        let needed = timeout(Duration::from_secs(9), needed);
        let (is_needed, _before) =
            tokio::join!(needed, async { phase.send_replace(JobPhase::Over) });
        assert!(!is_needed.unwrap() && began.elapsed() == Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_serves_the_receiver_of_a_node_that_is_at_work_no_more() {
        let one = Others {
            at_work: 1,
            unfinished: 1,
            ..Others::default()
        };
        let others = watch::Sender::new(one);
        let phase = watch::Sender::new(JobPhase::Begun);
        let began = Instant::now();
        let needed = tokio::spawn(standby(&others, &phase).until_needed());
        sleep(Duration::from_secs(60)).await;
        assert!(!needed.is_finished());
        others.send_replace(Others {
            unfinished: 1,
            ..Others::default()
        });
        assert!(needed.await.unwrap());
        assert_eq!(began.elapsed(), Duration::from_secs(60));
    }
}
