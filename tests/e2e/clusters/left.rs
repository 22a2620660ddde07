//! Queues that pushes have left at a broker, which the next push with that cluster ends.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{HEAD, Lab, finish, paint, signal};
use crate::jobs::wait_for;
use crate::quiet_machine::quiet_machine;

/// The queues of jobs at the broker, and the jobs that the head has noted.
fn queues_and_notes(lab: &Lab) -> [usize; 2] {
    let count = |directory: &str, of: fn(&str) -> bool| {
        let entries = std::fs::read_dir(lab.site.path(directory))
            .into_iter()
            .flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| of(name)).count()
    };
    let is_queue = |name: &str| name.starts_with("zmove-") && name != "zmove-ended";
    [
        count("broker/jetstream/$G/streams", is_queue),
        count("head/shared-jobs", |_| true),
    ]
}

/// The broker goes away before anything has begun, and comes back with the queue.
#[test]
fn a_queue_that_its_own_push_could_not_end_is_ended_by_the_next() {
    let Some(lab) = Lab::new(1) else { return };
    let broker = lab.start_broker();
    lab.init(&["--broker", &lab.broker()]).done();
    paint(lab.source().join("f"), 7);
    lab.daemons[0].signal(Signal::STOP);
    let push = lab.push(&[]).start();
    wait_for("a queue", || {
        queues_and_notes(&lab) == [1, 1] && !noted(&lab).ends_with(".queue")
    });
    drop(broker);
    signal(&push, Signal::INT);
    finish(push).expect(20);
    lab.daemons[0].signal(Signal::CONT);
    let _broker = lab.start_broker();
    assert_eq!(queues_and_notes(&lab), [1, 1]);
    lab.push(&[]).outcome().expect(0);
    assert_eq!(queues_and_notes(&lab), [0, 0]);
    lab.assert_done();
}

/// One that knows no broker ends the job at the receivers alone.
#[test]
fn a_queue_is_ended_also_where_a_push_without_the_cluster_has_ended_the_job() {
    let Some(lab) = Lab::new(1) else { return };
    let _broker = lab.start_broker();
    lab.init(&["--broker", &lab.broker()]).done();
    lab.paint();
    lab.kill_when_begun(lab.push(&[]));
    for _ in 0..2 {
        let mut without = lab.zmove(HEAD, &["push"]);
        without
            .0
            .arg(lab.source().join(""))
            .arg(format!("{}:t", lab.daemons[0].address));
        without.outcome().expect(0);
        assert_eq!(queues_and_notes(&lab), [1, 1]);
    }
    lab.push(&[]).outcome().expect(0);
    assert_eq!(queues_and_notes(&lab), [0, 0]);
    lab.assert_done();
}

/// A broker without queues, that is: one that answers no question about them.
#[test]
fn a_push_that_ends_the_queue_of_a_killed_one_is_interrupted_at_once() {
    let _quiet = quiet_machine();
    let Some(lab) = Lab::new(1) else { return };
    let broker = lab.start_broker();
    lab.init(&["--broker", &lab.broker()]).done();
    lab.paint();
    lab.kill_when_begun(lab.push(&[]));
    drop(broker);
    let log = lab.site.path("broker.log");
    let _broker = lab.start_broker_with(&["-DV", "-l", log.to_str().unwrap()]);
    let push = lab.push(&[]).start();
    wait_for("question of the push", || {
        std::fs::read_to_string(&log).unwrap().contains("$JS.API.")
    });
    let began = Instant::now();
    signal(&push, Signal::INT);
    finish(push).expect(20);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

/// A broker gives each queue room for itself, and takes nothing when it has no more.
#[test]
fn queues_that_killed_pushes_have_left_at_other_targets_leave_room_for_the_next() {
    let Some(lab) = Lab::new(1) else { return };
    let (configuration, store) = (lab.site.path("nats.conf"), lab.site.path("broker"));
    std::fs::write(
        &configuration,
        format!("jetstream {{ store_dir: {store:?}, max_file_store: 1073741824 }}"),
    )
    .unwrap();
    let options = ["-c", configuration.to_str().unwrap()];
    let broker = lab.start_broker_with(&options);
    lab.init(&["--broker", &lab.broker()]).done();
    lab.paint();
    lab.kill_when_begun(lab.push_to("elsewhere", &[]));
    drop(broker);
    let _broker = lab.start_broker_with(&options);
    lab.push(&[]).outcome().expect(0);
    lab.assert_done();
    assert_eq!(
        queues_and_notes(&lab),
        [0, 1],
        "the job is still to be ended at the receivers"
    );
    lab.push_to("elsewhere", &[]).outcome().expect(0);
    assert_eq!(queues_and_notes(&lab), [0, 0]);
}

/// The name of what the head has noted.
fn noted(lab: &Lab) -> String {
    let mut notes = std::fs::read_dir(lab.site.path("head/shared-jobs")).unwrap();
    notes
        .next()
        .map(|note| note.unwrap().file_name().into_string().unwrap())
        .unwrap_or_default()
}
