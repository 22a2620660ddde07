//! Checks that zmove names the path as the bottleneck if the path limits a transfer by its rate or its loss.
//!
//! The other bottlenecks need no emulated path; `tests/e2e/lanes/verdict.rs` tests them.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::data::datasets;
use crate::data::volume::Volume;
use crate::measurements::late::place::Places;
use crate::measurements::measure::race::{self, Track, Verdict};
use crate::measurements::peers::{Homes, Tool, ZmoveProgram};
use crate::network::hosts::{Emulator, Hosts, LinkArgs};
use crate::processes::session::Session;
use crate::units::{ByteCount, LossShare, Rate, RoundTrip};

/// The settings of the test.
#[derive(Args, Debug)]
pub(crate) struct VerdictsArgs {
    /// Faults of the path.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Fault::Rate, Fault::Loss])]
    fault: Vec<Fault>,
    /// Number of pushes with each fault.
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
    /// Directory of the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
}

/// A fault of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// 200 Mbit/s.
    Rate,
    /// 0.3 % of the packets are lost.
    Loss,
}

impl Fault {
    fn link(self) -> LinkArgs {
        let (rate, loss) = match self {
            Self::Rate => (Some(Rate(200_000_000)), LossShare(0.0)),
            Self::Loss => (None, LossShare(0.003)),
        };
        LinkArgs {
            rate,
            loss,
            queue: None,
            mtu: 1_500,
            congestion: "cubic".to_owned(),
            emulator: Emulator::Auto,
        }
    }
}

/// Runs the pushes and reports how many of them named the path.
pub(crate) fn verdicts(arguments: &VerdictsArgs) -> Result<ExitCode> {
    let set = datasets::ensure(DATA, &arguments.dir)?;
    let session = Session::open()?;
    let volume = Volume::create(&session, ByteCount(IMAGE_BYTES))?;
    let tool: Tool = "zmove:--json".parse()?;
    let zmove = ZmoveProgram::find(arguments.zmove.as_deref(), "")?;
    let homes = Homes::prepare(
        &session,
        std::slice::from_ref(&tool),
        &arguments.dir,
        volume.root(),
        zmove,
    )?;
    let mut all_right = true;
    for fault in &arguments.fault {
        let hosts = Hosts::open(&session, &fault.link(), RoundTrip(ROUND_TRIP))?;
        let track = Track {
            session: &session,
            hosts: &hosts,
            homes: &homes,
            volume: &volume,
            places: Places::MEMORY,
            timeout: TIMEOUT,
            settle_max: race::SETTLE_MAX,
        };
        let mut right = 0;
        let mut others = Vec::new();
        for _ in 0..arguments.runs {
            let named = named(&track, &tool, &set.root)?;
            if named.0 == "path" {
                right += 1
            } else {
                others.push(named.1)
            }
        }
        all_right &= others.is_empty();
        println!(
            "path {fault:?}: {right} of {} right {}",
            arguments.runs,
            others.join("; ")
        );
    }
    Ok(if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the bottleneck that a push has named, and all its shares.
fn named(track: &Track<'_>, tool: &Tool, source: &std::path::Path) -> Result<(String, String)> {
    let run = race::run(track, tool, source)?;
    if run.verdict != Verdict::Right {
        return Ok((String::new(), format!("{:?}", run.verdict)));
    }
    let log = track.session.directory().join(race::CLIENT_LOG);
    let said =
        fs::read_to_string(&log).with_context(|| format!("failed to read {}", log.display()))?;
    let last = said.lines().last().context("the push said nothing")?;
    let summary: Value =
        serde_json::from_str(last).context("the push's last line is no summary")?;
    let limited_by = summary["limited_by"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    Ok((limited_by, summary["shares_percent"].to_string()))
}

const DATA: &str = "m8";
const IMAGE_BYTES: u64 = 512 << 20;
const ROUND_TRIP: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(30);
