//! The other nodes of a job, and the movers of the head that they make unnecessary.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::head::JobPhase;
use crate::job::Tally;

/// The other nodes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Number of nodes that are currently working.
    pub at_work: usize,
    /// Number of nodes, working or not, that may still have sessions that did not end properly.
    pub unfinished: usize,
    /// Work done by all other nodes.
    pub tally: Tally,
}

/// Returns `true` once the head's mover with this number is needed, or `false` if the job ends first. The mover is
/// needed if the job has started and fewer other nodes are working than the mover's number. Each other node uses one
/// receiver, so an extra mover would only take that node's work. Other nodes have `others_join_within` to join.
pub(crate) async fn until_needed(
    number: usize,
    mut phase: watch::Receiver<JobPhase>,
    mut others: watch::Receiver<Others>,
    others_join_within: Duration,
) -> bool {
    let begun = phase.wait_for(|phase| *phase >= JobPhase::Begun);
    if begun.await.is_err() {
        return false;
    }
    if number == 0 || others_join_within.is_zero() {
        return true;
    }
    let are_too_few = async {
        sleep(others_join_within).await;
        // If the sender of this number was dropped, there are no other nodes.
        drop(others.wait_for(|others| others.at_work < number).await);
    };
    tokio::select! {
        biased;
        // Comes first so that the job does not wait for other nodes after its end.
        _ = phase.wait_for(|phase| *phase >= JobPhase::Over) => false,
        () = are_too_few => true,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    fn standby(
        others: &watch::Sender<Others>,
        phase: &watch::Sender<JobPhase>,
    ) -> impl Future<Output = bool> + use<> {
        let join_within = Duration::from_secs(2);
        until_needed(1, phase.subscribe(), others.subscribe(), join_within)
    }

    #[tokio::test(start_paused = true)]
    async fn a_mover_that_waits_whether_it_is_needed_does_not_hold_up_a_job_that_is_over() {
        let others = watch::Sender::default();
        let phase = watch::Sender::new(JobPhase::Begun);
        let began = Instant::now();
        let needed = standby(&others, &phase);
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
        let needed = tokio::spawn(standby(&others, &phase));
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
