//! One round: a tree, a daemon, a relay, several attempts with events, then the same command until it is done.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use super::attempt::{Ending, PATIENCE, Stage};
use super::dice::Dice;
use super::events;
use super::options::{Carrier, Direction, Options};
use super::programs::{Place, free_address};
use super::relay::Relay;
use super::tally::{FailureKind, Tally};
use super::trees::metadata::Features;
use super::trees::old;
use super::trees::same;
use super::trees::tree::Tree;
use super::trees::versions::Versions;
use super::watch::{Files, Inspector, Watch};

/// A round that was set up.
struct Round {
    tree: Tree,
    target: PathBuf,
    /// Entries that exist in the target but not in the source.
    extra: Vec<PathBuf>,
    options: Options,
    dice: Dice,
    inspector: Arc<Mutex<Inspector>>,
}

/// Runs the round of this seed in the new directory `directory`. Returns its counts and a description of its settings.
pub(crate) fn run(
    zmove: &str,
    directory: &Path,
    (seed, direction): (u64, Option<Direction>),
) -> (Tally, String) {
    let mut tally = Tally {
        rounds: 1,
        ..Tally::default()
    };
    let mut dice = Dice::new(seed);
    let options = Options::draw(&mut dice, direction);
    let shown = format!(
        "{} {}, serve {}",
        options.direction.word(),
        options.command.join(" "),
        options.serve.join(" ")
    );
    let outcome = Round::set_up(directory, options, dice).and_then(|mut round| {
        let outcome = round.run(zmove, directory, &mut tally);
        round.look();
        tally.looks = round.inspector().passes();
        for found in round.inspector().take_found() {
            tally.fail(FailureKind::Partial, found);
        }
        outcome
    });
    if let Err(error) = outcome {
        tally.fail(FailureKind::Lab, format!("{error:#}"));
    }
    (tally, shown)
}

impl Round {
    fn set_up(directory: &Path, options: Options, mut dice: Dice) -> Result<Self> {
        let failed = || format!("failed to create {}", directory.display());
        fs::create_dir_all(directory).with_context(failed)?;
        let (source, target) = (directory.join("source"), directory.join("target"));
        fs::create_dir(&target).with_context(failed)?;
        let mut versions = Versions::default();
        let features = options.keeps(Features::of(directory)?);
        let tree = Tree::grow(&source, features, dice.fork(), &mut versions)?;
        let populated = dice.one_in(3);
        let old_dice = dice.fork();
        let extra = if populated {
            old::plant(&tree, &target, old_dice, &mut versions)?
        } else {
            Vec::new()
        };
        let files = if options.command.contains(&"--inplace") {
            Files::Changing
        } else {
            Files::Whole
        };
        let inspector = Arc::new(Mutex::new(Inspector::new(&target, versions, files)));
        Ok(Self {
            tree,
            target,
            extra,
            options,
            dice,
            inspector,
        })
    }

    fn run(&mut self, zmove: &str, directory: &Path, tally: &mut Tally) -> Result<()> {
        self.look();
        let (source, target) = (self.tree.root().to_owned(), self.target.clone());
        let direction = self.options.direction;
        let place = match direction {
            Direction::Push | Direction::Copy => {
                Place::prepare(zmove, directory, &target, &["--write", "--set-owner"])
            }
            Direction::Pull => Place::prepare(zmove, directory, &source, &["--read"]),
        }?;
        let address = free_address(&mut self.dice)?;
        let daemon = place.serve(address, &self.options.serve)?;
        let relay = Relay::start(address, direction)?;
        let sender = if direction == Direction::Copy {
            let to = if self.options.carrier == Carrier::Relay {
                relay.address()
            } else {
                address
            };
            place.prepare_sender(&source, to)?;
            Some(place.serve_source(free_address(&mut self.dice)?, &self.options.serve)?)
        } else {
            None
        };
        let dice = self.dice.fork();
        let mut stage = Stage {
            place: &place,
            relay: &relay,
            daemon,
            sender,
            source: &source,
            target: &target,
            dice,
            direction,
            carrier: self.options.carrier,
            killed_receiver: false,
        };
        let watch = Watch::start(&self.inspector);
        let finished = self.try_until_done(&mut stage, tally)?;
        stage.end_daemons(tally)?;
        if !place.wait_for_started_by_ssh(PATIENCE)? {
            tally.fail(
                FailureKind::Hung,
                "what ssh has started does not end without its client",
            );
        }
        drop(watch);
        if finished {
            self.compare("at the end", tally)?;
            self.look_for_leftovers(&stage, tally)?;
        }
        for log in place.logs() {
            let said = fs::read(&log).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains("panicked") {
                tally.fail(FailureKind::Odd, format!("a panic in {}", log.display()));
            }
        }
        Ok(())
    }

    /// Runs the attempts with events, then those without. Returns whether the transfer was completed.
    fn try_until_done(&mut self, stage: &mut Stage<'_>, tally: &mut Tally) -> Result<bool> {
        let disturbed = self.dice.within(1..=DISTURBED_MAX);
        let mut options = self.options.clone();
        for number in 1..=disturbed + CALM_MAX {
            let mut events = Vec::new();
            if number <= disturbed {
                events = events::draw(&mut self.dice, self.options.carrier, self.tree.bytes());
            }
            // A copy may still be running as it was requested, and the next command then takes it over.
            if number > 1 && number <= disturbed + 1 && self.options.direction != Direction::Copy {
                self.between_tries(&mut options)?;
            }
            let to = match self.options.carrier {
                Carrier::Relay => stage.relay.address(),
                Carrier::Straight | Carrier::Ssh => stage.daemon.address(),
            };
            let look = || self.look();
            let ending = stage.attempt(&options.command, to, &events, tally, &look)?;
            match ending {
                Ending::Done => self.compare(&format!("after try {number}"), tally)?,
                Ending::Failed if events.is_empty() => tally.calm_failed += 1,
                Ending::Failed => {}
            }
            if ending == Ending::Done && number >= disturbed {
                return Ok(true);
            }
        }
        tally.fail(
            FailureKind::Unfinished,
            format!("{CALM_MAX} tries that nothing disturbed"),
        );
        Ok(false)
    }

    /// Draws other options or changes the source, each with some probability.
    fn between_tries(&mut self, options: &mut Options) -> Result<()> {
        if self.dice.one_in(4) {
            *options = options.redrawn(&mut self.dice);
        }
        if self.dice.one_in(4) {
            let mut inspector = self
                .inspector
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.tree.change(inspector.versions())?;
        }
        Ok(())
    }

    fn look(&self) {
        self.inspector().pass();
    }

    fn inspector(&self) -> MutexGuard<'_, Inspector> {
        self.inspector
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn compare(&self, when: &str, tally: &mut Tally) -> Result<()> {
        for difference in same::differences(self.tree.root(), &self.target, &self.extra)? {
            tally.fail(FailureKind::Wrong, format!("{difference} {when}"));
        }
        Ok(())
    }

    /// Reports files that were left behind. A receiver that is killed between two system calls may leave a complete
    /// file or link under a hidden name if it replaces another entry. All other leftovers are removed by the receiver
    /// or by the next push.
    fn look_for_leftovers(&self, stage: &Stage<'_>, tally: &mut Tally) -> Result<()> {
        for path in same::hidden_names(&self.target)? {
            if stage.killed_receiver
                && !path
                    .symlink_metadata()
                    .is_ok_and(|metadata| metadata.is_dir())
            {
                tally.orphans += 1;
            } else {
                tally.fail(FailureKind::Left, format!("{path:?}"));
            }
        }
        for path in same::hidden_names(&stage.place.journal(self.options.direction))? {
            tally.fail(FailureKind::Left, format!("{path:?}"));
        }
        Ok(())
    }
}

/// Maximum number of attempts of a round with events.
const DISTURBED_MAX: u64 = 4;
/// Maximum number of further attempts, without events.
const CALM_MAX: u64 = 4;
