//! A long queue. Measures submissions in sequence, the list of all jobs, the memory of the process that lists them, and
//! the overhead of a small job over its push.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::yard::{Yard, output, wait_until};
use super::{QueueArgs, spread};

pub(super) fn queue(zmove: &str, arguments: &QueueArgs) -> Result<ExitCode> {
    let QueueArgs { count, rounds } = *arguments;
    let yard = Yard::set_up(zmove)?;
    let source = yard.path("source");
    fs::write(source.join("f"), [b'x'; 1000]).context("failed to write")?;
    let file = source.join("f");
    let file = file.to_str().context("a path in UTF-8")?;
    // The first push makes the key of the daemon known.
    yard.run(&[
        "push",
        "--quiet",
        "--accept-new",
        file,
        &yard.at_target("first"),
    ])?;
    overhead(&yard, file, rounds)?;
    idle_runner(&yard)?;
    // This runner starts no jobs, so that all submitted jobs stay in the queue.
    let mut runner = yard
        .command(&["runner", "--max", "0"])
        .spawn()
        .context("failed to start a runner")?;
    let counted = count_queue(&yard, &mut runner, file, (count, rounds));
    runner.kill().context("failed to end the runner")?;
    runner.wait().context("failed to wait for the runner")?;
    counted.map(|()| ExitCode::SUCCESS)
}

fn idle_runner(yard: &Yard) -> Result<()> {
    yard.runner().into_iter().for_each(super::yard::kill);
    if !wait_until(PATIENCE, || yard.runner().is_none()) {
        bail!("the runner does not end");
    }
    Ok(())
}

fn count_queue(
    yard: &Yard,
    runner: &mut Child,
    file: &str,
    (count, rounds): (usize, usize),
) -> Result<()> {
    wait_until(PATIENCE, || yard.runner().is_some());
    let times: Result<Vec<_>> = (0..count)
        .map(|number| timed(yard.command(&["submit", file, &yard.at_target(&number.to_string())])))
        .collect();
    println!("submit, with a runner up, of {count}: {}", spread(times?));
    for words in [&["jobs"][..], &["jobs", "--json"]] {
        let mut memory = 0;
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(timed(yard.command(words))?);
            memory = memory.max(memory_of(yard.command(words))?);
        }
        println!(
            "{} of {count} queued: {}, memory {:.1} MiB",
            words.join(" "),
            spread(times),
            megabytes(memory)
        );
    }
    println!(
        "runner: memory {:.1} MiB",
        megabytes(resident_max(runner.id()))
    );
    Ok(())
}

/// Measures the time of a small job: its submission, its push, and the rest.
fn overhead(yard: &Yard, file: &str, rounds: usize) -> Result<()> {
    yard.run(&["submit", file, &yard.at_target("warm/")])?;
    wait_until(PATIENCE, || yard.path("target").join("warm/f").exists());
    let (mut pushes, mut submits, mut jobs, mut overheads) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (push, _) = arrival(yard, &["push", "--quiet", file], &format!("push{round}/"))?;
        let (job, submit) = arrival(yard, &["submit", file], &format!("job{round}/"))?;
        overheads.push(job.saturating_sub(submit).saturating_sub(push));
        pushes.push(push);
        submits.push(submit);
        jobs.push(job);
    }
    println!(
        "push of one small file, until it is there: {}",
        spread(pushes)
    );
    println!("submit of it: {}", spread(submits));
    println!(
        "job of it, from the start of submit until it is there: {}",
        spread(jobs)
    );
    println!("job without submit and push: {}", spread(overheads));
    Ok(())
}

/// Returns the time until the file has arrived and the time until the command has ended.
fn arrival(yard: &Yard, words: &[&str], target: &str) -> Result<(Duration, Duration)> {
    let arrived = yard.path("target").join(target).join("f");
    let begun = Instant::now();
    let mut command = yard.command(words);
    let mut child = command
        .arg(yard.at_target(target))
        .spawn()
        .context("failed to start zmove")?;
    let (mut there, mut ended) = (None, None);
    while there.is_none() || ended.is_none() {
        if there.is_none() && arrived.exists() {
            there = Some(begun.elapsed());
        }
        if ended.is_none() && child.try_wait().context("failed to wait")?.is_some() {
            ended = Some(begun.elapsed());
        }
        if begun.elapsed() > PATIENCE {
            bail!("'{}' does not arrive", arrived.display());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok((there.unwrap_or_default(), ended.unwrap_or_default()))
}

fn timed(command: Command) -> Result<Duration> {
    let begun = Instant::now();
    output(command)?;
    Ok(begun.elapsed())
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^52 bytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the peak memory of a command, sampled while it runs.
fn memory_of(mut command: Command) -> Result<u64> {
    let mut child = command
        .stdout(Stdio::null())
        .spawn()
        .context("failed to start zmove")?;
    let mut most = 0;
    while child.try_wait().context("failed to wait")?.is_none() {
        most = most.max(resident_max(child.id()));
    }
    Ok(most)
}

/// Returns the peak memory of a process so far, in bytes.
fn resident_max(pid: u32) -> u64 {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.unwrap_or_default();
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    most.and_then(|kibibytes| kibibytes.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

const PATIENCE: Duration = Duration::from_secs(60);
