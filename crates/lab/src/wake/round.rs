//! One round: a push whose receiver is stopped and whose sender is killed, another push to the same target, and the
//! receiver that wakes up.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::{Durations, Method};
use crate::torture::dice::Dice;
use crate::torture::options::Direction;
use crate::torture::programs::{DAEMON_HOME, Daemon, Place, Running, free_address};

/// A round, and where it runs.
#[derive(Debug)]
pub(super) struct Round<'a> {
    pub(super) zmove: &'a str,
    pub(super) directory: PathBuf,
    pub(super) method: Method,
    pub(super) files: usize,
    pub(super) seed: u64,
}

/// The result of a round.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The unpublished files that the receiver held when it was stopped; `None` if the push ended before.
    held: Option<usize>,
    stopped_for: Duration,
    /// Names that lead to contents of the first push, or to older ones, in the end.
    pub(super) old_names: usize,
    pub(super) failure: Option<String>,
}

/// When a receiver is stopped.
#[derive(Clone, Copy, Debug)]
enum StopAt {
    /// So long after the start of its client.
    After(Duration),
    /// When it holds so many unpublished files.
    Holding(usize),
}

/// The daemons that receive the two pushes: one that is stopped takes no second push. There are none if ssh starts a
/// receiver for each push.
#[derive(Default)]
struct Receivers {
    first: Option<Daemon>,
    second: Option<Daemon>,
}

/// The unpublished files of a receiver that is worth stopping.
const UNPUBLISHED_MIN: usize = 900;
/// How long a receiver stays stopped at least.
const STOP_MIN: Duration = Duration::from_secs(1);
/// How long it stays stopped at least in some rounds: longer than a ping proves anything.
const STOP_LONG: Duration = Duration::from_secs(11);
/// One round of so many has a long stop.
const LONG_STOP_ONE_IN: u64 = 20;
/// The threads that publish, each of which may make the call that was permitted before the stop.
pub(super) const LATE_CALLS_MAX: usize = 8;
/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// The end of a session over QUIC takes half a minute, and each look reads the target.
const END_LOOK_AFTER: Duration = Duration::from_millis(100);
const SECOND_HOME: &str = "second";
const OLDEST: u8 = b'0';
const FIRST: u8 = b'1';
const SECOND: u8 = b'2';

impl Outcome {
    /// Whether the round shows anything.
    pub(super) fn counts(&self) -> bool {
        self.held.is_some_and(|held| held >= UNPUBLISHED_MIN) && self.stopped_for >= STOP_MIN
    }

    pub(super) fn shown(&self) -> String {
        match self.held {
            Some(held) => format!(
                "stopped with {held} unpublished files for {:.1} s",
                self.stopped_for.as_secs_f64()
            ),
            None => "not stopped".to_owned(),
        }
    }
}

impl Round<'_> {
    /// Runs the round in its new directory.
    pub(super) fn run(&self, durations: &Durations) -> Outcome {
        let mut outcome = Outcome::default();
        if let Err(error) = self.try_run(durations, &mut outcome) {
            outcome.failure = Some(format!("{error:#}"));
        }
        outcome
    }

    fn try_run(&self, durations: &Durations, outcome: &mut Outcome) -> Result<()> {
        let mut dice = Dice::new(self.seed);
        let directories = usize::try_from(dice.within(1..=8))?;
        let target = self.directory.join("target");
        fs::create_dir_all(&target).context("failed to create a directory")?;
        self.fill("first", directories, FIRST)?;
        self.fill("new", directories, SECOND)?;
        // Files in directories that exist wait under hidden names of their own, others in a staging directory.
        if dice.one_in(2) {
            self.fill("target", directories, OLDEST)?;
        }
        let place = Place::prepare(self.zmove, &self.directory, &target, &["--write"])?;
        let mut receivers = self.start(&place, &mut dice)?;
        let unused = free_address(&mut dice)?;
        let address_of = |daemon: &Option<Daemon>| daemon.as_ref().map_or(unused, Daemon::address);
        let push = |address, source| {
            place.client(
                Direction::Push,
                self.method.client_options(),
                &self.directory.join(source),
                (Some(address), None),
                &target,
            )
        };
        let when = if dice.one_in(2) {
            let most = u64::try_from(durations.of(self.method).as_micros())?;
            StopAt::After(Duration::from_micros(dice.within(0..=most)))
        } else {
            let most = u64::try_from(self.files)?.max(UNPUBLISHED_MIN as u64);
            StopAt::Holding(usize::try_from(dice.within(UNPUBLISHED_MIN as u64..=most))?)
        };
        let stop_min = if dice.one_in(LONG_STOP_ONE_IN) {
            STOP_LONG
        } else {
            STOP_MIN
        };
        let mut client = push(address_of(&receivers.first), "first")?;
        if !wait_for(when, &mut client, &target)? {
            // Nothing is stopped, and the push that has ended must have stored all.
            return self.expect_all(&target, directories, FIRST);
        }
        receivers.signal(&place, Signal::STOP)?;
        let stopped = Instant::now();
        outcome.held = Some(unpublished(&target));
        client.kill()?;
        let began = Instant::now();
        let status = push(address_of(&receivers.second), "new")?.wait(PATIENCE)?;
        if !status.is_some_and(|status| status.success()) {
            bail!("the second push ended with {status:?}");
        }
        durations.note(self.method, began.elapsed());
        thread::sleep(stop_min.saturating_sub(stopped.elapsed()));
        outcome.stopped_for = stopped.elapsed();
        receivers.signal(&place, Signal::CONT)?;
        receivers.wait_for_end(&place, &target)?;
        self.look(&target, directories, outcome)
    }

    fn start(&self, place: &Place, dice: &mut Dice) -> Result<Receivers> {
        if self.method == Method::Ssh {
            return Ok(Receivers::default());
        }
        let options = self.method.serve_options();
        let target = self.directory.join("target");
        place.prepare_another(SECOND_HOME, &target, &["--write"])?;
        let mut serve = |home| {
            let log = self.directory.join(format!("{home}.log"));
            place.serve_from(home, free_address(dice)?, options, log)
        };
        Ok(Receivers {
            first: Some(serve(DAEMON_HOME)?),
            second: Some(serve(SECOND_HOME)?),
        })
    }

    /// Fills a tree with files whose contents tell which push they belong to.
    fn fill(&self, tree: &str, directories: usize, content: u8) -> Result<()> {
        let tree = self.directory.join(tree);
        for directory in 0..directories {
            fs::create_dir_all(tree.join(directory.to_string()))
                .context("failed to create a directory")?;
        }
        for number in 0..self.files {
            fs::write(path_of(&tree, number, directories), [content; FILE_BYTES])
                .context("failed to create a file")?;
        }
        Ok(())
    }

    /// How many names do not lead to these contents.
    fn others(&self, target: &Path, directories: usize, content: u8) -> Result<usize> {
        let mut others = 0;
        for number in 0..self.files {
            let path = path_of(target, number, directories);
            let found = fs::read(&path).with_context(|| format!("lost: {}", path.display()))?;
            others += usize::from(found != [content; FILE_BYTES]);
        }
        Ok(others)
    }

    fn expect_all(&self, target: &Path, directories: usize, content: u8) -> Result<()> {
        match self.others(target, directories, content)? {
            0 => Ok(()),
            others => bail!("{others} names do not have the contents that were pushed"),
        }
    }

    fn look(&self, target: &Path, directories: usize, outcome: &mut Outcome) -> Result<()> {
        outcome.old_names = self.others(target, directories, SECOND)?;
        if outcome.old_names > LATE_CALLS_MAX {
            bail!("{} names have old contents", outcome.old_names);
        }
        match unpublished(target) {
            0 => Ok(()),
            stay => bail!("{stay} files stay under hidden names"),
        }
    }
}

const FILE_BYTES: usize = 100;

fn path_of(tree: &Path, number: usize, directories: usize) -> PathBuf {
    tree.join((number % directories).to_string())
        .join(format!("{number:05}"))
}

impl Receivers {
    /// Sends a signal to the receiver of the first push.
    fn signal(&mut self, place: &Place, signal: Signal) -> Result<()> {
        let Some(daemon) = &mut self.first else {
            return place.signal_started_by_ssh(signal);
        };
        daemon.running().signal(signal);
        Ok(())
    }

    /// Waits until the receiver of the first push has ended its session, and ends it.
    fn wait_for_end(&mut self, place: &Place, target: &Path) -> Result<()> {
        let has_ended = match &mut self.first {
            None => place.wait_for_started_by_ssh(PATIENCE)?,
            Some(daemon) => {
                let deadline = Instant::now() + PATIENCE;
                while unpublished(target) > 0 && Instant::now() < deadline {
                    thread::sleep(END_LOOK_AFTER);
                }
                daemon.running().signal(Signal::TERM);
                daemon.running().wait(PATIENCE)?.is_some()
            }
        };
        if !has_ended {
            bail!("the receiver does not end after it was woken up");
        }
        Ok(())
    }
}

/// Waits until the receiver is to be stopped; `false` if the push has ended before.
fn wait_for(when: StopAt, client: &mut Running, target: &Path) -> Result<bool> {
    let began = Instant::now();
    loop {
        let is_time = match when {
            StopAt::After(time) => began.elapsed() >= time,
            StopAt::Holding(files) => unpublished(target) >= files,
        };
        if is_time {
            return Ok(true);
        }
        match client.ended()? {
            Some(status) if status.success() => return Ok(false),
            Some(status) => bail!("the first push ended with {status}"),
            None if began.elapsed() > PATIENCE => bail!("the first push takes too long"),
            None => thread::sleep(LOOK_AGAIN_AFTER),
        }
    }
}

/// The files that receivers have stored under hidden names.
fn unpublished(directory: &Path) -> usize {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let count = |entry: fs::DirEntry| {
        let is_hidden = entry.file_name().to_string_lossy().starts_with(".zmove-");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && is_hidden => {
                fs::read_dir(entry.path()).map_or(0, Iterator::count)
            }
            Ok(kind) if kind.is_dir() => unpublished(&entry.path()),
            _ => usize::from(is_hidden),
        }
    };
    entries.flatten().map(count).sum()
}
