//! Jobs of a cluster, whose head is the process of the job.

use super::*;
use crate::several::clusters::has_nats_server;
use crate::support::harness::skip;
use crate::support::ports::free_address;

/// A cluster with one receiver. This host is its only node.
fn yard() -> Option<Yard> {
    if !has_nats_server() {
        skip("there is no nats-server");
        return None;
    }
    let yard = Yard::daemon();
    let receiver = yard.site.the_daemon().address.to_string();
    yard.site.let_lead();
    let broker = free_address().to_string();
    yard.run(&[
        "cluster",
        "init",
        "lab",
        &receiver,
        "--local",
        &broker,
        "--accept-new",
    ])
    .done();
    Some(yard)
}

impl Yard {
    fn submit_by_nodes(&self, options: &[&str]) -> String {
        let mut submit = self.site.zmove(&["submit", "--nodes", "lab"]);
        submit
            .0
            .args(options)
            .arg("source/")
            .arg(self.site.target().canonicalize().unwrap());
        number(&submit.outcome().done())
    }

    fn assert_done_by_nodes(&self, id: &str, attempts: u64) {
        self.wait(id).expect(0);
        assert_eq!(std::fs::read_dir(self.site.target()).unwrap().count(), 2);
        for name in ["large", "small"] {
            let [there, here] =
                [self.site.target(), self.site.source()].map(|top| std::fs::read(top.join(name)));
            assert!(there.unwrap() == here.unwrap(), "{name}");
        }
        assert_eq!(self.job(id)["attempts"], attempts);
    }
}

#[test]
fn a_job_of_a_cluster_is_done_and_shown_with_it() {
    let Some(yard) = yard() else { return };
    yard.paint_slow();
    let id = yard.submit_by_nodes(&[]);
    yard.assert_done_by_nodes(&id, 1);
    let target = format!(
        "lab:{}",
        yard.site.target().canonicalize().unwrap().display()
    );
    assert_eq!(yard.job(&id)["target"], target);
}

/// The next attempt ends the previous attempt's job at the receivers and continues from the stored data.
#[test]
fn a_job_of_a_cluster_goes_on_when_its_process_and_its_runner_are_killed() {
    let Some(yard) = yard() else { return };
    yard.paint_slow();
    let id = yard.submit_by_nodes(&["--limit", "20Mbit"]);
    yard.wait_until(&id, |job| job["state"] == "running");
    yard.site.the_daemon().wait_for_log("begun by tester");
    yard.kill_process();
    yard.wait_until(&id, |job| job["attempts"] == 2);
    yard.kill_runner();
    yard.assert_done_by_nodes(&id, 2);
}

#[test]
fn a_job_that_nodes_cannot_do_is_refused_at_its_submission() {
    let Some(yard) = yard() else { return };
    paint(yard.site.source().join("small"), 10);
    let refused = |words: &[&str]| {
        let mut submit = yard.site.zmove(&["submit"]);
        submit.0.args(words);
        submit.outcome().expect(1)
    };
    refused(&["--nodes", "elsewhere", "source/", "t"])
        .says(&["cluster 'elsewhere' does not exist on this host"]);
    refused(&["--nodes", "lab", "source/", "h:t"]).says(&["write only the path"]);
    refused(&["--nodes", "lab", "--delete", "source/", "t"]).says(&["--delete is not possible"]);
    refused(&["--nodes", "lab", "--watch", "source/", "t"])
        .says(&["--watch cannot be used with --cluster"]);
    assert_eq!(yard.run(&["jobs", "--json"]).done().stdout, "");
}
