//! One round of `torture --cluster`.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::acts::{self, Act, Crowd, Since, Timed, Who};
use super::stand::{CLUSTER, NODES_MAX, RECEIVERS_MAX, Stand};
use super::tally::ClusterTally;
use crate::data::trees::names;
use crate::torture::dice::Dice;
use crate::torture::programs::{CLIENT_HOME, Running, append};
use crate::torture::shared_target::{Draws, JOB_PREFIX, Row, SharedTarget, look_for_panics};
use crate::torture::tally::FailureKind;
use crate::torture::trees::metadata::Kind;
use crate::torture::trees::same;
use crate::torture::watch::Watch;

/// A round that was set up.
struct Round {
    stand: Stand,
    at: SharedTarget,
    /// Stopped heads, while other heads lead.
    asleep: Vec<Running>,
    dice: Dice,
    tally: ClusterTally,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    Failed,
}

/// Runs the round of this seed in the new directory `directory`. Returns its counts and a description of its settings.
pub(crate) fn run(zmove: &str, directory: &Path, seed: u64) -> (ClusterTally, String) {
    let mut shown = String::new();
    let outcome = Round::set_up(zmove, directory, seed).map(|mut round| {
        let Crowd {
            receivers,
            nodes,
            servers,
        } = round.stand.crowd();
        let options = round.at.options.join(" ");
        shown = format!("{receivers} receivers, {nodes} nodes, {servers} servers, {options}");
        let outcome = round.run();
        let mut tally = std::mem::take(&mut round.tally);
        round.at.conclude(outcome, &mut tally.common);
        tally
    });
    let mut tally = outcome.unwrap_or_else(|error| {
        let mut tally = ClusterTally::default();
        tally.common.fail(FailureKind::Lab, format!("{error:#}"));
        tally
    });
    tally.common.rounds = 1;
    (tally, shown)
}

impl Round {
    fn set_up(zmove: &str, directory: &Path, seed: u64) -> Result<Self> {
        let mut dice = Dice::new(seed);
        let draws = Draws {
            command: &COMMAND,
            large_one_in: 2,
            large_bytes_max: LARGE_BYTES_MAX,
        };
        let (at, serve) = SharedTarget::draw(directory, &draws, &mut dice)?;
        let crowd = Crowd {
            receivers: 2 + dice.index(RECEIVERS_MAX - 1),
            nodes: 1 + dice.index(NODES_MAX),
            servers: if seed.is_multiple_of(3) { 3 } else { 1 },
        };
        let host = (host_of(seed), &mut dice);
        let stand = Stand::set_up((zmove, directory, &at.shared), crowd, &serve, host)?;
        let (asleep, tally) = (Vec::new(), ClusterTally::default());
        Ok(Self {
            stand,
            at,
            asleep,
            dice,
            tally,
        })
    }

    fn run(&mut self) -> Result<()> {
        let watch = Watch::start(&self.at.inspector);
        let mut later = Vec::new();
        self.at.inspector().expect_one_commit();
        for number in 1..=self.dice.within(1..=DISTURBED_MAX) {
            // The source must not change while a stopped head may still have its old state in memory.
            if number > 1 && self.asleep.is_empty() && self.dice.one_in(3) {
                self.at.change_source()?;
                self.at.inspector().expect_one_commit();
            }
            let acts = acts::draw(
                &mut self.dice,
                self.stand.crowd(),
                std::mem::take(&mut later),
            );
            later = acts.later;
            if self.attempt(acts.since, &acts.now)? == Ending::Done && self.asleep.is_empty() {
                self.compare(&format!("after try {number}"))?;
            }
        }
        // Stopped and killed programs are restored during the next push. After that, nothing disturbs the transfer.
        let is_done = !later.is_empty() && self.attempt(Since::Start, &later)? == Ending::Done;
        if is_done && self.asleep.is_empty() {
            self.compare("after the last one came back")?;
        }
        self.stand.restore()?;
        self.wake_heads()?;
        let finished = self.finish()?;
        for what in self.stand.end()? {
            self.tally.common.fail(FailureKind::Odd, what);
        }
        drop(watch);
        if finished {
            self.compare("at the end")?;
            self.look_for_leftovers()?;
        }
        self.look_for_panics();
        Ok(())
    }

    /// Runs the same command until it succeeds.
    fn finish(&mut self) -> Result<bool> {
        for _ in 0..CALM_MAX {
            if self.attempt(Since::Start, &[])? == Ending::Done {
                self.compare("after a calm try")?;
                return Ok(true);
            }
            self.tally.common.calm_failed += 1;
        }
        self.tally.common.fail(
            FailureKind::Unfinished,
            format!("{CALM_MAX} tries that nothing disturbed"),
        );
        Ok(false)
    }

    /// Runs the command once.
    fn attempt(&mut self, since: Since, acts: &[Timed]) -> Result<Ending> {
        self.tally.common.tries += 1;
        let said = self
            .stand
            .place
            .directory
            .join(format!("head-{}.json", self.tally.common.tries));
        let mut head = self.start_head(&said)?;
        if since == Since::JobBegun {
            self.wait_until_begun(&head)?;
        }
        let began = Instant::now();
        let (mut is_over, mut is_stopped) = (false, false);
        for Timed { after, act } in acts {
            is_over =
                is_over || head.ends((began + *after).saturating_duration_since(Instant::now()))?;
            if is_over && !act.restores() {
                continue;
            }
            if is_over {
                // The action restores a program after the end of the push.
                sleep(
                    (began + *after)
                        .saturating_duration_since(Instant::now())
                        .min(AFTER_END_MAX),
                );
            }
            match act {
                Act::Stop(Who::Head) => is_stopped = true,
                Act::Kill(Who::Head) => is_stopped = false,
                Act::Wake(Who::Head) if self.asleep.is_empty() => is_stopped = false,
                _ => {}
            }
            self.perform(*act, &head)?;
        }
        if is_stopped && !is_over {
            self.asleep.push(head);
            return Ok(Ending::Failed);
        }
        let was_killed = acts.iter().any(|timed| timed.act == Act::Kill(Who::Head));
        let Some(status) = head.wait(PUSH_PATIENCE)? else {
            self.tally.common.fail(
                FailureKind::Hung,
                format!("the push does not end after {acts:?}"),
            );
            head.kill()?;
            return Ok(Ending::Failed);
        };
        for dead in self.stand.dead()? {
            self.tally.common.fail(FailureKind::Odd, dead);
        }
        if status.success() {
            self.look_at_summary(&said, acts)?;
            return Ok(Ending::Done);
        }
        if !is_sane(status, was_killed, acts) {
            self.tally.common.fail(
                FailureKind::Odd,
                format!("the push ended with {status} after {acts:?}"),
            );
        }
        Ok(Ending::Failed)
    }

    /// Waits until a job has started at the target, or until a time limit if none starts.
    fn wait_until_begun(&self, head: &Running) -> Result<()> {
        let deadline = Instant::now() + BEGIN_MAX;
        let is_under_way = || -> Result<bool> {
            let hidden = if self.at.target.exists() {
                names(&self.at.target)?
            } else {
                Default::default()
            };
            let is_job = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(JOB_PREFIX);
            Ok(hidden.iter().any(is_job))
        };
        while Instant::now() < deadline
            && !is_under_way()?
            && !head.ends(Duration::from_millis(1))?
        {}
        Ok(())
    }

    fn start_head(&self, said: &Path) -> Result<Running> {
        let mut command = self.stand.place.command(CLIENT_HOME);
        command
            .args(["push", "--cluster", CLUSTER, "--json", "--timeout", "5s"])
            .args(&self.at.options);
        command
            .arg(self.at.tree.root().join(""))
            .arg(&self.at.target);
        Running::start(
            command
                .stdout(append(said)?)
                .stderr(append(&self.client_log())?),
        )
    }

    fn perform(&mut self, act: Act, head: &Running) -> Result<()> {
        self.tally.happened(act);
        match act {
            Act::Kill(Who::Head) => head.signal(Signal::KILL),
            Act::Stop(Who::Head) => head.signal(Signal::STOP),
            Act::Wake(Who::Head) if self.asleep.is_empty() => head.signal(Signal::CONT),
            Act::Wake(Who::Head) => self
                .asleep
                .iter()
                .for_each(|head| head.signal(Signal::CONT)),
            Act::Kill(who) => self.stand.kill(who)?,
            Act::Start(who) => self.stand.start(who)?,
            Act::Stop(who) => self.stand.signal(who, Signal::STOP)?,
            Act::Wake(who) => self.stand.signal(who, Signal::CONT)?,
            Act::Lose(loss) => self.stand.lose(loss)?,
        }
        Ok(())
    }

    /// Resumes the heads that were stopped while others led, and waits until they end.
    fn wake_heads(&mut self) -> Result<()> {
        if self.asleep.is_empty() {
            return Ok(());
        }
        for mut head in std::mem::take(&mut self.asleep) {
            head.signal(Signal::CONT);
            if head.wait(PUSH_PATIENCE)?.is_none() {
                self.tally
                    .common
                    .fail(FailureKind::Hung, "a push that was stopped does not end");
                head.kill()?;
            }
        }
        // Two concurrent pushes may each have renamed the file into place.
        self.at.inspector().expect_one_commit();
        Ok(())
    }

    /// Checks that all files were moved or existed already, each of them once.
    fn look_at_summary(&mut self, said: &Path, acts: &[Timed]) -> Result<()> {
        let text = fs::read_to_string(said).context("failed to read what the head has said")?;
        let mut objects = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let summary = objects.rfind(|object| object["skipped"].is_u64());
        let summary = summary.context("the head has said no summary")?;
        let count = |what: &str| summary[what].as_u64().unwrap_or_default();
        let is_file = |(_, kind): &&(PathBuf, Kind)| *kind == Kind::File;
        let expected = self.at.tree.entries().iter().filter(is_file).count() as u64;
        let counted = count("files") + count("skipped");
        // Only a push that something has happened to may not know its counts.
        let is_inexact = summary["inexact"] == true && !acts.is_empty();
        if counted != expected && !is_inexact {
            let (files, skipped) = (count("files"), count("skipped"));
            let what = format!("{files} files and {skipped} skipped of {expected} after {acts:?}");
            self.tally.common.fail(FailureKind::Doubled, what);
        }
        Ok(())
    }

    fn compare(&mut self, when: &str) -> Result<()> {
        self.at.compare(when, &mut self.tally.common)?;
        let mut inspector = self.at.inspector();
        inspector.pass();
        let doubled = inspector.take_doubled();
        doubled
            .into_iter()
            .for_each(|what| self.tally.common.fail(FailureKind::Doubled, what));
        Ok(())
    }

    fn look_for_leftovers(&mut self) -> Result<()> {
        let mut left = Vec::new();
        for home in self.stand.homes() {
            left.extend(same::hidden_names(&home.join("journal"))?);
        }
        self.at.look_for_leftovers(left, &mut self.tally.common)
    }

    fn look_for_panics(&mut self) {
        let logs = self.stand.logs().into_iter().chain([self.client_log()]);
        look_for_panics(logs, &mut self.tally.common);
    }

    fn client_log(&self) -> PathBuf {
        self.stand.place.directory.join("client.log")
    }
}

/// Returns whether the actions explain an exit code other than success: no connection, a lost connection, files that
/// could not be stored, or no broker.
fn is_sane(status: ExitStatus, was_killed: bool, acts: &[Timed]) -> bool {
    match (status.code(), status.signal()) {
        (Some(10..=12 | 23), _) => !acts.is_empty(),
        (_, Some(9)) => was_killed,
        _ => false,
    }
}

/// Returns an address of this host that no concurrent round uses.
pub(crate) fn host_of(seed: u64) -> Ipv4Addr {
    let part = |number: u64| u8::try_from(1 + number % 250).expect("up to 250");
    Ipv4Addr::new(127, 7, part(seed / 250), part(seed))
}

/// Additional arguments of the command.
const COMMAND: [Row; 4] = [
    // Only metadata that these options preserve is drawn.
    &[
        (2, &["--strict-metadata"]),
        (1, &["-a", "--numeric-ids", "--strict-metadata"]),
    ],
    &[
        (3, &[]),
        (1, &["--transport", "quic"]),
        (1, &["--streams=2"]),
    ],
    &[(3, &[]), (1, &["--io-engine=uring"])],
    &[(2, &[]), (1, &["--limit=400Mbit"])],
];

const LARGE_BYTES_MAX: u64 = 160 << 20;
/// Maximum number of attempts of a round with actions.
const DISTURBED_MAX: u64 = 2;
/// Maximum number of further attempts, without actions.
const CALM_MAX: u64 = 4;
/// Maximum time for a push. An item whose node has died is reassigned after half a minute, and a silent peer is given
/// up after a minute.
const PUSH_PATIENCE: Duration = Duration::from_secs(240);
/// Maximum time to wait for a job to start.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// Maximum time after the end of a push until a program is restored.
const AFTER_END_MAX: Duration = Duration::from_millis(500);
