//! `zmove-lab jobs`: what jobs cost and give, each against what a user would do without them.

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

/// Which question, and with which zmove.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    /// The zmove binary. Default: beside this program, else target/release/zmove, else on the PATH.
    #[arg(long, global = true)]
    zmove: Option<PathBuf>,
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// Many jobs to one host, against as many rsync to its daemon, eight at a time, and as many pushes in turn.
    Many(ManyArgs),
    /// A long queue: what a submission, a list and a job's own overhead cost.
    Queue(QueueArgs),
    /// Files that a generator writes and a job watches: how late they arrive, and whether all do.
    Watch(WatchArgs),
}

#[derive(Args, Debug)]
struct ManyArgs {
    /// Round trip in milliseconds.
    #[arg(long, default_value = "90")]
    rtt: RoundTrip,
    #[command(flatten)]
    link: LinkArgs,
    /// Jobs, each of one file.
    #[arg(long, default_value_t = 500)]
    count: usize,
    /// Size of a file.
    #[arg(long, default_value = "20MB")]
    size: ByteCount,
    /// Directory for source and target, which takes all files of one run. Default: the lab's own, on /run.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Jobs that the runner does at once, and with one host.
    #[arg(long, default_value_t = 8)]
    max: usize,
}

#[derive(Args, Debug)]
struct QueueArgs {
    /// Jobs in the queue.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

#[derive(Args, Debug)]
struct WatchArgs {
    /// Files.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Seconds over which they are written.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Kills of runner, watcher and batch in turn, at even intervals.
    #[arg(long, default_value_t = 0)]
    kills: usize,
}

/// Asks one of the questions.
pub(crate) fn jobs(arguments: &JobsArgs) -> Result<ExitCode> {
    let zmove = crate::measurements::peers::zmove_binary(arguments.zmove.as_deref())?;
    match &arguments.question {
        Question::Many(many) => many::many(&zmove, many),
        Question::Queue(queue) => queue::queue(&zmove, queue),
        Question::Watch(watch) => watch::watch(&zmove, watch),
    }
}

/// The middle of some times, the time that all but one in a hundred keep, and the longest, in milliseconds.
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
