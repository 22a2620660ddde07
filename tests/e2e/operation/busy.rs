//! A busy receiver: pushes wait for their turn, report the wait, and complete.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use zmove_transport::{Access, AuthorizedKeys, Grant, Identity, KnownHosts};

use crate::support::command::{Outcome, Zmove, finish};
use crate::support::harness::{PATIENCE, Site};
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

const BUSY: &str = "zmove: waiting: the receiver is busy: ";

/// A site with a small source, whose daemon has these limits.
fn site(limits: &str) -> Site {
    let site = Site::limited(limits);
    for number in 0..10 {
        paint(site.source().join(format!("f{number}")), 1024);
    }
    site
}

/// A push that holds the only slot.
struct Long(Child);

impl Long {
    fn begin(site: &Site) -> Self {
        paint(site.path("long"), 16 << 20);
        let long = Self::begin_into(site, "");
        site.the_daemon().wait_for_log("begun by tester");
        long
    }

    fn begin_into(site: &Site, target: &str) -> Self {
        let long = ["--limit", "1Mbit", "--timeout", "0"];
        Self(
            site.push_command(&long, &[site.path("long").as_ref()], target)
                .start(),
        )
    }

    fn end(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Pushes the source into a separate directory.
fn push_into(site: &Site, name: &str) -> Zmove {
    site.push_command(&[], &[site.contents().as_ref()], name)
}

#[track_caller]
fn assert_waited(outcome: Outcome, limit: &str) {
    outcome.expect(0).says(&[BUSY, limit]).lines(1);
}

/// A push that exceeds a limit waits, whichever limit it is, and data in flight at that time is not lost.
#[test]
fn a_push_waits_for_its_turn_and_says_so_once() {
    for limit in [
        "transfers = 1",
        "transfers_per_identity = 1",
        "lanes = 15",
        "lanes_per_identity = 15",
    ] {
        let site = site(limit);
        for number in 0..20 {
            paint(site.source().join(format!("larger{number}")), 300_000);
        }
        let long = Long::begin(&site);
        let waiting = push_into(&site, "").start();
        let line = site.the_daemon().wait_for_log("queued: tester");
        assert!(line.contains(&format!("limits.{limit}")), "{line}");
        long.end();
        assert_waited(finish(waiting), &format!("limits.{limit}"));
        std::fs::remove_file(site.target().join("long")).ok();
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn a_preview_waits_too() {
    let site = site("transfers = 1");
    let long = Long::begin(&site);
    let waiting = site
        .push_command(&["--dry-run"], &[site.contents().as_ref()], "")
        .start();
    site.the_daemon().wait_for_log("queued: tester");
    long.end();
    assert_waited(finish(waiting), "limits.transfers = 1");
}

/// A busy host closes lanes. They are redialed without losing the session.
#[test]
fn a_pull_waits_for_its_turn_in_one_session() {
    let site = site("transfers = 1");
    site.let_read("source");
    paint(site.source().join("large"), 9 << 20);
    let long = Long::begin(&site);
    let waiting = site.pull_command(&["--json"], &[""], "pulled").start();
    site.the_daemon().wait_for_log("queued: tester");
    long.end();
    let outcome = finish(waiting).expect(0);
    assert_eq!(
        outcome.summary()["reconnects"].as_u64(),
        Some(0),
        "{}",
        outcome.stdout
    );
    assert_same(&site.source(), &site.target().join("pulled"));
}

/// Number of TCP connections of a process.
fn connections(process: &Child) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let inodes: Vec<_> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(9))
        .collect();
    let held = std::fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap();
    let held = held.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let inode = |link: PathBuf| {
        Some(
            link.to_str()?
                .strip_prefix("socket:[")?
                .trim_end_matches(']')
                .to_owned(),
        )
    };
    // Several descriptors may refer to the same connection.
    let held: BTreeSet<_> = held
        .filter_map(inode)
        .filter(|inode| inodes.contains(&inode.as_str()))
        .collect();
    held.len()
}

/// A waiting push has one connection. Its lanes are closed and not redialed before its turn.
#[test]
fn a_queued_push_keeps_no_lanes() {
    let site = site("transfers = 1");
    paint(site.source().join("large"), 9 << 20);
    let long = Long::begin(&site);
    let waiting = push_into(&site, "a").start();
    site.the_daemon().wait_for_log("queued: tester");
    // The program does not report closed lanes.
    let until = Instant::now() + PATIENCE;
    while connections(&waiting) != 1 {
        assert!(
            Instant::now() < until,
            "{} connections",
            connections(&waiting)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    long.end();
    assert_waited(finish(waiting), "limits.transfers = 1");
}

#[test]
fn a_push_gives_up_if_its_turn_does_not_come_within_the_timeout() {
    let site = site("transfers_per_identity = 1");
    let long = Long::begin(&site);
    let outcome = site.push(&["--timeout", "1s"], site.contents(), "");
    let outcome = outcome
        .expect(13)
        .says(&[BUSY, "limits.transfers_per_identity = 1"]);
    outcome
        .says(&[
            "zmove: receiver: ",
            "limits.transfers_per_identity = 1",
            "still waiting in line after 1 s",
        ])
        .lines(2);
    let at_once = site
        .push(&["--timeout", "0"], site.contents(), "")
        .expect(13);
    at_once.says(&["zmove: receiver: ", "limits.transfers_per_identity = 1"]);
    long.end();
    push_into(&site, "").outcome().expect(0);
}

/// Pushes over the limit of waiting transfers are refused and retry automatically.
#[test]
fn the_queue_is_bounded() {
    let site = site("transfers_per_identity = 1\nqueued_per_identity = 1");
    let long = Long::begin(&site);
    let first = push_into(&site, "first").start();
    site.the_daemon().wait_for_log("queued: tester");
    let at_once = site
        .push(&["--timeout", "0"], site.contents(), "")
        .expect(13);
    at_once
        .says(&["limits.queued_per_identity = 1", "try again later"])
        .lines(1);
    let second = push_into(&site, "second").start();
    site.the_daemon()
        .wait_for_logs("limits.queued_per_identity = 1", 3);
    long.end();
    assert_waited(finish(first), "limits.transfers_per_identity = 1");
    finish(second)
        .expect(0)
        .says(&[BUSY, "limits.queued_per_identity = 1"])
        .lines(1);
}

/// The queue position of a killed sender is released before the queue advances.
#[test]
fn a_killed_push_frees_its_place_in_the_queue() {
    let site = site("transfers_per_identity = 1\nqueued_per_identity = 1");
    let long = Long::begin(&site);
    let mut gone = push_into(&site, "gone").start();
    site.the_daemon().wait_for_log("queued: tester");
    gone.kill().unwrap();
    gone.wait().unwrap();
    let next = push_into(&site, "next").start();
    site.the_daemon().wait_for_logs("queued: tester", 2);
    long.end();
    finish(next).expect(0);
    assert!(!site.target().join("gone").exists());
}

/// Authorizes a second client for the target.
pub(crate) fn befriend(site: &Site) {
    let identity = Identity::load_or_create(&site.path("friend")).unwrap();
    let roots = vec![site.path("target").canonicalize().unwrap()];
    let grant = Grant::new(identity.fingerprint(), "friend", roots, Access::WriteOnly);
    AuthorizedKeys::allow(&site.path("server"), grant).unwrap();
    let daemon = site.the_daemon();
    let mut known_hosts = KnownHosts::open(&site.path("friend")).unwrap();
    known_hosts
        .pin("127.0.0.1", daemon.address.port(), daemon.fingerprint)
        .unwrap();
}

#[test]
fn queued_pushes_start_in_turns_of_their_keys() {
    let site = site("transfers = 1");
    befriend(&site);
    let long = Long::begin(&site);
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(push_into(&site, &format!("own{number}")).start());
        site.the_daemon()
            .wait_for_logs("queued: tester", number + 1);
    }
    let mut friend = push_into(&site, "friend");
    friend.0.env("ZMOVE_HOME", site.path("friend"));
    waiting.push(friend.start());
    site.the_daemon().wait_for_log("queued: friend");
    long.end();
    for child in waiting {
        assert_waited(finish(child), "limits.transfers = 1");
    }
    let begun = site.the_daemon().wait_for_logs("begun by ", 5);
    let names = begun.iter().map(|line| {
        if line.contains("begun by friend") {
            "friend"
        } else {
            "tester"
        }
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["tester", "tester", "friend", "tester", "tester"]
    );
}

#[test]
fn many_small_pushes_at_once_all_end_well() {
    let _quiet = quiet_machine();
    let site = site("transfers_per_identity = 4\nqueued_per_identity = 12\nunproven = 8");
    // The test starts more pushes than may run and wait at the same time.
    let pushes: Vec<_> = (0..24)
        .map(|number| push_into(&site, &format!("d{number}")).start())
        .collect();
    for push in pushes {
        finish(push).expect(0);
    }
    for number in 0..24 {
        assert_same(&site.source(), &site.target().join(format!("d{number}")));
    }
    site.the_daemon().wait_for_logs("received from tester", 24);
    let broken = site.the_daemon().logged("broken off");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A batch system starts all jobs at the same time with one key, which may run 32 transfers concurrently.
#[test]
fn an_array_of_a_hundred_jobs_waits_its_turn_and_all_end_well() {
    let _quiet = quiet_machine();
    let site = site("");
    paint(site.path("long"), 32 << 20);
    let running: Vec<_> = (0..32)
        .map(|number| Long::begin_into(&site, &format!("l{number}")))
        .collect();
    site.the_daemon().wait_for_logs("begun by tester", 32);
    let job = |number: usize| push_into(&site, &format!("d{number}")).start();
    let jobs: Vec<_> = (0..100).map(job).collect();
    // The remaining jobs wait too, or retry until there is room.
    site.the_daemon().wait_for_logs("queued: tester", 32);
    running.into_iter().for_each(Long::end);
    for job in jobs {
        finish(job).expect(0);
    }
    for number in 0..100 {
        assert_same(&site.source(), &site.target().join(format!("d{number}")));
    }
}

/// The push needs exactly two connections: one for control and one for the only batch.
#[test]
fn a_small_push_dials_one_lane() {
    let _quiet = quiet_machine();
    let site = site("");
    // On a busy machine the scan may not have ended when the lanes are dialed.
    let lanes = |number: usize| {
        let pushed = site.push(&["--json"], site.contents(), &format!("d{number}"));
        pushed.done().summary()["lanes"].as_u64().unwrap()
    };
    let small: Vec<_> = (0..5).map(lanes).collect();
    let with_one = small.iter().filter(|lanes| **lanes == 1).count();
    assert!(with_one > 2, "{small:?}");
    paint(site.source().join("large"), 9 << 20);
    assert!(site.push_contents()["lanes"].as_u64().unwrap() > 1);
}

#[test]
fn a_queued_push_ends_with_the_reason_when_the_daemon_stops() {
    let mut site = site("transfers = 1");
    let mut long = Long::begin(&site);
    let waiting = push_into(&site, "a").start();
    site.the_daemon().wait_for_log("queued: tester");
    let daemon = site.take_daemon();
    assert_eq!(daemon.terminate(), Some(0));
    finish(waiting).expect(13).says(&["being stopped"]);
    drop(long.0.kill());
    long.0.wait().unwrap();
}
