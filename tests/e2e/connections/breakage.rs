//! Ends in mid-transfer: a killed peer, or a user's interruption. No incomplete file has a final name, the surviving
//! side continues, and the next run completes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, Signal, kill_process};

use crate::connections::reconnect::{self, FILES, HalfWay, half_way_by};
use crate::support::command::{Outcome, Runner, Zmove, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site, has_program, skip};
use crate::support::namespace::Namespace;
use crate::support::tree::{assert_part_of, assert_same, names, paint, picture, set_mode};

const WITHOUT_RETRIES: [&str; 2] = ["--timeout", "0"];

/// A push without retries, stalled in mid-transfer.
fn half_way() -> HalfWay {
    half_way_to(Site::daemon())
}

fn half_way_to(site: Site) -> HalfWay {
    reconnect::half_way(site, &WITHOUT_RETRIES)
}

#[track_caller]
fn assert_nothing_half_written(site: &Site) {
    assert_part_of(&site.source(), &site.target());
    let temporary = |path: &Vec<u8>| {
        path.split(|&byte| byte == b'/')
            .any(|name| name.starts_with(b".zmove"))
    };
    assert!(
        !picture(&site.target()).keys().any(temporary),
        "a temporary file is left"
    );
}

/// Asserts that a push without retries has lost its connections.
#[track_caller]
pub(crate) fn assert_connection_lost(outcome: Outcome) {
    let Outcome { code, stderr, .. } = &outcome;
    assert!(matches!(code, Some(10 | 12)), "{code:?}: {stderr}");
    outcome.says(&["zmove: ", "connection"]).lines(1);
}

#[test]
fn a_push_without_retries_fails_when_the_daemon_is_killed_and_the_next_one_completes() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way();
    let mut daemon = site.take_daemon();
    daemon.kill();
    assert_connection_lost(finish(client));
    // A killed process cannot clean up. Its leftovers have no final names, and the next run removes them.
    assert_part_of(&site.source(), &site.target());
    let again = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    assert_eq!(again.fingerprint, daemon.fingerprint);
    proxy.reset(again.address);
    let push = site.push_by(&proxy.address, &["--json", "--timeout", "0"]);
    let summary = push.outcome().done().summary();
    assert_eq!(
        summary["files"].as_u64().unwrap() + summary["skipped"].as_u64().unwrap(),
        FILES
    );
    assert_same(&site.source(), &site.target());
}

#[test]
fn the_daemon_leaves_no_partial_file_when_the_client_is_killed() {
    kill_client(half_way());
}

#[test]
fn the_daemon_leaves_no_partial_file_when_a_client_over_lanes_in_clear_is_killed() {
    kill_client(half_way_to(Site::clear()));
}

fn kill_client(
    HalfWay {
        site,
        proxy,
        mut client,
    }: HalfWay,
) {
    client.kill().unwrap();
    client.wait().unwrap();
    proxy.reset(site.the_daemon().address);
    site.the_daemon().wait_for_log("broken off by tester");
    assert_nothing_half_written(&site);
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

/// Whether this process ignores a signal. Its child processes then ignore the signal too.
fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

/// A non-interactive shell starts its background processes with ignored signals.
#[test]
fn a_signal_that_its_parent_ignores_does_not_end_a_client() {
    if !has_program("env") {
        return skip("env of coreutils is missing: nothing ignores signals for others");
    }
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way_by(Site::daemon(), &WITHOUT_RETRIES, |push| {
        let mut env = Command::new("env");
        env.arg("--ignore-signal=INT,TERM,QUIT,HUP")
            .arg(push.0.get_program())
            .args(push.0.get_args());
        for (name, value) in push.0.get_envs() {
            env.env(name, value.unwrap());
        }
        env.current_dir(push.0.get_current_dir().unwrap());
        Zmove(env)
    });
    for signal in [Signal::INT, Signal::TERM, Signal::QUIT, Signal::HUP] {
        kill_process(Pid::from_child(&client), signal).unwrap();
    }
    proxy.resume_without(0, u64::MAX);
    finish(client).done();
    assert_same(&site.source(), &site.target());
}

#[test]
fn an_interrupted_client_leaves_no_partial_file() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        if ignores(signal) {
            skip("the signal is ignored here, as below nohup");
            continue;
        }
        let HalfWay {
            site,
            proxy,
            client,
        } = half_way();
        let outcome = end_by(client, signal);
        outcome
            .expect(20)
            .says(&["zmove: interrupted", "the same command"])
            .lines(1);
        proxy.reset(site.the_daemon().address);
        site.the_daemon().wait_for_log("broken off by tester");
        assert_nothing_half_written(&site);
        site.push_contents();
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn a_broken_path_leaves_no_partial_file() {
    break_path(half_way());
}

#[test]
fn a_broken_path_of_lanes_in_clear_leaves_no_partial_file() {
    break_path(half_way_to(Site::clear()));
}

/// The path breaks while both ends are alive.
fn break_path(
    HalfWay {
        site,
        proxy,
        client,
    }: HalfWay,
) {
    proxy.reset(site.the_daemon().address);
    assert_connection_lost(finish(client));
    site.the_daemon().wait_for_log("broken off by tester");
    assert_nothing_half_written(&site);
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

/// The test is repeated, since both roles must notice the interruption and one may be waiting for the other.
#[test]
fn an_interrupted_local_push_leaves_only_complete_files() {
    for _ in 0..4 {
        let site = Site::local();
        paint(site.source().join("small"), 1_000);
        // Copying these zeros takes longer than the test.
        std::fs::File::create(site.source().join("endless"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let appeared = Appearance::of("small", &site.target());
        let mut zmove = site.zmove(&["push", "--json", "--sparse", "never", "source/"]);
        zmove.0.arg(site.target());
        let client = zmove.start();
        appeared.wait();
        interrupt(client)
            .expect(20)
            .says(&["zmove: interrupted"])
            .lines(1);
        let mut names = names(&site.target());
        names.retain(|name| !name.starts_with(".zmove-"));
        assert_eq!(names, ["small"]);
        std::fs::remove_file(site.source().join("endless")).unwrap();
        clean_parts(&site, "client");
        site.push_contents();
        assert_same(&site.source(), &site.target());
    }
}

/// The source directory is closed to other users, but its files are not.
#[test]
fn a_new_target_is_closed_to_others_until_its_mode_is_set() {
    let site = Site::local();
    std::fs::File::create(site.source().join("endless"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    set_mode(site.source(), 0o750);
    let appeared = Appearance::of("new", &site.target());
    let client = site
        .push_command(
            &["--sparse", "never"],
            &[site.contents().as_os_str()],
            "new",
        )
        .start();
    appeared.wait();
    let mode = || site.target().join("new").metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o700);
    kill(client);
    assert_eq!(mode(), 0o700);
    std::fs::remove_file(site.source().join("endless")).unwrap();
    clean_parts(&site, "client");
    site.push(&[], site.contents(), "new").done();
    assert_eq!(mode(), 0o750);
}

/// The kernel recreates a directory of the lower layer, with a new birth time, when the first entry is created in it.
#[test]
fn leftovers_of_a_killed_push_in_a_lower_layer_are_removed() {
    let Some(site) = Site::within(Namespace::with_layers) else {
        return;
    };
    let target = site.namespace().outside(&site.target());
    paint(site.source().join("d/small"), 1_000);
    std::fs::File::create(site.source().join("endless"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let hidden = || {
        names(&target.join("d"))
            .iter()
            .filter(|name| name.starts_with(".zmove-"))
            .count()
    };
    let appeared = Appearance::of_beginning(".zmove-", &target.join("d"));
    let client = site
        .push_command(&["--sparse", "never"], &[site.contents().as_os_str()], "")
        .start();
    appeared.wait();
    kill(client);
    assert_eq!(hidden(), 1);
    std::fs::remove_file(site.source().join("endless")).unwrap();
    clean_parts(&site, "client");
    site.push_contents();
    assert_eq!(hidden(), 0);
    assert_same(&site.source(), &target);
}

#[test]
fn a_daemon_that_stops_leaves_no_partial_file() {
    assert_eq!(Site::daemon().take_daemon().terminate(), Some(0));
    let HalfWay {
        mut site,
        client,
        proxy: _stalled,
    } = half_way();
    assert_eq!(site.take_daemon().terminate(), Some(0));
    let outcome = finish(client);
    assert!(
        matches!(outcome.code, Some(10 | 13)),
        "{:?}: {}",
        outcome.code,
        outcome.stderr
    );
    assert_nothing_half_written(&site);
}

/// Removes the parts of files that no transfer continues. Such parts stay until they are removed explicitly.
pub(crate) fn clean_parts(site: &Site, home: &str) {
    let mut clean = site.zmove(&["journal", "clean", "--all"]);
    clean.0.env("ZMOVE_HOME", site.path(home));
    clean.outcome().expect(0);
}

pub(crate) fn interrupt(client: Child) -> Outcome {
    end_by(client, interruption())
}

/// Returns SIGINT, or SIGTERM if this process and therefore its children ignore SIGINT, as in a background script.
pub(crate) fn interruption() -> Signal {
    if ignores(Signal::INT) {
        Signal::TERM
    } else {
        Signal::INT
    }
}

/// Kills a client and asserts that it had not ended before.
pub(crate) fn kill(client: Child) {
    assert_eq!(end_by(client, Signal::KILL).code, None);
}

#[track_caller]
pub(crate) fn end_by(client: Child, signal: Signal) -> Outcome {
    let pid = Pid::from_raw(i32::try_from(client.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    finish(client)
}

/// A watch for a name that is about to appear in a directory.
pub(crate) struct Appearance {
    watch: rustix::fd::OwnedFd,
    name: &'static str,
    /// Whether `name` is only a prefix of the awaited name.
    begins: bool,
}

impl Appearance {
    pub(crate) fn of(name: &'static str, directory: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, directory, events).unwrap();
        Self {
            watch,
            name,
            begins: false,
        }
    }

    /// A watch for a name with this prefix.
    pub(crate) fn of_beginning(name: &'static str, directory: &Path) -> Self {
        Self {
            begins: true,
            ..Self::of(name, directory)
        }
    }

    pub(crate) fn wait(self) {
        let mut room = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut room);
        loop {
            if events.is_buffer_empty() {
                let mut poll_fds = [PollFd::new(&self.watch, PollFlags::IN)];
                let patience = PATIENCE.try_into().unwrap();
                assert_eq!(
                    poll(&mut poll_fds, Some(&patience)).unwrap(),
                    1,
                    "'{}' did not appear",
                    self.name
                );
            }
            let event = events.next().unwrap();
            let (expected, begins) = (self.name.as_bytes(), self.begins);
            let is_it = |name: &[u8]| name == expected || (begins && name.starts_with(expected));
            if event.file_name().is_some_and(|name| is_it(name.to_bytes())) {
                return;
            }
        }
    }
}
