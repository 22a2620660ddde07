//! Where a case runs: a directory with a source, a target and keys, and perhaps a daemon.
//!
//! **Invariant:** nothing outlives its [`Site`]: daemons are killed by their process id, directories are removed.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use zmove_transport::{Access, AuthorizedKeys, Fingerprint, Grant, Identity, KnownHosts};

use crate::namespace::Namespace;

/// The program under test.
pub(crate) const ZMOVE: &str = env!("CARGO_BIN_EXE_zmove");
/// Whom tests become that must not be root.
pub(crate) const NOBODY: u32 = 65_534;
/// How long an event may take before it counts as not coming.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs each case of a theme locally and against a daemon.
macro_rules! both_ways {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[test] fn $case() { super::$case(&crate::harness::Site::local()); })+
        }
        mod daemon {
            $(#[test] fn $case() { super::$case(&crate::harness::Site::daemon()); })+
        }
    };
}
pub(crate) use both_ways;

/// One case's world.
pub(crate) struct Site {
    directory: TempDir,
    runner: Runner,
    daemon: Option<Daemon>,
}

/// As whom, and where, programs run.
#[derive(Clone, Default)]
pub(crate) struct Runner {
    user: User,
    namespace: Option<Arc<Namespace>>,
    program: Option<PathBuf>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum User {
    #[default]
    Own,
    Nobody,
}

/// What a command did.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Site {
    /// A site whose target is a directory of this host.
    pub(crate) fn local() -> Self {
        Self::bare(Runner::default())
    }

    /// A site whose target is behind a daemon that knows the client, and the other way round.
    pub(crate) fn daemon() -> Self {
        let mut site = Self::local();
        site.start_daemon();
        site
    }

    /// A site where everything runs as a user who is not root; `None` where that is not possible.
    pub(crate) fn unprivileged() -> Option<Self> {
        if !is_root() {
            return Some(Self::local());
        }
        if !has_program("setpriv") {
            skip("setpriv is missing: cannot become another user");
            return None;
        }
        let mut site = Self::bare(Runner { user: User::Nobody, ..Runner::default() });
        let program = site.path("zmove");
        if std::fs::hard_link(ZMOVE, &program).is_err() {
            std::fs::copy(ZMOVE, &program).unwrap();
        }
        site.runner.program = Some(program);
        site.give_away();
        Some(site)
    }

    /// A site whose target is a small file system of its own.
    pub(crate) fn within(namespace: impl FnOnce(&Path) -> Option<Namespace>) -> Option<Self> {
        let mut site = Self::local();
        site.runner.namespace = Some(Arc::new(namespace(&site.target())?));
        Some(site)
    }

    fn bare(runner: Runner) -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap(), runner, daemon: None };
        for name in ["source", "target", "client", "server"] {
            std::fs::create_dir(site.path(name)).unwrap();
        }
        site
    }

    /// Starts a daemon; the client gets to know it and may write into the target.
    pub(crate) fn start_daemon(&mut self) {
        self.authorize(Access::ReadWrite);
        let daemon = Daemon::start(&self.path("server"), "127.0.0.1:0", &self.runner);
        self.pin(&daemon.address, daemon.fingerprint);
        self.daemon = Some(daemon);
        self.give_away();
    }

    /// Lets the client's key into the target.
    pub(crate) fn authorize(&self, access: Access) {
        let identity = Identity::load_or_create(&self.path("client")).unwrap();
        let (fingerprint, name) = (identity.fingerprint(), "tester".to_owned());
        let grant = Grant { fingerprint, name, roots: vec![self.path("target").canonicalize().unwrap()], access };
        AuthorizedKeys::allow(&self.path("server"), grant).unwrap();
    }

    /// Makes the client take `fingerprint` for the key of `address`.
    pub(crate) fn pin(&self, address: &SocketAddr, fingerprint: Fingerprint) {
        let mut known_hosts = KnownHosts::open(&self.path("client")).unwrap();
        known_hosts.pin(&address.ip().to_string(), address.port(), fingerprint).unwrap();
    }

    /// Hands all files to the user that programs run as.
    pub(crate) fn give_away(&self) {
        if self.runner.user == User::Nobody {
            own_all(self.directory.path());
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// The target directory as it is reached from here.
    pub(crate) fn target(&self) -> PathBuf {
        let path = self.path("target");
        self.runner.namespace.as_ref().map_or(path.clone(), |namespace| namespace.outside(&path))
    }

    /// The running daemon.
    pub(crate) fn the_daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// The daemon, to be stopped.
    pub(crate) fn take_daemon(&mut self) -> Daemon {
        self.daemon.take().unwrap()
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.daemon.is_some()
    }

    /// How a path below the target is written on the command line.
    pub(crate) fn address(&self, path: &str) -> OsString {
        match &self.daemon {
            Some(daemon) => format!("{}:{path}", daemon.address).into(),
            None => self.path("target").join(path).into(),
        }
    }

    /// `zmove push OPTIONS SOURCE ADDRESS(path)`.
    pub(crate) fn push(&self, options: &[&str], source: impl AsRef<OsStr>, path: &str) -> Outcome {
        self.push_command(options, &[source.as_ref()], path).outcome()
    }

    pub(crate) fn push_command(&self, options: &[&str], sources: &[&OsStr], path: &str) -> Zmove {
        let mut zmove = self.zmove(&["push"]);
        zmove.0.args(options).args(sources).arg(self.address(path));
        zmove
    }

    /// `source/`, whose contents go into the target.
    pub(crate) fn contents(&self) -> OsString {
        self.source().join("").into()
    }

    /// Pushes the contents of the source to the target itself and expects that all is well.
    pub(crate) fn push_contents(&self) -> Value {
        self.push(&["--json"], self.contents(), "").done().summary()
    }

    /// A command of the client.
    pub(crate) fn zmove(&self, args: &[&str]) -> Zmove {
        let mut zmove = self.runner.zmove(&self.path("client"));
        zmove.0.current_dir(self.directory.path()).args(args);
        zmove
    }
}

/// A command that is about to run.
pub(crate) struct Zmove(pub(crate) Command);

impl Zmove {
    pub(crate) fn outcome(mut self) -> Outcome {
        let output = self.0.stdin(Stdio::null()).output().unwrap();
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Starts it; its output is read at the end.
    pub(crate) fn start(mut self) -> Child {
        let piped = self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().unwrap()
    }
}

/// Waits for a started command.
pub(crate) fn finish(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Runner {
    fn zmove(&self, home: &Path) -> Zmove {
        let program = self.program.as_deref().unwrap_or(Path::new(ZMOVE));
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(namespace.enter());
        }
        if self.user == User::Nobody {
            let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
            words.push("setpriv".into());
            words.extend(ids.map(OsString::from));
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
        assert_eq!(self.code, Some(code), "\nstdout: {stdout}\nstderr: {stderr}");
        self
    }

    /// Expects exactly one line on stderr that says all of `parts`.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        let lines = self.stderr.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        assert_eq!(lines.count(), 1, "one line with {parts:?} in:\n{}", self.stderr);
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

/// A running `zmove serve`.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

impl Daemon {
    /// Starts one and waits for the line that says it is ready.
    pub(crate) fn start(home: &Path, listen: &str, runner: &Runner) -> Self {
        let mut command = runner.zmove(home).0;
        command.args(["serve", "--listen", listen]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let said = ready.trim_end().strip_prefix("zmove serve: listening on ");
        let (address, key) = said.and_then(|said| said.split_once(", key ")).expect("the ready line");
        let (address, fingerprint) = (address.parse().unwrap(), key.parse().unwrap());
        let log = Arc::new(Log::default());
        let (stderr, log_in) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                log_in.lines.lock().unwrap().push(line);
                log_in.grown.notify_all();
            }
        });
        Self { child, address, fingerprint, log }
    }

    /// Waits for a log line that says `part`.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, part: &str) -> String {
        let found = |lines: &[String]| lines.iter().find(|line| line.contains(part)).cloned();
        let lines = self.log.lines.lock().unwrap();
        let missing = |lines: &mut Vec<String>| found(lines).is_none();
        let (lines, _) = self.log.grown.wait_timeout_while(lines, PATIENCE, missing).unwrap();
        found(&lines).unwrap_or_else(|| panic!("no {part:?} in the daemon's log: {lines:?}"))
    }

    /// Asks it to end; returns its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// Ends it without a warning.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // it may be gone already, which is what is wanted
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Says why a case does not run here; in the lab, where every case must, that is a failure.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(!required, "ZMOVE_REQUIRE_LAB=1, but {reason}");
    eprintln!("skipped: {reason}");
}

fn own_all(path: &Path) {
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            own_all(&entry.unwrap().path());
        }
    }
}
