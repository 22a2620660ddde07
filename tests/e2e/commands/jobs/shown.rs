//! The output of the job commands: within 80 columns for people, and matching the schema for programs. Also tests
//! orders that affect jobs other than the named one.

use super::*;
use crate::support::command::Zmove;
use crate::support::harness::{has_program, skip};

#[test]
fn a_paused_job_shows_its_progress() {
    let yard = Yard::daemon();
    // The file is large enough for groups to arrive after the pause.
    paint(yard.site.source().join("large"), 24 << 20);
    paint(yard.site.source().join("small"), 1000);
    let id = yard.submit(&["--limit", "20Mbit"], "");
    yard.wait_until_moving(&id);
    yard.run(&["job", &id, "pause"]).done();
    let held = yard.wait_until(&id, |job| job["state"] == "paused");
    let number = |job: &Value, name: &str| job[name].as_u64().unwrap();
    let (done, moved) = (number(&held, "bytes_done"), number(&held, "bytes"));
    assert!(
        done > 0 && done == moved && number(&held, "bytes_found") > 24 << 20,
        "{held}"
    );
    yard.run(&["job", &id, "resume"]).done();
    // Stored data counts as done but not as moved.
    let again = yard.wait_until(&id, |job| {
        job["bytes_done"].as_u64() > Some(moved) && number(job, "bytes") > moved
    });
    // The rate is unknown in the first seconds.
    let rate = again["bytes_per_second"].as_f64();
    assert!(
        rate.is_none_or(|rate| rate < 5e6)
            && number(&again, "bytes_done") <= number(&again, "bytes") + (4 << 20),
        "{again}"
    );
    yard.assert_done(&id, 2);
    let job = yard.job(&id);
    let ends: Vec<_> = job["ends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|end| number(end, "bytes"))
        .collect();
    assert_eq!(
        (ends.len(), number(&job, "bytes")),
        (2, ends.iter().sum::<u64>()),
        "{job}"
    );
    // Groups in flight at the pause were sent twice.
    assert!(
        ((24 << 20)..(28 << 20)).contains(&number(&job, "bytes")),
        "{job}"
    );
    assert_eq!(job["bytes_done"], Value::Null, "{job}");
    let shown = yard
        .run(&["job", &id])
        .done()
        .stdout
        .replace("\n         ", " ");
    for part in [
        "moved by 2 attempts: ",
        "attempt 1 ended ",
        "; the job was paused",
        "log: ",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// The job's process was signaled to end, which is not a failure of the job.
#[test]
fn a_job_that_is_being_paused_can_be_resumed() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.run(&["job", &id, "pause"]).done();
    let said = yard.run(&["job", &id, "resume"]).done().stdout;
    yard.wait(&id).expect(0);
    // The job's process may have ended already.
    assert!(
        said == format!("job {id} is being resumed\n") || said == format!("job {id} is resumed\n"),
        "{said}"
    );
    let ends = &yard.job(&id)["ends"];
    assert!(
        ends.as_array()
            .unwrap()
            .iter()
            .all(|end| end["message"] == Value::Null),
        "{ends}"
    );
}

/// With `--json`, every order prints the job.
#[test]
fn every_order_answers_in_json() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    let answer = |words: &[&str], exit| -> Value {
        let said = yard
            .run(&[&["job", &id], words, &["--json"]].concat())
            .expect(exit)
            .stdout;
        serde_json::from_str(said.trim_end())
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {said}"))
    };
    let schema = crate::commands::schema::schema("job.json");
    for (words, exit) in [
        (&["wait", "--timeout", "0"][..], 33),
        (&["pause"], 0),
        (&["resume"], 0),
        (&["cancel"], 0),
        (&["wait"], 31),
        (&["attach"], 31),
    ] {
        let job = answer(words, exit);
        assert_eq!(
            crate::commands::schema::fault(&schema, &job),
            None,
            "{words:?}"
        );
        assert_eq!(job["id"].to_string(), id, "{words:?}");
    }
    assert_eq!(answer(&["rerun"], 0)["event"], "submitted");
    yard.run(&["job", &id, "wait", "--timeout", "5"]).expect(31);
}

#[test]
fn a_failed_job_names_its_error() {
    let yard = Yard::local();
    std::fs::create_dir_all(yard.site.target().join("f/x")).unwrap();
    paint(yard.site.source().join("f"), 1000);
    let id = yard.submit(&["--label", &"long ".repeat(30)], "");
    yard.wait(&id).expect(30);
    let shown = yard.run(&["job", &id]).done().stdout;
    assert!(
        shown.contains("last error, of attempt 1: 1 failed"),
        "{shown}"
    );
    assert!(
        shown
            .replace("\n         ", " ")
            .contains("; the job has failed"),
        "{shown}"
    );
    assert!(shown.contains("failed: receiver: "), "{shown}");
    assert_eq!(shown.matches("1 failed").count(), 1, "{shown}");
    let counted = |state| {
        yard.run(&["jobs", "--json", "--state", state])
            .done()
            .stdout
            .lines()
            .count()
    };
    assert_eq!(
        [counted("failed"), counted("done,failed"), counted("done")],
        [1, 1, 0]
    );
    yard.run(&["jobs", "--state", "broken"])
        .expect(1)
        .says(&["'broken' is not a job state"]);
    let list = yard.run(&["jobs"]).done().stdout;
    for line in shown.lines().chain(list.lines()) {
        // A path that is longer than a line is not wrapped.
        assert!(
            line.chars().count() <= 80 || line.trim().split(' ').count() <= 2,
            "{line}"
        );
    }
}

#[test]
fn a_terminal_does_not_break_the_words_of_a_log() {
    if !has_program("script") {
        return skip("there is no 'script'");
    }
    let yard = Yard::local();
    std::fs::create_dir_all(yard.site.target().join("f/x")).unwrap();
    paint(yard.site.source().join("f"), 1000);
    let id = yard.submit(&[], "");
    yard.wait(&id).expect(30);
    let plain = yard.site.zmove(&["job", &id, "log"]);
    let words = format!(
        "stty cols 30; '{}' job {id} log",
        plain.0.get_program().display()
    );
    let mut at_terminal = std::process::Command::new("script");
    at_terminal.args(["-qec", &words, "/dev/null"]);
    at_terminal.envs(
        plain
            .0
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let told = Zmove(at_terminal)
        .outcome()
        .expect(0)
        .stdout
        .replace("\r\n", "\n");
    assert!(
        told.lines().count() > plain.outcome().expect(0).stdout.lines().count(),
        "{told}"
    );
    for line in told.lines() {
        assert!(
            line.chars().count() <= 30 || line.trim().split(' ').count() == 1,
            "{line}"
        );
    }
}

#[test]
fn cancelling_an_ended_run_cancels_its_schedule() {
    let Some((site, clock)) = Clock::site() else {
        return;
    };
    let yard = Yard { site };
    paint(yard.site.source().join("f"), 1000);
    let first = yard.submit(&["--every", "* * * * *"], "");
    clock.wait_for("the first run", || yard.job(&first)["state"] == "done");
    yard.wait(&first).expect(0);
    wait_for("the end of the schedule", || {
        let said = yard.run(&["job", &first, "cancel"]);
        // The next run may end before the order reaches it.
        said.code == Some(0) && said.stdout.contains("the next run of its schedule is job ")
    });
    wait_for("no more runs", || {
        let lines = yard.run(&["jobs", "--json"]).done().stdout;
        lines
            .lines()
            .all(|line| !serde_json::from_str::<Value>(line).unwrap()["ended"].is_null())
    });
    let id = yard.submit(&["-c"], "");
    yard.wait(&id).expect(0);
    yard.run(&["job", &id, "cancel"])
        .expect(1)
        .says(&["a job that is done cannot be cancelled"]);
}

#[test]
fn submit_warns_of_a_start_time_in_the_past() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    let submit = yard
        .site
        .zmove(&["submit", "--at", "2001-02-03 04:05", "source/", "target"]);
    let said = submit.outcome().expect(0);
    assert!(
        said.stderr
            .contains("--at 2001-02-03 04:05:00 is in the past: the job starts now"),
        "{}",
        said.stderr
    );
    yard.assert_done(&number(&said), 1);
}

#[test]
fn a_detached_copy_is_a_job() {
    let yard = Yard::daemon();
    paint(yard.site.source().join("f"), 1000);
    let mut copy = yard.site.zmove(&["copy", "--detach", "source/"]);
    copy.0.arg(yard.site.address(""));
    yard.assert_done(&number(&copy.outcome().done()), 1);
    yard.run(&["copy", "--detach", "-n", "source", "target"])
        .expect(1)
        .says(&["--dry-run"]);
}
