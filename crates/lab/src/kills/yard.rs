//! A daemon with an empty target, pushes to it, and the contents of its journals.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use super::counted::Counted;
use crate::torture::dice::Dice;
use crate::torture::programs::{CLIENT_HOME, DAEMON_HOME, Daemon, Place, Running, free_address};

/// The setup of a measurement.
#[derive(Debug)]
pub(crate) struct Yard {
    place: Place,
    daemon: Daemon,
    source: PathBuf,
    target: PathBuf,
    options: Vec<String>,
}

/// A running push.
#[derive(Debug)]
pub(crate) struct Push {
    running: Running,
    start: Instant,
    said: PathBuf,
    trace: PathBuf,
}

/// A push that has succeeded.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) elapsed: Duration,
    pub(crate) sender: Counted,
    /// Bytes moved.
    pub(crate) bytes: u64,
    pub(crate) bytes_resumed: u64,
}

impl Yard {
    /// Starts a daemon for a target below `directory`. Each push sends the contents of `source`.
    pub(crate) fn set_up(
        zmove: &str,
        directory: &Path,
        source: &Path,
        options: &[String],
        dice: &mut Dice,
    ) -> Result<Self> {
        let target = directory.join("target");
        fs::create_dir(&target)
            .with_context(|| format!("failed to create {}", target.display()))?;
        let place = Place::prepare(zmove, directory, &target, &["--write"])?;
        let daemon = place.serve(free_address(dice)?, &[])?;
        Ok(Self {
            place,
            daemon,
            source: source.to_owned(),
            target,
            options: options.to_vec(),
        })
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Removes everything in the target.
    pub(crate) fn empty_target(&self) -> Result<()> {
        let failed = || format!("failed to empty {}", self.target.display());
        for entry in fs::read_dir(&self.target).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if entry.file_type().with_context(failed)?.is_dir() {
                fs::remove_dir_all(entry.path()).with_context(failed)?;
            } else {
                fs::remove_file(entry.path()).with_context(failed)?;
            }
        }
        let target = File::open(&self.target).with_context(failed)?;
        rustix::fs::syncfs(&target).with_context(failed)
    }

    /// Starts the push, which is the same command each time.
    pub(crate) fn push(&self) -> Result<Push> {
        let (said, trace) = (
            self.place.directory.join("said"),
            self.place.directory.join("trace"),
        );
        File::create(&trace).context("failed to create the trace")?;
        let mut to = OsString::from(format!("{}:", self.daemon.address()));
        to.push(&self.target);
        let mut command = self.place.command(CLIENT_HOME);
        command
            .args(["push", "--accept-new", "--json", "--trace"])
            .arg(&trace)
            .args(&self.options);
        command.arg(self.source.join("")).arg(to);
        let output = File::create(&said).context("failed to create the push's log")?;
        command.stderr(output.try_clone()?).stdout(output);
        let start = Instant::now();
        Ok(Push {
            running: Running::start(&mut command)?,
            start,
            said,
            trace,
        })
    }

    /// Returns the resources that the daemon has used so far.
    pub(crate) fn receiver(&mut self) -> Result<Counted> {
        Counted::of(self.daemon.running().id())
    }

    /// Kills the daemon and waits for the push to end. Returns the resources that the daemon had used. A push that
    /// continues without the daemon is ended too.
    pub(crate) fn kill_receiver(&mut self, push: &mut Push) -> Result<Counted> {
        self.daemon.running().signal(Signal::KILL);
        if !self.daemon.running().ends(PATIENCE)? {
            bail!("the daemon does not end when it is killed");
        }
        let done = self.receiver()?;
        self.daemon.running().kill()?;
        if !push.running.ends(SENDER_PATIENCE)? {
            push.running.kill()?;
        }
        Ok(done)
    }

    /// Starts the daemon again.
    pub(crate) fn serve_again(&mut self) -> Result<()> {
        self.place.serve_again(&mut self.daemon)
    }

    /// Waits until no session holds a journal. Returns the bytes of unfinished files that the journals record.
    pub(crate) fn journalled_bytes(&self) -> Result<u64> {
        let due = Instant::now() + PATIENCE;
        loop {
            let mut command = self.place.command(DAEMON_HOME);
            let told = command
                .args(["journal", "list", "--json"])
                .stderr(Stdio::inherit())
                .output();
            let told = told.context("failed to start zmove journal list")?;
            let listing = listing(&String::from_utf8_lossy(&told.stdout))?;
            if !listing.in_use {
                return Ok(listing.bytes_written);
            }
            if Instant::now() > due {
                bail!(
                    "a session still writes its journal after {} s",
                    PATIENCE.as_secs()
                );
            }
            thread::sleep(STEP);
        }
    }
}

impl Push {
    /// Waits at most for `time`. Returns whether the push is still running.
    pub(crate) fn runs_for(&self, time: Duration) -> Result<bool> {
        Ok(!self.running.ends(time)?)
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.running.kill().map(drop)
    }

    /// Returns the bytes that the receiver has reported as stored, from the last complete line of the trace.
    pub(crate) fn bytes_stored(&self) -> Result<u64> {
        let text = fs::read_to_string(&self.trace).context("failed to read the trace")?;
        Ok(stored_by_trace(&text))
    }

    /// Waits until the receiver has stored `bytes`. Fails if the push ends earlier.
    pub(crate) fn wait_until_stored(&self, bytes: u64) -> Result<()> {
        while self.bytes_stored()? < bytes {
            if !self.runs_for(STEP)? {
                bail!("the push ended before {bytes} bytes were stored");
            }
        }
        Ok(())
    }

    /// Waits for the push to end. Fails if the push failed.
    pub(crate) fn finish(mut self) -> Result<Done> {
        if !self.running.ends(PATIENCE)? {
            bail!("the push does not end");
        }
        let elapsed = self.start.elapsed();
        let sender = Counted::of(self.running.id())?;
        let status = self
            .running
            .wait(PATIENCE)?
            .context("a process that has ended can be waited for")?;
        let said = fs::read_to_string(&self.said).context("failed to read what the push said")?;
        if !status.success() {
            bail!("the push ended with {status}: {}", said.trim());
        }
        let last = said.lines().last().context("the push said nothing")?;
        let summary: Value =
            serde_json::from_str(last).context("the push's last line is no summary")?;
        let count = |key: &str| {
            summary[key]
                .as_u64()
                .with_context(|| format!("the summary has no {key}"))
        };
        Ok(Done {
            elapsed,
            sender,
            bytes: count("bytes")?,
            bytes_resumed: count("bytes_resumed")?,
        })
    }
}

/// An element of the output of `zmove journal list --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listing {
    in_use: bool,
    bytes_written: u64,
}

fn listing(text: &str) -> Result<Listing> {
    let mut all = Listing {
        in_use: false,
        bytes_written: 0,
    };
    for line in text.lines() {
        let journal: Value = serde_json::from_str(line).context("a line of journals is no JSON")?;
        all.in_use |= journal["in_use"]
            .as_bool()
            .context("a journal does not say whether it is in use")?;
        let files = journal["files"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        all.bytes_written += files
            .iter()
            .filter_map(|file| file["bytes_written"].as_u64())
            .sum::<u64>();
    }
    Ok(all)
}

fn stored_by_trace(text: &str) -> u64 {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let last = whole
        .lines()
        .last()
        .and_then(|line| serde_json::from_str::<Value>(line).ok());
    last.and_then(|line| line["bytes_stored"].as_u64())
        .unwrap_or(0)
}

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a sender may continue without its receiver.
const SENDER_PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_summed_up() {
        let text = "{\"in_use\":false,\"files\":[{\"bytes_written\":5},{\"bytes_written\":6}]}\n\
            {\"in_use\":true,\"error\":\"damaged\"}\n";
        assert_eq!(
            listing(text).unwrap(),
            Listing {
                in_use: true,
                bytes_written: 11
            }
        );
        assert_eq!(
            listing("").unwrap(),
            Listing {
                in_use: false,
                bytes_written: 0
            }
        );
        assert!(listing("no unfinished transfers").is_err());
    }

    #[test]
    fn a_line_that_was_cut_off_tells_nothing() {
        assert_eq!(
            stored_by_trace("{\"bytes_stored\":1}\n{\"bytes_stored\":2}\n{\"bytes_st"),
            2
        );
        assert_eq!(stored_by_trace("{\"bytes_stored\":12"), 0);
        assert_eq!(stored_by_trace(""), 0);
    }
}
