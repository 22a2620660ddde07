//! Tools side by side: every tool in turn, run after run, over each round trip and data set.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::calibrate::{self, Calibration, Effort};
use crate::datasets::{self, DataSet};
use crate::hosts::{Hosts, LinkArgs};
use crate::peers::{Homes, Tool, ZmoveProgram};
use crate::race::{self, Run, Track};
use crate::report::{self, Entry, Header, Report};
use crate::session::Session;
use crate::units::{ByteCount, RoundTrip};
use crate::volume::Volume;

/// What to compare over which paths.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Round trips in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0.2,10,90")]
    rtt: Vec<RoundTrip>,
    #[command(flatten)]
    link: LinkArgs,
    /// Data sets: k1, k16, k128, m1, m8, m64, g2, real.
    #[arg(long, value_delimiter = ',', default_value = "k1,k16,g2")]
    data: Vec<String>,
    /// Directory of the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// Tools: zmove, rsync, rsyncd, tarssh, tarnc, syq, gridftp, gridftp-direct; with arguments for the client as in
    /// `zmove:--streams 4` or `zmove:--cipher none`. One that is not installed gets a row that says so.
    #[arg(long, value_delimiter = ',', default_value = "zmove,rsync,rsyncd,tarssh,tarnc")]
    tools: Vec<Tool>,
    /// Runs of each tool in each cell.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Seconds after which a run is ended.
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// Size of the target's file system, all of it in memory.
    #[arg(long, default_value = "6GiB")]
    image: ByteCount,
    /// The zmove binary. Default: beside this program, else target/release/zmove, else on the PATH.
    #[arg(long)]
    zmove: Option<PathBuf>,
    /// Further arguments of every `zmove push`, in one word.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    zmove_args: String,
    /// Further arguments of `zmove serve`, in one word.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    zmove_serve_args: String,
    /// Do not measure the bare path first.
    #[arg(long)]
    no_calibrate: bool,
    /// Print raw runs and medians as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the comparison and prints the report.
pub(crate) fn compare(arguments: &CompareArgs) -> Result<ExitCode> {
    let sets = prepared_sets(arguments)?;
    let session = Session::open()?;
    let volume = Volume::create(&session, arguments.image)?;
    let tools: Vec<Tool> =
        arguments.tools.iter().map(|tool| tool.clone().with_zmove_arguments(&arguments.zmove_args)).collect();
    let zmove = ZmoveProgram::find(arguments.zmove.as_deref(), &arguments.zmove_serve_args)?;
    let installed: Vec<Tool> = tools.iter().filter(|tool| tool.missing().is_none()).cloned().collect();
    let homes = Homes::prepare(&session, &installed, volume.root(), zmove)?;
    let mut report = Report::new(header(arguments, &tools, &homes, &volume)?);
    for &round_trip in &arguments.rtt {
        let hosts = Hosts::open(&session, &arguments.link, round_trip)?;
        if !arguments.no_calibrate {
            report.calibrations.push(calibration(&session, &hosts, round_trip)?);
        }
        let track = Track {
            session: &session,
            hosts: &hosts,
            homes: &homes,
            volume: &volume,
            timeout: Duration::from_secs(arguments.timeout),
        };
        for set in &sets {
            report.entries.extend(race_all(&track, round_trip, set, &tools, arguments.runs)?);
        }
    }
    if arguments.json {
        println!("{}", report.json()?);
    } else {
        println!("{}", report.text());
    }
    Ok(if report.all_right() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NOT_ALL_RIGHT) })
}

fn prepared_sets(arguments: &CompareArgs) -> Result<Vec<DataSet>> {
    arguments.data.iter().map(|name| datasets::ensure(name, &arguments.dir)).collect()
}

fn header(arguments: &CompareArgs, tools: &[Tool], homes: &Homes, volume: &Volume) -> Result<Header> {
    let versions = tools.iter().map(|tool| (tool.label.clone(), tool.version(homes))).collect();
    let target = format!(
        "{} image on tmpfs: memory, not a disk, and in no tool's MiB; written once before, each data set copied there \
         once untimed; each run begins on an idle machine",
        volume.kind()
    );
    Header::collect(&arguments.link, target, versions)
}

fn calibration(session: &Session, hosts: &Hosts, round_trip: RoundTrip) -> Result<Calibration> {
    let effort = Effort { flow_counts: &[8], seconds: 3, omitted_seconds: 1 };
    calibrate::measure(session, hosts, round_trip, effort)
}

/// All runs of one cell: the tools alternate.
fn race_all(
    track: &Track<'_>,
    round_trip: RoundTrip,
    set: &DataSet,
    tools: &[Tool],
    runs: u32,
) -> Result<Vec<Entry>> {
    track.volume.warm(&set.root)?;
    let mut entries = Vec::new();
    for number in 1..=runs {
        for tool in tools {
            let missing = tool.missing().map(Run::missing);
            if missing.is_some() && number > 1 {
                continue;
            }
            // a kernel that reclaims what has not been used lately (DAMON) does so between two runs
            datasets::warm(set)?;
            let run = missing.unwrap_or_else(|| {
                race::run(track, tool, &set.root).unwrap_or_else(|error| Run::not_started(&error))
            });
            let entry = Entry::new(round_trip, set, tool, run).numbered(number);
            eprintln!("zmove-lab: {}", report::line(&entry));
            entries.push(entry);
        }
    }
    Ok(entries)
}

const EXIT_NOT_ALL_RIGHT: u8 = 2;
