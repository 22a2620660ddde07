//! One round: a tree, an old target, a push to a disk that fails or loses power, a reboot, and the same command again.

use std::fs::{self, File};
use std::io::PipeReader;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::check::{Company, impostors, standing};
use super::device::{Device, News, Power, Script};
use super::disk::Loss;
use super::faults::{Faults, Moment};
use super::filesystem::Mounted;
use super::plan::{CutAt, Journals, Plan, Route, Story};
use super::stand::Stand;
use super::tally::{FailureKind, Tally};
use crate::torture::dice::Dice;
use crate::torture::options::Direction;
use crate::torture::programs::{Daemon, Place, Running, free_address};
use crate::torture::trees::metadata::Features;
use crate::torture::trees::old;
use crate::torture::trees::same;
use crate::torture::trees::tree::{Shape, Tree};
use crate::torture::trees::versions::Versions;
use crate::torture::watch::{Files, Inspector};

/// A round that was set up.
struct Round<'a> {
    stand: &'a Stand,
    plan: &'a Plan,
    directory: PathBuf,
    place: Place,
    tree: Tree,
    /// Entries that exist in the target but not in the source.
    extra: Vec<PathBuf>,
    standing: Vec<PathBuf>,
    inspector: Inspector,
    dice: Dice,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// With exit code 0.
    Done,
    /// Failed with another exit code, or killed.
    Failed,
    /// Did not end before the power was cut.
    Cut,
    /// Did not end although nothing prevented it.
    Hung,
}

/// A running push, and its daemon if it has one.
struct Push {
    sender: Running,
    daemon: Option<Daemon>,
}

/// Runs the round of this seed. Returns its counts and a description of its plan.
pub(crate) fn run(stand: &Stand, seed: u64) -> (Tally, String) {
    let mut tally = Tally::of_one_round();
    let mut dice = Dice::new(seed);
    let plan = Plan::draw(&mut dice);
    let directory = stand.scratch.join(seed.to_string());
    let outcome = perform(stand, &plan, &directory, dice, &mut tally);
    if let Err(error) = outcome {
        tally.fail(FailureKind::Lab, format!("{error:#}"));
    }
    stand.device.mend();
    if let Err(error) = fs::remove_dir_all(&directory) {
        tally.fail(
            FailureKind::Lab,
            format!("failed to remove {}: {error}", directory.display()),
        );
    }
    (tally, plan.to_string())
}

fn perform(
    stand: &Stand,
    plan: &Plan,
    directory: &Path,
    dice: Dice,
    tally: &mut Tally,
) -> Result<()> {
    fs::create_dir(directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let mounted = stand.mount_fresh()?;
    let mut round = Round::set_up(stand, plan, directory, dice)?;
    let daemon = round.serve()?;
    let (mounted, ending) = match &plan.story {
        Story::Cut {
            at,
            kill,
            loss,
            faults,
        } => {
            let ending = round.push_until_cut(daemon, *at, *kill, *loss, faults)?;
            let mounted = round.reboot(mounted, ending, tally)?;
            let daemon = round.serve()?;
            (mounted, round.push(daemon)?.finish()?)
        }
        Story::Faults(faults) => {
            let (ending, daemon) = round.push_with_faults(faults, daemon, tally)?;
            let (mounted, daemon) = round.look_at_mended_disk(mounted, ending, daemon, tally)?;
            round.push_on_mended_disk(mounted, daemon)?
        }
    };
    round.judge(mounted, ending, tally)
}

impl<'a> Round<'a> {
    fn set_up(stand: &'a Stand, plan: &'a Plan, directory: &Path, mut dice: Dice) -> Result<Self> {
        let (source, target) = (directory.join("source"), stand.target());
        let homes = match plan.journals {
            Journals::OnTheDisk => stand.mount.join("homes"),
            Journals::Elsewhere => directory.join("homes"),
        };
        let place = stand.place(directory, &homes)?;
        let mut versions = Versions::default();
        let held = Features::of(directory)?.common(Features::of(&stand.mount)?);
        let features = Features {
            privileged: false,
            ..held
        };
        let tree = Tree::grow_like(&SHAPES, &source, features, dice.fork(), &mut versions)?;
        let populated = dice.one_in(2);
        let old_dice = dice.fork();
        let extra = if populated {
            old::plant(&tree, &target, old_dice, &mut versions)?
        } else {
            Vec::new()
        };
        let files = if plan.push.contains(&"--inplace") {
            Files::Changing
        } else {
            Files::Whole
        };
        let standing = standing(&tree, &target);
        let inspector = Inspector::new(&target, versions, files);
        let root = File::open(&stand.mount).context("failed to open the mount")?;
        rustix::fs::syncfs(&root).context("failed to sync the old target")?;
        let directory = directory.to_owned();
        Ok(Self {
            stand,
            plan,
            directory,
            place,
            tree,
            extra,
            standing,
            inspector,
            dice,
        })
    }

    /// Starts the daemon, if one is needed.
    fn serve(&mut self) -> Result<Option<Daemon>> {
        if self.plan.route == Route::Local {
            return Ok(None);
        }
        let mut daemon = self
            .place
            .serve(free_address(&mut self.dice)?, &self.plan.serve)?;
        self.stand.adopt(daemon.running())?;
        Ok(Some(daemon))
    }

    /// Starts the command.
    fn push(&self, daemon: Option<Daemon>) -> Result<Push> {
        let to = daemon.as_ref().map(Daemon::address);
        let (source, target) = (self.tree.root(), self.stand.target());
        let sender = self.place.client(
            Direction::Push,
            &self.plan.push,
            source,
            (to, None),
            &target,
        )?;
        self.stand.adopt(&sender)?;
        Ok(Push { sender, daemon })
    }

    /// Runs the push until the power is cut. No program is running afterwards.
    fn push_until_cut(
        &mut self,
        daemon: Option<Daemon>,
        at: CutAt,
        kill: Option<Moment>,
        loss: Loss,
        faults: &Faults,
    ) -> Result<Ending> {
        let stand = self.stand;
        let cut = if let CutAt::Request(moment) = at {
            Some(moment)
        } else {
            None
        };
        let script = Script {
            faults: faults.clone(),
            cut,
            kill,
            loss,
            dice: self.dice.fork(),
        };
        let news = stand.device.begin(script)?;
        let company = Company::start(self.plan.neighbour, &stand.mount)?;
        let mut push = self.push(daemon)?;
        let due = if let CutAt::AfterStart(time) = at {
            Some(Instant::now() + time)
        } else {
            None
        };
        let ending = push.wait(&stand.device, &news, due)?;
        if ending != Ending::Cut
            && let CutAt::AfterEnd(time) = at
        {
            std::thread::sleep(time);
        }
        stand.device.cut()?;
        push.sender.kill()?;
        if let Some(daemon) = &mut push.daemon {
            daemon.running().kill()?;
        }
        drop(company);
        Ok(ending)
    }

    /// Mounts the contents that the power cut has left, and inspects them.
    fn reboot(&mut self, mounted: Mounted, ending: Ending, tally: &mut Tally) -> Result<Mounted> {
        let stand = self.stand;
        let left = stand.device.cut()?;
        tally.cuts += 1;
        tally.pending += stand.device.counts().pending;
        tally.faults += stand.device.counts().failed;
        mounted.unmount()?;
        stand.device.insert(left)?;
        let mounted = stand.mount_again()?;
        if ending == Ending::Hung {
            tally.fail(FailureKind::Hung, "the push does not end");
        }
        if ending == Ending::Done {
            tally.cuts_after_done += 1;
            for difference in self.differences()? {
                tally.fail(FailureKind::Lost, difference);
            }
        }
        self.look(tally)?;
        Ok(mounted)
    }

    /// Checks that each final name has a complete version, and that none is missing.
    fn look(&mut self, tally: &mut Tally) -> Result<()> {
        let target = self.stand.target();
        self.inspector.pass();
        for found in self.inspector.take_found() {
            tally.fail(FailureKind::Partial, found);
        }
        for path in self
            .standing
            .iter()
            .filter(|path| fs::symlink_metadata(target.join(path)).is_err())
        {
            tally.fail(
                FailureKind::Partial,
                format!("{path:?} stood there before and is gone"),
            );
        }
        if !self.plan.push.contains(&"--delete") {
            for path in self
                .extra
                .iter()
                .filter(|path| fs::symlink_metadata(target.join(path)).is_err())
            {
                tally.fail(
                    FailureKind::Partial,
                    format!("{path:?} is gone and nobody deletes"),
                );
            }
        }
        for path in impostors(&self.tree, &target)? {
            tally.fail(
                FailureKind::Partial,
                format!("{path:?} has the source's time and not its bytes"),
            );
        }
        Ok(())
    }

    /// Runs the push on a disk that fails some requests and then works again.
    fn push_with_faults(
        &mut self,
        faults: &Faults,
        daemon: Option<Daemon>,
        tally: &mut Tally,
    ) -> Result<(Ending, Option<Daemon>)> {
        let device = &self.stand.device;
        let (faults, dice) = (faults.clone(), self.dice.fork());
        let news = device.begin(Script {
            faults,
            cut: None,
            kill: None,
            loss: Loss::Nothing,
            dice,
        })?;
        let _company = Company::start(self.plan.neighbour, &self.stand.mount)?;
        let mut push = self.push(daemon)?;
        let ending = push.wait(device, &news, None)?;
        tally.faults += device.counts().failed;
        device.mend();
        match ending {
            Ending::Hung => tally.fail(FailureKind::Hung, "the push does not end"),
            Ending::Failed => tally.faults_told += 1,
            Ending::Done | Ending::Cut => {}
        }
        Ok((ending, push.daemon))
    }

    /// Checks that everything is on the disk if a push on a failing disk has ended with exit code 0. This check
    /// remounts the disk and is made only in every second round. In the other rounds, the same command encounters the
    /// contents of the page cache.
    fn look_at_mended_disk(
        &mut self,
        mounted: Mounted,
        ending: Ending,
        daemon: Option<Daemon>,
        tally: &mut Tally,
    ) -> Result<(Mounted, Option<Daemon>)> {
        if ending != Ending::Done || self.dice.one_in(2) {
            return Ok((mounted, daemon));
        }
        drop(daemon);
        mounted.unmount()?;
        let mounted = self.stand.mount_again()?;
        for difference in self.differences()? {
            tally.fail(FailureKind::Lost, difference);
        }
        Ok((mounted, self.serve()?))
    }

    /// Runs the same command immediately, while the page cache contains data that is not on the disk.
    fn push_on_mended_disk(
        &mut self,
        mounted: Mounted,
        daemon: Option<Daemon>,
    ) -> Result<(Mounted, Ending)> {
        let ending = self.push(daemon)?.finish()?;
        if ending != Ending::Failed {
            return Ok((mounted, ending));
        }
        // A file system that could not write its journal accepts no changes until it is remounted.
        mounted.unmount()?;
        let mounted = self.stand.mount_again()?;
        let daemon = self.serve()?;
        let ending = self.push(daemon)?.finish()?;
        Ok((mounted, ending))
    }

    /// Checks that the last command has succeeded, and that its result is on the disk.
    fn judge(&mut self, mounted: Mounted, ending: Ending, tally: &mut Tally) -> Result<()> {
        match ending {
            Ending::Done => {}
            Ending::Hung => tally.fail(FailureKind::Hung, "the same command does not end"),
            Ending::Failed | Ending::Cut => tally.fail(FailureKind::Unfinished, self.last_words()),
        }
        mounted.unmount()?;
        let mounted = self.stand.mount_again()?;
        if ending == Ending::Done {
            for difference in self.differences()? {
                tally.fail(FailureKind::Wrong, difference);
            }
        }
        tally.hidden += same::hidden_names(&self.stand.target())?.len() as u64;
        mounted.unmount()
    }

    fn differences(&self) -> Result<Vec<String>> {
        same::differences(self.tree.root(), &self.stand.target(), &self.extra)
    }

    /// Returns the last lines that the push has printed.
    fn last_words(&self) -> String {
        let said = fs::read(self.directory.join("push.log")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        last.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Push {
    /// Waits for the push to end, for a power cut, or until `due`. Carries out the kill that the device requests.
    fn wait(&mut self, device: &Device, news: &PipeReader, due: Option<Instant>) -> Result<Ending> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let until = due.unwrap_or(deadline).min(deadline);
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
            let mut both = [
                PollFd::new(self.sender.handle(), PollFlags::IN),
                PollFd::from_borrowed_fd(news.as_fd(), PollFlags::IN),
            ];
            match poll(&mut both, Some(&left)) {
                Ok(0) if due.is_some_and(|due| due <= Instant::now()) => return Ok(Ending::Cut),
                Ok(0) => return Ok(Ending::Hung),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("failed to wait for a push"),
            }
            let [ended, told] = both.map(|one| !one.revents().is_empty());
            if told && News::read(news)? == News::Kill {
                self.sender.signal(Signal::KILL);
            } else if told || (ended && device.power() == Power::Cut) {
                return Ok(Ending::Cut);
            } else if ended {
                return self.ended();
            }
        }
    }

    /// Waits for the push to end and returns its result.
    fn ended(&mut self) -> Result<Ending> {
        Ok(match self.sender.wait(PATIENCE)? {
            None => Ending::Hung,
            Some(status) if status.success() => Ending::Done,
            Some(_) => Ending::Failed,
        })
    }

    /// Waits for the push to end on a disk that works, and ends its daemon.
    fn finish(mut self) -> Result<Ending> {
        self.ended()
    }
}

/// Maximum time for any step of a push.
const PATIENCE: Duration = Duration::from_secs(60);

const SHAPES: [Shape; 3] = [
    Shape {
        weight: 8,
        directories: 12,
        files: 120,
        hard_links: 12,
        sizes: [4, 40, 60, 1, 0, 0],
    },
    Shape {
        weight: 3,
        directories: 4,
        files: 16,
        hard_links: 12,
        sizes: [1, 6, 12, 4, 1, 0],
    },
    Shape {
        weight: 2,
        directories: 1,
        files: 5,
        hard_links: 12,
        sizes: [0, 1, 2, 1, 2, 2],
    },
];
