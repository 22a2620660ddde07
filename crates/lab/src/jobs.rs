//! `zmove-lab jobs` measures the cost and the benefit of jobs, compared with the same transfers without jobs.

mod many;
mod queue;
mod watch;
mod yard;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::network::hosts::LinkArgs;
use crate::units::{ByteCount, RoundTrip};

/// The measurement to run, and the zmove binary to use.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    /// The zmove binary. Default: next to this program, then target/release/zmove, then on the PATH.
    #[arg(long, global = true)]
    zmove: Option<PathBuf>,
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// Run many jobs to one host. Compare with the same number of rsync processes, eight at a time, and with pushes in
    /// turn.
    Many(ManyArgs),
    /// Measure a long queue: the cost of a submission, of a list, and the overhead of a job.
    Queue(QueueArgs),
    /// Let a generator write files that a job watches: measure their latency, and check that all of them arrive.
    Watch(WatchArgs),
}

#[derive(Args, Debug)]
struct ManyArgs {
    /// Round-trip time in milliseconds.
    #[arg(long, default_value = "90")]
    rtt: RoundTrip,
    #[command(flatten)]
    link: LinkArgs,
    /// Number of jobs, each with one file.
    #[arg(long, default_value_t = 500)]
    count: usize,
    /// Size of a file.
    #[arg(long, default_value = "20MB")]
    size: ByteCount,
    /// Directory for source and target, with space for all files of one run. Default: the lab's directory below /run.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Maximum number of jobs that the runner runs at the same time, in total and per host.
    #[arg(long, default_value_t = 8)]
    max: usize,
}

#[derive(Args, Debug)]
struct QueueArgs {
    /// Number of jobs in the queue.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Repetitions of each measurement.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

#[derive(Args, Debug)]
struct WatchArgs {
    /// Number of files.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Time in which the files are written, in seconds.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Number of kills at even intervals. The runner, the watcher and the batch are killed in turn.
    #[arg(long, default_value_t = 0)]
    kills: usize,
}

/// Runs one of the measurements.
pub(crate) fn jobs(arguments: &JobsArgs) -> Result<ExitCode> {
    let zmove = crate::measurements::peers::zmove_binary(arguments.zmove.as_deref())?;
    match &arguments.question {
        Question::Many(many) => many::many(&zmove, many),
        Question::Queue(queue) => queue::queue(&zmove, queue),
        Question::Watch(watch) => watch::watch(&zmove, watch),
    }
}

/// Formats the median, the 99th percentile and the maximum of some times, in milliseconds.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| {
        let time = times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
        time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    };
    format!(
        "median {:.1} ms, 99 of 100 {:.1} ms, most {:.1} ms",
        at(50),
        at(99),
        at(100)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let times = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(
            spread(times),
            "median 101.0 ms, 99 of 100 199.0 ms, most 200.0 ms"
        );
    }
}
