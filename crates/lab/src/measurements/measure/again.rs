//! Repeated commands: the contents of the target before a timed run.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::data::datasets::{self, DataSet};
use crate::data::volume::Volume;

/// The contents of the target in comparison with the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Again {
    /// The target has the directories of the source, but no files. They are created before each run.
    Directories,
    /// The target equals the source. It is filled once, and each tool runs once without timing.
    Unchanged,
    /// The source differs in some bytes of one in a hundred groups (4 MiB) of large files. The target is filled before
    /// each run.
    Changed,
}

/// One data set of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The data set to copy.
    pub(crate) source: DataSet,
    /// The data set that the target contains before a run, and its relation to the source.
    before: Option<(Again, DataSet)>,
}

impl Task {
    /// Returns a task that copies `set` into an empty directory, or into one that is already filled.
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

    /// Prepares the volume before the first run. If runs find nothing to copy, memory need not be touched in advance.
    pub(crate) fn prepare(&self, volume: &Volume) -> Result<()> {
        match &self.before {
            None => volume.warm(&self.source.root),
            Some((Again::Directories, set)) => volume.warm(&set.root),
            Some((_, filling)) => volume.filled_directory(&filling.root).map(drop),
        }
    }

    /// Returns the directory into which the next run copies.
    pub(crate) fn target(&self, volume: &Volume) -> Result<PathBuf> {
        match &self.before {
            None => volume.fresh_directory(),
            Some((Again::Directories, set)) => volume.directories_of(&set.root),
            Some((Again::Unchanged, _)) => Ok(volume.run_directory()),
            Some((Again::Changed, filling)) => volume.filled_directory(&filling.root),
        }
    }

    /// Returns whether each tool runs once without timing, to make the changes in which it differs from `cp -a`.
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
