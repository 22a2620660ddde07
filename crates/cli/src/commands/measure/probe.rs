//! `zmove probe`: measures the path to a receiver and the storage at both ends, and predicts the duration of a push.
//!
//! **Invariant:** a probe leaves nothing at the receiver. On this side it leaves only a newly pinned key.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use indicatif::ProgressBar;
use zmove_engine::{DialSettings, PushError, Remote};
use zmove_scan::{ScanConfig, histogram, scan};
use zmove_sender::{ProbeConfig, ProbeEvent, ProbeReport, SessionError, probe};
use zmove_tools::probe::{ProbeResults, ProbedTree, StorageRates};
use zmove_tools::sweep::SweepConfig;
use zmove_transport::{ControlError, Transport};
use zmove_types::{ByteCount, ByteRate, Escaped};
use zmove_wire::SweepOrder;
use zmove_wire::limits::SWEEP_BYTES_MAX;

use crate::args::ProbeArgs;
use crate::commands::sweep;
use crate::commands::transfer::{interrupted, reach};
use crate::display::prompt::Prompt;
use crate::display::terminal;
use crate::saved_sweeps;
use crate::settings;
use crate::value::exit::Exit;

/// Runs `zmove probe`.
pub(crate) fn run(args: &ProbeArgs, started: Instant) -> Result<Exit> {
    let (remote, dial) = settings::probe(args, Arc::new(Prompt))?;
    let (transport, report) = measure(args, &remote, &dial, started)?;
    let source = source(args)?;
    let target = report.swept.as_ref().map(|swept| {
        let about = format!(
            "{}:{} (sweep by the receiver)",
            remote,
            String::from_utf8_lossy(&remote.path)
        );
        StorageRates::there(about, swept)
    });
    let results = ProbeResults {
        host: remote.to_string(),
        transport: transport.to_string(),
        report,
        lanes_asked: args.streams.iter().copied().max().unwrap_or(0),
        source,
        target,
        tree: args.tree.as_deref().map(probed_tree).transpose()?,
    };
    if args.json {
        terminal::print(format_args!("{}\n", results.json()));
    } else {
        terminal::print(results.text());
    }
    Ok(Exit::Done)
}

fn measure(
    args: &ProbeArgs,
    remote: &Remote,
    dial: &DialSettings,
    started: Instant,
) -> Result<(Transport, ProbeReport)> {
    let bar = terminal::running("{spinner} {msg}, {elapsed}").with_message("connecting");
    let measured = settings::block_on(2, converse(args, remote, dial, started, &bar));
    bar.finish_and_clear();
    measured
}

async fn converse(
    args: &ProbeArgs,
    remote: &Remote,
    dial: &DialSettings,
    started: Instant,
    bar: &ProgressBar,
) -> Result<(Transport, ProbeReport)> {
    let mut stop = pin!(interrupted());
    let reached = reach(remote, dial, stop.as_mut()).await?;
    let order = SweepOrder {
        bytes: SWEEP_BYTES_MAX,
        millis: SWEEP_MILLIS,
    };
    let config = ProbeConfig {
        target: remote.path.clone(),
        lanes: args.streams.clone(),
        time: args.time,
        sweep: (!remote.path.is_empty() && !args.no_sweep).then_some(order),
        started: started + reached.route.asked(),
    };
    let mut tell = |event| show(bar, &event);
    let probed = probe(&config, reached.link, &mut tell, stop).await;
    let transport = reached.route.transport;
    let report = reached.route.end(probed).await;
    let report = report.map_err(|error| match error {
        PushError::Session(SessionError::Control(ControlError::Greeting(_))) => {
            Error::new(error).context(format!("{remote} cannot be probed"))
        }
        error => error.into(),
    })?;
    Ok((transport, report))
}

/// Returns the rates of this side's storage, from a new sweep or from an earlier one.
fn source(args: &ProbeArgs) -> Result<Option<StorageRates>> {
    let Some(directory) = &args.source else {
        let kept = args
            .tree
            .as_deref()
            .and_then(|tree| saved_sweeps::of_paths([tree]));
        return Ok(kept.as_ref().map(StorageRates::here));
    };
    let budget = ByteCount(SWEEP_BYTES_MAX);
    let config = SweepConfig {
        budget,
        time: Duration::from_millis(SWEEP_MILLIS),
        ..SweepConfig::at(directory)
    };
    Ok(Some(StorageRates::here(&sweep::measure(
        config,
        args.storage,
    )?)))
}

fn probed_tree(tree: &Path) -> Result<ProbedTree> {
    let root = super::scan::root(tree)?;
    let walked = histogram(scan(vec![root], &ScanConfig::default()), terminal::warn);
    Ok(ProbedTree {
        name: Escaped::path(&tree).to_string(),
        sizes: walked.buckets().collect(),
    })
}

fn show(bar: &ProgressBar, event: &ProbeEvent) {
    match event {
        ProbeEvent::Lanes(1) => bar.set_message("measuring 1 lane"),
        ProbeEvent::Lanes(lanes) => bar.set_message(format!("measuring {lanes} lanes")),
        ProbeEvent::Measured(round) => {
            let rate = ByteRate(round.steady.bytes_per_second());
            bar.set_message(format!("{} lanes: {rate}", round.lanes));
        }
        ProbeEvent::Sweeping => bar.set_message("sweeping the receiver's storage"),
        _ => {}
    }
}

/// Duration of the sweep on each side, in milliseconds.
const SWEEP_MILLIS: u64 = 5_000;
