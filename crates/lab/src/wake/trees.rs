//! The trees of a round: the sources of both transfers, and their target.
//!
//! All files are small. Their contents identify the transfer that has stored them.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::torture::dice::Dice;

/// The trees of a round.
#[derive(Debug)]
pub(super) struct Trees {
    /// The source of the transfer whose receivers are stopped.
    pub(super) first: PathBuf,
    /// The source of the next transfer.
    pub(super) new: PathBuf,
    pub(super) target: PathBuf,
    files: usize,
    directories: usize,
    /// Whether the target initially contains older files.
    pub(super) replaces: bool,
}

/// The contents of all files of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Oldest,
    First,
    New,
}

impl Contents {
    const fn bytes(self) -> [u8; FILE_BYTES] {
        match self {
            Self::Oldest => [b'0'; FILE_BYTES],
            Self::First => [b'1'; FILE_BYTES],
            Self::New => [b'2'; FILE_BYTES],
        }
    }
}

const FILE_BYTES: usize = 100;
const HIDDEN_PREFIX: &str = ".zmove-";
/// Files in the directory of a job that contain no data to publish.
const RECORDS: [&str; 2] = ["journal-", "heartbeat-"];

impl Trees {
    /// Creates the trees in a new directory.
    pub(super) fn make(directory: &Path, files: usize, dice: &mut Dice) -> Result<Self> {
        let trees = Self {
            first: directory.join("first"),
            new: directory.join("new"),
            target: directory.join("target"),
            files,
            directories: usize::try_from(dice.within(1..=8))?,
            // In existing directories, each file is stored under its own hidden name. New directories are filled in a
            // staging directory.
            replaces: dice.one_in(2),
        };
        fs::create_dir_all(&trees.target).context("failed to create a directory")?;
        trees.fill(&trees.first, Contents::First)?;
        trees.fill(&trees.new, Contents::New)?;
        if trees.replaces {
            trees.fill(&trees.target, Contents::Oldest)?;
        }
        Ok(trees)
    }

    fn fill(&self, tree: &Path, contents: Contents) -> Result<()> {
        for directory in 0..self.directories {
            fs::create_dir_all(tree.join(directory.to_string()))
                .context("failed to create a directory")?;
        }
        for number in 0..self.files {
            fs::write(self.path_of(tree, number), contents.bytes())
                .context("failed to create a file")?;
        }
        Ok(())
    }

    fn path_of(&self, tree: &Path, number: usize) -> PathBuf {
        tree.join((number % self.directories).to_string())
            .join(format!("{number:05}"))
    }

    /// Changes the owner of the target and of everything in it.
    pub(super) fn give_target_to(&self, user: u32) -> Result<()> {
        let give = |path: &Path| {
            chown(path, Some(user), Some(user))
                .with_context(|| format!("failed to give {} away", path.display()))
        };
        give(&self.target)?;
        (0..self.directories)
            .try_for_each(|directory| give(&self.target.join(directory.to_string())))?;
        (0..self.files).try_for_each(|number| give(&self.path_of(&self.target, number)))
    }

    /// Returns the number of names at the target with other contents.
    pub(super) fn others(&self, contents: Contents) -> Result<usize> {
        let mut others = 0;
        for number in 0..self.files {
            let path = self.path_of(&self.target, number);
            let found = fs::read(&path).with_context(|| format!("lost: {}", path.display()))?;
            others += usize::from(found != contents.bytes());
        }
        Ok(others)
    }

    /// Fails unless all names at the target have these contents.
    pub(super) fn expect_all(&self, contents: Contents) -> Result<()> {
        match self.others(contents)? {
            0 => Ok(()),
            others => bail!("{others} names do not have the contents that were sent"),
        }
    }

    /// Returns the number of files that these processes have stored under hidden names at the target. If no processes
    /// are given, all files under hidden names count.
    pub(super) fn unpublished(&self, processes: &[u32]) -> usize {
        let makers: Vec<_> = processes.iter().map(|id| format!("-{id:x}-")).collect();
        let is_wanted = |name: &str| {
            name.starts_with(HIDDEN_PREFIX)
                && (makers.is_empty() || makers.iter().any(|maker| name.contains(maker.as_str())))
        };
        count(&self.target, Within::Visible, &is_wanted)
    }

    /// Returns the hidden names at the target, except those within hidden directories.
    pub(super) fn hidden_names(&self) -> Vec<PathBuf> {
        hidden_names(&self.target)
    }
}

/// The part of the tree in which files are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    /// Below directories with normal names.
    Visible,
    /// Below the hidden name of another process.
    Hidden,
    /// Below a matching hidden name.
    Wanted,
}

/// Counts the files below a directory that are under a matching hidden name. Files that disappear meanwhile do not
/// count.
fn count(directory: &Path, within: Within, is_wanted: &dyn Fn(&str) -> bool) -> usize {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let count_one = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let within = match within {
            Within::Wanted => Within::Wanted,
            _ if is_wanted(&name) => Within::Wanted,
            _ if name.starts_with(HIDDEN_PREFIX) => Within::Hidden,
            other => other,
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return count(&entry.path(), within, is_wanted);
        }
        let is_record = RECORDS.iter().any(|record| name.starts_with(record));
        usize::from(within == Within::Wanted && !is_record)
    };
    entries.flatten().map(count_one).sum()
}

fn hidden_names(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_hidden = entry
            .file_name()
            .to_string_lossy()
            .starts_with(HIDDEN_PREFIX);
        if is_hidden {
            found.push(entry.path());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(hidden_names(&entry.path()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Trees) {
        let place = tempfile::tempdir().unwrap();
        let trees = Trees::make(place.path(), 10, &mut Dice::new(1)).unwrap();
        (place, trees)
    }

    #[test]
    fn files_under_hidden_names_are_counted_by_the_processes_that_have_made_them() {
        let (_place, trees) = place();
        let target = &trees.target;
        assert_eq!(trees.unpublished(&[]), 0);
        let session = ".zmove-1-2-1a-3-x";
        fs::create_dir_all(target.join("0").join(session)).unwrap();
        fs::write(target.join("0").join(session).join("a"), "").unwrap();
        let of_job = target.join(".zmove-job-7/epoch-1/.zmove-1-2-2b-3-x");
        fs::create_dir_all(&of_job).unwrap();
        fs::write(of_job.join("b"), "").unwrap();
        fs::write(of_job.join("c"), "").unwrap();
        fs::write(target.join(".zmove-job-7/journal-1"), "").unwrap();
        fs::write(target.join(".zmove-job-7/heartbeat-1"), "").unwrap();
        assert_eq!(trees.unpublished(&[]), 3);
        assert_eq!(trees.unpublished(&[0x1a]), 1);
        assert_eq!(trees.unpublished(&[0x2b]), 2);
        assert_eq!(trees.unpublished(&[0x3c]), 0);
        assert_eq!(trees.hidden_names().len(), 2);
    }

    #[test]
    fn names_with_other_contents_are_counted() {
        let (_place, trees) = place();
        trees.fill(&trees.target, Contents::New).unwrap();
        trees.expect_all(Contents::New).unwrap();
        fs::write(trees.path_of(&trees.target, 3), Contents::First.bytes()).unwrap();
        assert_eq!(trees.others(Contents::New).unwrap(), 1);
        assert!(trees.expect_all(Contents::New).is_err());
        fs::remove_file(trees.path_of(&trees.target, 3)).unwrap();
        assert!(trees.others(Contents::New).is_err());
    }
}
