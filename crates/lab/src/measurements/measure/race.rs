//! One run of one tool: its duration, CPU time and memory, and whether the copy is correct.
//!
//! The time starts with the client and ends when all processes of the copy have ended and the target is synced.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::data::trees;
use crate::data::volume::Volume;
use crate::measurements::late::place::Places;
use crate::measurements::measure::first_byte::FirstByte;
use crate::measurements::peers::{Homes, Stage, Tool};
use crate::network::hosts::Hosts;
use crate::processes::groups::Group;
use crate::processes::server;
use crate::processes::session::Session;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub(crate) enum Verdict {
    /// The target equals the source.
    Right,
    /// The tool reported success, but the target differs from the source.
    Wrong(String),
    /// The tool failed.
    Failed(String),
    /// The tool was stopped at the time limit.
    TimedOut,
    /// The tool is not installed.
    Missing(String),
}

impl Verdict {
    /// Returns the result in one word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Wrong(_) => "wrong",
            Self::Failed(_) => "failed",
            Self::TimedOut => "cut",
            Self::Missing(_) => "missing",
        }
    }

    /// Returns whether the tool is not installed.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(why) | Self::Failed(why) | Self::Missing(why) => {
                write!(f, "{}: {why}", self.word())
            }
            Self::Right | Self::TimedOut => f.write_str(self.word()),
        }
    }
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
    pub(crate) seconds: f64,
    pub(crate) first_byte_seconds: Option<f64>,
    /// Bytes that both hosts have sent to each other before the client ended.
    pub(crate) wire_bytes: u64,
    pub(crate) source: Usage,
    pub(crate) target: Usage,
}

impl Run {
    /// Returns the result if a server or client could not be started.
    pub(crate) fn not_started(error: &anyhow::Error) -> Self {
        Self::without_figures(Verdict::Failed(format!("{error:#}")))
    }

    /// Returns the result of a tool that is not installed.
    pub(crate) fn missing(programs: String) -> Self {
        Self::without_figures(Verdict::Missing(programs))
    }

    fn without_figures(verdict: Verdict) -> Self {
        let (source, target) = (Usage::default(), Usage::default());
        Self {
            verdict,
            seconds: 0.0,
            first_byte_seconds: None,
            wire_bytes: 0,
            source,
            target,
        }
    }
}

/// The resources that one side used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_bytes: u64,
}

/// Maximum wait for an idle machine before a run.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct SettleArgs {
    /// Maximum number of seconds to wait for an idle machine before each run.
    #[arg(long, default_value_t = SETTLE_MAX.as_secs())]
    settle: u64,
}

impl SettleArgs {
    pub(crate) const fn longest(self) -> Duration {
        Duration::from_secs(self.settle)
    }
}

/// The parameters that are constant over the runs of one comparison and path.
#[derive(Debug)]
pub(crate) struct Track<'a> {
    pub(crate) session: &'a Session,
    pub(crate) hosts: &'a Hosts,
    pub(crate) homes: &'a Homes,
    pub(crate) volume: &'a Volume,
    pub(crate) places: Places,
    pub(crate) timeout: Duration,
    /// Maximum wait for an idle machine before a run.
    pub(crate) settle_max: Duration,
}

/// Waits until the machine is idle, at most for `settle_max`. The write-back of the previous run would slow down the
/// next run, and so would a virtual machine's return of free memory to the host.
pub(crate) fn settle(settle_max: Duration) -> Result<()> {
    let due = Instant::now() + settle_max;
    let mut before = processor_ticks()?;
    let mut idle_samples = 0;
    while idle_samples < IDLE_SAMPLES && Instant::now() < due {
        thread::sleep(SAMPLE);
        let now = processor_ticks()?;
        let (busy, all) = (now.0 - before.0, now.1 - before.1);
        idle_samples = if busy * IDLE_SHARE <= all {
            idle_samples + 1
        } else {
            0
        };
        before = now;
    }
    Ok(())
}

/// Default maximum wait for idle processors. Work that is still running then was not started by the lab.
pub(crate) const SETTLE_MAX: Duration = Duration::from_secs(20);
const SAMPLE: Duration = Duration::from_millis(250);
/// Number of consecutive idle samples required.
const IDLE_SAMPLES: u32 = 6;
/// Processors count as idle if at most one in this number of ticks is busy.
const IDLE_SHARE: u64 = 20;

/// Returns the busy ticks and all ticks of the processors (proc(5), `/proc/stat`).
pub(crate) fn processor_ticks() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").context("failed to read /proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    // The fields are user, nice, system, idle, iowait, irq, softirq and steal. The guest time is part of user.
    let all: u64 = ticks.iter().take(8).sum();
    let waiting: u64 = ticks.iter().skip(3).take(2).sum();
    Ok((all - waiting, all))
}

/// Runs all tools in turn, `runs` times, and passes each run with its number to `told`. A tool that is not installed
/// has a single run that reports this.
pub(crate) fn in_turn(
    tools: &[Tool],
    runs: u32,
    run: impl Fn(&Tool, u32) -> Result<Run>,
    mut told: impl FnMut(&Tool, u32, Run),
) {
    for number in 1..=runs {
        for tool in tools {
            let missing = tool.missing().map(Run::missing);
            if missing.is_some() && number > 1 {
                continue;
            }
            let ran = missing.unwrap_or_else(|| {
                run(tool, number).unwrap_or_else(|error| Run::not_started(&error))
            });
            told(tool, number, ran);
        }
    }
}

/// Copies `source` with `tool` into an empty directory.
pub(crate) fn run(track: &Track<'_>, tool: &Tool, source: &Path) -> Result<Run> {
    run_into(track, tool, source, &track.volume.fresh_directory()?)
}

/// Copies `source` with `tool` into `target`, the run's directory on the volume, with its current contents.
pub(crate) fn run_into(
    track: &Track<'_>,
    tool: &Tool,
    source: &Path,
    target: &Path,
) -> Result<Run> {
    let source_group = Group::create(track.session.id(), "source")?;
    let target_group = Group::create(track.session.id(), "target")?;
    let mounted = track
        .places
        .mount(track.session, source, track.volume.root(), target)?;
    let stage = Stage {
        hosts: track.hosts,
        homes: track.homes,
        source_group: &source_group,
        target_group: &target_group,
        source: &mounted.source,
        target: &mounted.target,
    };
    let log = |name: &str| track.session.directory().join(name);
    let mut servers = Vec::new();
    for (number, server) in tool.servers(&stage)?.into_iter().enumerate() {
        let log = log(&format!("server-{number}.log"));
        servers.push(server::start(
            server.command,
            server.namespace,
            server.port,
            &log,
        )?);
    }
    let before = (source_group.cpu_time()?, target_group.cpu_time()?);
    if !track.places.any_is_late() {
        settle(track.settle_max)?;
    }
    let timed = timed(track, tool, &stage, servers.first_mut(), &log(CLIENT_LOG));
    source_group.kill();
    target_group.kill();
    for mut server in servers {
        server.wait().context("failed to wait for the server")?;
    }
    drop(mounted);
    let mut run = timed?;
    run.source.cpu_seconds = (source_group.cpu_time()? - before.0).as_secs_f64();
    run.target.cpu_seconds = (target_group.cpu_time()? - before.1).as_secs_f64();
    if run.verdict == Verdict::Right
        && tool.copies()
        && let Some(difference) = trees::difference(source, target, tool.modes())?
    {
        run.verdict = Verdict::Wrong(difference);
    }
    Ok(run)
}

fn timed(
    track: &Track<'_>,
    tool: &Tool,
    stage: &Stage<'_>,
    server: Option<&mut Child>,
    log: &Path,
) -> Result<Run> {
    let output = File::create(log).context("failed to create the client's log")?;
    let mut command = tool.client(stage)?;
    command
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    let watch = FirstByte::watch(track.volume.root())?;
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let (stopped_watching, stop_watching) = std::io::pipe().context("failed to make a pipe")?;
        let peaks = scope.spawn(move || watch_memory(stage, &stopped));
        let first = scope.spawn(move || watch.wait(&stopped_watching));
        let carried_before = track.hosts.carried_bytes()?;
        let start = Instant::now();
        let status = copy(
            track,
            &mut command,
            stage,
            server.filter(|_| tool.server_ends()),
        )?;
        track.volume.sync()?;
        let seconds = start.elapsed().as_secs_f64();
        let wire_bytes = track.hosts.carried_bytes()? - carried_before;
        drop((stop, stop_watching));
        let (source, target) = peaks
            .join()
            .map_err(|_| anyhow::anyhow!("the memory thread panicked"))?;
        let first = first
            .join()
            .map_err(|_| anyhow::anyhow!("the watching thread panicked"))?;
        let first_byte_seconds = first.map(|first| (first - start).as_secs_f64());
        Ok(Run {
            verdict: verdict(status, log),
            seconds,
            first_byte_seconds,
            wire_bytes,
            source,
            target,
        })
    })
}

/// Runs the client, and waits for the server too if the server ends by itself. Returns `None` at the time limit.
fn copy(
    track: &Track<'_>,
    client: &mut Command,
    stage: &Stage<'_>,
    server: Option<&mut Child>,
) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + track.timeout;
    let mut client = client.spawn().context("failed to start the client")?;
    let mut status = wait_until(&mut client, deadline)?;
    if let Some(server) = server
        && status.is_some_and(|status| status.success())
    {
        status = wait_until(server, deadline)?;
    }
    if status.is_none() {
        stage.source_group.kill();
        stage.target_group.kill();
        client.wait().context("failed to wait for the client")?;
    }
    Ok(status)
}

/// Returns the result for the exit status of a client. `None` means that the client was stopped at the time limit.
pub(crate) fn verdict(status: Option<ExitStatus>, log: &Path) -> Verdict {
    match status {
        None => Verdict::TimedOut,
        Some(status) if status.success() => Verdict::Right,
        Some(status) => {
            let said = fs::read_to_string(log).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(LOG_LINES_SHOWN).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            Verdict::Failed(format!("{status}: {}", last.join(" | ")))
        }
    }
}

/// Waits for the child without polling. Returns `None` at the deadline.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    let process = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a process has a number")?;
    let handle = pidfd_open(process, PidfdFlags::empty()).context("failed to open the process")?;
    if !ends_by(&handle, deadline)? {
        return Ok(None);
    }
    child
        .wait()
        .map(Some)
        .context("failed to wait for a process")
}

/// Returns whether the process ends before the deadline. Its data in `/proc` stays available until the parent reaps it.
pub(crate) fn ends_by(process: &OwnedFd, deadline: Instant) -> Result<bool> {
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(ended) => return Ok(ended > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("failed to wait for a process"),
        }
    }
}

/// Samples the memory of both sides until it is stopped. The peak of a side is the largest sum of the peaks of its
/// running processes. Memory that several processes share is counted for each of them.
fn watch_memory(stage: &Stage<'_>, stopped: &Receiver<()>) -> (Usage, Usage) {
    let (mut source, mut target) = (Usage::default(), Usage::default());
    loop {
        source.peak_bytes = source.peak_bytes.max(stage.source_group.resident_bytes());
        target.peak_bytes = target.peak_bytes.max(stage.target_group.resident_bytes());
        if stopped.recv_timeout(SAMPLE_EVERY) != Err(RecvTimeoutError::Timeout) {
            return (source, target);
        }
    }
}

/// The output of the last client, in the session's directory.
pub(crate) const CLIENT_LOG: &str = "client.log";
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
const LOG_LINES_SHOWN: usize = 3;
