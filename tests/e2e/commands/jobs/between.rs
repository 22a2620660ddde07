//! Jobs that copy between two other hosts. Pausing or canceling such a job ends the copy at both hosts. If the job's
//! process is killed, the next attempt continues the copy.

use super::*;
use crate::commands::copy::{LARGE_BYTES, SLOWLY, World, id_in};
use crate::support::daemon::Daemon;

struct Between {
    yard: Yard,
    sender: Daemon,
    receiver: Daemon,
}

impl Between {
    fn new() -> Self {
        let World {
            site,
            sender,
            receiver,
        } = World::new();
        Self {
            yard: Yard { site },
            sender,
            receiver,
        }
    }

    /// Starts a job and waits until a part has arrived. Transferring the rest takes some seconds.
    fn under_way(&self) -> String {
        self.under_way_at(&SLOWLY)
    }

    /// Starts a job with a rate limit so low that the job outlasts the test.
    fn endless(&self) -> String {
        self.under_way_at(&["--limit", "2MB"])
    }

    fn under_way_at(&self, options: &[&str]) -> String {
        paint(self.yard.site.source().join("large"), LARGE_BYTES);
        let mut submit = self.yard.site.zmove(&["submit"]);
        submit.0.args(options);
        submit
            .0
            .arg(format!("{}:", self.sender.address))
            .arg(format!("{}:", self.receiver.address));
        let id = number(&submit.outcome().done());
        self.yard.wait_until_moving(&id);
        id
    }

    /// Asserts that both hosts have ended the copy before its completion, and that no more data arrives.
    #[track_caller]
    fn assert_ended(&self) {
        // The job's process waits only for the sender's answer. The sender logs the end afterwards.
        self.sender.wait_for_log("broken off");
        self.receiver
            .wait_for_log("broken off by the grant of tester");
        let there = || {
            let journals = std::fs::read_dir(self.yard.site.path("server/journal"))
                .unwrap()
                .flatten();
            journals
                .map(|journal| journal.metadata().unwrap().len())
                .sum::<u64>()
        };
        let before = there();
        // After that, no process has the target open.
        let mut status = self.yard.site.zmove(&["status", "--json"]);
        status.0.env("ZMOVE_HOME", self.yard.site.path("server"));
        let status: Value = serde_json::from_str(&status.outcome().done().stdout).unwrap();
        assert_eq!(status["transfers"], serde_json::json!([]));
        assert_eq!(there(), before, "more has come");
        assert_eq!(self.sender.count_logged("copied for tester"), 0);
    }

    fn log(&self, id: &str) -> String {
        self.yard.run(&["job", id, "log"]).done().stdout
    }
}

#[test]
fn a_paused_copy_resumes_from_the_stored_data() {
    let between = Between::new();
    let Between {
        yard,
        sender,
        receiver,
    } = &between;
    let id = between.under_way();
    yard.run(&["job", &id, "pause"]).done();
    yard.wait_until(&id, |job| job["state"] == "paused");
    between.assert_ended();
    yard.run(&["job", &id, "resume"]).done();
    yard.assert_done(&id, 2);
    let bytes = yard.job(&id)["ends"][1]["bytes"].as_u64().unwrap();
    assert!(bytes < LARGE_BYTES, "all of it was sent again");
    // The daemons log it after the command has ended.
    assert_eq!(sender.wait_for_logs("copied for tester", 1).len(), 1);
    let received = receiver.wait_for_logs("received from the grant of tester", 1);
    assert_eq!(received.len(), 1);
}

#[test]
fn a_copy_is_cancelled_at_both_hosts() {
    let between = Between::new();
    let id = between.endless();
    between.yard.run(&["job", &id, "cancel"]).done();
    between.yard.wait(&id).expect(31);
    let log = between.log(&id);
    assert!(!log.contains("may still be running"), "{log}");
    let sender = between.sender.address.to_string();
    between
        .yard
        .run(&["result", &id_in(&log), &sender])
        .expect(12);
    between.assert_ended();
}

#[test]
fn a_copy_whose_process_is_killed_goes_on_and_is_found_again() {
    let between = Between::new();
    let Between {
        yard,
        sender,
        receiver,
    } = &between;
    let id = between.under_way();
    yard.kill_process();
    yard.assert_done(&id, 2);
    // The daemons log it after the command has ended.
    assert_eq!(sender.wait_for_logs("copied for tester", 1).len(), 1);
    let received = receiver.wait_for_logs("received from the grant of tester", 1);
    assert_eq!(received.len(), 1);
    assert_eq!(receiver.count_logged("broken off"), 0);
}

#[test]
fn a_copy_that_another_attempt_has_found_can_be_paused() {
    let between = Between::new();
    let id = between.endless();
    between.yard.kill_process();
    wait_for("another attempt that listens", || {
        between.log(&id).matches("without this command").count() == 2
    });
    between.yard.run(&["job", &id, "pause"]).done();
    between.yard.wait_until(&id, |job| job["state"] == "paused");
    between.assert_ended();
}

/// The process must report the failure before the runner kills it at its timeout.
#[test]
fn a_copy_that_cannot_be_ended_is_named_in_the_log() {
    let between = Between::new();
    let id = between.endless();
    between.sender.signal(Signal::STOP);
    between.yard.run(&["job", &id, "cancel"]).done();
    between.yard.wait(&id).expect(31);
    let (log, address) = (between.log(&id), between.sender.address);
    let place = format!(
        "the copy may still be running on {address} (end it with 'zmove result --stop {} {address}')",
        id_in(&log)
    );
    assert!(
        log.contains(&place) && log.contains("it did not end within"),
        "{log}"
    );
    between.sender.signal(Signal::CONT);
    // The order to end is repeated until the sender has received it.
    wait_for("the end of the copy", || {
        between.yard.kinds(&id).contains(&"copy_ended".to_owned())
    });
    between.assert_ended();
}

/// A process that was killed together with its runner could not end the copy.
#[test]
fn a_copy_without_a_process_can_be_paused() {
    let between = Between::new();
    let Between { yard, .. } = &between;
    let id = between.under_way();
    yard.kill_runner();
    yard.kill_process();
    yard.run(&["job", &id, "pause"]).done();
    yard.wait_until(&id, |job| job["state"] == "paused");
    wait_for("the end of the copy", || {
        yard.kinds(&id).contains(&"copy_ended".to_owned())
    });
    between.assert_ended();
    yard.run(&["job", &id, "resume"]).done();
    yard.assert_done(&id, 2);
}

#[test]
fn a_copy_that_waits_for_another_attempt_can_be_cancelled() {
    let between = Between::new();
    let Between { yard, .. } = &between;
    let id = between.endless();
    let waits = || yard.job(&id)["state"] == "waiting";
    let kill_until_it_waits = || {
        yard.processes().into_iter().for_each(kill);
        waits()
    };
    wait_for("a wait", kill_until_it_waits);
    yard.run(&["job", &id, "cancel"]).done();
    yard.wait(&id).expect(31);
    wait_for("the end of the copy", || {
        yard.kinds(&id).contains(&"copy_ended".to_owned())
    });
    between.assert_ended();
}
