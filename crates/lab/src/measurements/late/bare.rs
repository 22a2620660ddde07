//! `zmove-lab bare` measures storage with threads that do only the operations which a push needs.
//!
//! The directories are created first, one after the other. Then each thread takes the next file. Consecutive files are
//! in different directories, because the kernel serializes creates in the same directory.

use std::borrow::Cow;
use std::fs::{self, File, create_dir_all};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::units::ByteCount;

/// The files to create or read.
#[derive(Args, Debug)]
pub(crate) struct BareArgs {
    /// The operation to measure.
    operation: Operation,
    /// Directory for the files.
    directory: PathBuf,
    /// Number of files.
    #[arg(long, default_value_t = 5_000)]
    files: usize,
    /// Number of directories.
    #[arg(long, default_value_t = 10)]
    directories: usize,
    /// Size of each file.
    #[arg(long, default_value = "1KiB")]
    size: ByteCount,
    /// Create copies of the files of this tree, instead of files of one size.
    #[arg(long)]
    from: Option<PathBuf>,
    /// Number of threads.
    #[arg(long, default_value_t = 64)]
    threads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// Create each file under its final name, write it, set its time, and flush it.
    Create,
    /// Create each file under another name, and then rename it.
    Replace,
    /// Get the metadata of each file, open it, and read it.
    Read,
}

/// Runs the operation and prints the number of files per second.
pub(crate) fn bare(arguments: &BareArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let mut tree = Tree::default();
    match &arguments.from {
        Some(from) => tree.list(from, Path::new(""))?,
        None => tree.imagine(arguments),
    }
    tree.files.sort_by_key(|(number, _)| *number);
    for directory in &tree.directories {
        create_dir_all(arguments.directory.join(directory))?;
    }
    let alike = vec![b'z'; usize::try_from(arguments.size.0).context("too large")?];
    let next = AtomicUsize::new(0);
    let work = || -> std::io::Result<()> {
        while let Some((_, file)) = tree.files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let contents: Cow<'_, [u8]> = match &arguments.from {
                Some(from) => fs::read(from.join(file))?.into(),
                None => (&alike).into(),
            };
            arguments
                .operation
                .run(&arguments.directory.join(file), &contents)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the work does not panic"))
    })
    .with_context(|| format!("failed below {}", arguments.directory.display()))?;
    println!(
        "{:.0} files/s",
        tree.files.len() as f64 / started.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// The paths of the files and directories, relative to the root.
#[derive(Debug, Default)]
struct Tree {
    directories: Vec<PathBuf>,
    /// Each file with its index in its directory.
    files: Vec<(usize, PathBuf)>,
}

impl Tree {
    /// Generates the requested number of names.
    fn imagine(&mut self, arguments: &BareArgs) {
        self.directories = (0..arguments.directories)
            .map(|number| PathBuf::from(number.to_string()))
            .collect();
        let file = |number: usize| {
            let directory = &self.directories[number % arguments.directories];
            (
                number / arguments.directories,
                directory.join(format!("f{number}")),
            )
        };
        self.files = (0..arguments.files).map(file).collect();
    }

    /// Adds the contents of `directory` in the tree `root`.
    fn list(&mut self, root: &Path, directory: &Path) -> std::io::Result<()> {
        for (number, entry) in fs::read_dir(root.join(directory))?.enumerate() {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.list(root, &path)?;
                self.directories.push(path);
            } else {
                self.files.push((number, path));
            }
        }
        Ok(())
    }
}

impl Operation {
    fn run(self, path: &Path, contents: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Create => create(path, contents),
            Self::Replace => {
                let hidden = path.with_extension("hidden");
                create(&hidden, contents)?;
                fs::rename(hidden, path)
            }
            Self::Read => read(path, contents.len()),
        }
    }
}

fn create(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(contents)?;
    file.set_modified(SystemTime::UNIX_EPOCH)?;
    file.sync_data()
}

fn read(path: &Path, bytes: usize) -> std::io::Result<()> {
    path.symlink_metadata()?;
    let mut file = File::open(path)?;
    file.metadata()?;
    file.read_exact(&mut vec![0; bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_tree_are_made_again_with_what_is_in_them() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        create_dir_all(from.join("d/e")).unwrap();
        fs::write(from.join("d/f"), b"one").unwrap();
        fs::write(from.join("d/e/g"), b"another").unwrap();
        for operation in [Operation::Create, Operation::Replace] {
            let directory = to.join(format!("{operation:?}"));
            let (from, size) = (Some(from.clone()), ByteCount(0));
            let arguments = BareArgs {
                operation,
                directory: directory.clone(),
                files: 0,
                directories: 0,
                size,
                from,
                threads: 2,
            };
            bare(&arguments).unwrap();
            let copied: Vec<_> = fs::read_dir(directory.join("d")).unwrap().collect();
            assert_eq!(copied.len(), 2, "no other name is left");
            assert_eq!(fs::read(directory.join("d/f")).unwrap(), b"one");
            assert_eq!(fs::read(directory.join("d/e/g")).unwrap(), b"another");
        }
    }
}
