//! Runs of zmove: the user, the environment, and the outcome.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::harness::PATIENCE;
use crate::support::namespace::Namespace;
use crate::support::quiet_machine::share_machine;

/// The program under test.
pub(crate) const ZMOVE: &str = env!("CARGO_BIN_EXE_zmove");
/// The unprivileged user id of tests that must not run as root.
pub(crate) const NOBODY: u32 = 65_534;

/// The user, the network namespace and the binary with which programs run.
#[derive(Clone, Default)]
pub(crate) struct Runner {
    pub(crate) user: User,
    pub(crate) namespace: Option<Arc<Namespace>>,
    pub(crate) program: Option<PathBuf>,
    /// Arguments of prlimit(1): the limits of each process.
    pub(crate) limits: Vec<String>,
}

/// The user that runs programs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum User {
    #[default]
    Own,
    Nobody,
    /// A user who runs no other process on this machine.
    Fresh(u32),
}

impl User {
    /// Returns the user id, if programs switch to another user.
    pub(crate) fn number(self) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Nobody => Some(NOBODY),
            Self::Fresh(number) => Some(number),
        }
    }
}

/// The outcome of a command.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that has not been started.
pub(crate) struct Zmove(pub(crate) Command);

impl Zmove {
    pub(crate) fn outcome(self) -> Outcome {
        finish(self.start())
    }

    /// Starts the command. [`finish`] reads its output at the end.
    pub(crate) fn start(mut self) -> Child {
        share_machine();
        let piped = self
            .0
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        piped.spawn().unwrap()
    }
}

/// A process that is killed when the case ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The lines that a running command prints on its standard output.
pub(crate) struct LinesOf {
    lines: mpsc::Receiver<String>,
}

impl LinesOf {
    /// Takes over the standard output of a command, so that [`finish`] finds none.
    pub(crate) fn new(child: &mut Child) -> Self {
        let output = BufReader::new(child.stdout.take().unwrap());
        let (lines_in, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // The case may have stopped listening, and the command must not block on a full pipe.
            for line in output.lines().map_while(Result::ok) {
                let _no_listener = lines_in.send(line);
            }
        });
        Self { lines }
    }

    /// Waits for the next line and returns whether `holds` is true of it. Returns `false` at the end of the output.
    pub(crate) fn next_is(&self, holds: impl Fn(&str) -> bool) -> bool {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => holds(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => false,
            Err(error @ mpsc::RecvTimeoutError::Timeout) => panic!("no line: {error}"),
        }
    }

    /// Waits for a line for which `holds` is true, and returns it.
    #[track_caller]
    pub(crate) fn wait_for(&self, holds: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let patience = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(patience).expect("such a line");
            if holds(&line) {
                return line;
            }
        }
    }
}

/// Waits for a process to end and returns its exit code.
#[track_caller]
pub(crate) fn wait_within_patience(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < until, "a process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for a started command. A command that does not end is killed, and the case fails.
#[track_caller]
pub(crate) fn finish(child: Child) -> Outcome {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let (output_in, output) = mpsc::channel();
    std::thread::spawn(move || output_in.send(child.wait_with_output().unwrap()));
    let Ok(output) = output.recv_timeout(PATIENCE) else {
        kill_process(pid, Signal::KILL).unwrap();
        let Output { stdout, stderr, .. } = output.recv().unwrap();
        let [stdout, stderr] =
            [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        panic!("zmove did not end within {PATIENCE:?}\nstdout: {stdout}\nstderr: {stderr}");
    };
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Runner {
    /// Returns a command that uses the keys in `home`.
    pub(crate) fn zmove(&self, home: &Path) -> Zmove {
        share_machine();
        let program = self.program.as_deref().unwrap_or(Path::new(ZMOVE));
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(namespace.enter());
        }
        if let Some(number) = self.user.number() {
            let ids = [
                format!("--reuid={number}"),
                format!("--regid={number}"),
                "--clear-groups".to_owned(),
            ];
            words.push("setpriv".into());
            words.extend(ids.map(OsString::from));
        }
        if !self.limits.is_empty() {
            words.push("prlimit".into());
            words.extend(self.limits.iter().map(OsString::from));
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("ZMOVE_HOME", home);
        Zmove(command)
    }
}

impl Outcome {
    /// Asserts exit code 0 and no output on stderr.
    #[track_caller]
    pub(crate) fn done(self) -> Self {
        let outcome = self.expect(0);
        assert_eq!(outcome.stderr, "");
        outcome
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        let Self { stdout, stderr, .. } = &self;
        assert_eq!(
            self.code,
            Some(code),
            "\nstdout: {stdout}\nstderr: {stderr}"
        );
        self
    }

    /// Asserts that stderr has exactly one line, which contains all of `parts`.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        let lines = self
            .stderr
            .lines()
            .filter(|line| parts.iter().all(|part| line.contains(part)));
        assert_eq!(
            lines.count(),
            1,
            "one line with {parts:?} in:\n{}",
            self.stderr
        );
        self
    }

    /// Asserts that stderr has exactly `count` lines.
    #[track_caller]
    pub(crate) fn lines(self, count: usize) -> Self {
        assert_eq!(self.stderr.lines().count(), count, "{}", self.stderr);
        self
    }

    /// Returns the last line of `--json`.
    #[track_caller]
    pub(crate) fn summary(&self) -> Value {
        let last = self.stdout.lines().last().expect("a summary");
        let summary: Value = serde_json::from_str(last).expect("JSON");
        assert_eq!(summary["event"], "summary");
        summary
    }
}
