//! A receiver that was stopped while its sender was killed stores nothing when it goes on: another push may have stored
//! newer contents under the same names.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command::ZMOVE;
use crate::harness::{PATIENCE, Site};
use crate::ssh::{Sshd, push_by};

const FILES: usize = 10_000;
/// The unpublished files of a receiver that is worth stopping.
const UNPUBLISHED_MIN: usize = 900;
/// How long it stays stopped at least.
const STOP_MIN: Duration = Duration::from_secs(1);
/// A call that was permitted before the receiver was stopped may still be made, one for each thread that publishes.
const LATE_CALLS_MAX: usize = 8;

/// Fills the source with files whose contents tell which push they belong to.
fn fill(site: &Site, content: u8) {
    let directory = site.source().join("d");
    std::fs::create_dir_all(&directory).unwrap();
    for number in 0..FILES {
        std::fs::write(directory.join(format!("{number:05}")), [content; 100]).unwrap();
    }
}

/// The files that have their names at the target and these contents.
fn with_content(site: &Site, content: u8) -> usize {
    let names = std::fs::read_dir(site.target().join("d")).unwrap();
    let has_it = |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes == [content; 100]);
    names
        .map(|entry| entry.unwrap().path())
        .filter(has_it)
        .count()
}

/// The files that a receiver has stored under hidden names.
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

/// Stops a receiver that has much to publish, and kills its sender.
fn stop_and_kill(site: &Site, receiver: Pid, mut sender: Child) -> Instant {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if unpublished(&site.target()) >= UNPUBLISHED_MIN {
            kill_process(receiver, Signal::STOP).unwrap();
            if unpublished(&site.target()) >= UNPUBLISHED_MIN {
                break;
            }
            kill_process(receiver, Signal::CONT).unwrap();
        }
        assert!(Instant::now() < deadline, "it never has much to publish");
    }
    let stopped = Instant::now();
    sender.kill().unwrap();
    // Its output is not read to the end: the ssh that it has started lives on and has it as well.
    assert_eq!(sender.wait().unwrap().code(), None);
    stopped
}

/// Lets a stopped receiver go on once it has been stopped for long enough.
fn wake(receiver: Pid, stopped: Instant) {
    std::thread::sleep(STOP_MIN.saturating_sub(stopped.elapsed()));
    kill_process(receiver, Signal::CONT).unwrap();
}

/// The times of directories are not compared: whoever removes its hidden files changes them.
fn assert_new(site: &Site) {
    let old = with_content(site, b'1');
    assert!(old <= LATE_CALLS_MAX, "{old} of {FILES} files are old");
    assert_eq!(with_content(site, b'2'), FILES - old);
    assert_eq!(unpublished(&site.target()), 0, "hidden names stay");
}

/// The receiver that ssh has started for a site.
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
    }
}

fn wait_for_end(pid: Pid) {
    let deadline = Instant::now() + PATIENCE;
    let process = format!("/proc/{}/exe", pid.as_raw_nonzero());
    while std::fs::read_link(&process).is_ok() {
        assert!(Instant::now() < deadline, "the receiver does not end");
        std::thread::yield_now();
    }
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
    assert_new(&site);
}

/// Pushes to the first of two daemons on the same storage, and after that to the second, from another home.
fn to_another_daemon(mut site: Site, options: &[&str], serve_options: &[&str]) {
    site.start_daemon_with(serve_options);
    let contents = site.contents();
    fill(&site, b'1');
    let sender = site
        .push_command(options, &[contents.as_os_str()], "")
        .start();
    let first = site.take_daemon();
    let stopped = stop_and_kill(&site, first.pid(), sender);
    fill(&site, b'2');
    std::fs::rename(site.path("client"), site.path("first_client")).unwrap();
    std::fs::rename(site.path("server"), site.path("first_server")).unwrap();
    for home in ["client", "server"] {
        std::fs::create_dir(site.path(home)).unwrap();
    }
    site.start_daemon_with(serve_options);
    site.push(options, &contents, "").expect(0);
    wake(first.pid(), stopped);
    first.terminate();
    assert_new(&site);
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
