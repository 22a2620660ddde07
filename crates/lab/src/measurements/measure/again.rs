//! The same command again: what stands in the target before a run that is timed.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::data::datasets::{self, DataSet};
use crate::data::volume::Volume;

/// What has happened to the source since the target was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Again {
    /// The directories are there, and no file. They are made before each run.
    Directories,
    /// Nothing. The target is filled once, and each tool runs once untimed.
    Unchanged,
    /// Some bytes are others in one of a hundred groups of 4 MiB of large files. The target is filled before each run.
    Changed,
}

/// One data set of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// What tools copy.
    pub(crate) source: DataSet,
    /// What the target holds before they do, and why.
    before: Option<(Again, DataSet)>,
}

impl Task {
    /// Copies of `set` into an empty directory, or again into one that has been filled.
    pub(crate) fn new(set: DataSet, again: Option<Again>) -> Result<Self> {
        let source = match again {
            Some(Again::Changed) => datasets::ensure_changed(&set)?,
            _ => set.clone(),
        };
        Ok(Self {
            source,
            before: again.map(|again| (again, set)),
        })
    }

    /// Once, before the first run. A run that finds nothing to copy needs no memory to be touched beforehand.
    pub(crate) fn prepare(&self, volume: &Volume) -> Result<()> {
        match &self.before {
            None => volume.warm(&self.source.root),
            Some((Again::Directories, set)) => volume.warm(&set.root),
            Some((_, filling)) => volume.filled_directory(&filling.root).map(drop),
        }
    }

    /// The directory that the next run copies into.
    pub(crate) fn target(&self, volume: &Volume) -> Result<PathBuf> {
        match &self.before {
            None => volume.fresh_directory(),
            Some((Again::Directories, set)) => volume.directories_of(&set.root),
            Some((Again::Unchanged, _)) => Ok(volume.run_directory()),
            Some((Again::Changed, filling)) => volume.filled_directory(&filling.root),
        }
    }

    /// Whether a tool runs once untimed, so that what it does differently from `cp -a` is done.
    pub(crate) fn has_untimed_run(&self) -> bool {
        matches!(self.before, Some((Again::Unchanged, _)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_an_unchanged_tree_is_run_over_once_untimed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("set");
        fs::create_dir(&root).unwrap();
        let set = DataSet {
            name: "set".to_owned(),
            root,
            files: 0,
            bytes: 0,
        };
        let task = |again| Task::new(set.clone(), again).unwrap();
        assert!(!task(None).has_untimed_run());
        assert!(task(Some(Again::Unchanged)).has_untimed_run());
        assert!(!task(Some(Again::Changed)).has_untimed_run());
        assert!(!task(Some(Again::Directories)).has_untimed_run());
        assert_eq!(task(Some(Again::Changed)).source.name, "set.changed");
        assert_eq!(task(Some(Again::Unchanged)).source.name, "set");
    }
}
