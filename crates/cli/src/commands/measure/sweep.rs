//! `zmove sweep`: measures a storage system, shows the result, and saves it for later.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use zmove_tools::drawing::scale::size_label;
use zmove_tools::sweep::{
    IoDirection, ReferenceRate, Sweep, SweepConfig, SweepError, SweepEvent, compare, sweep,
};
use zmove_types::Escaped;

use crate::args::{StorageArgs, SweepArgs};
use crate::display::terminal;
use crate::saved_sweeps;
use crate::settings::{self, Storage};
use crate::value::exit::{Exit, failure, usage_error};
use zmove_far::EndSignals;

/// Runs `zmove sweep`.
pub(crate) fn run(args: &SweepArgs) -> Result<Exit> {
    if let Some([here, reference]) = args.compare.as_deref() {
        return compare_files(here, reference, &args.e1);
    }
    let path = args.path.as_deref().expect("clap demands it");
    let mut config = SweepConfig {
        budget: args.budget,
        time: args.time,
        ..SweepConfig::at(path)
    };
    config.threads = args.threads.map_or(config.threads, usize::from);
    let measured = measure(config, args.storage)?;
    terminal::print_lines(&measured.table());
    save_sweep(&measured);
    args.json
        .as_deref()
        .map_or(Ok(()), |file| terminal::save(file, &measured.to_json()))?;
    args.svg
        .as_deref()
        .map_or(Ok(()), |file| terminal::save(file, &measured.picture()))?;
    Ok(Exit::Done)
}

/// Compares the sweeps of two files.
fn compare_files(here: &Path, reference: &Path, rates: &[ReferenceRate]) -> Result<Exit> {
    let text = compare(&read(here)?, &read(reference)?, rates).ok_or_else(|| {
        usage_error(
            "the two sweeps have no file size in common, or do not contain the speed of a core",
        )
    })?;
    terminal::print(text);
    Ok(Exit::Done)
}

fn read(path: &Path) -> Result<Sweep> {
    let shown = || format!("read the sweep '{}'", Escaped::path(&path));
    let text = fs::read_to_string(path).with_context(shown)?;
    Sweep::from_json(&text).with_context(shown)
}

/// Sweeps on a separate thread. A signal stops the sweep, which then removes the files that it has written.
pub(crate) fn measure(config: SweepConfig, storage: StorageArgs) -> Result<Sweep> {
    let Storage { file_io, direct } = settings::storage(storage, |notice| terminal::warn(notice));
    let config = SweepConfig {
        file_io,
        direct,
        ..config
    };
    settings::block_on(1, async {
        let mut signals = EndSignals::listen_at_terminal().context("listen for signals")?;
        let stop = Arc::new(AtomicBool::new(false));
        let sweeping = tokio::task::spawn_blocking({
            let stop = Arc::clone(&stop);
            move || {
                let bar = terminal::running("{bar:24} {msg}, {elapsed}");
                let outcome = sweep(&config, &stop, &mut |event| show(&bar, &event));
                bar.finish_and_clear();
                outcome
            }
        });
        tokio::pin!(sweeping);
        let outcome = tokio::select! {
            outcome = &mut sweeping => outcome,
            () = signals.next() => {
                stop.store(true, Ordering::Relaxed);
                sweeping.await
            }
        };
        outcome.context("the sweep")?.map_err(with_exit_code)
    })
}

/// Adds the exit code to an error.
fn with_exit_code(error: SweepError) -> anyhow::Error {
    match error {
        SweepError::Interrupted => failure(Exit::Interrupted, error.to_string()),
        SweepError::NothingFits { .. } => usage_error(error.to_string()),
        error => error.into(),
    }
}

/// Saves the sweep for later pushes. If that fails, only a warning is printed.
fn save_sweep(measured: &Sweep) {
    let kept = saved_sweeps::in_home().map(|kept| kept.keep(measured));
    if let Some(Err(error)) = kept {
        terminal::warn(format_args!(
            "the result of the sweep was not stored: {error}"
        ));
    }
}

fn show(bar: &ProgressBar, event: &SweepEvent) {
    let say = |text: &str| bar.suspend(|| terminal::warn(text));
    match event {
        SweepEvent::Removed(path) => {
            say(&format!(
                "removed the files of an earlier sweep: '{}'",
                Escaped::path(&path)
            ));
        }
        SweepEvent::Stays(path) => {
            let path = Escaped::path(&path);
            say(&format!(
                "'{path}' may be from an earlier sweep, but possibly of another user or host: not removed"
            ));
        }
        SweepEvent::Measuring {
            number,
            of,
            file_bytes,
            direction,
        } => {
            let doing = if *direction == IoDirection::Write {
                "writing"
            } else {
                "reading"
            };
            bar.set_length(2 * *of as u64);
            bar.set_position(2 * *number as u64 + u64::from(*direction == IoDirection::Read));
            bar.set_message(format!("{doing} files of {}", size_label(*file_bytes)));
        }
        SweepEvent::Removing => bar.set_message("removing what was written"),
        _ => {}
    }
}
