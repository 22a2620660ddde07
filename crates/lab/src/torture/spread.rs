//! `torture --spread`: pushes to several daemons that share the storage of the target. Daemons are killed and started
//! again, or stopped and woken, which may be when the push has ended or another one is under way; the push is killed
//! and given again. At the end the target must be the source, and of the jobs no more may be left than the marks of
//! their ends.
//!
//! **Invariant:** what happens in which order is the seed's; when it strikes is a matter of time.

mod acts;
mod tally;

pub(crate) use self::tally::SpreadTally;

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;

use self::acts::{Act, Timed};
use super::attempt::PATIENCE;
use super::dice::Dice;
use super::metadata::{Features, Kind};
use super::old;
use super::programs::{CLIENT_HOME, DAEMON_HOME, Daemon, Place, Running, append, free_address};
use super::same;
use super::tally::FailureKind;
use super::tree::{Shape, Tree};
use super::versions::Versions;
use super::watch::{Files, Inspector, Watch};
use crate::data::trees::names;

/// A round that is set up.
struct Round {
    place: Place,
    tree: Tree,
    /// What all daemons share.
    shared: PathBuf,
    target: PathBuf,
    /// What stands in the target and not in the source.
    extra: Vec<PathBuf>,
    options: Vec<&'static str>,
    nodes: Vec<Node>,
    inspector: Arc<Mutex<Inspector>>,
    dice: Dice,
    tally: SpreadTally,
}

/// A daemon, and whether somebody has ended it.
struct Node {
    daemon: Daemon,
    is_away: bool,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    Failed,
}

/// Runs the round of this seed in the new directory `directory`; returns how it went and what it ran with.
pub(crate) fn run(zmove: &str, directory: &Path, seed: u64) -> (SpreadTally, String) {
    let mut shown = String::new();
    let outcome = Round::set_up(zmove, directory, Dice::new(seed)).map(|mut round| {
        shown = format!("{} daemons, {}", round.nodes.len(), round.options.join(" "));
        let outcome = round.run();
        let mut tally = std::mem::take(&mut round.tally);
        let mut inspector = round.inspector();
        inspector.pass();
        tally.common.looks = inspector.passes();
        inspector.take_found().into_iter().for_each(|found| tally.fail(FailureKind::Partial, found));
        drop(inspector);
        if let Err(error) = outcome {
            tally.fail(FailureKind::Lab, format!("{error:#}"));
        }
        tally
    });
    let mut tally = outcome.unwrap_or_else(|error| {
        let mut tally = SpreadTally::default();
        tally.fail(FailureKind::Lab, format!("{error:#}"));
        tally
    });
    tally.common.rounds = 1;
    (tally, shown)
}

impl Round {
    fn set_up(zmove: &str, directory: &Path, mut dice: Dice) -> Result<Self> {
        let (shared, source) = (directory.join("shared"), directory.join("source"));
        let failed = || format!("failed to create {}", shared.display());
        fs::create_dir_all(&shared).with_context(failed)?;
        let target = shared.join("target");
        let (options, serve) = (draw(&COMMAND, &mut dice), draw(&SERVE, &mut dice));
        let held = Features::of(directory)?;
        let features = Features { privileged: held.privileged && options.contains(&"-a"), ..held };
        let mut versions = Versions::default();
        let mut tree = Tree::grow_like(&SHAPES, &source, features, dice.fork(), &mut versions)?;
        if dice.one_in(5) {
            tree.add_large(dice.within(LARGE_BYTES_MIN..=LARGE_BYTES_MAX), &mut versions)?;
        }
        let mut extra = Vec::new();
        if dice.one_in(3) {
            fs::create_dir(&target).with_context(failed)?;
            extra = old::plant(&tree, &target, dice.fork(), &mut versions)?;
            clear_ways(&tree, &target)?;
        }
        let place = Place::prepare(zmove, directory, &shared, &GRANTS)?;
        let mut nodes = Vec::new();
        for home in &HOMES[..dice.index(HOMES.len() - 1) + 2] {
            if *home != DAEMON_HOME {
                place.prepare_another(home, &shared, &GRANTS)?;
            }
            let log = directory.join(format!("{home}.log"));
            let daemon = place.serve_from(home, free_address(&mut dice)?, &serve, log)?;
            nodes.push(Node { daemon, is_away: false });
        }
        let inspector = Arc::new(Mutex::new(Inspector::new(&target, versions, Files::Whole)));
        let tally = SpreadTally::default();
        Ok(Self { place, tree, shared, target, extra, options, nodes, inspector, dice, tally })
    }

    fn run(&mut self) -> Result<()> {
        let watch = Watch::start(&self.inspector);
        let mut later = Vec::new();
        for number in 1..=self.dice.within(1..=DISTURBED_MAX) {
            if number > 1 && self.dice.one_in(3) {
                let mut inspector = self.inspector.lock().unwrap_or_else(PoisonError::into_inner);
                self.tree.change(inspector.versions())?;
            }
            let acts = acts::draw(&mut self.dice, self.nodes.len(), std::mem::take(&mut later));
            later = acts.later;
            if self.attempt(&acts.now)? == Ending::Done {
                self.compare(&format!("after try {number}"))?;
            }
        }
        // whoever is stopped or away comes back during the next push, and after that nothing happens any more
        if !later.is_empty() && self.attempt(&later)? == Ending::Done {
            self.compare("after the last one came back")?;
        }
        for which in 0..self.nodes.len() {
            self.perform(Act::Wake(which), None)?;
            self.perform(Act::Start(which), None)?;
        }
        let finished = self.finish()?;
        self.end_daemons()?;
        drop(watch);
        if finished {
            self.compare("at the end")?;
            self.look_for_leftovers()?;
        }
        self.look_for_panics();
        Ok(())
    }

    /// Runs the same command until it is done.
    fn finish(&mut self) -> Result<bool> {
        for _ in 0..CALM_MAX {
            if self.attempt(&[])? == Ending::Done {
                self.compare("after a calm try")?;
                return Ok(true);
            }
            self.tally.common.calm_failed += 1;
        }
        self.tally.fail(FailureKind::Unfinished, format!("{CALM_MAX} tries that nothing disturbed"));
        Ok(false)
    }

    /// Runs the command once.
    fn attempt(&mut self, acts: &[Timed]) -> Result<Ending> {
        self.tally.common.tries += 1;
        let began = Instant::now();
        let mut push = self.start_push()?;
        let mut is_over = false;
        for Timed { after, act } in acts {
            is_over = is_over || push.ends((began + *after).saturating_duration_since(Instant::now()))?;
            if is_over && !act.restores() {
                continue;
            }
            if is_over {
                // of one that comes back after the end of the push
                sleep((began + *after).saturating_duration_since(Instant::now()).min(AFTER_END_MAX));
            }
            self.perform(*act, Some(&push))?;
        }
        let killed = acts.iter().any(|timed| timed.act == Act::KillPush);
        let Some(status) = push.wait(PUSH_PATIENCE)? else {
            self.tally.fail(FailureKind::Hung, format!("the push does not end after {acts:?}"));
            push.kill()?;
            return Ok(Ending::Failed);
        };
        self.look_for_dead()?;
        if status.success() {
            return Ok(Ending::Done);
        }
        if !is_sane(status, killed, acts) {
            self.tally.fail(FailureKind::Odd, format!("the push ended with {status} after {acts:?}"));
        }
        Ok(Ending::Failed)
    }

    fn start_push(&self) -> Result<Running> {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.daemon.address().to_string()).collect();
        let mut target = OsString::from(addresses.join(",") + ":");
        target.push(&self.target);
        let mut command = self.place.command(CLIENT_HOME);
        command.args(["push", "--accept-new", "--quiet", "--timeout", "5s"]).args(&self.options);
        command.arg(self.tree.root().join("")).arg(target);
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

    /// No daemon ends by itself.
    fn look_for_dead(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| !node.is_away) {
            if let Some(status) = node.daemon.running().ended()? {
                self.tally.fail(FailureKind::Odd, format!("a daemon ended by itself with {status}"));
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
                    self.tally.fail(FailureKind::Hung, "a daemon does not end on SIGTERM");
                    running.kill()?;
                }
                Some(status) if status.success() => {}
                Some(status) => {
                    self.tally.fail(FailureKind::Odd, format!("on SIGTERM a daemon ended with {status}"));
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, when: &str) -> Result<()> {
        for difference in same::differences(self.tree.root(), &self.target, &self.extra)? {
            self.tally.fail(FailureKind::Wrong, format!("{difference} {when}"));
        }
        Ok(())
    }

    /// Of a job that has lost sessions the mark of its end stays; nothing else does.
    fn look_for_leftovers(&mut self) -> Result<()> {
        let mut left = Vec::new();
        for path in same::hidden_names(&self.target)? {
            if path.parent() == Some(&self.target) && is_mark(&path) {
                self.tally.marks += 1;
            } else {
                left.push(path);
            }
        }
        for home in [CLIENT_HOME].iter().chain(&HOMES) {
            left.extend(same::hidden_names(&self.place.directory.join(home).join("journal"))?);
        }
        let is_other = |path: &PathBuf| *path != self.target;
        left.extend(names(&self.shared)?.iter().map(|name| self.shared.join(name)).filter(is_other));
        for path in left {
            let within: Vec<_> = names(&path).into_iter().flatten().collect();
            self.tally.fail(FailureKind::Left, format!("{path:?} with {within:?}"));
        }
        Ok(())
    }

    fn look_for_panics(&mut self) {
        let homes = HOMES.iter().map(|home| self.place.directory.join(format!("{home}.log")));
        for log in homes.chain([self.client_log()]) {
            let said = fs::read(&log).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains("panicked") {
                self.tally.fail(FailureKind::Odd, format!("a panic in {}", log.display()));
            }
        }
    }

    fn client_log(&self) -> PathBuf {
        self.place.directory.join("client.log")
    }

    fn inspector(&self) -> MutexGuard<'_, Inspector> {
        self.inspector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Several receivers remove nothing, also not what is in the way of a directory.
pub(super) fn clear_ways(tree: &Tree, target: &Path) -> Result<()> {
    for (path, kind) in tree.entries() {
        let there = target.join(path);
        let is_other = there.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir());
        if *kind == Kind::Directory && is_other {
            fs::remove_file(&there).with_context(|| format!("failed to remove {}", there.display()))?;
        }
    }
    Ok(())
}

/// Whether this is what stays of a job that has ended, and no more.
pub(super) fn is_mark(path: &Path) -> bool {
    let entries = |path: &Path| names(path).map(|names| names.into_iter().collect::<Vec<_>>());
    let is_job = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(JOB_PREFIX));
    is_job
        && entries(path).is_ok_and(|names| names == [OsString::from(LAST_EPOCH)])
        && entries(&path.join(LAST_EPOCH)).is_ok_and(|names| names.is_empty())
}

/// Whether an end other than success is one that the acts explain: no connection, a broken one, files that could not be
/// stored.
fn is_sane(status: ExitStatus, was_killed: bool, acts: &[Timed]) -> bool {
    match (status.code(), status.signal()) {
        (Some(10 | 12 | 23), _) => !acts.is_empty(),
        (_, Some(9)) => was_killed,
        _ => false,
    }
}

pub(super) fn draw(rows: &[Row], dice: &mut Dice) -> Vec<&'static str> {
    let choose = |row: &Row| row[dice.weighted(row.iter().map(|(weight, _)| *weight))].1;
    rows.iter().flat_map(choose).copied().collect()
}

/// Choices of which one is taken: how likely each is, and what is said for it.
pub(super) type Row = &'static [(u64, &'static [&'static str])];

/// What the command is given beside.
const COMMAND: [Row; 3] = [
    // nothing is drawn that these do not keep
    &[(2, &["--strict-metadata"]), (1, &["-a", "--strict-metadata"])],
    &[(3, &[]), (1, &["--transport", "quic"]), (1, &["--streams=2"])],
    &[(3, &[]), (1, &["--io-engine=uring"])],
];
/// What all daemons are given beside.
pub(super) const SERVE: [Row; 1] = [&[(3, &[]), (1, &["--io-engine", "uring"]), (1, &["--direct", "off"])]];
const GRANTS: [&str; 2] = ["--write", "--set-owner"];
const HOMES: [&str; 3] = [DAEMON_HOME, "daemon-2", "daemon-3"];

/// Several names of one file become files of their own in such a push.
pub(super) const SHAPES: [Shape; 5] = [
    Shape { weight: 3, directories: 40, files: 300, hard_links: 0, sizes: [10, 60, 20, 6, 4, 1] },
    // directories that more than one item has
    Shape { weight: 2, directories: 2, files: 6000, hard_links: 0, sizes: [20, 80, 0, 0, 0, 0] },
    Shape { weight: 2, directories: 150, files: 500, hard_links: 0, sizes: [10, 80, 5, 0, 0, 0] },
    Shape { weight: 2, directories: 4, files: 12, hard_links: 0, sizes: [1, 2, 2, 2, 6, 4] },
    Shape { weight: 1, directories: 40, files: 3, hard_links: 0, sizes: [1, 1, 1, 1, 0, 0] },
];
/// A file is cut into ranges from 64 MiB on.
pub(super) const LARGE_BYTES_MIN: u64 = 64 << 20;
const LARGE_BYTES_MAX: u64 = 200 << 20;

/// Tries of a round during which something happens.
const DISTURBED_MAX: u64 = 3;
/// Tries after them that may be needed, with nothing happening any more.
const CALM_MAX: u64 = 4;
/// How long a push may take: a silent peer is given up after a minute.
const PUSH_PATIENCE: Duration = Duration::from_secs(150);
/// How long after the end of a push somebody comes back.
const AFTER_END_MAX: Duration = Duration::from_millis(500);
pub(super) const JOB_PREFIX: &str = ".zmove-job-";
const LAST_EPOCH: &str = ".zmove-epoch-18446744073709551615";
