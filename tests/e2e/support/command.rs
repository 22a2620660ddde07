//! One run of zmove: as whom and where, and what came of it.

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
/// Whom tests become that must not be root.
pub(crate) const NOBODY: u32 = 65_534;

/// The user, the network namespace and the binary by which programs run.
#[derive(Clone, Default)]
pub(crate) struct Runner {
    pub(crate) user: User,
    pub(crate) namespace: Option<Arc<Namespace>>,
    pub(crate) program: Option<PathBuf>,
    /// Options of prlimit(1): the limits of each process.
    pub(crate) limits: Vec<String>,
}

/// Which user.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum User {
    #[default]
    Own,
    Nobody,
    /// A user who runs no other process on this machine.
    Fresh(u32),
}

impl User {
    /// The user's number, if programs change to it.
    pub(crate) fn number(self) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Nobody => Some(NOBODY),
            Self::Fresh(number) => Some(number),
        }
    }
}

/// What a command did.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that is about to run.
pub(crate) struct Zmove(pub(crate) Command);

impl Zmove {
    pub(crate) fn outcome(self) -> Outcome {
        finish(self.start())
    }

    /// Starts it; its output is read at the end.
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
    /// Takes the standard output of a command, of which [`finish`] then reads nothing.
    pub(crate) fn new(child: &mut Child) -> Self {
        let output = BufReader::new(child.stdout.take().unwrap());
        let (lines_in, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // a case that has seen enough no longer listens, and the command must not wait for that
            for line in output.lines().map_while(Result::ok) {
                let _no_listener = lines_in.send(line);
            }
        });
        Self { lines }
    }

    /// Waits for the next line, and tells whether this holds of it; the end of the output is no line.
    pub(crate) fn next_is(&self, holds: impl Fn(&str) -> bool) -> bool {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => holds(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => false,
            Err(error @ mpsc::RecvTimeoutError::Timeout) => panic!("no line: {error}"),
        }
    }

    /// Waits for a line of which this holds, and returns it.
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

/// Waits for a process to end, and returns its exit code.
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

/// Waits for a started command; one that does not end is killed, and the case fails.
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
    /// A command of whoever has its keys in `home`.
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
    /// Expects exit code 0 and silence on stderr.
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

    /// Expects exactly one line on stderr that says all of `parts`.
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

    /// Expects that stderr has no other line than the expected ones.
    #[track_caller]
    pub(crate) fn lines(self, count: usize) -> Self {
        assert_eq!(self.stderr.lines().count(), count, "{}", self.stderr);
        self
    }

    /// The last line of `--json`.
    #[track_caller]
    pub(crate) fn summary(&self) -> Value {
        let last = self.stdout.lines().last().expect("a summary");
        let summary: Value = serde_json::from_str(last).expect("JSON");
        assert_eq!(summary["event"], "summary");
        summary
    }
}
