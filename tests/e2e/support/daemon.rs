//! A running `zmove serve`. It is ready when it logs so, and is killed when dropped.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use zmove_transport::{Connection, Fingerprint, HostPolicy, Identity, SocketConfig, TcpDialer};

use crate::support::command::{Outcome, Runner, finish, wait_within_patience};
use crate::support::harness::PATIENCE;
use crate::support::quiet_machine::share_machine;

/// A running `zmove serve`.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
    log: Arc<Log>,
    /// Thread that reads the log until the daemon ends.
    reading: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

impl Daemon {
    /// Starts a daemon and waits for its ready line.
    pub(crate) fn start(home: &Path, listen: &str, runner: &Runner) -> Self {
        Self::start_with(home, &["--listen", listen], runner)
    }

    /// Starts a daemon with these options.
    pub(crate) fn start_with(home: &Path, options: &[&str], runner: &Runner) -> Self {
        Self::run(runner.zmove(home).0, options)
    }

    /// Starts a daemon from a prepared command.
    pub(crate) fn run(command: Command, options: &[&str]) -> Self {
        Self::try_run(command, options)
            .unwrap_or_else(|ended| panic!("no ready line: {}", ended.stderr))
    }

    /// Starts a daemon. Returns its outcome if it ends before it is ready.
    pub(crate) fn try_run(mut command: Command, options: &[&str]) -> Result<Self, Outcome> {
        share_machine();
        command.arg("serve").args(options);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        if ready.is_empty() {
            return Err(finish(child));
        }
        let said = ready.trim_end().strip_prefix("zmove serve: listening on ");
        let said = said.and_then(|said| said.split_once(", key "));
        let said = said.map(|(address, key)| (address.to_owned(), key.to_owned()));
        let (address, key) = said
            .or_else(|| ready_as_json(&ready))
            .expect("the ready line");
        let (address, fingerprint) = (address.parse().unwrap(), key.parse().unwrap());
        let log = Arc::new(Log::default());
        let (stderr, log_in) = (
            BufReader::new(child.stderr.take().unwrap()),
            Arc::clone(&log),
        );
        let reading = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                log_in.lines.lock().unwrap().push(line);
                log_in.grown.notify_all();
            }
        });
        Ok(Self {
            child,
            address,
            fingerprint,
            log,
            reading: Some(reading),
        })
    }

    /// Connects over TCP with the key in `home`.
    pub(crate) async fn dial(&self, home: &Path) -> Connection {
        let identity = Identity::load_or_create(home).unwrap();
        let host = self.address.ip().to_string();
        let policy = HostPolicy::Pinned(self.fingerprint);
        let socket = SocketConfig::default();
        let dialer = TcpDialer::new(&identity, &host, self.address.port(), policy, socket);
        dialer.await.unwrap().dial(PATIENCE).await.unwrap()
    }

    /// Whether a log line contains `part`.
    pub(crate) fn has_logged(&self, part: &str) -> bool {
        !self.logged(part).is_empty()
    }

    /// Returns the log lines so far that contain `part`.
    pub(crate) fn logged(&self, part: &str) -> Vec<String> {
        lines_with(&self.log.lines.lock().unwrap(), part)
    }

    /// Waits for a log line that contains `part`.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, part: &str) -> String {
        self.wait_for_logs(part, 1).swap_remove(0)
    }

    /// Waits for `count` log lines that contain `part`.
    #[track_caller]
    pub(crate) fn wait_for_logs(&self, part: &str, count: usize) -> Vec<String> {
        let lines = self.log.lines.lock().unwrap();
        let missing = |lines: &mut Vec<String>| lines_with(lines, part).len() < count;
        let (lines, _) = self
            .log
            .grown
            .wait_timeout_while(lines, PATIENCE, missing)
            .unwrap();
        let found = lines_with(&lines, part);
        assert!(
            found.len() >= count,
            "fewer than {count} times {part:?} in the daemon's log: {lines:?}"
        );
        found
    }

    /// Returns the `/proc` status of each of the daemon's threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // A thread that has just ended has no file.
        tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
            .collect()
    }

    /// Terminates the daemon and returns its exit code.
    #[track_caller]
    pub(crate) fn terminate(self) -> Option<i32> {
        self.ask_to_end();
        self.wait()
    }

    /// Terminates the daemon and returns all lines of its log.
    #[track_caller]
    pub(crate) fn end_and_read_log(mut self) -> Vec<String> {
        self.ask_to_end();
        assert_eq!(wait_within_patience(&mut self.child), Some(0));
        self.reading.take().unwrap().join().unwrap();
        std::mem::take(&mut *self.log.lines.lock().unwrap())
    }

    /// Sends SIGTERM to the daemon and does not wait.
    pub(crate) fn ask_to_end(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Makes the daemon reload its settings.
    pub(crate) fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal, such as SIGSTOP or SIGCONT, to the daemon.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the daemon to end and returns its exit code.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Option<i32> {
        wait_within_patience(&mut self.child)
    }

    /// Resident memory, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Peak resident memory, in KiB.
    pub(crate) fn peak_memory_kib(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Number of open descriptors.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }

    /// Processor time of all threads so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_ascii_whitespace()
            .collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|field| field.parse::<u64>().unwrap())
            .sum();
        Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap()
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Number of log lines that contain `part`.
    pub(crate) fn count_logged(&self, part: &str) -> usize {
        self.logged(part).len()
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the lines that contain `part`.
fn lines_with(lines: &[String], part: &str) -> Vec<String> {
    let found = lines.iter().filter(|line| line.contains(part));
    found.cloned().collect()
}

/// Returns the address and key in the ready line of a daemon that logs JSON.
fn ready_as_json(ready: &str) -> Option<(String, String)> {
    let said: serde_json::Value = serde_json::from_str(ready).ok()?;
    Some((
        said["address"].as_str()?.to_owned(),
        said["key"].as_str()?.to_owned(),
    ))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The daemon may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
