//! Compares tools: every tool in turn, run after run, over each round-trip time and data set.

pub(crate) mod verdicts;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::data::datasets;
use crate::data::volume::Volume;
use crate::measurements::late::place::Places;
use crate::measurements::measure::again::{Again, Task};
use crate::measurements::measure::calibrate::{self, Calibration, Effort};
use crate::measurements::measure::race::{self, Run, Track, Verdict};
use crate::measurements::measure::report::{self, Entry, Header, Report};
use crate::measurements::peers::{Homes, Tool, ZmoveProgram};
use crate::network::hosts::{Hosts, LinkArgs};
use crate::processes::session::Session;
use crate::units::{ByteCount, RoundTrip};

/// The settings of a comparison.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Round-trip times in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0.2,10,90")]
    rtt: Vec<RoundTrip>,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    places: Places,
    /// Data sets: k1, k16, k128, m1, m8, m64, g2, e500k, real; k1s and k16s: 5,000 files in ten directories.
    #[arg(long, value_delimiter = ',', default_value = "k1,k16,g2")]
    data: Vec<String>,
    /// Directory of the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// Tools: zmove, zmovessh (over ssh), rsync, rsyncd, fpsync, scp, rclone, tarssh, tarnc, tarmbuffer, syq, gridftp,
    /// gridftp-direct, xrdcp, davix, rcp, qcp. On the source's host, without the path: zmove-local, cp, rsync-local,
    /// fpsync-local (16 processes), tar-local, rclone-local, bare-create and bare-replace (64 threads that do only what
    /// a push must do), fio-read and fio-write (only the bytes, with 32 requests of 1 MiB in flight). Arguments for the
    /// client may follow, as in `zmove:--streams 4` or `zmove:--cipher none`. A tool that is not installed is reported
    /// as such.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "zmove,rsync,rsyncd,tarssh,tarnc"
    )]
    tools: Vec<Tool>,
    /// Measure the same command again, with a target that is already filled.
    #[arg(long, value_enum)]
    again: Option<Again>,
    /// Number of runs of each tool in each cell.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Time limit of a run, in seconds.
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    #[command(flatten)]
    settle: race::SettleArgs,
    /// Size of the target's file system, which is in memory.
    #[arg(long, default_value = "6GiB")]
    image: ByteCount,
    /// The zmove binary. Default: next to this program, then target/release/zmove, then on the PATH.
    #[arg(long)]
    zmove: Option<PathBuf>,
    /// Additional arguments of every `zmove push`, in one string.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    zmove_args: String,
    /// Additional arguments of `zmove serve`, in one string.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    zmove_serve_args: String,
    /// Skip the measurement of the path itself.
    #[arg(long)]
    no_calibrate: bool,
    /// Print the raw runs and the medians as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the comparison and prints the report.
pub(crate) fn compare(arguments: &CompareArgs) -> Result<ExitCode> {
    let tasks = tasks(arguments)?;
    let session = Session::open()?;
    let volume = Volume::create(&session, arguments.image)?;
    let tools: Vec<Tool> = arguments
        .tools
        .iter()
        .map(|tool| tool.clone().with_zmove_arguments(&arguments.zmove_args))
        .collect();
    let zmove = ZmoveProgram::find(arguments.zmove.as_deref(), &arguments.zmove_serve_args)?;
    let installed: Vec<Tool> = tools
        .iter()
        .filter(|tool| tool.missing().is_none())
        .cloned()
        .collect();
    let homes = Homes::prepare(
        &session,
        &installed,
        &arguments.dir,
        &arguments.places.target_root(&session, volume.root())?,
        zmove,
    )?;
    let mut report = Report::new(header(arguments, &tools, &homes, &volume)?);
    for &round_trip in &arguments.rtt {
        let hosts = Hosts::open(&session, &arguments.link, round_trip)?;
        if !arguments.no_calibrate {
            report
                .calibrations
                .push(calibration(&session, &hosts, round_trip)?);
        }
        let track = Track {
            session: &session,
            hosts: &hosts,
            homes: &homes,
            volume: &volume,
            places: arguments.places,
            timeout: Duration::from_secs(arguments.timeout),
            settle_max: arguments.settle.longest(),
        };
        for task in &tasks {
            report
                .entries
                .extend(race_all(&track, round_trip, task, &tools, arguments.runs)?);
        }
    }
    if arguments.json {
        println!("{}", report.json()?);
    } else {
        println!("{}", report.text());
    }
    Ok(if report.all_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NOT_ALL_RIGHT)
    })
}

fn tasks(arguments: &CompareArgs) -> Result<Vec<Task>> {
    let sets = arguments
        .data
        .iter()
        .map(|name| datasets::ensure(name, &arguments.dir));
    sets.map(|set| Task::new(set?, arguments.again)).collect()
}

fn header(
    arguments: &CompareArgs,
    tools: &[Tool],
    homes: &Homes,
    volume: &Volume,
) -> Result<Header> {
    let versions = tools
        .iter()
        .map(|tool| (tool.label.clone(), tool.version(homes)))
        .collect();
    let before = match arguments.again {
        None => "each data set copied there once untimed",
        Some(Again::Directories) => "filled with the directories alone before each run",
        Some(Again::Unchanged) => "filled by cp -a, and each tool run over it once untimed",
        Some(Again::Changed) => {
            "filled by cp -a before each run with what the source was before some bytes changed"
        }
    };
    let idle = if arguments.places.any_is_late() {
        "with mounts of its own"
    } else {
        "on an idle machine"
    };
    let target = format!(
        "{} image on tmpfs: memory, not a disk, and in no tool's MiB; written once before, {before}; \
         each run begins {idle}; {}",
        volume.kind(),
        arguments.places
    );
    Header::collect(&arguments.link, target, versions)
}

fn calibration(session: &Session, hosts: &Hosts, round_trip: RoundTrip) -> Result<Calibration> {
    let effort = Effort {
        flow_counts: &[8],
        seconds: 3,
        omitted_seconds: 1,
    };
    calibrate::measure(session, hosts, round_trip, effort)
}

/// Performs all runs of one cell. The tools alternate.
fn race_all(
    track: &Track<'_>,
    round_trip: RoundTrip,
    task: &Task,
    tools: &[Tool],
    runs: u32,
) -> Result<Vec<Entry>> {
    task.prepare(track.volume)?;
    let mut entries = Vec::new();
    race::in_turn(
        tools,
        runs,
        |tool, number| race_once(track, task, tool, number),
        |tool, number, run| {
            let entry = Entry::new(round_trip, &task.source, tool, run).numbered(number);
            eprintln!("zmove-lab: {}", report::line(&entry));
            entries.push(entry);
        },
    );
    Ok(entries)
}

/// Performs one timed run, and the untimed run before it if there is one.
fn race_once(track: &Track<'_>, task: &Task, tool: &Tool, number: u32) -> Result<Run> {
    let source = &task.source;
    if number == 1 && task.has_untimed_run() {
        let untimed = race::run_into(track, tool, &source.root, &task.target(track.volume)?)?;
        if untimed.verdict != Verdict::Right {
            return Ok(untimed);
        }
    }
    let target = task.target(track.volume)?;
    // The kernel may reclaim unused memory (DAMON) between two runs.
    datasets::warm(source)?;
    race::run_into(track, tool, &source.root, &target)
}

const EXIT_NOT_ALL_RIGHT: u8 = 2;
