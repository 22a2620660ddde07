//! Nodes that outlive the head of their job.

use std::time::{Duration, Instant};

use super::Lab;
use crate::commands::jobs::wait_for;
use crate::support::quiet_machine::calm_machine;
use crate::support::tree::stored_bytes;

/// A node keeps sending until it detects that its job has no head. Its data could then overwrite the data of another
/// push.
#[test]
fn nothing_is_stored_for_a_node_twenty_seconds_after_the_death_of_the_head() {
    let _calm = calm_machine();
    let Some(lab) = Lab::new(1) else { return };
    let _broker = lab.start_broker();
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint_more();
    let _node = lab.join("other", &[]);
    let mut push = lab.push_at("5MB", "t", &[]).start();
    lab.daemons[0].wait_for_log("begun by node ");
    let stored = || stored_bytes(&lab.site.path("shared/t"));
    // The node has been assigned work by then.
    wait_for("the first data", || stored() >= 24 << 20);
    push.kill().unwrap();
    push.wait().unwrap();
    let killed = Instant::now();
    let mut before = stored();
    let mut changed = Duration::ZERO;
    let mut looked_at = Duration::ZERO;
    while killed.elapsed() < LOOKED_FOR {
        std::thread::sleep(LOOK_EVERY);
        let looks_at = killed.elapsed();
        let now = stored();
        if now != before {
            // The change happened after the previous check.
            changed = looked_at;
        }
        before = now;
        looked_at = looks_at;
    }
    assert!(changed > Duration::from_secs(1), "the node sends nothing");
    assert!(changed < DEAD_FOR, "something is stored after {changed:?}");
}

/// Maximum time for which a node may send without its head.
const DEAD_FOR: Duration = Duration::from_secs(21);
/// Duration for which the target is watched.
const LOOKED_FOR: Duration = Duration::from_secs(25);
const LOOK_EVERY: Duration = Duration::from_millis(100);
