//! Storage that never answers a flush, or answers late. Uses the zmove next to the lab's program.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{LAB, zmove_and_mounts};

/// Maximum time to wait for an event.
const PATIENCE: Duration = Duration::from_secs(90);

/// A process that is killed when dropped. If it cannot be reaped by then, it is left running.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.try_wait());
    }
}

/// A directory with the keys of a client and of a daemon.
struct Stand {
    home: tempfile::TempDir,
    zmove: PathBuf,
}

impl Stand {
    fn zmove(&self, keys: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.zmove);
        command
            .env("ZMOVE_HOME", self.home.path().join(keys))
            .current_dir(&self.home)
            .args(words);
        command
    }

    fn run(&self, keys: &str, words: &[&str]) -> String {
        let output = self.zmove(keys, words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Mounts the directory `over` on storage with high latency. Returns the process that serves it, and the path of
    /// the mount.
    fn mount(&self, options: &[&str]) -> (Running, String) {
        let mut storage = Command::new(LAB)
            .args(["late", "--over", "over"])
            .args(options)
            .current_dir(&self.home)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let told = wait_for(&lines(storage.stderr.take().unwrap()), " answers late");
        let mount = told.strip_prefix("zmove-lab: ").unwrap();
        let mount = mount.split(" answers late").next().unwrap();
        (Running(storage), mount.to_owned())
    }

    /// Starts a daemon and waits until it listens. Returns the daemon with its address and the lines of its log.
    fn serve(&self, listen: &str) -> (Running, String, Receiver<String>) {
        let mut child = self
            .zmove("server", &["serve", "--listen", listen])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = lines(child.stderr.take().unwrap());
        let said = wait_for(&lines(child.stdout.take().unwrap()), "listening on ");
        let (_, address) = said.split_once("listening on ").unwrap();
        let address = address.split(',').next().unwrap().to_owned();
        (Running(child), address, log)
    }
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (lines_in, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _no_listener = lines_in.send(line);
        }
    });
    lines
}

#[track_caller]
fn wait_for(lines: &Receiver<String>, part: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left);
        let line = line.unwrap_or_else(|_| panic!("no line with {part:?}"));
        if line.contains(part) {
            return line;
        }
    }
}

/// The process cannot end until the storage answers, because one of its threads waits in the kernel.
#[test]
fn a_daemon_whose_storage_hangs_makes_way_for_another() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let stand = Stand { home, zmove };
    let at = |name: &str| stand.home.path().join(name);
    for name in ["over", "sound", "source"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::write(at("stall"), "").unwrap();
    std::fs::write(at("source/file"), vec![7; 17 << 20]).unwrap();
    let (storage, mount) = stand.mount(&["--delay", "0", "--stall", "stall"]);
    let mount = mount.as_str();
    let client = stand.run("client", &["key", "show"]);
    let sound = at("sound");
    let mut allow = vec!["allow", client.trim(), "--name", "tester", "--write"];
    allow.extend(["--root", mount, "--root", sound.to_str().unwrap()]);
    stand.run("server", &allow);
    let (mut first, address, log) = stand.serve("127.0.0.1:0");
    stand.run("client", &["trust", "--accept-new", &address]);
    let push = |root: &str| {
        let target = format!("{address}:{root}/in");
        let mut push = stand.zmove("client", &["push", "--timeout", "0", "source", &target]);
        push.stdout(Stdio::null()).stderr(Stdio::null());
        push.spawn().unwrap()
    };
    let _hanging = Running(push(mount));
    wait_for(&log, "begun by");
    wait_until("nothing is flushed", || is_flushing(&first.0));
    kill_process(Pid::from_child(&first.0), Signal::TERM).unwrap();
    let left = wait_for(&log, "left behind");
    assert!(left.contains("tester") && left.contains(mount), "{left}");
    assert!(left.contains("(fuse, zmove-lab)"), "{left}");
    // All threads except the waiting one have ended.
    wait_until("the process does not exit", || state_of(&first.0) == "Z");
    assert!(first.0.try_wait().unwrap().is_none(), "it could be reaped");
    // The TCP and UDP port, the control socket and the journals are free.
    let (second, ..) = stand.serve(&address);
    stand.run("server", &["status"]);
    let mut sound = push(sound.to_str().unwrap());
    assert!(sound.wait().unwrap().success());
    assert!(at("sound/in/source/file").is_file());
    let journals = stand.run("server", &["journal", "list"]);
    assert!(!journals.contains("in use"), "{journals}");
    std::fs::remove_file(at("stall")).unwrap();
    wait_until("the first daemon is not reaped", || {
        first.0.try_wait().unwrap().is_some()
    });
    drop((second, storage));
}

/// The session removes unpublished files with as many threads as have written them.
#[test]
fn a_session_that_breaks_on_late_storage_clears_up_with_several_threads() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let stand = Stand { home, zmove };
    let at = |name: &str| stand.home.path().join(name);
    std::fs::create_dir(at("over")).unwrap();
    for directory in 0..64 {
        let directory = at("source").join(directory.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        for file in 0..40 {
            std::fs::write(directory.join(file.to_string()), "x").unwrap();
        }
    }
    let (storage, mount) = stand.mount(&["--delay", "10"]);
    let mount = mount.as_str();
    let client = stand.run("client", &["key", "show"]);
    let allow = ["allow", client.trim(), "--name", "tester", "--write"];
    stand.run("server", &[&allow[..], &["--root", mount]].concat());
    let (daemon, address, _log) = stand.serve("127.0.0.1:0");
    stand.run("client", &["trust", "--accept-new", &address]);
    // On a busy machine, a push may publish files as fast as it stores them.
    let has_much = |number: usize| {
        let target = format!("{address}:{mount}/in{number}");
        let mut push = stand.zmove("client", &["push", "source", &target]);
        let mut push = Running(push.stderr(Stdio::null()).spawn().unwrap());
        while unpublished(&at("over")) < 900 {
            if push.0.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(push)
    };
    // Files that the session publishes before it notices the end of the push need no cleanup.
    let clears_up_with_several = |number: usize| {
        let Some(mut push) = has_much(number) else {
            return false;
        };
        push.0.kill().unwrap();
        push.0.wait().unwrap();
        let mut threads = 0;
        wait_until("hidden names stay", || {
            threads = threads.max(threads_named(&daemon.0, "zmove-discard"));
            unpublished(&at("over")) == 0
        });
        threads >= 4
    };
    let has_cleared_up = (0..TRIES).any(clears_up_with_several);
    assert!(has_cleared_up, "one thread clears up");
    drop((daemon, storage));
}

/// Returns the number of files that have hidden names or are in a directory that has one.
fn unpublished(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    let count = |entry: std::fs::DirEntry| {
        let is_hidden = entry.file_name().to_string_lossy().starts_with(".zmove-");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && is_hidden => {
                std::fs::read_dir(entry.path()).map_or(0, Iterator::count)
            }
            Ok(kind) if kind.is_dir() => unpublished(&entry.path()),
            _ => usize::from(is_hidden),
        }
    };
    entries.flatten().map(count).sum()
}

fn threads_named(process: &Child, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let names = tasks
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    names.filter(|found| found.trim_end() == name).count()
}

/// Waits for a condition by polling, because nothing reports it.
#[track_caller]
fn wait_until(otherwise: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{otherwise}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the state of a process's first thread, as a letter.
fn state_of(process: &Child) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    after_name[..1].to_owned()
}

/// Returns whether a thread of a process waits for a flush.
fn is_flushing(process: &Child) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    tasks.flatten().any(|task| {
        let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        FLUSHES.contains(&call.split(' ').next().unwrap_or_default())
    })
}

/// The system call numbers of `fsync` and `fdatasync`, on x86-64 and on other architectures.
const FLUSHES: [&str; 2] = if cfg!(target_arch = "x86_64") {
    ["74", "75"]
} else {
    ["82", "83"]
};

/// Maximum number of pushes until one leaves enough files for several threads to clean up.
const TRIES: usize = 10;
