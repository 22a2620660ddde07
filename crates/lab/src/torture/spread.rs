//! `torture --spread` pushes to several daemons that share the target's storage. Daemons are killed and restarted, or
//! stopped and resumed, possibly only after the push has ended or during the next one. The push is killed and repeated.
//! At the end, the target must equal the source, and nothing may be left of the jobs.
//!
//! **Invariant:** the seed determines the order of the events, but their timing varies.

mod acts;
mod tally;

pub(crate) use self::tally::SpreadTally;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use self::acts::{Act, Timed};
use super::attempt::PATIENCE;
use super::dice::Dice;
use super::programs::{CLIENT_HOME, DAEMON_HOME, Daemon, Place, Running, append, free_address};
use super::shared_target::{Draws, Row, SharedTarget, look_for_panics};
use super::tally::FailureKind;
use super::trees::same;
use super::watch::Watch;

/// A round that was set up.
struct Round {
    place: Place,
    at: SharedTarget,
    nodes: Vec<Node>,
    dice: Dice,
    tally: SpreadTally,
}

/// A daemon, and whether this test has ended it.
struct Node {
    daemon: Daemon,
    is_away: bool,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    Failed,
}

/// Runs the round of this seed in the new directory `directory`. Returns its counts and a description of its settings.
pub(crate) fn run(zmove: &str, directory: &Path, seed: u64) -> (SpreadTally, String) {
    let mut shown = String::new();
    let outcome = Round::set_up(zmove, directory, Dice::new(seed)).map(|mut round| {
        shown = format!(
            "{} daemons, {}",
            round.nodes.len(),
            round.at.options.join(" ")
        );
        let outcome = round.run();
        let mut tally = std::mem::take(&mut round.tally);
        round.at.conclude(outcome, &mut tally.common);
        tally
    });
    let mut tally = outcome.unwrap_or_else(|error| {
        let mut tally = SpreadTally::default();
        tally.common.fail(FailureKind::Lab, format!("{error:#}"));
        tally
    });
    tally.common.rounds = 1;
    (tally, shown)
}

impl Round {
    fn set_up(zmove: &str, directory: &Path, mut dice: Dice) -> Result<Self> {
        let draws = Draws {
            command: &COMMAND,
            large_one_in: 5,
            large_bytes_max: LARGE_BYTES_MAX,
        };
        let (at, serve) = SharedTarget::draw(directory, &draws, &mut dice)?;
        let place = Place::prepare(zmove, directory, &at.shared, &GRANTS)?;
        let mut nodes = Vec::new();
        for home in &HOMES[..dice.index(HOMES.len() - 1) + 2] {
            if *home != DAEMON_HOME {
                place.prepare_another(home, &at.shared, &GRANTS)?;
            }
            let log = directory.join(format!("{home}.log"));
            let daemon = place.serve_from(home, free_address(&mut dice)?, &serve, log)?;
            nodes.push(Node {
                daemon,
                is_away: false,
            });
        }
        Ok(Self {
            place,
            at,
            nodes,
            dice,
            tally: SpreadTally::default(),
        })
    }

    fn run(&mut self) -> Result<()> {
        let watch = Watch::start(&self.at.inspector);
        let mut later = Vec::new();
        for number in 1..=self.dice.within(1..=DISTURBED_MAX) {
            if number > 1 && self.dice.one_in(3) {
                self.at.change_source()?;
            }
            let acts = acts::draw(&mut self.dice, self.nodes.len(), std::mem::take(&mut later));
            later = acts.later;
            if self.attempt(&acts.now)? == Ending::Done {
                self.at
                    .compare(&format!("after try {number}"), &mut self.tally.common)?;
            }
        }
        // Stopped and killed daemons are restored during the next push. After that, nothing disturbs the transfer.
        if !later.is_empty() && self.attempt(&later)? == Ending::Done {
            self.at
                .compare("after the last one came back", &mut self.tally.common)?;
        }
        for which in 0..self.nodes.len() {
            self.perform(Act::Wake(which), None)?;
            self.perform(Act::Start(which), None)?;
        }
        let finished = self.finish()?;
        self.end_daemons()?;
        drop(watch);
        if finished {
            self.at.compare("at the end", &mut self.tally.common)?;
            self.look_for_leftovers()?;
        }
        self.look_for_panics();
        Ok(())
    }

    /// Runs the same command until it succeeds.
    fn finish(&mut self) -> Result<bool> {
        for _ in 0..CALM_MAX {
            if self.attempt(&[])? == Ending::Done {
                self.at
                    .compare("after a calm try", &mut self.tally.common)?;
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
    fn attempt(&mut self, acts: &[Timed]) -> Result<Ending> {
        self.tally.common.tries += 1;
        let began = Instant::now();
        let mut push = self.start_push()?;
        let mut is_over = false;
        for Timed { after, act } in acts {
            is_over =
                is_over || push.ends((began + *after).saturating_duration_since(Instant::now()))?;
            if is_over && !act.restores() {
                continue;
            }
            if is_over {
                // The action restores a daemon after the end of the push.
                sleep(
                    (began + *after)
                        .saturating_duration_since(Instant::now())
                        .min(AFTER_END_MAX),
                );
            }
            self.perform(*act, Some(&push))?;
        }
        let killed = acts.iter().any(|timed| timed.act == Act::KillPush);
        let Some(status) = push.wait(PUSH_PATIENCE)? else {
            self.tally.common.fail(
                FailureKind::Hung,
                format!("the push does not end after {acts:?}"),
            );
            push.kill()?;
            return Ok(Ending::Failed);
        };
        self.look_for_dead()?;
        if status.success() {
            return Ok(Ending::Done);
        }
        if !is_sane(status, killed, acts) {
            self.tally.common.fail(
                FailureKind::Odd,
                format!("the push ended with {status} after {acts:?}"),
            );
        }
        Ok(Ending::Failed)
    }

    fn start_push(&self) -> Result<Running> {
        let addresses: Vec<_> = self
            .nodes
            .iter()
            .map(|node| node.daemon.address().to_string())
            .collect();
        let mut target = OsString::from(addresses.join(",") + ":");
        target.push(&self.at.target);
        let mut command = self.place.command(CLIENT_HOME);
        command
            .args(["push", "--accept-new", "--quiet", "--timeout", "5s"])
            .args(&self.at.options);
        command.arg(self.at.tree.root().join("")).arg(target);
        let log = append(&self.client_log())?;
        Running::start(command.stdout(log.try_clone()?).stderr(log))
    }

    fn perform(&mut self, act: Act, push: Option<&Running>) -> Result<()> {
        self.tally.happened(act);
        match act {
            Act::KillPush => {
                if let Some(push) = push {
                    push.signal(Signal::KILL);
                }
            }
            Act::Kill(which) => {
                let node = &mut self.nodes[which];
                node.daemon.running().kill()?;
                node.is_away = true;
            }
            Act::Start(which) => {
                let node = &mut self.nodes[which];
                if node.is_away {
                    self.place.serve_again(&mut node.daemon)?;
                    node.is_away = false;
                }
            }
            Act::Stop(which) => self.nodes[which].daemon.running().signal(Signal::STOP),
            Act::Wake(which) => self.nodes[which].daemon.running().signal(Signal::CONT),
        }
        Ok(())
    }

    /// Reports daemons that have ended without being killed.
    fn look_for_dead(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| !node.is_away) {
            if let Some(status) = node.daemon.running().ended()? {
                self.tally.common.fail(
                    FailureKind::Odd,
                    format!("a daemon ended by itself with {status}"),
                );
                self.place.serve_again(&mut node.daemon)?;
            }
        }
        Ok(())
    }

    fn end_daemons(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            let running = node.daemon.running();
            running.signal(Signal::TERM);
            match running.wait(PATIENCE)? {
                None => {
                    self.tally
                        .common
                        .fail(FailureKind::Hung, "a daemon does not end on SIGTERM");
                    running.kill()?;
                }
                Some(status) if status.success() => {}
                Some(status) => {
                    self.tally.common.fail(
                        FailureKind::Odd,
                        format!("on SIGTERM a daemon ended with {status}"),
                    );
                }
            }
        }
        Ok(())
    }

    fn look_for_leftovers(&mut self) -> Result<()> {
        let mut left = Vec::new();
        for home in [CLIENT_HOME].iter().chain(&HOMES) {
            left.extend(same::hidden_names(
                &self.place.directory.join(home).join("journal"),
            )?);
        }
        self.at.look_for_leftovers(left, &mut self.tally.common)
    }

    fn look_for_panics(&mut self) {
        let homes = HOMES
            .iter()
            .map(|home| self.place.directory.join(format!("{home}.log")));
        look_for_panics(homes.chain([self.client_log()]), &mut self.tally.common);
    }

    fn client_log(&self) -> PathBuf {
        self.place.directory.join("client.log")
    }
}

/// Returns whether the actions explain an exit code other than success: no connection, a lost connection, or files that
/// could not be stored.
fn is_sane(status: ExitStatus, was_killed: bool, acts: &[Timed]) -> bool {
    match (status.code(), status.signal()) {
        (Some(10 | 12 | 23), _) => !acts.is_empty(),
        (_, Some(9)) => was_killed,
        _ => false,
    }
}

/// Additional arguments of the command.
const COMMAND: [Row; 3] = [
    // Only metadata that these options preserve is drawn.
    &[
        (2, &["--strict-metadata"]),
        (1, &["-a", "--strict-metadata"]),
    ],
    &[
        (3, &[]),
        (1, &["--transport", "quic"]),
        (1, &["--streams=2"]),
    ],
    &[(3, &[]), (1, &["--io-engine=uring"])],
];
const GRANTS: [&str; 3] = ["--write", "--set-owner", "--lead"];
const HOMES: [&str; 3] = [DAEMON_HOME, "daemon-2", "daemon-3"];

const LARGE_BYTES_MAX: u64 = 200 << 20;

/// Maximum number of attempts of a round with actions.
const DISTURBED_MAX: u64 = 3;
/// Maximum number of further attempts, without actions.
const CALM_MAX: u64 = 4;
/// Maximum time for a push. A silent peer is given up after a minute.
const PUSH_PATIENCE: Duration = Duration::from_secs(150);
/// Maximum time after the end of a push until a daemon is restored.
const AFTER_END_MAX: Duration = Duration::from_millis(500);
