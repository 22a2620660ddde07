//! `zmove-lab`: measures zmove and its peers between two hosts that are network namespaces joined by an emulated path.
//!
//! Runs as root on Linux, but for `figures`, `torture`, `wake`, `kills`, `half`, `soak`, `siege`, `jobs queue` and
//! `jobs watch`, which need no hosts.
//! Everything it makes (namespaces, mounts, processes) carries its process number and ends with it.

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

/// Measures zmove and its peers between two emulated hosts.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Sets two hosts up, and runs a command beside them or waits for the end of standard input.
    Hosts(HostsArgs),
    /// Measures the bare path with echoes and iperf3.
    Calibrate(CalibrateArgs),
    /// Makes data sets.
    Data(DataArgs),
    /// Copies data sets with several tools in turn.
    Compare(CompareArgs),
    /// Asks the questions of the paper "When to use rsync" again: every tool, over file sizes and round trips.
    Paper(PaperArgs),
    /// Draws what `paper` has measured, and writes its tables.
    Figures(FiguresArgs),
    /// Copies between four sites, each with each, and prints a table of rates from and to them.
    Matrix(MatrixArgs),
    /// Slows the path down and asks whether zmove says so.
    Verdicts(VerdictsArgs),
    /// Mounts a directory on storage that answers late, for a command to copy from or to.
    Late(LateArgs),
    /// Makes or reads files with many threads, to see what storage takes.
    Bare(BareArgs),
    /// Kills, cuts and confuses transfers at random, and asks whether the same command finishes them.
    Torture(TortureArgs),
    /// Stops receivers at random instants, and asks whether they store old contents when they wake up.
    Wake(WakeArgs),
    /// Cuts the power of a disk under transfers, and asks whether the same command finishes them after the reboot.
    Powercut(PowercutArgs),
    /// Kills transfers at random moments, and says what the same command then moves beyond what was missing.
    Kills(KillsArgs),
    /// Kills the transfer of one large file half-way, and says what the other half takes.
    Half(HalfArgs),
    /// Sends hundreds of transfers through one daemon, and asks whether it holds more at the end than at the beginning.
    Soak(SoakArgs),
    /// Pushes beside somebody who opens connections that come to nothing, and says how fast that is.
    Siege(SiegeArgs),
    /// Asks what jobs cost and give: many over a long path, a long queue, a watched directory.
    Jobs(JobsArgs),
    /// Moves one data set with more and more nodes on both sides, and says what each further node gives.
    Scale(ScaleArgs),
    /// Clears up behind labs that were killed.
    Clean,
    #[command(hide = true)]
    Inside(InsideArgs),
    #[command(hide = true)]
    Janitor { id: String },
}

#[derive(Args, Debug)]
struct HostsArgs {
    /// Round trip in milliseconds.
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
    /// Round trips in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0.2,10,90")]
    rtt: Vec<RoundTrip>,
    #[command(flatten)]
    link: LinkArgs,
    /// Seconds that each iperf3 run counts.
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
    /// Directory to make them in.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Hosts(arguments) => run_hosts(&arguments),
        Task::Calibrate(arguments) => run_calibrate(&arguments),
        Task::Data(arguments) => run_data(&arguments),
        Task::Compare(arguments) => measurements::compare::compare(&arguments),
        Task::Paper(arguments) => measurements::paper::paper(&arguments),
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
