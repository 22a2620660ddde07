//! The lease that a node holds from the head of a job: the node answers the pings of receivers only while it holds it.
//!
//! A receiver publishes while its sender answers. A node outlives the head of its job, and would go on to send. So it
//! pings the head, in the notices that it sends in any case, and the head answers in its own. **Invariant:** a receiver
//! publishes nothing for a node twenty seconds after the head has died: ten in which the node holds its lease, and ten
//! in which the node's last answer counts.

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::interval;
use zmove_disk::{GAP_MAX, Lease, boot_clock};

/// The lease of a node, which ends when this is dropped. It runs in a task of the runtime in which it was made.
#[derive(Debug)]
pub struct HeadLease {
    /// The lease. Its ping is in the next notice to the head, which answers in its own.
    pub lease: Lease,
    ticking: AbortHandle,
}

/// How often the process notes that it runs.
const TICK_EVERY: Duration = Duration::from_millis(100);
const _: () = assert!(TICK_EVERY.as_millis() * 4 < GAP_MAX.as_millis());

impl Default for HeadLease {
    /// A lease that the node does not hold yet.
    fn default() -> Self {
        let said_in_the_next_notice = |_ping| {};
        let lease = Lease::timed(boot_clock(), said_in_the_next_notice, None);
        let ticked = lease.clone();
        let ticking = tokio::spawn(async move {
            let mut ticks = interval(TICK_EVERY);
            loop {
                ticks.tick().await;
                ticked.tick();
            }
        });
        Self {
            lease,
            ticking: ticking.abort_handle(),
        }
    }
}

impl Drop for HeadLease {
    fn drop(&mut self) {
        self.ticking.abort();
        self.lease.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_node_holds_a_lease_once_the_head_has_answered_and_until_it_is_dropped() {
        let head = HeadLease::default();
        let lease = head.lease.clone();
        assert!(!lease.holds());
        let ping = head.lease.ask();
        head.lease.echoed(ping + 1);
        assert!(!lease.holds(), "this was never asked");
        head.lease.echoed(ping);
        assert!(lease.holds());
        drop(head);
        assert!(!lease.holds());
    }
}
