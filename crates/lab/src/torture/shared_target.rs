//! Common parts of rounds in which several receivers share the target's storage: their trees, the expected state of the
//! target at the end, and the files that may be left.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use super::dice::Dice;
use super::tally::{FailureKind, Tally};
use super::trees::metadata::{Features, Kind};
use super::trees::old;
use super::trees::same;
use super::trees::tree::{Shape, Tree};
use super::trees::versions::Versions;
use super::watch::{Files, Inspector};
use crate::data::trees::names;

/// The source and the target of a round.
pub(super) struct SharedTarget {
    pub(super) tree: Tree,
    /// The storage that all receivers share.
    pub(super) shared: PathBuf,
    pub(super) target: PathBuf,
    /// Entries that exist in the target but not in the source.
    extra: Vec<PathBuf>,
    /// Additional arguments of the command.
    pub(super) options: Vec<&'static str>,
    pub(super) inspector: Arc<Mutex<Inspector>>,
}

/// The parameters for drawing a round.
pub(super) struct Draws<'a> {
    /// The options of the command.
    pub(super) command: &'a [Row],
    /// One round in this number has a file that is divided into ranges.
    pub(super) large_one_in: u64,
    /// Maximum size of that file, in bytes.
    pub(super) large_bytes_max: u64,
}

impl SharedTarget {
    /// Draws a source and the initial contents of the target below a new directory. Also returns additional arguments
    /// for all receivers.
    pub(super) fn draw(
        directory: &Path,
        draws: &Draws<'_>,
        dice: &mut Dice,
    ) -> Result<(Self, Vec<&'static str>)> {
        let (shared, source) = (directory.join("shared"), directory.join("source"));
        let failed = || format!("failed to create {}", shared.display());
        fs::create_dir_all(&shared).with_context(failed)?;
        let target = shared.join("target");
        let (options, serve) = (draw(draws.command, dice), draw(&SERVE, dice));
        let held = Features::of(directory)?;
        let features = Features {
            privileged: held.privileged && options.contains(&"-a"),
            ..held
        };
        let mut versions = Versions::default();
        let mut tree = Tree::grow_like(&SHAPES, &source, features, dice.fork(), &mut versions)?;
        if dice.one_in(draws.large_one_in) {
            tree.add_large(
                dice.within(LARGE_BYTES_MIN..=draws.large_bytes_max),
                &mut versions,
            )?;
        }
        let mut extra = Vec::new();
        if dice.one_in(3) {
            fs::create_dir(&target).with_context(failed)?;
            extra = old::plant(&tree, &target, dice.fork(), &mut versions)?;
            clear_ways(&tree, &target)?;
        }
        let inspector = Arc::new(Mutex::new(Inspector::new(&target, versions, Files::Whole)));
        Ok((
            Self {
                tree,
                shared,
                target,
                extra,
                options,
                inspector,
            },
            serve,
        ))
    }

    pub(super) fn inspector(&self) -> MutexGuard<'_, Inspector> {
        self.inspector
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the source, and adds its new contents to the contents that the target may have.
    pub(super) fn change_source(&mut self) -> Result<()> {
        let mut inspector = self
            .inspector
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.tree.change(inspector.versions())
    }

    /// Compares the target with the source.
    pub(super) fn compare(&self, when: &str, tally: &mut Tally) -> Result<()> {
        for difference in same::differences(self.tree.root(), &self.target, &self.extra)? {
            tally.fail(FailureKind::Wrong, format!("{difference} {when}"));
        }
        Ok(())
    }

    /// Reports files that were left behind at the target, next to it, and `elsewhere`.
    pub(super) fn look_for_leftovers(
        &self,
        elsewhere: Vec<PathBuf>,
        tally: &mut Tally,
    ) -> Result<()> {
        let mut left: Vec<_> = same::hidden_names(&self.target)?.into_iter().collect();
        left.extend(elsewhere);
        let is_other = |path: &PathBuf| *path != self.target;
        left.extend(
            names(&self.shared)?
                .iter()
                .map(|name| self.shared.join(name))
                .filter(is_other),
        );
        for path in left {
            let within: Vec<_> = names(&path).into_iter().flatten().collect();
            tally.fail(FailureKind::Left, format!("{path:?} with {within:?}"));
        }
        Ok(())
    }

    /// Adds the inspector's findings and the result of the round to the tally.
    pub(super) fn conclude(&self, outcome: Result<()>, tally: &mut Tally) {
        let mut inspector = self.inspector();
        inspector.pass();
        tally.looks = inspector.passes();
        inspector
            .take_found()
            .into_iter()
            .for_each(|found| tally.fail(FailureKind::Partial, found));
        drop(inspector);
        if let Err(error) = outcome {
            tally.fail(FailureKind::Lab, format!("{error:#}"));
        }
    }
}

/// Reports programs that have panicked, according to their logs.
pub(super) fn look_for_panics(logs: impl IntoIterator<Item = PathBuf>, tally: &mut Tally) {
    for log in logs {
        let said = fs::read(&log).unwrap_or_default();
        if String::from_utf8_lossy(&said).contains("panicked") {
            tally.fail(FailureKind::Odd, format!("a panic in {}", log.display()));
        }
    }
}

/// Removes entries of the target that are in the way of a directory, because a push to several receivers removes
/// nothing.
fn clear_ways(tree: &Tree, target: &Path) -> Result<()> {
    for (path, kind) in tree.entries() {
        let there = target.join(path);
        let is_other = there
            .symlink_metadata()
            .is_ok_and(|metadata| !metadata.is_dir());
        if *kind == Kind::Directory && is_other {
            fs::remove_file(&there)
                .with_context(|| format!("failed to remove {}", there.display()))?;
        }
    }
    Ok(())
}

fn draw(rows: &[Row], dice: &mut Dice) -> Vec<&'static str> {
    let choose = |row: &Row| row[dice.weighted(row.iter().map(|(weight, _)| *weight))].1;
    rows.iter().flat_map(choose).copied().collect()
}

/// A row of choices, each with its weight and its arguments.
pub(super) type Row = &'static [(u64, &'static [&'static str])];

/// Additional arguments of all receivers.
const SERVE: [Row; 1] = [&[
    (3, &[]),
    (1, &["--io-engine", "uring"]),
    (1, &["--direct", "off"]),
]];

/// Trees without hard links, which become separate files in such a push.
const SHAPES: [Shape; 5] = [
    Shape {
        weight: 3,
        directories: 40,
        files: 300,
        hard_links: 0,
        sizes: [10, 60, 20, 6, 4, 1],
    },
    // Directories that are distributed over several items.
    Shape {
        weight: 2,
        directories: 2,
        files: 6000,
        hard_links: 0,
        sizes: [20, 80, 0, 0, 0, 0],
    },
    Shape {
        weight: 2,
        directories: 150,
        files: 500,
        hard_links: 0,
        sizes: [10, 80, 5, 0, 0, 0],
    },
    Shape {
        weight: 2,
        directories: 4,
        files: 12,
        hard_links: 0,
        sizes: [1, 2, 2, 2, 6, 4],
    },
    Shape {
        weight: 1,
        directories: 40,
        files: 3,
        hard_links: 0,
        sizes: [1, 1, 1, 1, 0, 0],
    },
];
/// Minimum size of a file that is divided into ranges.
const LARGE_BYTES_MIN: u64 = 64 << 20;
pub(super) const JOB_PREFIX: &str = ".zmove-job-";
