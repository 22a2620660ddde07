//! One round: a transfer whose receivers are stopped and whose sender is killed, another transfer to the same target,
//! and the receivers when they are resumed.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Signal;

use super::scene::{self, PATIENCE, Scene, SceneOptions};
use super::trees::{Contents, Trees};
use super::{Durations, Method};
use crate::torture::dice::Dice;

/// A round and its settings.
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
    /// A description of the random choices.
    scene: String,
    /// Unpublished files that the receivers held when they were stopped. `None` if the transfer ended before.
    held: Option<usize>,
    stopped_for: Duration,
    /// Number of names with contents of the first transfer or older contents, at the end of the round.
    pub(super) old_names: usize,
    /// Number of hidden names at the end of the round.
    pub(super) hidden_names: usize,
    pub(super) failure: Option<String>,
}

/// When receivers are stopped.
#[derive(Clone, Copy, Debug)]
enum StopAt {
    /// This time after the start of the transfer.
    After(Duration),
    /// When they hold this number of unpublished files.
    Holding(usize),
}

/// Minimum number of unpublished files for which a stop is useful.
const UNPUBLISHED_MIN: usize = 900;
/// The factor for the number of files if there are several receivers. They share the files and publish them item by
/// item, so more files are needed until one receiver holds enough.
const FILES_OF_JOB: usize = 4;
/// Minimum duration of a stop.
const STOP_MIN: Duration = Duration::from_secs(1);
/// Minimum duration of a long stop, which is longer than the time for which a ping is valid.
const STOP_LONG: Duration = Duration::from_secs(11);
/// One round in this number has a long stop.
const LONG_STOP_ONE_IN: u64 = 20;
/// Number of publishing threads, each of which may still make a call that was permitted before the stop.
pub(super) const LATE_CALLS_MAX: usize = 8;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

impl Outcome {
    /// Returns whether the round is a valid test.
    pub(super) fn counts(&self) -> bool {
        self.held.is_some_and(|held| held >= UNPUBLISHED_MIN) && self.stopped_for >= STOP_MIN
    }

    pub(super) fn shown(&self) -> String {
        let scene = &self.scene;
        match self.held {
            Some(held) => format!(
                "{scene}; stopped with {held} unpublished files for {:.1} s",
                self.stopped_for.as_secs_f64()
            ),
            None => format!("{scene}; not stopped"),
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
        let trees = Trees::make(&self.directory, self.files(), &mut dice)?;
        let options = SceneOptions {
            zmove: self.zmove,
            directory: &self.directory,
            method: self.method,
            seed: self.seed,
        };
        let mut scene = scene::set_up(&options, &trees, &mut dice)?;
        outcome.scene = scene.shown();
        let when = self.draw_stop(durations, &mut dice)?;
        let stop_min = if dice.one_in(LONG_STOP_ONE_IN) {
            STOP_LONG
        } else {
            STOP_MIN
        };
        scene.begin()?;
        if !wait_for(when, scene.as_mut(), &trees)? {
            // The transfer ended before the stop, so it must have stored everything.
            return trees.expect_all(Contents::First);
        }
        scene.signal(Signal::STOP)?;
        let stopped = Instant::now();
        outcome.held = Some(trees.unpublished(&scene.receivers()));
        scene.kill_sender()?;
        let began = Instant::now();
        let status = scene.begin_next()?.wait(PATIENCE)?;
        if !status.is_some_and(|status| status.success()) {
            bail!("the next transfer ended with {status:?}");
        }
        if !self.method.has_several_receivers() {
            // With several receivers, the next transfer waits for the end of the first, so its duration is not
            // representative.
            durations.note(self.method, began.elapsed());
        }
        thread::sleep(stop_min.saturating_sub(stopped.elapsed()));
        outcome.stopped_for = stopped.elapsed();
        scene.signal(Signal::CONT)?;
        scene.settle(&trees)?;
        outcome.old_names = trees.others(Contents::New)?;
        scene.end()?;
        let left = trees.hidden_names();
        outcome.hidden_names = left.len();
        if outcome.old_names > LATE_CALLS_MAX {
            bail!("{} names have old contents", outcome.old_names);
        }
        if !left.is_empty() {
            bail!("hidden names stay: {left:?}");
        }
        Ok(())
    }

    fn files(&self) -> usize {
        if self.method.has_several_receivers() {
            self.files * FILES_OF_JOB
        } else {
            self.files
        }
    }

    fn draw_stop(&self, durations: &Durations, dice: &mut Dice) -> Result<StopAt> {
        let is_job = self.method.has_several_receivers();
        // At most times, a receiver of a job holds few files.
        if dice.one_in(if is_job { 4 } else { 2 }) {
            let most = u64::try_from(durations.of(self.method).as_micros())?;
            return Ok(StopAt::After(Duration::from_micros(dice.within(0..=most))));
        }
        let most = if is_job {
            2 * UNPUBLISHED_MIN
        } else {
            self.files().max(UNPUBLISHED_MIN)
        };
        let held = dice.within(UNPUBLISHED_MIN as u64..=most as u64);
        Ok(StopAt::Holding(usize::try_from(held)?))
    }
}

/// Waits for the time at which the receivers are to be stopped. Returns `false` if the transfer has ended before.
fn wait_for(when: StopAt, scene: &mut dyn Scene, trees: &Trees) -> Result<bool> {
    let began = Instant::now();
    let receivers = scene.receivers();
    loop {
        let is_time = match when {
            StopAt::After(time) => began.elapsed() >= time,
            StopAt::Holding(files) => trees.unpublished(&receivers) >= files,
        };
        if is_time {
            return Ok(true);
        }
        match scene.ended()? {
            Some(status) if status.success() => return Ok(false),
            Some(status) => bail!("the first transfer ended with {status}"),
            None if began.elapsed() > PATIENCE => bail!("the first transfer takes too long"),
            None => thread::sleep(LOOK_AGAIN_AFTER),
        }
    }
}
