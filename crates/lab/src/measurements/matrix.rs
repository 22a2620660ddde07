//! Four sites that copy to each other. The result is a table of rates from columns to rows, for every tool.
//!
//! The table follows one that DiRAC has published, with rates of rsync between Durham, Edinburgh, Cambridge and RAL.
//! All four hosts exist at the same time, and each pair is connected by its own path.
//!
//! Each path has its own device, addresses, round-trip time and bottleneck, and each host has the name of its site. As
//! a result, zmove does not apply its record of one path to another path. The copies run one at a time, because all
//! hosts share the cores of one machine.

mod sites;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use self::sites::{Assumptions, Site, Stretch};
use self::table::{Class, Entry, Matrix};
use crate::data::datasets;
use crate::data::volume::Volume;
use crate::measurements::late::place::Places;
use crate::measurements::measure::race::{self, Run, Track};
use crate::measurements::measure::report::Header;
use crate::measurements::peers::{Homes, Tool, ZmoveProgram};
use crate::network::hosts::{Hosts, LinkArgs};
use crate::network::{Network, Pair};
use crate::processes::session::Session;
use crate::units::ByteCount;

/// The settings of the copies and the properties of the paths.
#[derive(Args, Debug)]
pub(crate) struct MatrixArgs {
    /// Scale of the emulated rates: the rate of a path is that of the slower link of its two sites, times this factor.
    #[arg(long, default_value_t = 0.2)]
    scale: f64,
    /// Ratio of the length of a path to the great-circle distance between its ends.
    #[arg(long, default_value_t = 2.0)]
    detour: f64,
    #[command(flatten)]
    link: LinkArgs,
    /// Source sites: durham, edinburgh, cambridge, ral.
    #[arg(long, value_delimiter = ',', default_values_t = Site::ALL)]
    from: Vec<Site>,
    /// Target sites.
    #[arg(long, value_delimiter = ',', default_values_t = Site::ALL)]
    to: Vec<Site>,
    /// Data sets.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Data::Large, Data::Small])]
    data: Vec<Data>,
    /// Size of the large data set, which has four files. The small data set has nine files and 9/500 of that size.
    #[arg(long, default_value = "1GiB")]
    budget: ByteCount,
    /// Tools, as for `compare`. The ratio is that of the second tool to the first.
    #[arg(long, value_delimiter = ',', default_value = "rsync-av,zmove")]
    tools: Vec<Tool>,
    /// Number of runs of each tool in each cell.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Time limit of a run, in seconds.
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    #[command(flatten)]
    settle: race::SettleArgs,
    /// Size of the target's file system, which is in memory.
    #[arg(long, default_value = "3GiB")]
    image: ByteCount,
    /// Directory of the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
    /// Print the raw runs and the cells as JSON.
    #[arg(long)]
    json: bool,
}

/// A smaller version of a data set in the published table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Data {
    /// Represents 500 files of 10 GB.
    Large,
    /// Represents 9 files of 10 GB.
    Small,
}

impl Data {
    fn class(self, arguments: &MatrixArgs) -> Result<Class> {
        let (name, files) = match self {
            Self::Large => ("large", LARGE_FILES),
            Self::Small => ("small", SMALL_FILES),
        };
        let set =
            datasets::ensure_uniform(files, self.file_bytes(arguments.budget), &arguments.dir)?;
        Ok(Class { name, set })
    }

    /// Returns the size of a file. Both data sets have the same ratio as the published ones.
    fn file_bytes(self, budget: ByteCount) -> u64 {
        match self {
            Self::Large => budget.0 / LARGE_FILES,
            Self::Small => budget.0 / PUBLISHED_LARGE_FILES,
        }
    }
}

/// Copies between all sites and prints the tables.
pub(crate) fn matrix(arguments: &MatrixArgs) -> Result<ExitCode> {
    let assumptions = arguments.assumptions()?;
    let data: Vec<Class> = arguments
        .data
        .iter()
        .map(|data| data.class(arguments))
        .collect::<Result<_>>()?;
    let session = Session::open()?;
    let volume = Volume::create(&session, arguments.image)?;
    let zmove = ZmoveProgram::find(arguments.zmove.as_deref(), "")?;
    let tools = &arguments.tools;
    let installed: Vec<Tool> = tools
        .iter()
        .filter(|tool| tool.missing().is_none())
        .cloned()
        .collect();
    let homes = Homes::prepare(&session, &installed, &arguments.dir, volume.root(), zmove)?;
    let paths = Stretch::all(assumptions, arguments.link.rate);
    let network = joined(&session, &paths, &arguments.link)?;
    let mut matrix = Matrix {
        header: header(arguments, &homes, &volume)?,
        assumptions: table::assumed(assumptions, arguments.link.rate.is_some()),
        paths,
        data,
        tools: tools.iter().map(|tool| tool.label.clone()).collect(),
        runs: Vec::new(),
    };
    matrix
        .data
        .iter()
        .try_for_each(|class| volume.warm(&class.set.root))?;
    for (from, to) in arguments.directions() {
        let hosts = Hosts::of(
            &network,
            Pair {
                from: number(from),
                to: number(to),
            },
        )?;
        let timeout = Duration::from_secs(arguments.timeout);
        let places = Places::MEMORY;
        let track = Track {
            session: &session,
            hosts: &hosts,
            homes: &homes,
            volume: &volume,
            places,
            timeout,
            settle_max: arguments.settle.longest(),
        };
        for class in &matrix.data {
            let cell = Cell {
                track: &track,
                from,
                to,
                class,
            };
            matrix.runs.extend(cell.race(tools, arguments.runs));
        }
    }
    let shown = if arguments.json {
        matrix.json()?
    } else {
        matrix.text()
    };
    println!("{shown}");
    Ok(if matrix.all_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NOT_ALL_RIGHT)
    })
}

impl MatrixArgs {
    fn assumptions(&self) -> Result<Assumptions> {
        let (detour, scale) = (self.detour, self.scale);
        ensure!(
            scale > 0.0 && scale <= 1.0,
            "--scale lies above 0 and not above 1"
        );
        ensure!(
            (1.0..=100.0).contains(&detour),
            "--detour lies between 1 and 100"
        );
        Ok(Assumptions { detour, scale })
    }

    /// Returns all requested pairs of sites.
    fn directions(&self) -> Vec<(Site, Site)> {
        let each = self
            .from
            .iter()
            .flat_map(|&from| self.to.iter().map(move |&to| (from, to)));
        each.filter(|(from, to)| from != to).collect()
    }
}

/// Sets up the four hosts and the paths between them.
fn joined(session: &Session, paths: &[Stretch], link: &LinkArgs) -> Result<Network> {
    let names = Site::ALL.map(Site::host_name);
    let mut network = Network::open(
        session,
        &names.each_ref().map(String::as_str),
        &link.congestion,
    )?;
    for path in paths {
        let [one, other] = path.sites.map(number);
        let link = LinkArgs {
            rate: Some(path.bits_per_second),
            ..link.clone()
        };
        network.join(
            Pair {
                from: one,
                to: other,
            },
            &link,
            path.rtt_ms,
        )?;
    }
    Ok(network)
}

/// Returns the index of a site's host in the network.
fn number(site: Site) -> usize {
    Site::ALL
        .iter()
        .position(|&known| known == site)
        .expect("all sites are in the list")
}

fn header(arguments: &MatrixArgs, homes: &Homes, volume: &Volume) -> Result<Header> {
    let versions = arguments
        .tools
        .iter()
        .map(|tool| (tool.label.clone(), tool.version(homes)))
        .collect();
    let target = format!(
        "{} image on tmpfs at every site: memory, not a disk; written once before, and each data set copied there once \
         untimed; each run begins on an idle machine and ends flushed",
        volume.kind()
    );
    let link = &arguments.link;
    let path = format!(
        "four hosts, each two joined by a path of their own; loss {} %, MTU {}, {}",
        link.loss.0 * 100.0,
        link.mtu,
        link.congestion
    );
    Ok(Header::collect(link, target, versions)?.over(path))
}

/// One data set in one direction.
struct Cell<'a> {
    track: &'a Track<'a>,
    from: Site,
    to: Site,
    class: &'a Class,
}

impl Cell<'_> {
    /// Performs all runs. The tools alternate.
    fn race(&self, tools: &[Tool], runs: u32) -> Vec<Entry> {
        let mut entries = Vec::new();
        race::in_turn(
            tools,
            runs,
            |tool, _number| self.run(tool),
            |tool, number, run| {
                let entry = self.entry(tool, number, run);
                eprintln!("zmove-lab: {}", entry.line());
                entries.push(entry);
            },
        );
        entries
    }

    fn run(&self, tool: &Tool) -> Result<Run> {
        let set = &self.class.set;
        // The kernel may reclaim unused memory (DAMON) between two runs.
        datasets::warm(set)?;
        race::run(self.track, tool, &set.root)
    }

    fn entry(&self, tool: &Tool, number: u32, run: Run) -> Entry {
        let (data, tool, bytes) = (self.class.name, tool.label.clone(), self.class.set.bytes);
        Entry {
            from: self.from,
            to: self.to,
            data,
            tool,
            number,
            bytes,
            run,
        }
    }
}

/// Number of large files. Each represents 125 files of the published data set.
const LARGE_FILES: u64 = 4;
const PUBLISHED_LARGE_FILES: u64 = 500;
const SMALL_FILES: u64 = 9;
const EXIT_NOT_ALL_RIGHT: u8 = 2;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::units::Rate;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        matrix: MatrixArgs,
    }

    fn typed(words: &str) -> MatrixArgs {
        Typed::try_parse_from(words.split(' ')).unwrap().matrix
    }

    #[test]
    fn all_directions_and_both_data_sets_are_meant_unless_told() {
        let arguments = typed("lab");
        let directions = arguments.directions();
        assert_eq!(directions.len(), 12);
        assert_eq!(directions[0], (Site::Durham, Site::Edinburgh));
        assert_eq!(arguments.data, [Data::Large, Data::Small]);
        let labels: Vec<&str> = arguments
            .tools
            .iter()
            .map(|tool| tool.label.as_str())
            .collect();
        assert_eq!(labels, ["rsync-av", "zmove"]);
    }

    #[test]
    fn directions_rates_and_scale_can_be_told() {
        let arguments =
            typed("lab --from durham,ral --to ral --data small --rate 1Gbit --scale 0.4");
        assert_eq!(arguments.directions(), [(Site::Durham, Site::Ral)]);
        assert_eq!(
            (arguments.link.rate, arguments.scale),
            (Some(Rate(1_000_000_000)), 0.4)
        );
        assert!(Typed::try_parse_from(["lab", "--from", "oxford"]).is_err());
        assert!(typed("lab --scale 0").assumptions().is_err());
        assert!(typed("lab --detour 0.5").assumptions().is_err());
    }

    #[test]
    fn both_data_sets_are_scaled_in_the_same_proportion() {
        let budget = ByteCount(1 << 30);
        assert_eq!(Data::Large.file_bytes(budget) * LARGE_FILES, 1 << 30);
        let small = Data::Small.file_bytes(budget) * SMALL_FILES;
        assert_eq!(small, (1 << 30) / 500 * 9);
    }
}
