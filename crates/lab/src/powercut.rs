//! `powercut` pushes to a disk that loses power, or whose requests fail, until the same command has completed the push.
//!
//! The disk is a block device that the lab implements. It provides only the guarantees on which a file system may rely.
//! The seed determines a round, but it does not control the threads of the programs and of the kernel. A failure may
//! therefore need several runs to occur again. **Invariant:** everything that is mounted, attached or started ends with
//! the session.

mod check;
mod device;
mod disk;
mod faults;
mod filesystem;
mod image;
mod plan;
mod round;
mod stand;
mod tally;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;

use self::filesystem::FileSystem;
use self::stand::Stand;
use self::tally::Tally;
use crate::measurements::peers::zmove_binary;
use crate::processes::run;
use crate::processes::session::{self, Session};
use crate::torture::draw_seed;

/// The settings of the power-cut test.
#[derive(Args, Debug)]
pub(crate) struct PowercutArgs {
    /// Number of rounds on each file system.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Seed of the first round. Each further round uses the next number. Default: a random seed.
    #[arg(long)]
    seed: Option<u64>,
    /// File systems.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ext4,ext4-nodelalloc,xfs,btrfs"
    )]
    fs: Vec<FileSystem>,
    /// Continue after a round that failed.
    #[arg(long)]
    keep_going: bool,
    /// Number of rounds to run concurrently, each with its own device. Default: the number of processors.
    #[arg(long)]
    jobs: Option<usize>,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
}

/// State that the workers of one file system share.
struct Work<'a> {
    arguments: &'a PowercutArgs,
    session: &'a Session,
    memory: &'a Path,
    zmove: &'a str,
    file_system: FileSystem,
    first: u64,
    done: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    next: u64,
    all: Tally,
}

/// Runs the rounds, reports the failed ones, and prints a summary.
pub(crate) fn powercut(arguments: &PowercutArgs) -> Result<ExitCode> {
    session::own_mounts()?;
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let first = arguments.seed.unwrap_or_else(draw_seed);
    let session = Session::open()?;
    let memory = session.subdirectory("memory")?;
    run::line(&format!("mount -t tmpfs zmove-lab {}", memory.display()))?;
    let mut all_right = true;
    for &file_system in &arguments.fs {
        let done = Mutex::new(Progress {
            next: first,
            all: Tally::default(),
        });
        let (session, memory, zmove) = (&session, memory.as_path(), zmove.as_str());
        let work = Work {
            arguments,
            session,
            memory,
            zmove,
            file_system,
            first,
            done,
        };
        let start = Instant::now();
        work.run()?;
        let all = work
            .done
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .all;
        let took = start.elapsed().as_secs_f64();
        println!(
            "powercut on {} from seed {first}: {all}; {took:.0} s",
            file_system.word()
        );
        all_right &= all.all_right();
        if !all_right && !arguments.keep_going {
            break;
        }
    }
    Ok(if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Work<'_> {
    /// Runs all rounds, several of them concurrently.
    fn run(&self) -> Result<()> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.arguments.jobs.unwrap_or(processors).max(1);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs)
                .map(|number| scope.spawn(move || self.work(number)))
                .collect();
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .map_err(|_panicked| anyhow::anyhow!("a worker panicked"))?
            })
        })
    }

    fn work(&self, number: usize) -> Result<()> {
        let stand = Stand::set_up(
            self.session,
            self.memory,
            number,
            self.file_system,
            self.zmove,
        )
        .with_context(|| format!("failed to prepare {}", self.file_system.word()))?;
        while let Some(seed) = self.next_seed() {
            let (tally, plan) = round::run(&stand, seed);
            let mut progress = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            if !tally.all_right() {
                let (word, line) = (self.file_system.word(), tally.failed_line());
                println!("round failed: --fs {word} --rounds 1 --seed {seed}: {line} [{plan}]");
            }
            progress.all.add(&tally);
        }
        Ok(())
    }

    fn next_seed(&self) -> Option<u64> {
        let mut progress = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = progress.next;
        let ended = seed >= self.first.saturating_add(self.arguments.rounds);
        if ended || (!progress.all.all_right() && !self.arguments.keep_going) {
            return None;
        }
        progress.next += 1;
        Some(seed)
    }
}
