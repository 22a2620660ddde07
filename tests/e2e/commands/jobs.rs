//! Jobs are submitted, run in the background, killed at any point, and still complete exactly once.

mod notifications;

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::connections::clock::Clock;
use crate::connections::resume::wait_for_journal;
use crate::support::command::Outcome;
use crate::support::harness::{PATIENCE, Site};
use crate::support::ports::free_address;
use crate::support::tree::{assert_same, paint};

mod between;
mod faults;
mod nodes;
mod shown;
mod watch;

/// A site whose user submits jobs. Runners and the processes of jobs end with it.
pub(crate) struct Yard {
    pub(crate) site: Site,
}

impl Drop for Yard {
    fn drop(&mut self) {
        if let Some(pid) = self.runner() {
            kill(pid);
        }
        self.processes().into_iter().for_each(kill);
    }
}

/// A program that is killed when the test ends, even by a panic.
struct Held(std::process::Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn kill(pid: Pid) {
    let _gone = kill_process(pid, Signal::KILL);
}

impl Yard {
    pub(crate) fn local() -> Self {
        Self {
            site: Site::local(),
        }
    }

    pub(crate) fn daemon() -> Self {
        Self {
            site: Site::daemon(),
        }
    }

    pub(crate) fn place(&self) -> PathBuf {
        self.site.path("client/jobs")
    }

    pub(crate) fn run(&self, words: &[&str]) -> Outcome {
        self.site.zmove(words).outcome()
    }

    /// Submits a transfer of the source's contents and returns the job's number.
    pub(crate) fn submit(&self, options: &[&str], path: &str) -> String {
        let mut submit = self.site.zmove(&["submit"]);
        submit
            .0
            .args(options)
            .arg("source/")
            .arg(self.site.address(path));
        number(&submit.outcome().done())
    }

    /// Submits a transfer that takes some seconds.
    pub(crate) fn submit_slow(&self) -> String {
        self.paint_slow();
        self.submit(&["--limit", "10Mbit"], "")
    }

    /// Submits a transfer to an address where no process listens.
    fn submit_to_nobody(&self, deadline: &str) -> String {
        let nobody = free_address();
        let mut submit = self.site.zmove(&[
            "submit",
            "--accept-new",
            "--timeout",
            "0",
            "--deadline",
            deadline,
        ]);
        submit.0.arg("source/").arg(format!("{nobody}:x"));
        number(&submit.outcome().done())
    }

    /// Creates files that take some seconds at 10 Mbit/s.
    pub(crate) fn paint_slow(&self) {
        paint(self.site.source().join("large"), 12 << 20);
        paint(self.site.source().join("small"), 1000);
    }

    pub(crate) fn job(&self, id: &str) -> Value {
        let job = serde_json::from_str(&self.run(&["job", id, "--json"]).done().stdout).unwrap();
        assert_eq!(
            crate::commands::schema::fault(&crate::commands::schema::schema("job.json"), &job),
            None
        );
        job
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id);
            if holds(&job) {
                return job;
            }
            let log = || self.run(&["job", id, "log"]).stdout;
            let runner = || std::fs::read_to_string(self.place().join("runner.log"));
            assert!(Instant::now() < until, "{job}\n{}\n{:?}", log(), runner());
            std::thread::sleep(Duration::from_millis(150));
        }
    }

    /// Waits until a job has moved data.
    #[track_caller]
    pub(crate) fn wait_until_moving(&self, id: &str) -> Value {
        self.wait_until(id, |job| {
            job["bytes"].as_u64().is_some_and(|bytes| bytes > 0)
        })
    }

    /// Waits for a job with `zmove job ID wait`.
    pub(crate) fn wait(&self, id: &str) -> Outcome {
        self.run(&["job", id, "wait", "--timeout", "80s"])
    }

    pub(crate) fn runner(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.place().join("runner.lock")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?).filter(|pid| is_runner(*pid))
    }

    /// Returns the processes whose standard input is the lock file of a job of this yard.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let place = self.place();
        let is_here = |pid: &Pid| {
            let input = std::fs::read_link(format!("/proc/{}/fd/0", pid.as_raw_nonzero()));
            input.is_ok_and(|input| input.starts_with(&place) && input.ends_with("lock"))
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids =
            entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter(is_here).collect()
    }

    pub(crate) fn kill_runner(&self) {
        // A runner writes its process id shortly after it has taken the lock.
        wait_for("a runner", || self.runner().is_some());
        let pid = self.runner().unwrap();
        kill(pid);
        wait_for("the runner's end", || self.runner().is_none());
    }

    /// Kills the process of the only running job.
    fn kill_process(&self) {
        let [pid] = self.processes()[..] else {
            panic!("one process: {:?}", self.processes())
        };
        kill(pid);
        wait_for("the process's end", || !self.processes().contains(&pid));
    }

    /// Returns the kinds of a job's events.
    fn kinds(&self, id: &str) -> Vec<String> {
        let lines = self.run(&["job", id, "log", "--json"]).done().stdout;
        let events = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        events
            .map(|event| event["event"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    fn assert_done(&self, id: &str, attempts: u64) {
        self.wait(id).expect(0);
        assert_same(&self.site.source(), &self.site.target());
        let (job, kinds) = (self.job(id), self.kinds(id));
        assert_eq!(
            (&job["state"], &job["attempts"]),
            (&"done".into(), &attempts.into()),
            "{job} {kinds:?}"
        );
        assert_eq!(
            kinds.iter().filter(|kind| *kind == "done").count(),
            1,
            "{kinds:?}"
        );
        assert_eq!(
            kinds.iter().filter(|kind| *kind == "running").count() as u64,
            attempts,
            "{kinds:?}"
        );
        assert_eq!(self.processes(), []);
    }
}

/// Whether the process with this id is a runner.
pub(crate) fn is_runner(pid: Pid) -> bool {
    let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    words.is_ok_and(|words| words.split(|&byte| byte == 0).any(|word| word == b"runner"))
}

fn number(outcome: &Outcome) -> String {
    let id = outcome.stdout.trim().to_owned();
    assert!(id.parse::<u64>().is_ok(), "{id}");
    id
}

#[track_caller]
pub(crate) fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        if holds() {
            return;
        }
        assert!(Instant::now() < until, "no {what}");
        // A condition that starts programs is checked less often.
        let pause = 9 * began.elapsed();
        std::thread::sleep(pause.clamp(Duration::from_millis(20), Duration::from_millis(200)));
    }
}

#[test]
fn a_job_has_the_whole_name_of_a_source_with_colons() {
    let yard = Yard::local();
    paint(yard.site.path("run:1:2/f"), 10);
    let source = yard.site.path("run:1:2");
    for source in ["./run:1:2", source.to_str().unwrap()] {
        let submit = yard.run(&["submit", source, "target"]).done();
        let id = number(&submit);
        yard.wait(&id).expect(0);
        assert_eq!(yard.job(&id)["label"], "run:1:2", "{source}");
    }
}

#[test]
fn a_job_is_done_in_the_background() {
    for yard in [Yard::local(), Yard::daemon()] {
        paint(yard.site.source().join("d/f"), 100_000);
        let id = yard.submit(&["--label", "first one"], "");
        yard.assert_done(&id, 1);
        let job = yard.job(&id);
        assert_eq!(
            (&job["label"], &job["exit"]),
            (&"first one".into(), &0.into()),
            "{job}"
        );
        assert_eq!(
            (&job["files"], &job["bytes"]),
            (&1.into(), &100_000.into()),
            "{job}"
        );
        assert_eq!(
            job["source"],
            format!("{}/source/", yard.site.path("").display()).replace("//", "/")
        );
        let table = yard.run(&["jobs"]).done().stdout;
        assert!(
            table.contains("done") && table.contains("first one"),
            "{table}"
        );
        assert_eq!(
            yard.run(&["jobs", "--json"]).done().stdout.lines().count(),
            1
        );
        yard.run(&["job", &id, "attach"]).expect(0);
    }
}

#[test]
fn a_runner_that_is_killed_leaves_the_job_at_work_and_the_next_adopts_it() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.kill_runner();
    let before = yard.processes();
    let [pid] = before[..] else {
        panic!("one process: {before:?}")
    };
    // The job must not end before another runner has adopted it.
    kill_process(pid, Signal::STOP).unwrap();
    let waits = yard.site.zmove(&["job", &id, "wait"]).start();
    wait_for("another runner", || yard.runner().is_some());
    assert_eq!(yard.processes(), before);
    kill_process(pid, Signal::CONT).unwrap();
    crate::support::command::finish(waits).expect(0);
    yard.assert_done(&id, 1);
}

#[test]
fn the_next_runner_records_the_end_of_a_job_without_one() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.kill_runner();
    // `zmove job` starts a runner, which must not record the end before the state is read.
    let lock = File::create(yard.place().join("runner.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    wait_for("the job's end", || yard.processes().is_empty());
    assert_eq!(yard.job(&id)["state"], "running", "nobody has recorded it");
    drop(lock);
    yard.assert_done(&id, 1);
}

#[test]
fn a_process_that_is_killed_is_started_again_and_resumes() {
    let yard = Yard::daemon();
    // Files below 16 MiB do not resume.
    paint(yard.site.source().join("large"), 12 * GROUP_BYTES);
    let id = yard.submit(&["--limit", "80Mbit"], "");
    wait_for_journal(&yard.site);
    yard.kill_process();
    yard.assert_done(&id, 2);
    let line = yard.site.the_daemon().wait_for_log("received from tester");
    let (before, _) = line.split_once(" bytes").unwrap();
    let received: u64 = before.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(received <= 11 * GROUP_BYTES, "{line}");
    assert_eq!(
        yard.kinds(&id),
        ["submitted", "running", "queued", "running", "done"]
    );
}

#[test]
fn a_job_whose_runner_and_process_are_both_killed_completes() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.kill_runner();
    yard.kill_process();
    yard.assert_done(&id, 2);
}

#[test]
fn a_paused_job_can_be_resumed() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.run(&["job", &id, "pause"]).done();
    yard.wait_until(&id, |job| job["state"] == "paused");
    assert_eq!(yard.processes(), []);
    yard.run(&["job", &id, "wait", "--timeout", "0"]).expect(33);
    yard.run(&["job", &id, "resume"]).done();
    yard.assert_done(&id, 2);
    yard.run(&["job", &id, "resume"])
        .expect(1)
        .says(&["a job that is done cannot be resumed"]);
}

#[test]
fn a_job_is_cancelled_and_done_again() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.run(&["job", &id, "cancel"]).done();
    yard.wait(&id).expect(31);
    assert_eq!(yard.processes(), []);
    let again = number(&yard.run(&["job", &id, "rerun"]).done());
    assert_ne!(again, id);
    yard.assert_done(&again, 1);
    assert_eq!(yard.job(&id)["state"], "cancelled");
}

#[test]
fn the_next_runner_cancels_a_job_whose_runner_was_killed() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    yard.kill_runner();
    yard.run(&["job", &id, "cancel"]).done();
    yard.wait(&id).expect(31);
    assert_eq!(yard.processes(), []);
}

#[test]
fn a_job_that_cannot_connect_is_tried_again_until_its_deadline() {
    let yard = Yard::local();
    let id = yard.submit_to_nobody("8s");
    yard.wait(&id).expect(32);
    let job = yard.job(&id);
    assert!(
        job["attempts"].as_u64().unwrap() >= 2 && job["exit"] == 10,
        "{job}"
    );
    assert!(yard.kinds(&id).contains(&"waiting".to_owned()));
}

#[test]
fn a_job_waits_for_another_and_fails_with_it() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    let mut first = yard.site.zmove(&["submit", "none", "target"]);
    first.0.args(["--at", "2100-01-01 00:00"]);
    let first = number(&first.outcome().done());
    let second = yard.submit(&["--after", &first], "");
    assert_eq!(yard.job(&second)["state"], "waiting");
    let table = yard.run(&["jobs"]).done().stdout;
    assert!(table.contains("begins in "), "{table}");
    yard.run(&["job", &first, "cancel"]).done();
    yard.wait(&second).expect(30);
    let job = yard.job(&second);
    let why = format!("job {first}, which must be done first, was cancelled");
    assert_eq!(
        (&job["message"], &job["attempts"]),
        (&why.into(), &0.into())
    );
    let done = yard.submit(&[], "");
    let third = yard.submit(&["--after", &done, "-c"], "");
    yard.assert_done(&third, 1);
    let after_none = yard
        .site
        .zmove(&["submit", "--after", "99", "source", "target"])
        .outcome();
    after_none.expect(1).says(&["no job 99"]);
}

#[test]
fn the_same_submission_is_done_once() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    let id = yard.submit(&["--submission-id", "s1"], "");
    let submit = || {
        let mut again = yard
            .site
            .zmove(&["submit", "--submission-id", "s1", "source/"]);
        again.0.arg(yard.site.address(""));
        again.outcome().expect(0)
    };
    // The job may have ended already. The command then prints a line that says so.
    assert_eq!(number(&submit()), id);
    yard.assert_done(&id, 1);
    let again = submit().lines(1);
    assert_eq!(number(&again), id);
    let head = format!("zmove: job {id} with this submission id is done (");
    let time = again
        .stderr
        .strip_prefix(&head)
        .and_then(|rest| rest.strip_suffix("): nothing is sent again\n"));
    let time = time.unwrap_or_else(|| panic!("{}", again.stderr));
    let shown = yard.run(&["job", &id]).done().stdout;
    assert!(
        shown.contains(&format!("ended {time}")),
        "{time} in {shown}"
    );
    assert_eq!(
        yard.run(&["jobs", "--all", "--json"])
            .done()
            .stdout
            .lines()
            .count(),
        1
    );
    let mut other = yard
        .site
        .zmove(&["submit", "--submission-id", "s1", "source", "elsewhere"]);
    other.0.arg("-c");
    other
        .outcome()
        .expect(1)
        .says(&["submission id 's1' belongs to job 1, which has other arguments"]);
}

#[test]
fn a_failed_submission_is_reported_and_not_repeated() {
    let yard = Yard::local();
    let before = yard.submit(&[], "");
    yard.wait(&before).expect(0);
    let submit = || {
        // The source of a job that waits for another job may be created later.
        let mut submit = yard.site.zmove(&["submit", "--submission-id", "s1"]);
        submit.0.args(["--after", &before, "none"]);
        submit.0.arg(yard.site.address("target"));
        submit.outcome().expect(0)
    };
    let first = submit();
    let id = number(&first);
    assert!(
        !first.stderr.contains("with this submission id"),
        "{}",
        first.stderr
    );
    yard.wait(&id);
    paint(yard.site.path("none"), 1000);
    submit().says(&[
        &format!("job {id} with this submission id has failed ("),
        "nothing is sent again",
    ]);
    assert_eq!(yard.job(&id)["state"], "failed");
}

#[test]
fn a_second_runner_refuses_to_start() {
    let yard = Yard::local();
    let id = yard.submit(&["--at", "2100-01-01 00:00"], "");
    wait_for("a runner", || yard.runner().is_some());
    yard.run(&["runner"])
        .expect(13)
        .says(&["a runner is already running, process "]);
    yard.run(&["job", &id, "cancel"]).done();
}

#[test]
fn a_runner_may_end_by_itself_when_nothing_is_to_be_done() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    let id = yard.submit(&[], "");
    yard.assert_done(&id, 1);
    // Several commands may each have started a runner, and a slow one may have started after the kill.
    loop {
        yard.kill_runner();
        let outcome = yard.run(&["runner", "--until-idle", "0"]);
        if outcome.code != Some(13) {
            break drop(outcome.done());
        }
    }
    let id = yard.submit(&["-c"], "");
    yard.assert_done(&id, 1);
}

#[test]
fn a_job_whose_source_is_gone_fails_and_says_so() {
    let yard = Yard::local();
    let before = yard.submit(&[], "");
    yard.wait(&before).expect(0);
    let mut submit = yard.site.zmove(&["submit", "none", "target"]);
    submit.0.args(["--label", "gone", "--after", &before]);
    let id = number(&submit.outcome().done());
    let said = yard.wait(&id).expect(30);
    assert!(
        said.stdout.contains("job 2 (gone) has failed"),
        "{}",
        said.stdout
    );
    let job = yard.job(&id);
    assert_eq!(
        (&job["attempts"], &job["exit"]),
        (&1.into(), &23.into()),
        "{job}"
    );
    assert!(
        job["message"]
            .as_str()
            .is_some_and(|message| !message.is_empty()),
        "{job}"
    );
    let log = yard.run(&["job", &id, "log"]).done().stdout;
    assert!(log.contains("none"), "{log}");
}

#[test]
fn a_host_that_is_not_known_is_refused_at_once() {
    let yard = Yard::daemon();
    std::fs::remove_file(yard.site.path("client/known_hosts")).unwrap();
    let submit = |options: &[&str]| {
        let mut submit = yard.site.zmove(&["submit"]);
        submit
            .0
            .args(options)
            .arg("source/")
            .arg(yard.site.address(""));
        submit.outcome()
    };
    submit(&[]).expect(5).says(&["is not known", "zmove trust"]);
    submit(&["--strict"])
        .expect(5)
        .says(&["is not known", "zmove trust"]);
    assert_eq!(yard.run(&["jobs"]).done().stdout, "no jobs\n");
    paint(yard.site.source().join("f"), 1000);
    let id = number(&submit(&["--accept-new"]).done());
    yard.assert_done(&id, 1);
}

#[test]
fn submit_refuses_invalid_options() {
    let yard = Yard::local();
    yard.run(&["submit", "-n", "source", "target"])
        .expect(1)
        .says(&["--dry-run"]);
    yard.run(&["submit", "--files-from", "-", "source", "target"])
        .expect(1)
        .says(&["name files"]);
    for (schedule, why) in [
        ("daily", "1 field"),
        ("0 2 * * * *", "6 fields"),
        ("*/61 * * * *", "the minute '*/61'"),
        ("0 1,2,,3 * * *", "the hour '1,2,,3'"),
    ] {
        yard.run(&["submit", "--every", schedule, "source", "target"])
            .expect(1)
            .says(&[schedule, why]);
    }
    yard.run(&["submit", "-e", "sshpass -p x ssh", "source", "h:a"])
        .expect(1)
        .says(&["sshpass -f FILE"]);
    yard.run(&["submit", "-e", "ssh", "source", "ssh://a:b@h/c"])
        .expect(1)
        .says(&["use a key"]);
    yard.run(&[
        "submit",
        "--delete",
        "--files-from",
        "x",
        "source",
        "target",
    ])
    .expect(1);
    assert!(yard.runner().is_none());
}

#[test]
fn a_damaged_database_or_one_of_another_version_is_reported() {
    let yard = Yard::local();
    let database = yard.place().join("jobs.db");
    yard.run(&["jobs"]).done();
    // The schema version is at offset 60 of an SQLite file.
    let kept = std::fs::read(&database).unwrap();
    let other = [&kept[..60], &[0, 0, 0, 99], &kept[64..]].concat();
    std::fs::write(&database, other).unwrap();
    for words in [&["jobs"][..], &["submit", "source", "target"], &["runner"]] {
        yard.run(words)
            .expect(11)
            .says(&["jobs.db' has schema version 99, and this zmove reads version 1"])
            .lines(1);
    }
    std::fs::write(&database, "nonsense ".repeat(1000)).unwrap();
    for words in [&["jobs"][..], &["submit", "source", "target"], &["runner"]] {
        yard.run(words)
            .expect(11)
            .says(&["jobs.db' is damaged: restore a backup"])
            .lines(1);
    }
    assert!(yard.runner().is_none());
}

#[test]
fn a_backup_has_the_jobs() {
    let yard = Yard::local();
    let id = yard.submit(&["--at", "2100-01-01 00:00"], "");
    let backup = yard.site.path("backup.db");
    yard.run(&["jobs", "backup", backup.to_str().unwrap()])
        .done();
    yard.run(&["jobs", "backup", backup.to_str().unwrap()])
        .expect(11)
        .says(&["create", "exists"]);
    wait_for("a runner", || yard.runner().is_some());
    yard.kill_runner();
    let restored = yard.site.path("restored");
    std::fs::create_dir(&restored).unwrap();
    std::fs::copy(&backup, restored.join("jobs.db")).unwrap();
    let mut jobs = yard.site.zmove(&["jobs", "--json"]);
    jobs.0.env("ZMOVE_JOBS", &restored);
    let job: Value = serde_json::from_str(&jobs.outcome().done().stdout).unwrap();
    assert_eq!(
        (job["id"].to_string(), &job["state"]),
        (id, &"waiting".into())
    );
}

#[test]
fn old_jobs_are_forgotten() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    let id = yard.submit(&[], "");
    yard.assert_done(&id, 1);
    assert!(yard.place().join(&id).is_dir());
    let clean = yard.run(&["jobs", "clean"]).done().stdout;
    assert_eq!(
        clean,
        "forgot 0 jobs\nkept 1 job: 1 ended less than 30 d ago, see --older-than\n"
    );
    assert!(yard.place().join(&id).is_dir());
    // The job is kept until it is certain that it has no notifications to send.
    let clean = || {
        yard.run(&["jobs", "clean", "--older-than", "0"])
            .done()
            .stdout
    };
    wait_for("forgetting", || clean() == "forgot 1 job\n");
    assert!(!yard.place().join(&id).exists());
    yard.run(&["job", &id])
        .expect(1)
        .says(&["there is no job 1"]);
}

/// Number of jobs with one remote host that a runner runs concurrently.
const AT_ONCE_MAX: usize = 4;

/// There are more jobs than the runner runs concurrently. Each is completed once, in one attempt.
#[test]
fn many_jobs_are_done_side_by_side() {
    let yard = Yard::daemon();
    paint(yard.site.source().join("f"), 1 << 20);
    let ids: Vec<_> = (0..=2 * AT_ONCE_MAX)
        .map(|number| yard.submit(&["--limit", "300kB"], &format!("t{number}")))
        .collect();
    wait_for("as many jobs at work as may be", || {
        yard.processes().len() == AT_ONCE_MAX
    });
    for (number, id) in ids.iter().enumerate() {
        yard.wait(id).expect(0);
        assert_same(
            &yard.site.source(),
            &yard.site.target().join(format!("t{number}")),
        );
        assert_eq!(yard.job(id)["attempts"], 1);
    }
}

/// The environment of the command that starts the runner may contain secrets.
#[test]
fn a_job_has_no_variables_but_those_that_it_needs() {
    let yard = Yard::daemon();
    yard.paint_slow();
    let mut submit = yard.site.zmove(&["submit", "--limit", "20Mbit", "source/"]);
    submit
        .0
        .arg(yard.site.address(""))
        .env("SECRET", "x")
        .env("LC_ALL", "C.UTF-8");
    let id = number(&submit.outcome().done());
    yard.wait_until_moving(&id);
    let [pid] = yard.processes()[..] else {
        panic!("one process")
    };
    let variables = |pid: Pid| {
        let words =
            std::fs::read_to_string(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap();
        words
            .split('\0')
            .map(|word| word.split('=').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (of_runner, of_job) = (variables(yard.runner().unwrap()), variables(pid));
    assert!(of_runner.contains(&"SECRET".to_owned()), "{of_runner:?}");
    assert!(!of_job.contains(&"SECRET".to_owned()), "{of_job:?}");
    for name in ["PATH", "HOME", "LC_ALL", "ZMOVE_HOME"] {
        assert!(of_job.contains(&name.to_owned()), "{name}: {of_job:?}");
    }
    yard.run(&["job", &id, "cancel"]).done();
}

#[test]
fn files_of_jobs_are_for_their_user_alone() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    let id = yard.submit(&[], "");
    yard.assert_done(&id, 1);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let place = yard.place();
    assert_eq!((mode(&place), mode(&place.join(&id))), (0o700, 0o700));
    for name in ["jobs.db", "runner.lock", "runner.log", "wake"] {
        assert_eq!(mode(&place.join(name)), 0o600, "{name}");
    }
    assert_eq!(
        (
            mode(&place.join(&id).join("lock")),
            mode(&place.join(&id).join("log"))
        ),
        (0o600, 0o600)
    );
}

#[test]
fn a_pull_is_a_job_too() {
    let yard = Yard {
        site: Site::reading(&[], &[]),
    };
    paint(yard.site.source().join("f"), 1000);
    let mut submit = yard.site.zmove(&["submit"]);
    let source = yard.site.source().join("");
    submit
        .0
        .arg(yard.site.address(source.to_str().unwrap()))
        .arg("target");
    let id = number(&submit.outcome().done());
    yard.assert_done(&id, 1);
}

#[test]
fn a_schedule_is_kept_until_it_is_cancelled() {
    let Some((site, clock)) = Clock::site() else {
        return;
    };
    let yard = Yard { site };
    paint(yard.site.source().join("f"), 1000);
    yard.submit(&["--every", "* * * * *", "--label", "each minute"], "");
    let jobs = || -> Vec<Value> {
        let lines = yard.run(&["jobs", "--json"]).done().stdout;
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let is_done = |job: &&Value| job["state"] == "done";
    clock.wait_for("three runs", || jobs().iter().filter(is_done).count() >= 3);
    let live = |jobs: &[Value]| {
        jobs.iter()
            .find(|job| job["ended"].is_null())
            .map(|job| job["id"].to_string())
    };
    wait_for("no more runs", || {
        if let Some(id) = live(&jobs()) {
            // The run may have ended in the meantime, and another one may have been created.
            yard.run(&["job", &id, "cancel"]);
        }
        live(&jobs()).is_none()
    });
    let jobs = jobs();
    assert!(
        jobs.iter().all(|job| job["schedule"] == "* * * * *"),
        "{jobs:?}"
    );
    let started = jobs.iter().filter(|job| job["started"].is_i64());
    let started: Vec<_> = started.collect();
    let runs_after = |pair: &[&Value]| pair[0]["ended"].as_i64() <= pair[1]["started"].as_i64();
    assert!(
        started.windows(2).all(runs_after),
        "two runs at once: {started:?}"
    );
    assert_same(&yard.site.source(), &yard.site.target());
}

#[test]
fn a_job_whose_directory_is_gone_fails_and_says_so() {
    let yard = Yard::local();
    let directory = yard.site.path("work");
    std::fs::create_dir(&directory).unwrap();
    let mut submit = yard
        .site
        .zmove(&["submit", "--at", "2100-01-01 00:00", "a", "b"]);
    submit.0.current_dir(&directory);
    let first = number(&submit.outcome().done());
    let mut submit = yard.site.zmove(&["submit", "--after", &first, "a", "b"]);
    submit.0.current_dir(&directory);
    submit.outcome().done();
    std::fs::remove_dir(&directory).unwrap();
    yard.run(&["job", &first, "cancel"]).done();
    let again = number(&yard.run(&["job", &first, "rerun"]).done());
    yard.wait(&again).expect(30);
    let job = yard.job(&again);
    assert!(
        job["message"]
            .as_str()
            .unwrap()
            .contains("/work': No such file"),
        "{job}"
    );
}

/// If several processes open a new SQLite database together, some of them fail. A user must not see these failures.
#[test]
fn many_submissions_at_once_create_one_store() {
    for _ in 0..4 {
        let yard = Yard::local();
        let submits: Vec<_> = (0..4)
            .map(|_| {
                yard.site
                    .zmove(&["submit", "--at", "2100-01-01 00:00", "source", "target"])
                    .start()
            })
            .collect();
        let ids: std::collections::BTreeSet<_> = submits
            .into_iter()
            .map(|submit| number(&crate::support::command::finish(submit).done()))
            .collect();
        assert_eq!(ids.len(), 4);
        assert_eq!(
            yard.run(&["jobs", "--json"]).done().stdout.lines().count(),
            4
        );
        wait_for("a runner", || yard.runner().is_some());
        let log = std::fs::read_to_string(yard.place().join("runner.log")).unwrap();
        assert_eq!(log, "");
    }
}
