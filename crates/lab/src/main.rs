//! `zmove-lab` tests and measures zmove and comparable tools between two hosts, which are network namespaces connected
//! by an emulated path.
//!
//! It must run as root on Linux, except for `figures`, `torture`, `wake`, `kills`, `half`, `soak`, `siege`, `jobs
//! queue` and `jobs watch`, which do not need emulated hosts. The names of all namespaces, mounts and processes contain
//! the process id of the lab, and all of them are removed when it ends.

mod data;
mod jobs;
mod kills;
mod measurements;
mod network;
mod powercut;
mod processes;
mod soak;
mod torture;
mod units;
mod wake;

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::data::datasets;
use crate::jobs::JobsArgs;
use crate::kills::{HalfArgs, KillsArgs};
use crate::measurements::compare::CompareArgs;
use crate::measurements::compare::verdicts::{self, VerdictsArgs};
use crate::measurements::late::LateArgs;
use crate::measurements::late::bare::BareArgs;
use crate::measurements::matrix::MatrixArgs;
use crate::measurements::measure::calibrate::{self, Effort};
use crate::measurements::paper::{FiguresArgs, PaperArgs};
use crate::measurements::scale::ScaleArgs;
use crate::network::hosts::{Hosts, LinkArgs};
use crate::powercut::PowercutArgs;
use crate::processes::groups::Group;
use crate::processes::inside;
use crate::processes::inside::InsideArgs;
use crate::processes::session::{self, Session};
use crate::soak::SoakArgs;
use crate::soak::siege::{self, SiegeArgs};
use crate::torture::TortureArgs;
use crate::units::RoundTrip;
use crate::wake::WakeArgs;

/// Measures zmove and comparable tools between two emulated hosts.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Set up two hosts, and run a command or wait for the end of standard input.
    Hosts(HostsArgs),
    /// Measure the path itself with echoes and iperf3.
    Calibrate(CalibrateArgs),
    /// Create data sets.
    Data(DataArgs),
    /// Copy data sets with several tools in turn.
    Compare(CompareArgs),
    /// Repeat the measurements of the paper "When to use rsync": every tool, over file sizes and round-trip times.
    ImageSize(PaperArgs),
    /// Draw the charts and write the tables of the results of `paper`.
    Figures(FiguresArgs),
    /// Copy between all pairs of four sites, and print a table of rates per site.
    Matrix(MatrixArgs),
    /// Slow down the path, and check that zmove names the bottleneck.
    Verdicts(VerdictsArgs),
    /// Mount a directory on storage with high latency, for a command to copy from or to.
    Late(LateArgs),
    /// Create or read files with many threads, to measure the storage.
    Bare(BareArgs),
    /// Kill, interrupt and disturb transfers at random, and check that the same command completes them.
    Torture(TortureArgs),
    /// Stop receivers at random times, and check that they store no outdated contents when they resume.
    Wake(WakeArgs),
    /// Cut the power of a disk during transfers, and check that the same command completes them after the reboot.
    Powercut(PowercutArgs),
    /// Kill transfers at random times, and report the data that the same command then moves in addition to the missing
    /// data.
    Kills(KillsArgs),
    /// Kill the transfer of one large file halfway, and report the cost of the second half.
    Half(HalfArgs),
    /// Run hundreds of transfers through one daemon, and check that its use of resources does not grow.
    Soak(SoakArgs),
    /// Measure pushes while another client opens connections that never become sessions.
    Siege(SiegeArgs),
    /// Measure the cost and benefit of jobs: many jobs over a long path, a long queue, a watched directory.
    Jobs(JobsArgs),
    /// Move one data set with an increasing number of nodes on both sides, and report the gain per node.
    Scale(ScaleArgs),
    /// Clean up after labs that were killed.
    Clean,
    #[command(hide = true)]
    Inside(InsideArgs),
    #[command(hide = true)]
    Janitor { id: String },
}

#[derive(Args, Debug)]
struct HostsArgs {
    /// Round-trip time in milliseconds.
    #[arg(long)]
    rtt: RoundTrip,
    #[command(flatten)]
    link: LinkArgs,
    /// Command to run with ZMOVE_LAB_SRC and ZMOVE_LAB_DST set to the names of the namespaces.
    #[arg(last = true)]
    command: Vec<OsString>,
}

#[derive(Args, Debug)]
struct CalibrateArgs {
    /// Round-trip times in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0.2,10,90")]
    rtt: Vec<RoundTrip>,
    #[command(flatten)]
    link: LinkArgs,
    /// Duration of each iperf3 run in seconds, without its warm-up.
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct DataArgs {
    /// Data sets: k1, k16, k128, m1, m8, m64, g2, e500k, real.
    #[arg(required = true)]
    names: Vec<String>,
    /// Directory for the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Hosts(arguments) => run_hosts(&arguments),
        Task::Calibrate(arguments) => run_calibrate(&arguments),
        Task::Data(arguments) => run_data(&arguments),
        Task::Compare(arguments) => measurements::compare::compare(&arguments),
        Task::ImageSize(arguments) => measurements::paper::paper(&arguments),
        Task::Figures(arguments) => measurements::paper::figures(&arguments),
        Task::Matrix(arguments) => measurements::matrix::matrix(&arguments),
        Task::Verdicts(arguments) => verdicts::verdicts(&arguments),
        Task::Late(arguments) => measurements::late::late(&arguments),
        Task::Bare(arguments) => measurements::late::bare::bare(&arguments),
        Task::Torture(arguments) => torture::torture(&arguments),
        Task::Wake(arguments) => wake::wake(&arguments),
        Task::Powercut(arguments) => powercut::powercut(&arguments),
        Task::Kills(arguments) => kills::kills(&arguments),
        Task::Half(arguments) => kills::half(&arguments),
        Task::Soak(arguments) => soak::soak(&arguments),
        Task::Siege(arguments) => siege::siege(&arguments),
        Task::Jobs(arguments) => jobs::jobs(&arguments),
        Task::Scale(arguments) => measurements::scale::scale(&arguments),
        Task::Clean => run_clean(),
        Task::Inside(arguments) => inside::become_program(&arguments).map(|()| ExitCode::SUCCESS),
        Task::Janitor { id } => session::janitor(&id).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("zmove-lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_hosts(arguments: &HostsArgs) -> Result<ExitCode> {
    let session = Session::open()?;
    let hosts = Hosts::open(&session, &arguments.link, arguments.rtt)?;
    if let Some((program, rest)) = arguments.command.split_first() {
        let group = Group::create(session.id(), "command")?;
        let program = program
            .to_str()
            .context("the command's name is not UTF-8")?;
        let status = inside::command(None, Some(&group), program)?
            .args(rest)
            .env("ZMOVE_LAB_SRC", &hosts.source)
            .env("ZMOVE_LAB_DST", &hosts.target)
            .status()
            .context("failed to run the command")?;
        let code = status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1);
        return Ok(ExitCode::from(code));
    }
    println!(
        "ZMOVE_LAB_SRC={}\nZMOVE_LAB_DST={}",
        hosts.source, hosts.target
    );
    eprintln!("zmove-lab: the path stands until ^C or the end of standard input");
    std::io::copy(&mut std::io::stdin().by_ref(), &mut std::io::sink())?;
    Ok(ExitCode::SUCCESS)
}

fn run_calibrate(arguments: &CalibrateArgs) -> Result<ExitCode> {
    let session = Session::open()?;
    let mut calibrations = Vec::new();
    for &round_trip in &arguments.rtt {
        let hosts = Hosts::open(&session, &arguments.link, round_trip)?;
        let effort = Effort {
            flow_counts: &[1, 8],
            seconds: arguments.seconds,
            omitted_seconds: 3,
        };
        calibrations.push(calibrate::measure(&session, &hosts, round_trip, effort)?);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&calibrations)?);
    } else {
        println!(
            "{}\n{}",
            arguments.link.describe(),
            calibrate::table(&calibrations)
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn run_data(arguments: &DataArgs) -> Result<ExitCode> {
    for name in &arguments.names {
        let set = datasets::ensure(name, &arguments.dir)?;
        println!(
            "{}: {} files, {} bytes",
            set.root.display(),
            set.files,
            set.bytes
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn run_clean() -> Result<ExitCode> {
    for id in session::sweep()? {
        println!("cleared up behind lab {id}");
    }
    Ok(ExitCode::SUCCESS)
}
