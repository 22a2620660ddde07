//! `zmove-lab scale`: what one job gains by more nodes on both sides, which share the source's storage and the
//! target's.
//!
//! Nodes are network namespaces of this machine, each behind a link of its own (`network/star.rs`), with a round trip
//! between the sides: who shares storage stands near. The links are what limits: a run in which the processors were
//! idle for less than a quarter of the time is void. All nodes use one file system, which is coherent and has no locks
//! between nodes, so what a cluster file system adds is not in the figures. With `--model` each receiver sees the
//! target by a mount of its own, which charges what clients of a cluster file system cost each other (`late/shared.rs`
//! says what of it).

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

/// How many nodes, over which links, and what to move.
#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// Numbers of nodes, as many on either side.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    nodes: Vec<usize>,
    /// Data sets: losf (small files in many directories), losf-flat (in one), medium, large, huge (one file); NAME, or
    /// NAME:FILESxSIZE as in large:32x64MiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "losf,losf-flat,medium,large,huge"
    )]
    data: Vec<Set>,
    /// Let the data grow with the nodes, so that all runs take equally long.
    #[arg(long)]
    grow: bool,
    /// What to run beside the push from one node to one.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Method::BESIDE)]
    methods: Vec<Method>,
    /// Rate of each node's link, in each direction.
    #[arg(long, default_value = "400Mbit")]
    rate: Rate,
    /// Round trip between a sender and a receiver in milliseconds. Above 0 paths are emulated in user space, which
    /// costs processors.
    #[arg(long, default_value = "0")]
    rtt: RoundTrip,
    /// Runs of each.
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Seconds after which a run is ended.
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    settle: race::SettleArgs,
    /// Directory for the target. Default: a tmpfs of the lab's own.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Charge what clients of a cluster file system cost each other at the target: a model of one.
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
    /// Draw the efficiency against the nodes into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Print all runs as JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// A way to move the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub(crate) enum Method {
    /// One push from one node to one: what the others are measured against.
    Single,
    /// One sender, whose link is as wide as all others of a side together, to all receivers.
    OneSender,
    /// A job of all senders to all receivers.
    Cluster,
    /// Pushes at the same time, as many as nodes, each of its share of the files, cut by hand: the ceiling.
    Shares,
    /// fpsync, whose ssh workers are the senders, eight at most; all to one host, whose link is as wide as all of a
    /// side together. Programs of the packages fpart, rsync and openssh.
    Fpsync,
}

impl Method {
    /// What runs unless something else is asked for.
    const BESIDE: [Self; 3] = [Self::OneSender, Self::Cluster, Self::Shares];

    /// The method's name in tables and pictures.
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

/// Measures everything and prints it.
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

/// What all runs share.
#[derive(Clone, Copy)]
struct Lab<'a> {
    arguments: &'a ScaleArgs,
    zmove: &'a str,
    session: &'a Session,
    place: &'a Place,
    ssh: Option<&'a Ssh>,
}

/// All runs with one data set.
fn measure(lab: &Lab<'_>, set: &Set, report: &mut Report) -> Result<()> {
    let arguments = lab.arguments;
    // all is held against a push between two nodes, whether one node was asked for or not
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

/// None if this zmove knows no such job.
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
        // one file cannot be dealt out: its share is a file of that size
        Method::Shares => set.cut(stand.nodes()),
        _ => *set,
    };
    let data = data.ensure(&lab.arguments.data_dir)?;
    datasets::warm(&data)?;
    run::run(lab, stand, method, &data).map(Some)
}

/// The router joins each of them, and the addresses of its links are counted in a byte.
const NODES_MAX: usize = 64;
const EXIT_NOT_ALL_RIGHT: u8 = 2;
