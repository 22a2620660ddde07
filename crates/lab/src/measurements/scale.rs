//! `zmove-lab scale` measures the gain of a job from more nodes on both sides. The nodes of a side share the storage of
//! the source or the target.
//!
//! Nodes are network namespaces of this machine. Each has its own link (`network/star.rs`). There is a round-trip time
//! only between the sides, because nodes that share storage are near each other. The links must be the bottleneck: a
//! run in which the processors were idle for less than a quarter of the time is void.
//!
//! All nodes use one file system, which is coherent and has no locks between nodes. The figures therefore do not
//! include the costs of a cluster file system. With `--model`, each receiver has its own mount of the target, which
//! charges the costs that clients of a cluster file system cause each other. `late/shared.rs` describes the model.

mod data;
mod figure;
mod fpsync;
mod model;
mod report;
mod run;
mod stand;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::data::Set;
use self::report::{Entry, Report};
use self::run::{Figures, Place};
use self::stand::Stand;
use crate::data::datasets;
use crate::measurements::late::shared::Costs;
use crate::measurements::measure::race;
use crate::measurements::peers::Ssh;
use crate::processes::session::Session;
use crate::units::{Rate, RoundTrip};

/// The settings of the measurement.
#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// Numbers of nodes on each side.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    nodes: Vec<usize>,
    /// Data sets: losf (small files in many directories), losf-flat (in one directory), medium, large, huge (one file).
    /// NAME, or NAME:FILESxSIZE as in large:32x64MiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "losf,losf-flat,medium,large,huge"
    )]
    data: Vec<Set>,
    /// Increase the data with the number of nodes, so that all runs take about the same time.
    #[arg(long)]
    grow: bool,
    /// Methods to measure in addition to the push from one node to one node.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Method::BESIDE)]
    methods: Vec<Method>,
    /// Rate of each node's link, in each direction.
    #[arg(long, default_value = "400Mbit")]
    rate: Rate,
    /// Round-trip time between a sender and a receiver in milliseconds. Above 0, paths are emulated in user space,
    /// which uses CPU time.
    #[arg(long, default_value = "0")]
    rtt: RoundTrip,
    /// Number of runs of each method.
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Time limit of a run, in seconds.
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    settle: race::SettleArgs,
    /// Directory for the target. Default: a tmpfs of the lab.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Charge the costs that clients of a cluster file system cause each other at the target, according to a model.
    #[arg(long)]
    model: bool,
    #[command(flatten)]
    costs: Costs,
    /// Directory of the data sets.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    data_dir: PathBuf,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
    /// Draw the efficiency over the number of nodes into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Print all runs as JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// A method of moving the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub(crate) enum Method {
    /// One push from one node to one node, with which the others are compared.
    Single,
    /// One sender to all receivers. Its link has the rate of all links of a side together.
    OneSender,
    /// One job of all senders to all receivers.
    Cluster,
    /// One push per node at the same time, each with an equal part of the files. This is the upper limit.
    Shares,
    /// fpsync with the senders as ssh workers, eight at most, all to one host whose link has the rate of all links of a
    /// side together. Requires the packages fpart, rsync and openssh.
    Fpsync,
}

impl Method {
    /// The default methods.
    const BESIDE: [Self; 3] = [Self::OneSender, Self::Cluster, Self::Shares];

    /// Returns the method's name in tables and charts.
    fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::OneSender => "one sender",
            Self::Cluster => "cluster",
            Self::Shares => "shares by hand",
            Self::Fpsync => "fpsync, 8 workers at most",
        }
    }
}

/// Performs all measurements and prints the results.
pub(crate) fn scale(arguments: &ScaleArgs) -> Result<ExitCode> {
    for &nodes in &arguments.nodes {
        ensure!(
            (1..=NODES_MAX).contains(&nodes),
            "--nodes lies between 1 and {NODES_MAX}"
        );
    }
    let zmove = crate::measurements::peers::zmove_binary(arguments.zmove.as_deref())?;
    let session = Session::open()?;
    let ssh = arguments
        .methods
        .contains(&Method::Fpsync)
        .then(|| fpsync::prepare(&session))
        .transpose()?;
    let place = Place::open(&session, arguments.dir.as_deref())?;
    let lab = Lab {
        arguments,
        zmove: &zmove,
        session: &session,
        place: &place,
        ssh: ssh.as_ref(),
    };
    let mut report = Report::of(arguments.model.then_some(arguments.costs));
    for set in &arguments.data {
        measure(&lab, set, &mut report)?;
    }
    if let Some(file) = &arguments.svg {
        let drawing = figure::draw(&report, arguments).svg();
        fs::write(file, drawing).with_context(|| format!("failed to write {}", file.display()))?;
    }
    println!(
        "{}",
        if arguments.json {
            report.json()?
        } else {
            report.text()
        }
    );
    Ok(if report.all_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NOT_ALL_RIGHT)
    })
}

/// State that all runs share.
#[derive(Clone, Copy)]
struct Lab<'a> {
    arguments: &'a ScaleArgs,
    zmove: &'a str,
    session: &'a Session,
    place: &'a Place,
    ssh: Option<&'a Ssh>,
}

/// Performs all runs with one data set.
fn measure(lab: &Lab<'_>, set: &Set, report: &mut Report) -> Result<()> {
    let arguments = lab.arguments;
    // All methods are compared with a push between two nodes, even if a run with one node was not requested.
    let mut methods_of = BTreeMap::from([(1, vec![Method::Single])]);
    for &nodes in &arguments.nodes {
        let methods = methods_of.entry(nodes).or_default();
        let more = arguments
            .methods
            .iter()
            .filter(|method| !methods.contains(method))
            .copied();
        let more: Vec<_> = more.collect();
        methods.extend(more);
    }
    for (nodes, methods) in methods_of {
        let set = if arguments.grow {
            set.grown(nodes)
        } else {
            *set
        };
        let stand = Stand::open(lab, &format!("{}-{nodes}", set.name()), nodes)?;
        for number in 1..=arguments.runs {
            for &method in &methods {
                let Some(figures) = run_once(lab, &stand, &set, method)? else {
                    continue;
                };
                let entry = Entry {
                    data: set.name(),
                    nodes,
                    method,
                    number,
                    figures,
                };
                eprintln!("zmove-lab: {}", report.line(&entry));
                report.add(entry);
            }
        }
    }
    Ok(())
}

/// Performs one run. Returns `None` if this version of zmove does not support the method.
fn run_once(
    lab: &Lab<'_>,
    stand: &Stand<'_>,
    set: &Set,
    method: Method,
) -> Result<Option<Figures>> {
    if method == Method::Cluster && !stand.knows_clusters()? {
        eprintln!("zmove-lab: this zmove has no clusters");
        return Ok(None);
    }
    let data = match method {
        // A single file cannot be divided, so each push moves a file of the size of its share.
        Method::Shares => set.cut(stand.nodes()),
        _ => *set,
    };
    let data = data.ensure(&lab.arguments.data_dir)?;
    datasets::warm(&data)?;
    run::run(lab, stand, method, &data).map(Some)
}

/// Maximum number of nodes. The router connects all of them, and the address of a link contains its index in a single
/// byte.
const NODES_MAX: usize = 64;
const EXIT_NOT_ALL_RIGHT: u8 = 2;
