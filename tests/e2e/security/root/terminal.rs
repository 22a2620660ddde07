//! Processes that root starts at a terminal and that switch to another user: a daemon with `--user`, and helpers that
//! execute root's commands in the directories of that user. A process with the terminal of root's shell can type into
//! it (TIOCSTI).

use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Host, KEY, Settings};
use crate::support::command::{LinesOf, NOBODY, Zmove, finish, wait_within_patience};
use crate::support::harness::{PATIENCE, has_program, own_all, skip};

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--drain", "1s"];

/// Returns `None` if there is no terminal or no second user.
fn host(settings: Settings) -> Option<Host> {
    if !has_program("script") {
        skip("a terminal needs script");
        return None;
    }
    Host::new(settings)
}

impl Host {
    /// Runs a shell command line at a separate terminal. ZMOVE in it stands for the program with these arguments.
    fn at_terminal(&self, line: &str, words: &[&str]) -> Child {
        let zmove = self.command(&[], words);
        let words = std::iter::once(zmove.get_program()).chain(zmove.get_args());
        let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
        let mut script = Command::new("script");
        script
            .args(["-qefc", &line.replace("ZMOVE", &words.join(" "))])
            .arg("/dev/null")
            .env("SHELL", "/bin/bash")
            .envs(
                zmove
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        script.spawn().unwrap()
    }

    /// Returns the process id of the daemon of this host.
    fn daemon_pid(&self) -> u32 {
        let status = self.zmove(&["status", "--json"]).done().stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        u32::try_from(status["pid"].as_u64().unwrap()).unwrap()
    }
}

/// Returns the fields of `/proc/PID/stat` after the state: parent, process group, session, terminal.
fn numbers(pid: u32) -> Option<[i64; 4]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    let numbers: Vec<_> = fields.take(4).map(|field| field.parse().unwrap()).collect();
    numbers.try_into().ok()
}

fn parent(pid: u32) -> Option<u32> {
    u32::try_from(numbers(pid)?[0]).ok()
}

fn is_below(ancestor: u32, pid: u32) -> bool {
    std::iter::successors(parent(pid), |pid| parent(*pid)).any(|pid| pid == ancestor)
}

fn is_nobody(pid: u32) -> bool {
    let wanted = format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}");
    fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| status.lines().any(|line| line == wanted))
}

/// Waits for a descendant of `ancestor` that has switched to the user.
fn process_of_user(ancestor: u32) -> u32 {
    let until = Instant::now() + PATIENCE;
    loop {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let found = processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .find(|pid| is_nobody(*pid) && is_below(ancestor, *pid));
        if let Some(pid) = found {
            return pid;
        }
        assert!(Instant::now() < until, "no process became the user");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the open files of a process.
fn descriptors(pid: u32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect()
}

#[track_caller]
fn assert_has_no_terminal(pid: u32) {
    assert!(is_nobody(pid));
    let [_, _, session, terminal] = numbers(pid).unwrap();
    assert_eq!(terminal, 0, "the controlling terminal");
    assert_eq!(session, i64::from(pid), "the session");
    let paths = descriptors(pid);
    assert!(!paths.is_empty());
    let is_terminal = |path: &PathBuf| {
        ["/dev/pts", "/dev/tty", "/dev/console", "/dev/ptmx"]
            .iter()
            .any(|prefix| path.to_str().unwrap().starts_with(prefix))
    };
    assert!(!paths.iter().any(is_terminal), "{paths:?}");
}

fn wait_until_gone(pid: u32) {
    let until = Instant::now() + PATIENCE;
    while is_nobody(pid) {
        assert!(Instant::now() < until, "the daemon goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A compromised daemon could type into the shell from which root had started it.
#[test]
fn a_daemon_of_another_user_has_no_terminal_and_ends_with_control_c() {
    let Some(host) = host(Settings::OfRoot) else {
        return;
    };
    let lines = [
        // The daemon leads the session of the terminal, or shares the shell's process group, or has a separate process
        // group.
        "exec ZMOVE",
        "ZMOVE; exit $?",
        "set -m; ZMOVE; exit $?",
        // Only the session has the terminal.
        "ZMOVE </dev/null 2>&1 | (trap '' INT; cat)",
    ];
    for line in lines {
        let mut script = host.at_terminal(line, &SERVE);
        let mut keyboard = script.stdin.take().unwrap();
        let screen = LinesOf::new(&mut script);
        screen.wait_for(|line| line.contains("listening on"));
        let daemon = host.daemon_pid();
        assert!(is_below(script.id(), daemon));
        assert_has_no_terminal(daemon);
        keyboard.write_all(b"\x03").unwrap();
        screen.wait_for(|line| line.contains("stopping: running transfers have 1 s"));
        assert_eq!(wait_within_patience(&mut script), Some(0), "{line}");
        assert!(!is_nobody(daemon), "{line}");
    }
}

#[test]
fn a_daemon_without_a_terminal_gets_the_signals_of_its_parent_and_ends_with_it() {
    let Some(host) = host(Settings::OfRoot) else {
        return;
    };
    for last in [Signal::TERM, Signal::KILL] {
        let mut script = host.at_terminal("ZMOVE; exit $?", &SERVE);
        let _keyboard = script.stdin.take();
        let screen = LinesOf::new(&mut script);
        screen.wait_for(|line| line.contains("listening on"));
        let daemon = host.daemon_pid();
        let relay = parent(daemon).unwrap();
        signal(relay, Signal::HUP);
        screen.wait_for(|line| line.contains("reloaded"));
        signal(relay, last);
        wait_until_gone(daemon);
        let code = if last == Signal::TERM { 0 } else { 137 };
        assert_eq!(wait_within_patience(&mut script), Some(code));
    }
}

/// Root's shell has a terminal and a file open that only root may read.
#[test]
fn a_process_of_another_user_has_no_descriptor_of_root_s_shell() {
    let Some(host) = host(Settings::OfRoot) else {
        return;
    };
    let line = format!("ZMOVE 7<>/dev/tty 8<'{}'; exit $?", host.secret().display());
    let said = finish(host.at_terminal(&line, &["serve", "--check"])).expect(0);
    assert_eq!(said.stdout.trim(), "ok");
    let mut script = host.at_terminal(&line, &SERVE);
    let mut keyboard = script.stdin.take().unwrap();
    let screen = LinesOf::new(&mut script);
    screen.wait_for(|line| line.contains("listening on"));
    let daemon = host.daemon_pid();
    assert_has_no_terminal(daemon);
    assert!(!descriptors(daemon).contains(&host.secret()));
    keyboard.write_all(b"\x03").unwrap();
    assert_eq!(wait_within_patience(&mut script), Some(0));

    let Some(host) = self::host(Settings::OfUser) else {
        return;
    };
    let _lock = hold_list(&host);
    let line = format!("ZMOVE 8<'{}'; exit $?", host.secret().display());
    let allow = ["allow", KEY, "--name", "bob", "--root", "/usr", "--write"];
    let script = host.at_terminal(&line, &allow);
    let process = process_of_user(script.id());
    assert!(!descriptors(process).contains(&host.secret()));
    signal(process, Signal::KILL);
    finish(script);
}

/// Holds the lock of the list of keys until the value is dropped, so that a process that changes the list waits.
fn hold_list(host: &Host) -> File {
    let path = host.path("home/authorized_keys.lock");
    let lock = File::create(&path).unwrap();
    own_all(&path);
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    lock
}

#[test]
fn a_process_that_its_user_stops_is_killed_and_holds_no_command_of_root_up() {
    let Some(host) = Host::new(Settings::OfUser) else {
        return;
    };
    let _lock = hold_list(&host);
    let allow = ["allow", KEY, "--name", "bob", "--root", "/usr", "--write"];
    let root = Zmove(host.command(&[], &allow)).start();
    let process = process_of_user(root.id());
    signal(process, Signal::STOP);
    let outcome = finish(root).expect(12);
    outcome.says(&["was stopped by a signal"]).lines(1);
    wait_until_gone(process);
}

#[test]
fn commands_that_are_done_as_another_user_have_no_terminal() {
    let Some(host) = host(Settings::OfUser) else {
        return;
    };
    let lock = hold_list(&host);
    let data = host.path("data");
    let root = data.to_str().unwrap();
    let allow = ["allow", KEY, "--name", "bob", "--root", root, "--write"];
    let mut script = host.at_terminal("ZMOVE; exit $?", &allow);
    let _keyboard = script.stdin.take();
    assert_has_no_terminal(process_of_user(script.id()));
    drop(lock);
    finish(script).expect(0);
    let list = finish(host.at_terminal("ZMOVE", &["allow", "list"])).expect(0);
    assert!(list.stdout.contains("bob"), "{}", list.stdout);
}

#[test]
fn the_operator_asks_from_a_terminal_and_the_process_that_asks_has_none() {
    let Some(host) = host(Settings::OfRoot) else {
        return;
    };
    let socket = UnixListener::bind(host.path("run/control.sock")).unwrap();
    own_all(&host.path("run"));
    let mut script = host.at_terminal("ZMOVE; exit $?", &["status"]);
    let _keyboard = script.stdin.take();
    let (mut stream, _) = socket.accept().unwrap();
    let asks = socket_peercred(&stream).unwrap().pid.as_raw_nonzero().get();
    assert_has_no_terminal(u32::try_from(asks).unwrap());
    let mut request = String::new();
    std::io::BufRead::read_line(&mut BufReader::new(&stream), &mut request).unwrap();
    assert_eq!(request, "\"status\"\n");
    stream.write_all(b"{\"nonsense\":\"no\"}\n").unwrap();
    drop(stream);
    let said = finish(script).stdout;
    assert!(
        said.contains("the daemon does not understand: no"),
        "{said}"
    );
    fs::remove_file(host.path("run/control.sock")).unwrap();

    let mut script = host.at_terminal("ZMOVE", &SERVE);
    let mut keyboard = script.stdin.take().unwrap();
    let screen = LinesOf::new(&mut script);
    screen.wait_for(|line| line.contains("listening on"));
    let status = finish(host.at_terminal("ZMOVE; exit $?", &["status"])).expect(0);
    assert!(status.stdout.contains("0 transfers"), "{}", status.stdout);
    keyboard.write_all(b"\x03").unwrap();
    assert_eq!(wait_within_patience(&mut script), Some(0));
}
