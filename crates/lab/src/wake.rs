//! `wake` stops receivers at random times, kills their senders, and resumes the receivers after another transfer has
//! ended. No receiver may overwrite new contents with old ones.
//!
//! A round counts if the receivers held at least 900 unpublished files when they were stopped, and the stop lasted at
//! least one second. A resumed receiver may still make one system call per publishing thread that was permitted before
//! the stop. **Invariant:** everything that a round starts ends with it, and a successful round leaves nothing behind.

mod round;
mod scene;
mod trees;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};

use self::round::{LATE_CALLS_MAX, Outcome, Round};
use crate::measurements::peers::zmove_binary;
use crate::torture::draw_seed;

/// The settings of the test.
#[derive(Args, Debug)]
pub(crate) struct WakeArgs {
    /// Number of rounds.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Seed of the first round. Each further round uses the next number. Default: a random seed.
    #[arg(long)]
    seed: Option<u64>,
    /// The methods to use in turn, separated by commas. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    method: Vec<Method>,
    /// Number of files of each transfer.
    #[arg(long, default_value_t = 4000)]
    files: usize,
    /// Number of rounds to run concurrently. They are idle most of the time.
    #[arg(long, default_value_t = 1)]
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

/// The sender and the receivers of the first transfer, the connections between them, and the next transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Method {
    /// A push to a receiver that is started by a substitute for ssh, over its pipes, then the same command again.
    Ssh,
    /// A push to a daemon over TCP, then a push to another daemon on the same storage.
    Tcp,
    /// Like `tcp`, with unencrypted lanes.
    Clear,
    /// Like `tcp`, over QUIC.
    Quic,
    /// Like `tcp`, but the next push uses another home directory.
    Home,
    /// Like `tcp`, but the next push uses another name of the host.
    Name,
    /// A pull from a daemon that is killed, then a pull from another daemon.
    Pull,
    /// A copy from a daemon that is killed to another one, then a copy between two others.
    Copy,
    /// A push to two daemons that share the storage, then a push to other daemons on that storage, from the same home
    /// directory or another one.
    Spread,
    /// Like `spread`, over QUIC.
    SpreadQuic,
    /// A push by two nodes of a cluster to two receivers, then a push from one sender to another daemon.
    Cluster,
}

impl Method {
    const fn client_options(self) -> &'static [&'static str] {
        match self {
            Self::Ssh => &["--ssh"],
            Self::Clear => &["--cipher", "none"],
            Self::Quic => &["--transport", "quic"],
            _ => &[],
        }
    }

    const fn has_several_receivers(self) -> bool {
        matches!(self, Self::Spread | Self::SpreadQuic | Self::Cluster)
    }

    const fn first_guess(self) -> Duration {
        if self.has_several_receivers() {
            Duration::from_secs(4)
        } else {
            Duration::from_millis(700)
        }
    }

    const fn serve_options(self) -> &'static [&'static str] {
        match self {
            Self::Clear => &["--allow-clear"],
            Self::Quic => &["--transport", "quic"],
            _ => &[],
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The results of all rounds.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    /// Number of rounds that count, by method.
    counted: BTreeMap<Method, u64>,
    old_names: usize,
    hidden_names: usize,
    failed: u64,
}

impl Tally {
    fn add(&mut self, method: Method, outcome: &Outcome) {
        self.rounds += 1;
        *self.counted.entry(method).or_default() += u64::from(outcome.counts());
        self.old_names += outcome.old_names;
        self.hidden_names += outcome.hidden_names;
        self.failed += u64::from(outcome.failure.is_some());
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted: u64 = self.counted.values().sum();
        let by_method = self
            .counted
            .iter()
            .map(|(method, count)| format!("{method} {count}"));
        let by_method: Vec<_> = by_method.collect();
        write!(
            f,
            "{} rounds, {counted} counted ({}), {} names with old contents (a round may have {LATE_CALLS_MAX}), {} hidden \
             names left, {} failed",
            self.rounds,
            by_method.join(", "),
            self.old_names,
            self.hidden_names,
            self.failed
        )
    }
}

/// The duration of the latest complete transfer of each method, if known. Receivers are stopped within that time.
#[derive(Debug, Default)]
struct Durations(Mutex<BTreeMap<Method, Duration>>);

impl Durations {
    fn of(&self, method: Method) -> Duration {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&method)
            .copied()
            .unwrap_or_else(|| method.first_guess())
    }

    fn note(&self, method: Method, duration: Duration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(method, duration);
    }
}

/// Runs the rounds, reports the failed ones, and prints a summary.
pub(crate) fn wake(arguments: &WakeArgs) -> Result<ExitCode> {
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let place = parent.join(format!("zmove-wake-{}", std::process::id()));
    let first = arguments.seed.unwrap_or_else(draw_seed);
    let start = Instant::now();
    let seeds = Mutex::new(first..first.saturating_add(arguments.rounds));
    let all = Mutex::new(Tally::default());
    let durations = Durations::default();
    let methods: &[Method] = if arguments.method.is_empty() {
        Method::value_variants()
    } else {
        &arguments.method
    };
    let next_seed = || {
        let all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = arguments.keep_going || all.failed == 0;
        let mut seeds = seeds.lock().unwrap_or_else(PoisonError::into_inner);
        seeds.next().filter(|_| goes_on)
    };
    let work = || -> Result<()> {
        while let Some(seed) = next_seed() {
            let round = Round {
                zmove: &zmove,
                directory: place.join(seed.to_string()),
                method: methods[usize::try_from(seed % methods.len() as u64)?],
                files: arguments.files,
                seed,
            };
            let outcome = round.run(&durations);
            report(&round, &outcome)?;
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.add(round.method, &outcome);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.at_once.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        let panicked = |_| anyhow!("a worker panicked");
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(panicked)?)
    })?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    if all.failed == 0 {
        remove(&place)?;
    }
    println!(
        "wake from seed {first}: {all}; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(if all.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reports a failed round. Removes the files of a successful round.
fn report(round: &Round<'_>, outcome: &Outcome) -> Result<()> {
    let Some(failure) = &outcome.failure else {
        return remove(&round.directory);
    };
    println!(
        "round failed: --rounds 1 --seed {} --method {}: {failure} [{}; kept in {}]",
        round.seed,
        round.method,
        outcome.shown(),
        round.directory.display()
    );
    Ok(())
}

fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    fs::remove_dir_all(directory)
        .with_context(|| format!("failed to remove {}", directory.display()))
}
