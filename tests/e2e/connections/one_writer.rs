//! A receiver that was stopped while its sender was killed stores nothing when it resumes: another push may have stored
//! newer contents under the same names.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::commands::ssh::{Sshd, push_by, script};
use crate::support::command::{Outcome, Runner, ZMOVE, Zmove, finish};
use crate::support::daemon::Daemon;
use crate::support::half_cut::HalfCut;
use crate::support::harness::{PATIENCE, Site, has_program, skip};

const FILES: usize = 4_000;
/// Number of unpublished files that a receiver must have before it is stopped.
const UNPUBLISHED_MIN: usize = 400;
/// Minimum duration of the stop.
const STOP_MIN: Duration = Duration::from_secs(1);
/// Maximum number of system calls that run after the stop because they were permitted before it, one per publishing
/// thread.
const LATE_CALLS_MAX: usize = 8;

/// Fills the source with files whose contents identify the push.
fn fill(site: &Site, content: u8) {
    fill_directory(&site.source().join("d"), content);
}

fn fill_directory(directory: &Path, content: u8) {
    std::fs::create_dir_all(directory).unwrap();
    for number in 0..FILES {
        std::fs::write(directory.join(format!("{number:05}")), [content; 100]).unwrap();
    }
}

/// Number of files with final names at the target and with these contents.
fn with_content(site: &Site, content: u8) -> usize {
    let names = std::fs::read_dir(site.target().join("d")).unwrap();
    let has_it = |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes == [content; 100]);
    names
        .map(|entry| entry.unwrap().path())
        .filter(has_it)
        .count()
}

/// Number of files that a receiver has stored under hidden names.
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

/// Stops a receiver once it has many files to publish.
fn stop(site: &Site, receiver: Pid) -> Instant {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if unpublished(&site.target()) >= UNPUBLISHED_MIN {
            kill_process(receiver, Signal::STOP).unwrap();
            if unpublished(&site.target()) >= UNPUBLISHED_MIN {
                return Instant::now();
            }
            kill_process(receiver, Signal::CONT).unwrap();
        }
        assert!(Instant::now() < deadline, "it never has much to publish");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops a receiver that has many files to publish, and kills its sender.
fn stop_and_kill(site: &Site, receiver: Pid, sender: Child) -> Instant {
    let stopped = stop(site, receiver);
    kill(sender);
    stopped
}

/// Kills a sender. Its output is not read to the end, since the ssh that it started survives and also holds the pipe.
fn kill(mut sender: Child) {
    sender.kill().unwrap();
    assert_eq!(sender.wait().unwrap().code(), None);
}

/// Resumes a stopped receiver once it has been stopped for long enough.
fn wake(receiver: Pid, stopped: Instant) {
    std::thread::sleep(STOP_MIN.saturating_sub(stopped.elapsed()));
    kill_process(receiver, Signal::CONT).unwrap();
}

/// Asserts the new contents. The timestamps of directories are not compared, since removing hidden files changes them.
fn assert_new(site: &Site, late_calls_max: usize) {
    let old = with_content(site, b'1');
    assert!(old <= late_calls_max, "{old} of {FILES} files are old");
    assert_eq!(with_content(site, b'2'), FILES - old);
    assert_eq!(unpublished(&site.target()), 0, "hidden names stay");
}

/// Returns the process id of the receiver that ssh has started for a site.
pub(crate) fn receiver_over_ssh(site: &Site) -> Pid {
    let home = format!("ZMOVE_HOME={}", site.path("server").display());
    let is_ours = |pid: &Pid| {
        let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let environ = std::fs::read(process.join("environ")).unwrap_or_default();
        std::fs::read_link(process.join("exe")).is_ok_and(|program| program == Path::new(ZMOVE))
            && environ
                .split(|byte| *byte == 0)
                .any(|variable| variable == home.as_bytes())
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids =
            entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        if let Some(pid) = pids.find(is_ours) {
            return pid;
        }
        assert!(Instant::now() < deadline, "ssh starts no receiver");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn wait_for_end(pid: Pid) {
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return,
        opened => opened.unwrap(),
    };
    let patience = PATIENCE.try_into().unwrap();
    let mut poll_fds = [PollFd::new(&process, PollFlags::IN)];
    let ended = poll(&mut poll_fds, Some(&patience)).unwrap();
    assert_eq!(ended, 1, "the receiver does not end");
}

#[test]
fn a_receiver_over_ssh_that_wakes_up_stores_nothing_over_what_the_next_push_has_stored() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    let push = || {
        let target = sshd.at(&site.target());
        push_by(&site, &sshd.command(), Path::new(ZMOVE), &[], &target)
    };
    fill(&site, b'1');
    let sender = push().start();
    let receiver = receiver_over_ssh(&site);
    let stopped = stop_and_kill(&site, receiver, sender);
    fill(&site, b'2');
    push().outcome().expect(0);
    wake(receiver, stopped);
    wait_for_end(receiver);
    assert_new(&site, LATE_CALLS_MAX);
}

/// Pushes to the first of two daemons on the same storage, and then from another home to the second one.
fn to_another_daemon(mut site: Site, options: &[&str], serve_options: &[&str]) {
    site.start_daemon_with(serve_options);
    let contents = site.contents();
    fill(&site, b'1');
    let sender = site
        .push_command(options, &[contents.as_os_str()], "")
        .start();
    let first = site.take_daemon();
    let stopped = stop_and_kill(&site, first.pid(), sender);
    push_again_from_another_home(&mut site, options, serve_options);
    wake(first.pid(), stopped);
    first.terminate();
    assert_new(&site, LATE_CALLS_MAX);
}

/// Pushes newer contents from another home to another daemon on the same storage.
fn push_again_from_another_home(site: &mut Site, options: &[&str], serve_options: &[&str]) {
    fill(site, b'2');
    std::fs::rename(site.path("client"), site.path("first_client")).unwrap();
    std::fs::rename(site.path("server"), site.path("first_server")).unwrap();
    for home in ["client", "server"] {
        std::fs::create_dir(site.path(home)).unwrap();
    }
    site.start_daemon_with(serve_options);
    site.push(options, site.contents(), "").expect(0);
}

#[test]
fn a_daemon_that_wakes_up_stores_nothing_over_what_another_has_stored() {
    to_another_daemon(Site::local(), &[], &[]);
}

#[test]
fn a_daemon_that_wakes_up_after_lanes_in_clear_stores_nothing_over_what_another_has_stored() {
    to_another_daemon(Site::local(), &["--cipher", "none"], &["--allow-clear"]);
}

#[test]
fn a_daemon_that_wakes_up_after_a_push_over_quic_stores_nothing_over_what_another_has_stored() {
    let quic = &["--transport", "quic"];
    to_another_daemon(Site::local(), quic, quic);
}

/// Options of strace that delay the calls that publish names for longer than a case lasts.
const HELD_CALLS: [&str; 4] = [
    "-e",
    "trace=renameat,renameat2,linkat",
    "-e",
    "inject=renameat,renameat2,linkat:delay_enter=600000000",
];

fn can_hold() -> bool {
    let mut command = Command::new("strace");
    command.args(HELD_CALLS).arg("true");
    has_program("strace") && Zmove(command).outcome().code == Some(0)
}

/// Number of threads that the tracer has seen in a call.
fn threads_in(log: &Path) -> usize {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let threads = log.lines().filter_map(|line| line.split(' ').next());
    threads.collect::<HashSet<_>>().len()
}

/// Returns the process that traces another one.
fn tracer_of(pid: Pid) -> Pid {
    let status = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(status).unwrap();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))
        .unwrap();
    Pid::from_raw(tracer.trim().parse().unwrap()).unwrap()
}

/// When its sender dies, the receiver has checked its lease and has not made the call yet.
#[test]
fn a_thread_that_has_its_permit_gives_one_name_after_its_sender_has_gone() {
    if !can_hold() {
        return skip("strace cannot run here: nothing holds a system call");
    }
    let mut site = Site::local();
    let log = site.path("calls");
    let directory = site.target().join("d");
    std::fs::create_dir(&directory).unwrap();
    // Other calls of the daemon, such as those in its home, are not delayed.
    site.run_by_script(&format!(
        "exec strace -D -f -qq -o '{}' -P '{}' {} '{ZMOVE}' \"$@\"",
        log.display(),
        directory.display(),
        HELD_CALLS.join(" ")
    ));
    site.start_daemon();
    site.runner.program = None;
    fill(&site, b'1');
    let contents = site.contents();
    let sender = site.push_command(&[], &[&contents], "").start();
    let deadline = Instant::now() + PATIENCE;
    while threads_in(&log) == 0 || unpublished(&site.target()) < UNPUBLISHED_MIN {
        assert!(Instant::now() < deadline, "no call is held");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(sender);
    let first = site.take_daemon();
    push_again_from_another_home(&mut site, &[], &[]);
    let threads = threads_in(&log);
    // Without the tracer, the kernel executes the delayed calls.
    kill_process(tracer_of(first.pid()), Signal::KILL).unwrap();
    first.terminate();
    assert_new(&site, threads);
}

/// Asserts that a push reported waiting for an earlier connection.
#[track_caller]
fn assert_waited(outcome: Outcome) {
    outcome.expect(0).says(&[
        "zmove: waiting: an earlier connection of this push may still write at the target; the push continues within ",
        " s",
    ]);
}

/// The source changes while the sender is disconnected.
#[test]
fn a_receiver_over_ssh_that_wakes_up_stores_nothing_over_what_the_push_has_stored_by_another() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    fill(&site, b'1');
    fill_directory(&site.path("new"), b'2');
    let port = site.path("port");
    let ports = port.clone();
    let relay = HalfCut::start(usize::MAX, move |_| {
        let port = std::fs::read_to_string(&ports).unwrap();
        ([127, 0, 0, 1], port.trim_end().parse().unwrap()).into()
    });
    // Replaces the port in the receiver's answer by the port of the relay, and saves the original one.
    let keeps = format!(r#"h; s/.*"port":\([0-9]*\).*/\1/w {}"#, port.display());
    let tells = format!(r#"g; s/"port":[0-9]*/"port":{}/"#, relay.address.port());
    let zmove = script(
        &site,
        "relayed",
        &format!("'{ZMOVE}' \"$@\" | sed -u -e '{keeps}' -e '{tells}'"),
    );
    let target = sshd.at(&site.target());
    let sender = push_by(&site, &sshd.command(), &zmove, &[], &target).start();
    let receiver = receiver_over_ssh(&site);
    let stopped = stop(&site, receiver);
    std::fs::rename(site.source().join("d"), site.path("old")).unwrap();
    std::fs::rename(site.path("new"), site.source().join("d")).unwrap();
    relay.cut();
    let outcome = finish(sender);
    wake(receiver, stopped);
    wait_for_end(receiver);
    assert_new(&site, LATE_CALLS_MAX);
    assert_waited(outcome);
}

#[test]
fn a_push_does_not_wait_for_a_receiver_over_ssh_that_has_ended() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    fill(&site, b'1');
    let target = sshd.at(&site.target());
    let sender = push_by(&site, &sshd.command(), Path::new(ZMOVE), &[], &target).start();
    let receiver = receiver_over_ssh(&site);
    stop(&site, receiver);
    kill_process(receiver, Signal::KILL).unwrap();
    // The push reports the lost and the new connection, and no wait.
    finish(sender).expect(0).lines(2);
    assert_eq!(with_content(&site, b'1'), FILES);
}

/// Length of a file that is sent only once the transfer has been opened, since it is too long to be sent speculatively.
const HELD_BACK_BYTES: usize = 3 << 20;
/// Bytes that reach the first receiver: more than the handshakes and the opening need.
const PASSES_BYTES: usize = 1 << 20;
/// Duration for which a receiver that must not publish is observed. It would publish its files within about a second.
const WATCH: Duration = Duration::from_secs(3);

/// A push to two daemons behind one name. The path to the first daemon holds back the sender's data and breaks only on
/// the sender's side. The next connections lead to the second daemon.
struct TwoDaemons {
    site: Site,
    first: Daemon,
    _second: Daemon,
    relay: HalfCut,
}

impl TwoDaemons {
    /// Starts both daemons. Also returns the push, which has just lost its first connection.
    fn begin() -> (Self, Child) {
        let mut site = Site::local();
        site.start_daemon();
        let first = site.take_daemon();
        std::fs::create_dir(site.path("second")).unwrap();
        for entry in std::fs::read_dir(site.path("server")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), site.path("second").join(entry.file_name())).unwrap();
            }
        }
        let second = Daemon::start(&site.path("second"), "127.0.0.1:0", &Runner::default());
        let addresses = [first.address, second.address];
        let relay = HalfCut::start(PASSES_BYTES, move |is_cut| addresses[usize::from(is_cut)]);
        site.pin(&relay.address, first.fingerprint);
        let held_back = site.source().join("f");
        std::fs::write(&held_back, vec![b'1'; HELD_BACK_BYTES]).unwrap();
        let sender = site.push_by(&relay.address, &["--json"]).start();
        relay.wait_until_all_is_held_back(HELD_BACK_BYTES);
        std::fs::write(&held_back, vec![b'2'; HELD_BACK_BYTES]).unwrap();
        relay.cut();
        let daemons = Self {
            site,
            first,
            _second: second,
            relay,
        };
        (daemons, sender)
    }

    /// Makes the first daemon notice the loss and terminate, then checks the target.
    fn end_and_assert_new(self) {
        self.relay.end();
        self.first.terminate();
        assert_eq!(content(&self.site), Some(b'2'));
        assert_eq!(unpublished(&self.site.target()), 0, "hidden names stay");
    }
}

/// Returns the content byte of the file under its final name.
fn content(site: &Site) -> Option<u8> {
    let bytes = std::fs::read(site.target().join("f")).ok()?;
    assert_eq!(bytes, vec![bytes[0]; HELD_BACK_BYTES]);
    Some(bytes[0])
}

/// The receiver still holds its lease. It has not noticed the loss, and the sender echoed its pings until just before.
#[test]
fn a_receiver_that_has_not_noticed_the_loss_publishes_nothing_once_the_next_session_has_begun() {
    let (daemons, sender) = TwoDaemons::begin();
    let outcome = finish(sender);
    daemons.relay.let_go();
    let watched = Instant::now();
    while watched.elapsed() < WATCH {
        assert_eq!(content(&daemons.site), Some(b'2'));
        std::thread::sleep(Duration::from_millis(10));
    }
    daemons.end_and_assert_new();
    assert_waited(outcome);
}

#[test]
fn what_a_receiver_publishes_that_has_not_noticed_the_loss_is_replaced_by_the_next_session() {
    let (daemons, sender) = TwoDaemons::begin();
    daemons.relay.let_go();
    let deadline = Instant::now() + PATIENCE;
    while content(&daemons.site).is_none() {
        assert!(Instant::now() < deadline, "nobody publishes anything");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_waited(finish(sender));
    daemons.end_and_assert_new();
}
