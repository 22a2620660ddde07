//! Nodes that take no part in a push. The head reports them and does not wait for them.

use std::time::{Duration, Instant};

use super::{Lab, assert_done_by, finish, signal};
use crate::connections::breakage::interruption;
use crate::support::ports::free_port;
use crate::support::quiet_machine::calm_machine;

#[test]
fn a_node_that_no_receiver_accepts_is_reported_once_at_the_head_and_not_counted() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint();
    // A key with a separate line has the permissions of that line instead of the head's permissions. Its target is
    // elsewhere.
    std::fs::create_dir(lab.site.path("elsewhere")).unwrap();
    lab.allow_below("stranger", "elsewhere");
    let node = lab.join("stranger", &[]);
    node.wait_for("waiting for the broker");
    let outcome = lab
        .push_at("2500kB", "t", &[])
        .outcome()
        .expect(0)
        .says(&["takes no part: receiver: ", "is not under way"]);
    assert_done_by(&outcome, "1 node");
    let refused: usize = lab
        .daemons
        .iter()
        .map(|daemon| daemon.count_logged("refused"))
        .sum();
    assert!((1..=4).contains(&refused), "{refused} refusals");
    lab.assert_done();
}

/// The head has no mover at the second receiver, which another node serves.
#[test]
fn receivers_that_do_not_share_the_target_end_the_push() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint();
    std::fs::create_dir(lab.site.path("elsewhere")).unwrap();
    lab.allow_at(1, "head", "elsewhere");
    let node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let outcome = lab
        .push_at("2500kB", "t", &["--timeout", "10s"])
        .outcome()
        .expect(3);
    let [there, elsewhere] = [0, 1].map(|number: usize| lab.daemons[number].address.to_string());
    outcome.says(&[&format!(
        "{elsewhere} does not see the push that is running on {there}: all receivers"
    )]);
}

/// Otherwise the head would wait for the node at the end and consider its sessions lost.
#[test]
fn a_node_that_reaches_no_receiver_is_reported_at_the_head_and_not_waited_for() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint();
    let invitation = lab.invite("cut-off");
    let mut text = std::fs::read_to_string(&invitation).unwrap();
    for daemon in &lab.daemons {
        let free = free_port();
        let ports = [daemon.address.port(), free].map(|port| format!("port = {port}\n"));
        assert!(text.contains(&ports[0]), "{text}");
        text = text.replace(&ports[0], &ports[1]);
    }
    std::fs::write(&invitation, text).unwrap();
    let node = lab.join_by(&invitation, "cut-off", &[]);
    node.wait_for("waiting for the broker");
    let outcome = lab
        .push_at("2500kB", "t", &[])
        .outcome()
        .expect(0)
        .says(&["takes no part: connect to 127.0.0.1:"]);
    assert_done_by(&outcome, "1 node");
    let left = std::fs::read_dir(lab.site.path("shared/t"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().starts_with(".zmove"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    lab.assert_done();
}

/// Otherwise the leases of its work would last for half a minute, and all nodes would wait for them.
#[test]
fn a_node_that_is_stopped_leaves_its_work_to_others_at_once() {
    let _calm = calm_machine();
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_more();
    let mut node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let push = lab.push_at("40MB", "t", &[]).start();
    lab.daemons[1].wait_for_log("begun by node ");
    signal(&node.process.0, interruption());
    let stopped = Instant::now();
    assert_eq!(node.exit(), Some(20));
    let outcome = finish(push)
        .expect(0)
        .says(&[" was stopped: other nodes take over its work"]);
    assert!(
        !outcome.stderr.contains("has sent no report"),
        "{}",
        outcome.stderr
    );
    // No node waits for the lease of an item or of a session. The rest of the data takes 5 s at this rate.
    let at_most = SESSIONS_END_WITHIN * 3 / 4;
    assert!(stopped.elapsed() < at_most, "{:?}", stopped.elapsed());
    lab.assert_done();
}

/// Maximum time for which the sessions of a stopped node may still write.
const SESSIONS_END_WITHIN: Duration = Duration::from_secs(20);
