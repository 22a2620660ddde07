//! A generator writes files that a job watches. For each file, the time from its close until its complete arrival at
//! the target is measured.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::yard::{Yard, kill, wait_until};
use super::{WatchArgs, spread};

/// A file that was written and closed.
struct Closed {
    name: PathBuf,
    bytes: u64,
    at: Instant,
}

pub(super) fn watch(zmove: &str, arguments: &WatchArgs) -> Result<ExitCode> {
    let WatchArgs {
        count,
        seconds,
        kills,
    } = *arguments;
    let yard = Yard::set_up(zmove)?;
    let source = yard.path("source");
    let source_word = source.to_str().context("a path in UTF-8")?.to_owned();
    let id = yard.run(&[
        "submit",
        "--watch",
        "--accept-new",
        &source_word,
        &yard.at_target(""),
    ])?;
    // The daemon accepts no other client, and the job must have started.
    wait_until(PATIENCE, || !yard.processes().is_empty());
    std::thread::sleep(Duration::from_secs(1));
    let (closed, is_closed) = channel();
    let generator = std::thread::spawn(move || generate(&source, count, seconds, &closed));
    let begun = Instant::now();
    let mut killed = 0;
    let (mut pending, mut times) = (VecDeque::new(), Vec::new());
    let target = yard.path("target");
    let mut last_arrival = Instant::now();
    loop {
        let is_over = take(&is_closed, &mut pending);
        let before = times.len();
        pending.retain(|file: &Closed| {
            let arrived =
                fs::metadata(target.join(&file.name)).is_ok_and(|found| found.len() == file.bytes);
            if arrived {
                times.push(file.at.elapsed());
            }
            !arrived
        });
        if times.len() > before {
            last_arrival = Instant::now();
        }
        if is_over && (pending.is_empty() || last_arrival.elapsed() > PATIENCE) {
            break;
        }
        if killed < kills
            && begun.elapsed().as_secs_f64() > seconds * (killed + 1) as f64 / (kills + 1) as f64
        {
            disturb(&yard, killed)?;
            killed += 1;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    generator
        .join()
        .map_err(|_| anyhow::anyhow!("the generator panicked"))??;
    let missing = pending.len();
    println!("{count} files over {seconds} s, {killed} kills: {missing} missing");
    println!(
        "from its close to its presence at the target: {}",
        spread(times)
    );
    yard.run(&["job", &id, "cancel"])?;
    Ok(if missing == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Writes files at even intervals, and sends a message for each.
fn generate(source: &Path, count: usize, seconds: f64, closed: &Sender<Closed>) -> Result<()> {
    let begun = Instant::now();
    for number in 0..count {
        let due = Duration::from_secs_f64(seconds * number as f64 / count as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let name = PathBuf::from(format!(
            "d{}/f{number}",
            number * DIRECTORIES / count.max(1)
        ));
        let path = source.join(&name);
        fs::create_dir_all(path.parent().context("a directory")?)
            .context("failed to make a directory")?;
        let bytes = 1000 + number % 50_000;
        fs::write(&path, vec![b'x'; bytes]).context("failed to write")?;
        let _looked_at = closed.send(Closed {
            name,
            bytes: bytes as u64,
            at: Instant::now(),
        });
    }
    Ok(())
}

/// Receives the files that were closed since the last call. Returns whether the generator has ended.
fn take(is_closed: &Receiver<Closed>, pending: &mut VecDeque<Closed>) -> bool {
    use std::sync::mpsc::TryRecvError;
    loop {
        match is_closed.try_recv() {
            Ok(file) => pending.push_back(file),
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => return true,
        }
    }
}

/// Kills the batch, the watcher and the runner in turn. The command at the end starts a new runner, like any command
/// about jobs.
fn disturb(yard: &Yard, turn: usize) -> Result<()> {
    match turn % 3 {
        0 => yard.batches().into_iter().for_each(kill),
        1 => yard.processes().into_iter().for_each(kill),
        _ => yard.runner().into_iter().for_each(kill),
    }
    yard.run(&["jobs"]).map(drop)
}

/// Number of directories that contain the files. They are filled one after the other.
const DIRECTORIES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks of the target. It is the resolution of the measurement.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
