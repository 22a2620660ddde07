//! Waits for an earlier session of the same run in another process, which may still publish.
//!
//! The sender has lost its connection to that session. But that session may not have detected the loss, and may publish
//! until its lease expires. **Invariant:** a new session of the run publishes nothing before that lease has expired or
//! the other process has ended.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use zmove_disk::{LEASE_MAX, has_process_ended, own_process};
use zmove_wire::{EarlierSession, Refusal, RefusalCode};

use crate::shared_job::other_jobs::OtherJobs;

/// Waits until the earlier session can no longer publish, because its process has ended or its lease has expired. An
/// earlier session in this process has already ended, because the new session holds the lease of the run.
pub(crate) async fn wait_for_earlier(
    earlier: &EarlierSession,
    session: &OtherJobs,
) -> Result<(), Refusal> {
    if earlier.process == own_process() {
        return Ok(());
    }
    let began = Instant::now();
    // The peer may send any duration, so the wait is limited.
    let lease_left = Duration::from_millis(earlier.lease_left_ms.into()).min(LEASE_MAX);
    let mut has_notified = false;
    while began.elapsed() < lease_left && !has_process_ended(&earlier.process) {
        if session.is_over() {
            let text = "the connection closed while the session waited for an earlier session";
            return Err(Refusal::new(RefusalCode::Broken, text));
        }
        if began.elapsed() >= NOTICE_DELAY && !has_notified {
            has_notified = true;
            session.notify(wait_notice(lease_left.saturating_sub(began.elapsed())));
        }
        sleep(CHECK_INTERVAL).await;
    }
    Ok(())
}

fn wait_notice(left: Duration) -> String {
    format!(
        "an earlier connection of this push may still write at the target; the push continues within {} s",
        left.as_millis().div_ceil(1000)
    )
}

/// Interval for checking whether the earlier process has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum duration of a wait that is reported. A receiver that is about to end usually ends within this time.
const NOTICE_DELAY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use zmove_disk::Lease;

    use super::*;

    /// Maximum time by which a wait may exceed its limit.
    const SLACK: Duration = CHECK_INTERVAL;

    fn session() -> (OtherJobs, UnboundedReceiver<String>) {
        let (told, tells) = unbounded_channel();
        (OtherJobs::new(None, &Lease::constant(), Some(told)), tells)
    }

    fn earlier(process: &str, lease_left_ms: u16) -> EarlierSession {
        EarlierSession {
            process: process.to_owned(),
            lease_left_ms,
        }
    }

    /// Returns the duration of a wait, and the texts that the sender received.
    async fn waited(process: &str, lease_left_ms: u16) -> (Duration, Vec<String>) {
        let (session, mut tells) = session();
        let began = Instant::now();
        let waited = wait_for_earlier(&earlier(process, lease_left_ms), &session).await;
        waited.unwrap();
        let took = began.elapsed();
        drop(session);
        let mut told = Vec::new();
        while let Some(text) = tells.recv().await {
            told.push(text);
        }
        (took, told)
    }

    /// Returns the ID of a process of this machine that has ended, with the process number of this process. The test
    /// does not start a process, because a new process would briefly hold the locks of other tests.
    fn dead_process() -> String {
        let (rest, start) = own_process().rsplit_once('-').unwrap();
        let start = u64::from_str_radix(start, 16).unwrap() ^ 1;
        format!("{rest}-{start:x}")
    }

    /// Returns the ID of a process like this one on another machine.
    fn process_elsewhere() -> String {
        let (machine, rest) = own_process().split_once('-').unwrap();
        let machine = u64::from_str_radix(machine, 16).unwrap() ^ 1;
        format!("{machine:x}-{rest}")
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_a_process_that_may_run_is_waited_for_until_its_lease_has_expired() {
        for process in ["", "nonsense", &process_elsewhere()] {
            let (took, told) = waited(process, 7_000).await;
            let lease_left = Duration::from_secs(7);
            assert!(
                (lease_left..=lease_left + SLACK).contains(&took),
                "{took:?}"
            );
            assert_eq!(told.len(), 1);
            assert!(told[0].contains("within 7 s"), "{}", told[0]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_session_waits_for_longer_than_a_lease_lasts() {
        let (took, _) = waited("", u16::MAX).await;
        assert!((LEASE_MAX..=LEASE_MAX + SLACK).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_wait_is_not_reported() {
        let (_, told) = waited("", 400).await;
        assert!(told.is_empty(), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_this_process_is_not_waited_for() {
        assert_eq!(waited(own_process(), 9_000).await, (Duration::ZERO, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_a_process_of_this_machine_that_has_ended_is_not_waited_for() {
        assert_eq!(
            waited(&dead_process(), 9_000).await,
            (Duration::ZERO, vec![])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_whose_sender_has_gone_waits_no_longer() {
        let (session, _tells) = session();
        let began = Instant::now();
        let earlier = earlier("", 9_000);
        let leaving = async {
            sleep(Duration::from_secs(2)).await;
            session.stop();
        };
        let (waited, ()) = tokio::join!(wait_for_earlier(&earlier, &session), leaving);
        assert_eq!(waited.unwrap_err().code, RefusalCode::Broken);
        assert!(began.elapsed() < Duration::from_secs(3));
    }
}
