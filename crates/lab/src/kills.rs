//! `kills` and `half` measure the data and time that the same command needs after one side was killed.
//!
//! Everything runs on the loopback interface, with a separate daemon. `torture` checks that the result is correct, and
//! this test measures the cost.

mod counted;
mod half;
mod one;
mod tally;
mod yard;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use self::one::Bench;
use self::tally::Tally;
use crate::data::datasets;
use crate::measurements::peers::zmove_binary;
use crate::torture::dice::Dice;

pub(crate) use self::half::{HalfArgs, half};

/// The settings of the kill test.
#[derive(Args, Debug)]
pub(crate) struct KillsArgs {
    /// Number of transfers to kill. In every second one, the receiver is killed.
    #[arg(long, default_value_t = 100)]
    runs: u64,
    /// Seed of the random times. Default: 1.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The data set.
    #[arg(long, default_value = "g2")]
    data: String,
    /// Rate limit of each push, as for `zmove push --limit`. It makes the push long enough to be killed in the middle.
    #[arg(long, default_value = "10Gbit")]
    limit: String,
    /// Directory of the data sets and, by default, of the targets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// Directory of the targets. Default: that of the data sets.
    #[arg(long)]
    target_dir: Option<PathBuf>,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
}

/// Kills transfers, completes them with the same command, and prints the data that the completion moved.
pub(crate) fn kills(arguments: &KillsArgs) -> Result<ExitCode> {
    let set = datasets::ensure(&arguments.data, &arguments.dir)?;
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let place = new_place(arguments.target_dir.as_ref().unwrap_or(&arguments.dir))?;
    let mut dice = Dice::new(arguments.seed);
    let options = [format!("--limit={}", arguments.limit)];
    let mut bench = Bench::set_up(&zmove, &place, &set, &options, &mut dice)?;
    println!("a whole push takes {:.2} s", bench.whole().as_secs_f64());
    let mut tally = Tally::default();
    for number in 1..=arguments.runs {
        let killed = bench.kill_one(number, &mut dice)?;
        println!("run {number}: {killed}");
        tally.add(killed);
    }
    drop(bench);
    fs::remove_dir_all(&place).with_context(|| format!("failed to remove {}", place.display()))?;
    println!("seed {}: {tally}", arguments.seed);
    Ok(if tally.all_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Creates a directory for this process alone. It is kept if the test fails.
fn new_place(parent: &std::path::Path) -> Result<PathBuf> {
    let place = parent.join(format!("zmove-kills-{}", std::process::id()));
    fs::create_dir_all(&place).with_context(|| format!("failed to create {}", place.display()))?;
    Ok(place)
}
