//! `torture --jobs` kills the runner and the processes of jobs at random times. At the end, each job must exist, be
//! done, have exactly one event that reports this, and have the correct tree at its target. The hook must have received
//! each event at least once, always with the same id.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::dice::Dice;
use super::programs::{CLIENT_HOME, Place, Running, free_address};
use super::trees::metadata::Features;
use super::trees::same;
use super::trees::tree::{Shape, Tree};
use super::trees::versions::Versions;

/// Counts of one or more rounds.
#[derive(Debug, Default)]
pub(crate) struct JobsTally {
    pub(crate) rounds: u64,
    jobs: u64,
    attempts: u64,
    runners_killed: u64,
    processes_killed: u64,
    submits_killed: u64,
    notified: u64,
    notified_again: u64,
    pub(crate) failures: Vec<String>,
}

impl JobsTally {
    pub(crate) fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.jobs += other.jobs;
        self.attempts += other.attempts;
        self.runners_killed += other.runners_killed;
        self.processes_killed += other.processes_killed;
        self.submits_killed += other.submits_killed;
        self.notified += other.notified;
        self.notified_again += other.notified_again;
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for JobsTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rounds,
            jobs,
            attempts,
            notified,
            notified_again,
            ..
        } = self;
        let Self {
            runners_killed,
            processes_killed,
            submits_killed,
            ..
        } = self;
        write!(
            f,
            "{rounds} rounds, {jobs} jobs, {attempts} attempts; killed: {runners_killed} runners, {processes_killed} \
             processes, {submits_killed} submits; notified: {notified}, {notified_again} of them again; {} failures",
            self.failures.len()
        )
    }
}

/// A submitted job.
struct Order {
    tree: Tree,
    target: PathBuf,
    id: String,
}

struct Round<'a> {
    place: &'a Place,
    dice: Dice,
    /// `None` while no runner is active.
    runner: Option<Running>,
    tally: JobsTally,
}

/// Runs the round of this seed in the new directory `directory`.
pub(crate) fn run(zmove: &str, directory: &Path, seed: u64) -> JobsTally {
    match round(zmove, directory, Dice::new(seed)) {
        Ok(tally) => tally,
        Err(error) => JobsTally {
            rounds: 1,
            failures: vec![format!("lab: {error:#}")],
            ..Default::default()
        },
    }
}

fn round(zmove: &str, directory: &Path, mut dice: Dice) -> Result<JobsTally> {
    let targets = directory.join("targets");
    fs::create_dir_all(&targets)
        .with_context(|| format!("failed to create {}", targets.display()))?;
    let place = Place::prepare(zmove, directory, &targets, &["--write", "--set-owner"])?;
    let address = free_address(&mut dice)?;
    let _daemon = place.serve(address, &[])?;
    let features = Features::of(directory)?;
    write_hook(&place, dice.within(0..=100))?;
    let tally = JobsTally {
        rounds: 1,
        ..Default::default()
    };
    let mut round = Round {
        place: &place,
        dice,
        runner: None,
        tally,
    };
    round.start_runner()?;
    let mut orders = Vec::new();
    for number in 0..round.dice.within(2..=JOBS_MAX) {
        let source = directory.join(format!("source-{number}"));
        let tree = Tree::grow_like(
            &[SHAPE],
            &source,
            features,
            round.dice.fork(),
            &mut Versions::default(),
        )?;
        let target = targets.join(number.to_string());
        fs::create_dir(&target).context("failed to make a target")?;
        let before = orders.last().map(|order: &Order| order.id.clone());
        let id = round.submit(
            &tree,
            &format!("{address}:{}", target.display()),
            before.as_deref(),
        )?;
        orders.push(Order { tree, target, id });
        if round.dice.one_in(3) {
            round.disturb()?;
        }
    }
    for _ in 0..round.dice.within(1..=EVENTS_MAX) {
        round.disturb()?;
    }
    round.start_runner()?;
    round.judge(&orders)?;
    Ok(std::mem::take(&mut round.tally))
}

impl Round<'_> {
    fn zmove(&self, words: &[&str]) -> Command {
        let mut command = self.place.command(CLIENT_HOME);
        command.args(words);
        command
    }

    fn start_runner(&mut self) -> Result<()> {
        if self.runner.is_none() {
            let mut runner = self.zmove(&["runner"]);
            self.runner = Some(Running::start(runner.stdout(Stdio::null()))?);
        }
        Ok(())
    }

    /// Submits a job. The submission may be repeated, after the first one was completed or killed.
    fn submit(&mut self, tree: &Tree, target: &str, before: Option<&str>) -> Result<String> {
        let submission = format!("s{}", self.tally.jobs);
        let rate = format!("{}Mbit", self.dice.scaled_within(10..=400));
        let mut words = vec![
            "submit",
            "-a",
            "--accept-new",
            "--limit",
            &rate,
            "--submission-id",
            &submission,
        ];
        if let Some(before) = before.filter(|_| self.dice.one_in(3)) {
            words.extend(["--after", before]);
        }
        let command = |round: &Self| {
            let mut command = round.zmove(&words);
            command.arg(tree.root().join("")).arg(target);
            command
        };
        if self.dice.one_in(4) {
            let mut submit = Running::start(command(self).stdout(Stdio::null()))?;
            sleep(Duration::from_millis(self.dice.within(0..=20)));
            submit.kill()?;
            self.tally.submits_killed += 1;
        }
        let output = command(self)
            .output()
            .context("failed to start zmove submit")?;
        if !output.status.success() {
            bail!(
                "submit failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        self.tally.jobs += 1;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Waits for a while and kills a process. If it was the runner, another one is started after a while.
    fn disturb(&mut self) -> Result<()> {
        sleep(Duration::from_millis(self.dice.scaled_within(1..=500)));
        let which = self.dice.within(1..=3);
        if which != 1
            && let Some(mut runner) = self.runner.take()
        {
            runner.kill()?;
            self.tally.runners_killed += 1;
        }
        if which != 2 {
            let processes = self.processes();
            if !processes.is_empty() {
                let pid = *self.dice.pick(&processes);
                // The process may have ended since it was listed.
                let handle = pidfd_open(pid, PidfdFlags::empty());
                let killed = handle.and_then(|handle| pidfd_send_signal(handle, Signal::KILL));
                self.tally.processes_killed += u64::from(killed.is_ok());
            }
        }
        if self.dice.one_in(2) {
            sleep(Duration::from_millis(self.dice.scaled_within(1..=300)));
        }
        self.start_runner()
    }

    /// Returns the processes whose standard input is the lock of a job.
    fn processes(&self) -> Vec<Pid> {
        let jobs = self.place.directory.join(CLIENT_HOME).join("jobs");
        let is_here = |pid: &Pid| {
            let input = fs::read_link(format!("/proc/{}/fd/0", pid.as_raw_nonzero()));
            input.is_ok_and(|input| input.starts_with(&jobs) && input.ends_with("lock"))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids =
            entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let mut processes: Vec<_> = pids.filter(is_here).collect();
        processes.sort_by_key(|pid| pid.as_raw_nonzero());
        processes
    }

    /// Returns the runner that was not started by this test.
    fn started_runner(&self) -> Option<Pid> {
        let lock = self
            .place
            .directory
            .join(CLIENT_HOME)
            .join("jobs/runner.lock");
        let pid = Pid::from_raw(fs::read_to_string(lock).ok()?.trim().parse().ok()?)?;
        let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        words
            .split(|&byte| byte == 0)
            .any(|word| word == b"--detached")
            .then_some(pid)
    }

    fn lines(&self, words: &[&str]) -> Result<Vec<Value>> {
        let output = self
            .zmove(words)
            .output()
            .context("failed to start zmove")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines()
            .map(|line| serde_json::from_str(line).context("failed to read JSON"))
            .collect()
    }

    fn judge(&mut self, orders: &[Order]) -> Result<()> {
        for Order { tree, target, id } in orders {
            let ended = self.wait_for_end(id)?;
            let fail = |tally: &mut JobsTally, what: String| {
                tally.failures.push(format!("job {id}: {what}"))
            };
            if ended["state"] != "done" {
                let log = self
                    .zmove(&["job", id, "log"])
                    .output()
                    .context("failed to start zmove")?;
                fail(
                    &mut self.tally,
                    format!("{ended}: {}", String::from_utf8_lossy(&log.stdout)),
                );
                continue;
            }
            self.tally.attempts += ended["attempts"].as_u64().unwrap_or_default();
            let events = self.lines(&["job", id, "log", "--json"])?;
            let done = events
                .iter()
                .filter(|event| event["event"] == "done")
                .count();
            if done != 1 {
                fail(
                    &mut self.tally,
                    format!("{done} events say that it is done"),
                );
            }
            for difference in same::differences(tree.root(), target, &[])? {
                fail(&mut self.tally, difference);
            }
        }
        let jobs = self.lines(&["jobs", "--all", "--json"])?;
        if jobs.len() != orders.len() {
            self.tally
                .failures
                .push(format!("{} jobs of {}", jobs.len(), orders.len()));
        }
        self.judge_notified(orders)?;
        if !self.processes().is_empty() {
            self.tally
                .failures
                .push("a process outlives its job".to_owned());
        }
        Ok(())
    }

    /// Waits until no notification is pending, and compares the documents that the hook has received with the events.
    fn judge_notified(&mut self, orders: &[Order]) -> Result<()> {
        let mut expected = BTreeSet::new();
        for Order { id, .. } in orders {
            let sent = self.wait_until_sent(id)?;
            if sent.iter().any(|sent| sent["state"] != "delivered") {
                self.tally
                    .failures
                    .push(format!("job {id}: not delivered: {sent:?}"));
            }
            expected.extend(
                sent.iter()
                    .map(|sent| format!("{} {id} {}", sent["number"], sent["event"])),
            );
            if !sent.iter().any(|sent| sent["event"] == "done") {
                self.tally
                    .failures
                    .push(format!("job {id}: no notification says that it is done"));
            }
        }
        let documents = fs::read_to_string(self.place.directory.join(HOOKED)).unwrap_or_default();
        let documents = documents.lines().map(serde_json::from_str);
        let documents: Vec<Value> = documents
            .collect::<Result<_, _>>()
            .context("failed to read the documents of the hook")?;
        // An id consists of the id of the store, which is always the same here, and the number of the event.
        let number =
            |document: &Value| Some(document["id"].as_str()?.split_once('-')?.1.to_owned());
        let events: BTreeSet<_> = documents
            .iter()
            .filter_map(|document| {
                let number = number(document)?;
                Some(format!(
                    "{number} {} {}",
                    document["job"], document["event"]
                ))
            })
            .collect();
        if events != expected {
            self.tally
                .failures
                .push(format!("the hook got {events:?} and not {expected:?}"));
        }
        self.tally.notified += documents.len() as u64;
        self.tally.notified_again += documents.len().saturating_sub(events.len()) as u64;
        Ok(())
    }

    fn wait_until_sent(&self, id: &str) -> Result<Vec<Value>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let job = self
                .lines(&["job", id, "--json"])?
                .pop()
                .context("no such job")?;
            let sent = job["notifications"].as_array().cloned().unwrap_or_default();
            let is_sent = !sent.is_empty() && sent.iter().all(|sent| sent["state"] != "waiting");
            if is_sent || Instant::now() > until {
                return Ok(sent);
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn wait_for_end(&self, id: &str) -> Result<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let job = self
                .lines(&["job", id, "--json"])?
                .pop()
                .context("no such job")?;
            if !job["ended"].is_null() || Instant::now() > until {
                return Ok(job);
            }
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.runner = None;
        // A submission that found no runner has started one.
        let started = self.started_runner();
        for pid in self.processes().into_iter().chain(started) {
            if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) {
                let _ended_before = pidfd_send_signal(&handle, Signal::KILL);
            }
        }
    }
}

/// Configures a hook that appends the documents to a file and then waits, so that the runner may be killed during that
/// time.
fn write_hook(place: &Place, millis: u64) -> Result<()> {
    let hooked = place.directory.join(HOOKED);
    let script = format!("cat >> '{}'; sleep 0.{millis:03}", hooked.display());
    let text = format!("[hook]\ncommand = ['/bin/sh', '-c', \"\"\"{script}\"\"\"]\n");
    let home = place.directory.join(CLIENT_HOME);
    fs::create_dir_all(&home).context("failed to make a home")?;
    let file = home.join("notify.toml");
    fs::write(&file, text).context("failed to configure a hook")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))
        .context("failed to close a file to others")
}

/// The file of the documents that the hook has received, one per line.
const HOOKED: &str = "hooked";
/// Small trees, because the number of disturbances matters more than the amount of data.
const SHAPE: Shape = Shape {
    weight: 1,
    directories: 4,
    files: 40,
    hard_links: 12,
    sizes: [4, 8, 4, 2, 0, 0],
};
const JOBS_MAX: u64 = 5;
const EVENTS_MAX: u64 = 8;
/// Maximum time for a job after the last disturbance.
const PATIENCE: Duration = Duration::from_secs(120);
