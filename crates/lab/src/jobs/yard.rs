//! A client with jobs, a daemon, and the processes that work for the client.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::torture::dice::Dice;
use crate::torture::programs::{CLIENT_HOME, Daemon, Place, free_address};

/// The client and the daemon on this host. Dropping it ends the runners and the processes that they have started.
pub(super) struct Yard {
    place: Place,
    daemon: Daemon,
    directory: TempDir,
}

impl Yard {
    pub(super) fn set_up(zmove: &str) -> Result<Self> {
        let directory = tempfile::tempdir().context("failed to make a directory")?;
        for name in ["source", "target"] {
            fs::create_dir(directory.path().join(name)).context("failed to make a directory")?;
        }
        let target = directory.path().join("target");
        let place = Place::prepare(zmove, directory.path(), &target, &["--write"])?;
        let address: SocketAddr = free_address(&mut Dice::new(u64::from(std::process::id())))?;
        let daemon = place.serve(address, &[])?;
        Ok(Self {
            place,
            daemon,
            directory,
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the remote location of a path below the target.
    pub(super) fn at_target(&self, path: &str) -> String {
        format!(
            "{}:{}",
            self.daemon.address(),
            self.path("target").join(path).display()
        )
    }

    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.place.command(CLIENT_HOME);
        command
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command to completion and returns its output.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        output(self.command(words))
    }

    pub(super) fn runner(&self) -> Option<Pid> {
        let lock = self.path(CLIENT_HOME).join("jobs/runner.lock");
        let pid = Pid::from_raw(fs::read_to_string(lock).ok()?.trim().parse().ok()?)?;
        let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        words
            .split(|&byte| byte == 0)
            .any(|word| word == b"runner")
            .then_some(pid)
    }

    /// Returns the processes of jobs, whose standard input is their job's lock.
    pub(super) fn processes(&self) -> Vec<Pid> {
        let jobs = self.path(CLIENT_HOME).join("jobs");
        pids(|process| {
            let input = fs::read_link(process.join("fd/0"));
            input.is_ok_and(|input| input.starts_with(&jobs) && input.ends_with("lock"))
        })
    }

    /// Returns the processes that move a batch for a job that watches its source.
    pub(super) fn batches(&self) -> Vec<Pid> {
        let watchers = self.processes();
        pids(|process| {
            let status = fs::read_to_string(process.join("status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            let parent = parent.and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
            parent.is_some_and(|parent| watchers.contains(&parent))
        })
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let runner = self.runner();
        runner
            .into_iter()
            .chain(self.batches())
            .chain(self.processes())
            .for_each(kill);
    }
}

pub(super) fn kill(pid: Pid) {
    let _gone = kill_process(pid, Signal::KILL);
}

fn pids(is_one: impl Fn(&Path) -> bool) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter(|entry| is_one(&entry.path()));
    found
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// Returns the output of a command, or an error if it failed.
pub(super) fn output(mut command: Command) -> Result<String> {
    let output = command.output().context("failed to start a program")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{:?} ended with {}: {}",
            command.get_program(),
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Waits until a condition holds, at most for `patience`. Returns whether it holds.
pub(super) fn wait_until(patience: Duration, holds: impl Fn() -> bool) -> bool {
    let until = Instant::now() + patience;
    while !holds() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
