//! Nodes that outlive the head of their job.

use std::time::{Duration, Instant};

use super::Lab;
use crate::commands::jobs::wait_for;
use crate::support::quiet_machine::calm_machine;
use crate::support::tree::stored_bytes;

/// A node goes on to send for as long as it takes to find that nobody leads its job. What it sends then could be stored
/// over what another push has stored.
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
    // the node has work of its own by then
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
            // The change came after the previous look.
            changed = looked_at;
        }
        before = now;
        looked_at = looks_at;
    }
    assert!(changed > Duration::from_secs(1), "the node sends nothing");
    assert!(changed < DEAD_FOR, "something is stored after {changed:?}");
}

/// How long a node may send without its head.
const DEAD_FOR: Duration = Duration::from_secs(21);
/// How long the target is looked at.
const LOOKED_FOR: Duration = Duration::from_secs(25);
const LOOK_EVERY: Duration = Duration::from_millis(100);
