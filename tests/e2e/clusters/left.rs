//! Queues that killed pushes have left at a broker.

use std::time::{Duration, Instant};

use super::{Lab, finish, signal};
use crate::breakage::interruption;
use crate::jobs::wait_for;
use crate::quiet_machine::quiet_machine;

/// The queues of jobs at the broker.
fn queues(lab: &Lab) -> usize {
    let entries = std::fs::read_dir(lab.site.path("broker/jetstream/$G/streams"));
    let names = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with("zmove-") && name != "zmove-ended")
        .count()
}

/// A broker without queues, that is: one that answers no question about them.
#[test]
fn a_push_that_asks_for_queues_is_interrupted_at_once() {
    let _quiet = quiet_machine();
    let Some(lab) = Lab::new(1) else { return };
    let log = lab.site.path("broker.log");
    let _broker = lab.start_broker_with(&["-DV", "-l", log.to_str().unwrap()]);
    lab.init(&["--broker", &lab.broker()]).done();
    lab.paint();
    let push = lab.push(&[]).start();
    wait_for("question of the push", || {
        std::fs::read_to_string(&log).unwrap().contains("$JS.API.")
    });
    let began = Instant::now();
    signal(&push, interruption());
    finish(push).expect(20);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

/// A broker gives each queue room for itself, and takes nothing when it has no more.
#[test]
fn a_queue_that_a_killed_push_has_left_makes_room_for_the_next() {
    let Some(lab) = Lab::new(1) else { return };
    let (configuration, store) = (lab.site.path("nats.conf"), lab.site.path("broker"));
    std::fs::write(
        &configuration,
        format!("jetstream {{ store_dir: {store:?}, max_file_store: 1073741824 }}"),
    )
    .unwrap();
    let options = ["-c", configuration.to_str().unwrap()];
    let _broker = lab.start_broker_with(&options);
    lab.init(&["--broker", &lab.broker()]).done();
    lab.paint();
    lab.kill_when_begun(lab.push_to("elsewhere", &[]));
    assert_eq!(queues(&lab), 1);
    let pushed = lab.push(&[]).outcome().expect(0);
    pushed.says(&["the broker has no room for another queue"]);
    lab.assert_done();
    assert_eq!(queues(&lab), 0);
}

/// The queue of a push that is alive stays.
#[test]
fn a_push_that_is_under_way_removes_the_queue_of_a_killed_one_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let _broker = lab.start_broker();
    lab.init(&["--broker", &lab.broker()]).done();
    lab.paint_more();
    lab.kill_when_begun(lab.push_to("elsewhere", &[]));
    let mut pushes = ["t", "u"].map(|target| lab.push_at("2MB", target, &[]).start());
    wait_for("three queues", || queues(&lab) == 3);
    wait_for("the end of one", || queues(&lab) == 2);
    for push in &mut pushes {
        assert!(push.try_wait().unwrap().is_none());
        push.kill().unwrap();
        push.wait().unwrap();
    }
}
