//! The study of "When to use rsync" (Fang, Cottrell, Kissel) between the two hosts: every tool at different file sizes
//! and round-trip times, and a wrapper with different numbers of processes.
//!
//! The results are saved after each run, so that the same command continues an interrupted study. The first run of all
//! cells is performed before any second run. An interrupted study is therefore complete, with fewer runs.

mod cells;
pub(crate) mod charts;
mod contender;
mod drawing;
mod looks;
mod plan;
mod study;
mod sweeps;
mod tables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::data::volume::Volume;
use crate::data::{datasets, trees};
use crate::measurements::late::place::Places;
use crate::measurements::measure::calibrate::{self, Effort};
use crate::measurements::measure::race::{self, Run, Track, Verdict};
use crate::measurements::measure::report::Header;
use crate::measurements::peers::{Homes, Stage, ZmoveProgram, typed};
use crate::network::hosts::{Hosts, LinkArgs};
use crate::processes::groups::Group;
use crate::processes::session::Session;
use crate::units::{ByteCount, RoundTrip};

use self::contender::Contender;
use self::plan::{Block, Design};
use self::study::{Record, Sitting, Study};

pub(crate) use self::drawing::{FiguresArgs, figures};

/// The settings of the study.
#[derive(Args, Debug)]
pub(crate) struct PaperArgs {
    /// Directory of the study. An existing study in this directory is continued.
    #[arg(long)]
    out: PathBuf,
    /// Round-trip times in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0.2,10,90,260")]
    rtt: Vec<RoundTrip>,
    /// Tools: zmove, zmove-quic, rsync, rsyncd, fpsync, scp, tarmbuffer, rclone, gridftp, syq, xrdcp, davix, rcp, qcp.
    /// A tool that is not installed is reported as such.
    #[arg(long, value_delimiter = ',', default_value = contender::ALL)]
    tools: Vec<Contender>,
    /// Size of each data set, whose files all have the same size. The largest size is a single file.
    #[arg(long, default_value = "512MiB")]
    budget: ByteCount,
    /// Largest file size. All smaller sizes are 1 KiB times a power of four.
    #[arg(long, default_value = "1GiB")]
    size_max: ByteCount,
    /// Maximum number of files in a data set.
    #[arg(long, default_value_t = 10_000)]
    files_max: u64,
    /// Number of runs of each tool in each cell.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// A tool whose first run in a cell took longer than this number of seconds is not run there again.
    #[arg(long, default_value_t = 10.0)]
    repeat_below: f64,
    /// Time limit of a run, in seconds. The rate of a run that reaches it is computed from the data that has arrived by
    /// then.
    #[arg(long, default_value_t = 20)]
    cut: u64,
    /// Start no run after this number of minutes. The same command continues the study later.
    #[arg(long)]
    minutes: Option<u64>,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    places: Places,
    /// Directory of the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// The zmove binary. Default: next to this program, then target/release/zmove, then on the PATH.
    #[arg(long)]
    zmove: Option<PathBuf>,
}

impl PaperArgs {
    fn design(&self) -> Design {
        Design {
            budget_bytes: self.budget.0,
            size_max_bytes: self.size_max.0,
            files_max: self.files_max,
            cut_seconds: self.cut,
            path: if self.places.any_is_late() {
                format!("{}; {}", self.link.describe(), self.places)
            } else {
                self.link.describe()
            },
        }
    }
}

/// Performs the missing runs of the study, and prints its results.
pub(crate) fn paper(arguments: &PaperArgs) -> Result<ExitCode> {
    let design = arguments.design();
    let mut study = Study::open(&arguments.out, &design)?;
    study.forget_missing();
    let session = Session::open()?;
    let volume = Volume::create(&session, ByteCount(design.image_bytes()))?;
    let zmove = ZmoveProgram::find(arguments.zmove.as_deref(), "")?;
    sweeps::ensure(&arguments.out, &zmove, &arguments.dir, volume.root())?;
    let tools: Vec<_> = arguments
        .tools
        .iter()
        .flat_map(Contender::variants)
        .map(|tool| tool.tool)
        .collect();
    let installed: Vec<_> = tools
        .iter()
        .filter(|tool| tool.missing().is_none())
        .cloned()
        .collect();
    let target_root = arguments.places.target_root(&session, volume.root())?;
    let homes = Homes::prepare(&session, &installed, &arguments.dir, &target_root, zmove)?;
    let versions = tools
        .iter()
        .map(|tool| (tool.label.clone(), tool.version(&homes)))
        .collect();
    let header = Header::collect(
        &arguments.link,
        format!("{} image on tmpfs", volume.kind()),
        versions,
    )?;
    study.sit_down(Sitting::new(&header)?);
    let mut sitting = Marathon {
        arguments,
        design: &design,
        session: &session,
        volume: &volume,
        homes: &homes,
        study,
    };
    sitting.run()?;
    let study = sitting.study;
    println!("{}", tables::text(&study));
    Ok(ExitCode::SUCCESS)
}

/// The missing runs, until the time limit is reached.
struct Marathon<'a> {
    arguments: &'a PaperArgs,
    design: &'a Design,
    session: &'a Session,
    volume: &'a Volume,
    homes: &'a Homes,
    study: Study,
}

impl Marathon<'_> {
    fn run(&mut self) -> Result<()> {
        let due = self
            .arguments
            .minutes
            .map(|minutes| Instant::now() + Duration::from_secs(minutes * 60));
        for number in 1..=self.arguments.runs {
            for &rtt in &self.arguments.rtt {
                let blocks = self
                    .design
                    .blocks(rtt.milliseconds(), &self.arguments.tools);
                let open = |block: &Block| !self.missing_tools(block, number).is_empty();
                if blocks.iter().any(open) && !self.run_path(number, rtt, &blocks, due)? {
                    eprintln!("zmove-lab: the time is up; the same command goes on");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Runs all blocks of one path. Returns whether all of them were run.
    fn run_path(
        &mut self,
        number: u32,
        rtt: RoundTrip,
        blocks: &[Block],
        due: Option<Instant>,
    ) -> Result<bool> {
        let hosts = Hosts::open(self.session, &self.arguments.link, rtt)?;
        if number == 1 {
            let effort = Effort {
                flow_counts: &[1, 8],
                seconds: 3,
                omitted_seconds: 1,
            };
            self.study
                .calibrated(&calibrate::measure(self.session, &hosts, rtt, effort)?)?;
        }
        let timeout = Duration::from_secs(self.design.cut_seconds);
        let (session, homes, volume) = (self.session, self.homes, self.volume);
        let places = self.arguments.places;
        let track = Track {
            session,
            hosts: &hosts,
            homes,
            volume,
            places,
            timeout,
            settle_max: race::SETTLE_MAX,
        };
        for block in blocks {
            for contender in self.missing_tools(block, number) {
                if due.is_some_and(|due| Instant::now() >= due) {
                    return Ok(false);
                }
                let record = run_once(&track, block, &contender, number, &self.arguments.dir)?;
                eprintln!("zmove-lab: {}", tables::line(&record));
                if !record.run.verdict.is_missing() {
                    self.study
                        .note_command(&contender.name, || command_line(&track, &contender))?;
                }
                self.study.add(record)?;
            }
        }
        Ok(true)
    }

    /// Returns the tools whose run with this number is missing.
    fn missing_tools(&self, block: &Block, number: u32) -> Vec<Contender> {
        let missing = |tool: &&Contender| {
            self.study
                .is_missing(block, &tool.name, number, self.arguments.repeat_below)
        };
        block.tools.iter().filter(missing).cloned().collect()
    }
}

fn run_once(
    track: &Track<'_>,
    block: &Block,
    contender: &Contender,
    number: u32,
    directory: &Path,
) -> Result<Record> {
    let source = datasets::ensure_uniform(block.files, block.file_bytes, directory)?;
    if let Some(programs) = contender.tool.missing() {
        return Ok(Record::new(
            block,
            contender,
            number,
            Run::missing(programs),
            None,
        ));
    }
    datasets::warm(&source)?;
    let run = race::run(track, &contender.tool, &source.root)
        .unwrap_or_else(|error| Run::not_started(&error));
    let arrived = match run.verdict {
        Verdict::TimedOut => Some(trees::stored_bytes(&track.volume.run_directory())?),
        _ => None,
    };
    Ok(Record::new(block, contender, number, run, arrived))
}

/// Returns the command line of the client, for the record.
fn command_line(track: &Track<'_>, contender: &Contender) -> Result<String> {
    let id = track.session.id();
    let (source_group, target_group) = (Group::create(id, "source")?, Group::create(id, "target")?);
    let stage = Stage {
        hosts: track.hosts,
        homes: track.homes,
        source_group: &source_group,
        target_group: &target_group,
        source: Path::new("SOURCE"),
        target: Path::new("TARGET"),
    };
    Ok(typed(
        &contender.tool.client(&stage)?,
        track.session.directory(),
    ))
}
