//! `zmove-lab bare`: what storage takes from threads that do nothing but the operations that a push needs.

use std::fs::{File, create_dir_all};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::units::ByteCount;

/// Files that are made or read.
#[derive(Args, Debug)]
pub(crate) struct BareArgs {
    /// What is done.
    operation: Operation,
    /// Directory in which it is done.
    directory: PathBuf,
    /// How many files.
    #[arg(long, default_value_t = 5_000)]
    files: usize,
    /// In how many directories.
    #[arg(long, default_value_t = 10)]
    directories: usize,
    /// Bytes in each.
    #[arg(long, default_value = "1KiB")]
    size: ByteCount,
    /// Threads.
    #[arg(long, default_value_t = 64)]
    threads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// Make each file under its name, write, set its time, flush.
    Create,
    /// The same under another name, and then rename it.
    Replace,
    /// Look at each file, open it, read it.
    Read,
}

/// Does it, and prints files per second.
pub(crate) fn bare(arguments: &BareArgs) -> Result<ExitCode> {
    let BareArgs { operation, directory, files, directories, size, threads } = arguments;
    let contents = vec![b'z'; usize::try_from(size.0).context("too large")?];
    for number in 0..*directories {
        create_dir_all(directory.join(number.to_string()))?;
    }
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let work = || -> std::io::Result<()> {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && number < *files
        {
            let directory = directory.join((number % directories).to_string());
            let path = directory.join(format!("f{number}"));
            match operation {
                Operation::Create => create(&path, &contents)?,
                Operation::Replace => {
                    let hidden = directory.join(format!(".f{number}"));
                    create(&hidden, &contents)?;
                    std::fs::rename(hidden, path)?;
                }
                Operation::Read => read(&path, contents.len())?,
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..*threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the work does not panic"))
    })
    .with_context(|| format!("failed below {}", directory.display()))?;
    println!("{:.0} files/s", *files as f64 / started.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
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
