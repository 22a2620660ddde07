//! The lease that a node holds from the head of a job. The node answers the pings of receivers only while it holds the
//! lease.
//!
//! A receiver publishes files while its sender answers pings. A node that outlives the head of its job would continue
//! to send. It therefore pings the head in its regular notices, and the head answers in its own. **Invariant:** a
//! receiver publishes nothing for a node later than twenty seconds after the head's death: ten seconds until the node's
//! lease expires, and ten until the node's last answer expires.

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::interval;
use zmove_disk::{Lease, SUSPENSION_MAX, boot_clock};

/// The lease of a node, which ends when this value is dropped. A task in the current runtime keeps its clock running.
#[derive(Debug)]
pub struct HeadLease {
    /// The lease. The node sends the lease's ping in its next notice to the head. The head answers in a notice of its
    /// own.
    pub lease: Lease,
    ticking: AbortHandle,
}

/// Interval at which the process records that it is running.
const TICK_EVERY: Duration = Duration::from_millis(100);
const _: () = assert!(TICK_EVERY.as_millis() * 4 < SUSPENSION_MAX.as_millis());

impl Default for HeadLease {
    /// Creates a lease that the node does not hold yet.
    fn default() -> Self {
        let said_in_the_next_notice = |_ping| {};
        let lease = Lease::timed(boot_clock(), said_in_the_next_notice, None);
        let ticked = lease.clone();
        let ticking = tokio::spawn(async move {
            let mut ticks = interval(TICK_EVERY);
            loop {
                ticks.tick().await;
                ticked.note_running();
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
        let ping = head.lease.send_ping();
        head.lease.note_echo(ping + 1);
        assert!(!lease.holds(), "this was never asked");
        head.lease.note_echo(ping);
        assert!(lease.holds());
        drop(head);
        assert!(!lease.holds());
    }
}
