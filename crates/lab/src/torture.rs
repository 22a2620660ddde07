//! `torture` kills, interrupts and disturbs transfers at random until the same command has completed them.
//!
//! The seed of a round determines the tree, the options, the events and their times. An event at a byte position always
//! happens at that position, but the seed does not control the threads of the programs. A failure may therefore need
//! several runs to occur again. **Invariant:** everything that a round starts ends with it, and a successful round
//! leaves nothing behind.

mod attempt;
pub(crate) mod cluster;
pub(crate) mod dice;
mod events;
mod jobs;
pub(crate) mod options;
pub(crate) mod programs;
mod relay;
mod round;
mod shared_target;
mod spread;
mod tally;
pub(crate) mod trees;
pub(crate) mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;

use self::cluster::ClusterTally;
use self::jobs::JobsTally;
use self::options::Direction;
use self::spread::SpreadTally;
use self::tally::Tally;
use crate::measurements::peers::zmove_binary;

/// The settings of the test.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
#[derive(Args, Debug)]
pub(crate) struct TortureArgs {
    /// Number of rounds.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Seed of the first round. Each further round uses the next number. Default: a random seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Direction of all rounds. Default: random for each round.
    #[arg(long, value_enum)]
    direction: Option<Direction>,
    /// Kill runners and processes of jobs instead.
    #[arg(long, conflicts_with = "direction")]
    jobs: bool,
    /// Push to several daemons that share the target's storage instead, and kill and stop the daemons.
    #[arg(long, conflicts_with_all = ["direction", "jobs"])]
    spread: bool,
    /// Push from all nodes of a cluster instead, and kill and stop the nodes, the receivers and the broker.
    #[arg(long, conflicts_with_all = ["direction", "jobs", "spread"])]
    cluster: bool,
    /// Number of rounds of a cluster to run concurrently. They are idle most of the time.
    #[arg(long, requires = "cluster", default_value_t = 1)]
    at_once: usize,
    /// Continue after a round that failed.
    #[arg(long)]
    keep_going: bool,
    /// Directory for the trees. Default: the directory for temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
}

/// Runs the rounds, reports the failed ones, and prints a summary.
pub(crate) fn torture(arguments: &TortureArgs) -> Result<ExitCode> {
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let first = arguments.seed.unwrap_or_else(draw_seed);
    let place = parent.join(format!("zmove-torture-{}", std::process::id()));
    let start = Instant::now();
    if arguments.jobs {
        return torture_jobs(arguments, &zmove, &place, first);
    }
    if arguments.cluster {
        return torture_cluster(arguments, &zmove, &place, first);
    }
    if arguments.spread {
        return torture_spread(arguments, &zmove, &place, first);
    }
    let mut all = Tally::default();
    let mut failed = 0;
    for seed in first..first.saturating_add(arguments.rounds) {
        let directory = place.join(seed.to_string());
        let (tally, options) = round::run(&zmove, &directory, (seed, arguments.direction));
        if tally.failures.is_empty() {
            remove(&directory)?;
        } else {
            failed += 1;
            let (line, kept) = (tally.failed_line(), directory.display());
            println!("round failed: --rounds 1 --seed {seed}: {line} [{options}; kept in {kept}]");
        }
        all.add(tally);
        if failed > 0 && !arguments.keep_going {
            break;
        }
    }
    if failed == 0 {
        remove(&place)?;
    }
    println!(
        "torture from seed {first}: {all}; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn torture_jobs(
    arguments: &TortureArgs,
    zmove: &str,
    place: &Path,
    first: u64,
) -> Result<ExitCode> {
    let start = Instant::now();
    let mut all = JobsTally::default();
    for seed in first..first.saturating_add(arguments.rounds) {
        let directory = place.join(seed.to_string());
        let tally = jobs::run(zmove, &directory, seed);
        if tally.failures.is_empty() {
            remove(&directory)?;
        } else {
            let (line, kept) = (tally.failures.join("; "), directory.display());
            println!("round failed: --jobs --rounds 1 --seed {seed}: {line} [kept in {kept}]");
        }
        all.add(tally);
        if !all.failures.is_empty() && !arguments.keep_going {
            break;
        }
    }
    let is_well = all.failures.is_empty();
    if is_well {
        remove(place)?;
    }
    println!(
        "torture of jobs from seed {first}: {all}; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn torture_spread(
    arguments: &TortureArgs,
    zmove: &str,
    place: &Path,
    first: u64,
) -> Result<ExitCode> {
    let start = Instant::now();
    let mut all = SpreadTally::default();
    for seed in first..first.saturating_add(arguments.rounds) {
        let directory = place.join(seed.to_string());
        let (tally, options) = spread::run(zmove, &directory, seed);
        if tally.common.is_well() {
            remove(&directory)?;
        } else {
            let (line, kept) = (tally.common.failed_line(), directory.display());
            println!(
                "round failed: --spread --rounds 1 --seed {seed}: {line} [{options}; kept in {kept}]"
            );
        }
        all.add(tally);
        if !all.common.is_well() && !arguments.keep_going {
            break;
        }
    }
    if all.common.is_well() {
        remove(place)?;
    }
    println!(
        "torture of spread pushes from seed {first}: {all}; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(if all.common.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn torture_cluster(
    arguments: &TortureArgs,
    zmove: &str,
    place: &Path,
    first: u64,
) -> Result<ExitCode> {
    let start = Instant::now();
    let seeds = Mutex::new(first..first.saturating_add(arguments.rounds));
    let all = Mutex::new(ClusterTally::default());
    let next_seed = || {
        let goes_on = arguments.keep_going || lock(&all).common.is_well();
        lock(&seeds).next().filter(|_| goes_on)
    };
    let work = || -> Result<()> {
        while let Some(seed) = next_seed() {
            let directory = place.join(seed.to_string());
            let (tally, options) = cluster::run(zmove, &directory, seed);
            if tally.common.is_well() {
                remove(&directory)?;
            } else {
                let (line, kept) = (tally.common.failed_line(), directory.display());
                println!(
                    "round failed: --cluster --rounds 1 --seed {seed}: {line} [{options}; kept in {kept}]"
                );
            }
            lock(&all).add(tally);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.at_once.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        let panicked = |_| anyhow::anyhow!("a worker panicked");
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(panicked)?)
    })?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    if all.common.is_well() {
        remove(place)?;
    }
    println!(
        "torture of clusters from seed {first}: {all}; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(if all.common.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn draw_seed() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.as_secs()
}

fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    fs::remove_dir_all(directory)
        .with_context(|| format!("failed to remove {}", directory.display()))
}
