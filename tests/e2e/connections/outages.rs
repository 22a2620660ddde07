//! Outages that do not end. A transfer whose sessions make no progress fails at its timeout, whichever side dials. A
//! transfer that makes progress has no timeout.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};
use zmove_types::GROUP_BYTES;

use crate::commands::copy::World;
use crate::connections::reconnect::{HalfWay, half_way};
use crate::support::command::{Outcome, Runner, Zmove, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::proxy::Proxy;
use crate::support::quiet_machine::calm_machine;
use crate::support::tree::{assert_same, names, paint};

#[track_caller]
fn assert_given_up(outcome: Outcome, relay: &Proxy) {
    let address = relay.address.to_string();
    let end = [
        " consecutive sessions with ",
        &address,
        " were lost without any progress: ",
    ];
    outcome.expect(12).says(&end);
}

/// Repeats an action while `doing` runs, until `doing` returns or panics.
fn while_doing<T>((each, again): (Duration, impl Fn() + Sync), doing: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(each);
                again();
            }
        });
        let _over = Over(&over);
        doing()
    })
}

/// Runs a command while the only small file of the source keeps changing.
fn with_a_file_that_changes(site: &Site, zmove: Zmove) -> Outcome {
    let new = site.path("new");
    let change = || {
        paint(&new, 1_000);
        std::fs::rename(&new, site.source().join("log")).unwrap();
    };
    while_doing((Duration::from_millis(20), change), || zmove.outcome())
}

/// Rate limit that is low enough for the small file to be renamed into place before `LITTLE` bytes of the large one
/// have passed.
const SLOWLY: [&str; 2] = ["--limit", "1MB"];
const LITTLE: u64 = 1_500_000;

fn with_a_large_file(site: Site) -> Site {
    paint(site.source().join("large"), 3 * GROUP_BYTES);
    site
}

#[test]
fn a_push_that_sends_the_same_file_again_and_again_ends() {
    let site = with_a_large_file(Site::daemon());
    let relay = Proxy::cutting(site.the_daemon().address, LITTLE);
    site.pin(&relay.address, site.the_daemon().fingerprint);
    let push = site.push_by(
        &relay.address,
        &[&["--timeout", "5s"], &SLOWLY[..]].concat(),
    );
    assert_given_up(with_a_file_that_changes(&site, push), &relay);
    assert!(names(&site.target()).contains(&"log".to_owned()));
}

fn pull_by(site: &Site, relay: &Proxy, options: &[&str]) -> Zmove {
    site.pin(&relay.address, site.the_daemon().fingerprint);
    let mut pull = site.zmove(&[&["pull", "--json"], options].concat());
    pull.0.arg(format!("{}:", relay.address)).arg(site.target());
    pull
}

#[test]
fn a_pull_that_brings_the_same_file_again_and_again_ends() {
    let site = with_a_large_file(Site::reading(&[], &[]));
    let relay = Proxy::cutting_down(site.the_daemon().address, LITTLE);
    let pull = pull_by(&site, &relay, &[&["--timeout", "5s"], &SLOWLY[..]].concat());
    assert_given_up(with_a_file_that_changes(&site, pull), &relay);
    assert!(names(&site.target()).contains(&"log".to_owned()));
}

/// Each session transfers a few groups, and no more than the previous one.
#[test]
fn a_pull_that_makes_progress_reconnects_without_limit() {
    let site = Site::reading(&[], &[]);
    paint(site.source().join("large"), 24 * GROUP_BYTES);
    let relay = Proxy::cutting_down(site.the_daemon().address, 13 << 20);
    // The rate is low enough for all data that has passed to be stored before the connection is cut.
    let outcome = pull_by(&site, &relay, &["--timeout", "5s", "--limit", "15MB"])
        .outcome()
        .expect(0);
    assert!(
        outcome.summary()["reconnects"].as_u64() > Some(5),
        "{}",
        outcome.stdout
    );
    assert_same(&site.source(), &site.target());
}

/// A copy through relays to both hosts.
fn copy_by(world: &World, [source, target]: [&SocketAddr; 2]) -> Zmove {
    let World {
        site,
        sender,
        receiver,
    } = world;
    let client = Identity::load_or_create(&site.path("client"))
        .unwrap()
        .fingerprint();
    let grant = Grant::new(client, "tester", Vec::new(), Access::ReadOnly);
    let read_roots = vec![site.source().canonicalize().unwrap()];
    let grant = Grant {
        read_roots,
        to: vec![target.to_string()],
        ..grant
    };
    AuthorizedKeys::allow(&site.path("sender"), grant).unwrap();
    site.pin(source, sender.fingerprint);
    site.pin(target, receiver.fingerprint);
    paint(site.source().join("large"), 12 * GROUP_BYTES);
    let mut copy = site.zmove(&["copy", "--timeout", "6s"]);
    copy.0.arg(format!("{source}:")).arg(format!("{target}:"));
    copy
}

#[test]
fn a_copy_without_progress_ends_when_its_client_is_cut_off_again_and_again() {
    let _calm = calm_machine();
    let world = World::new();
    let target = Proxy::start(world.receiver.address, 10 << 20);
    let source = Proxy::start(world.sender.address, u64::MAX);
    let copy = copy_by(&world, [&source.address, &target.address]).start();
    target.wait_for_stall();
    let cut = || source.reset(world.sender.address);
    assert_given_up(
        while_doing((Duration::from_millis(300), cut), || finish(copy)),
        &source,
    );
    assert_eq!(
        world.sender.count_logged("copied for tester"),
        0,
        "it goes on"
    );
}

#[test]
fn a_copy_whose_hosts_lose_each_other_again_and_again_ends() {
    let world = World::new();
    let target = Proxy::cutting(world.receiver.address, 1 << 20);
    let outcome = copy_by(&world, [&world.sender.address, &target.address]).outcome();
    assert_given_up(outcome, &target);
}

#[test]
fn a_push_that_was_stopped_for_longer_than_its_timeout_dials_again() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way(Site::daemon(), &["--timeout", "5s"]);
    let mut daemon = site.take_daemon();
    daemon.kill();
    proxy.reset(daemon.address);
    proxy.wait_for_refused(1);
    let pid = Pid::from_child(&client);
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(7));
    let _again = Daemon::start(
        &site.path("server"),
        &daemon.address.to_string(),
        &Runner::default(),
    );
    kill_process(pid, Signal::CONT).unwrap();
    finish(client).expect(0).says(&["reconnected after "]);
    assert_same(&site.source(), &site.target());
}
