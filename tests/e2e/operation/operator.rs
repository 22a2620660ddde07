//! The commands of the operator of a daemon's host, who lists and stops transfers.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::command::{LinesOf, Outcome, ZMOVE, Zmove, finish};
use crate::support::harness::{PATIENCE, Site};
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, paint};

/// Runs `zmove WORDS` as the operator of the daemon's host.
fn operator(site: &Site, words: &[&str]) -> Outcome {
    let mut zmove = Command::new(ZMOVE);
    zmove.env("ZMOVE_HOME", site.path("server")).args(words);
    Zmove(zmove).outcome()
}

fn status(site: &Site) -> Value {
    let status =
        serde_json::from_str(&operator(site, &["status", "--json"]).done().stdout).unwrap();
    assert_eq!(
        crate::commands::schema::fault(&crate::commands::schema::schema("status.json"), &status),
        None
    );
    status
}

/// Waits until the daemon has one transfer for which `holds` is true, and returns it.
fn wait_for(site: &Site, holds: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(site);
        if let Some(found) = status["transfers"]
            .as_array()
            .unwrap()
            .iter()
            .find(|transfer| holds(transfer))
        {
            return found.clone();
        }
        assert!(Instant::now() < until, "{status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn has_moved(transfer: &Value) -> bool {
    transfer["bytes"].as_u64().unwrap() > 0
}

/// Starts a push of a file of 24 MiB at this rate.
fn slow_push(site: &Site, rate: &str) -> Child {
    paint(site.source().join("large"), 24 << 20);
    site.push_command(
        &["--limit", rate, "--streams", "1"],
        &[site.contents().as_ref()],
        "",
    )
    .start()
}

/// A site whose daemon has one slot for transfers, which is taken.
struct Occupied {
    site: Site,
    long: Child,
}

impl Occupied {
    fn new() -> Self {
        let site = Site::limited("transfers = 1");
        let long = slow_push(&site, "1Mbit");
        wait_for(&site, has_moved);
        Self { site, long }
    }
}

#[test]
fn a_push_is_shown_and_stopped_and_the_same_command_resumes_it() {
    let site = Site::daemon();
    let push = slow_push(&site, "8Mbit");
    let has_whole_group =
        |shown: &Value| shown["bytes"].as_u64() > Some(zmove_types::GROUP_BYTES + (1 << 20));
    let shown = wait_for(&site, |shown| {
        has_whole_group(shown) && !shown["eta_seconds"].is_null()
    });
    assert_eq!(
        (&shown["files_found"], &shown["bytes_found"]),
        (&Value::from(1), &Value::from(24 << 20))
    );
    assert!(
        (1..120).contains(&shown["eta_seconds"].as_u64().unwrap()),
        "{shown}"
    );
    assert_eq!(
        (&shown["name"], &shown["direction"]),
        (&Value::from("tester"), &Value::from("receive"))
    );
    assert!(
        shown["key"].as_str().unwrap().starts_with("SHA256:"),
        "{shown}"
    );
    assert!(
        shown["from"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{shown}"
    );
    assert!(
        shown["lanes"].as_u64().unwrap() > 0 && shown["waits"] == false,
        "{shown}"
    );
    let table = operator(&site, &["status"]).done().stdout;
    assert!(
        table.contains("1 transfer\n") && table.contains("tester"),
        "{table}"
    );
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    let digits = &shown["id"].as_str().unwrap()[..8];
    let said = operator(&site, &["stop", digits]).done();
    assert!(said.stdout.contains("stopped "), "{}", said.stdout);
    finish(push)
        .expect(3)
        .says(&[
            "the operator there stopped this transfer",
            "the same command",
        ])
        .lines(1);
    site.the_daemon()
        .wait_for_log("the operator ends transfer ");
    site.the_daemon().wait_for_log("broken off by tester");
    let left = operator(&site, &["journal", "list"]).done().stdout;
    assert!(
        left.contains("  by tester (key SHA256:") && left.contains(" of 24.0 MiB received"),
        "{left}"
    );
    let summary = site.push_contents();
    assert_same(&site.source(), &site.target());
    assert!(
        summary["bytes_resumed"].as_u64().unwrap() > 0,
        "nothing was left to go on from: {summary}"
    );
}

/// On a slow path it takes minutes until a group is complete.
#[test]
fn status_counts_bytes_of_an_incomplete_group() {
    let site = Site::daemon();
    let mut push = slow_push(&site, "1Mbit");
    let shown = wait_for(&site, has_moved);
    assert!(
        shown["bytes"].as_u64().unwrap() < zmove_types::GROUP_BYTES,
        "{shown}"
    );
    push.kill().unwrap();
    push.wait().unwrap();
}

#[test]
fn only_the_user_of_a_daemon_may_use_its_socket() {
    let site = Site::daemon();
    let mode = site
        .path("server/control.sock")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_pull_has_totals_and_ends_when_its_key_is_removed() {
    let site = Site::daemon();
    site.let_read("source");
    paint(site.source().join("large"), 24 << 20);
    let large = site.source().join("large");
    let pull = site
        .pull_command(&["--limit", "8Mbit"], &[large.to_str().unwrap()], "")
        .start();
    let shown = wait_for(&site, |shown| {
        has_moved(shown) && !shown["eta_seconds"].is_null()
    });
    assert_eq!(shown["direction"], "send");
    assert_eq!(
        (&shown["files_found"], &shown["bytes_found"]),
        (&Value::from(1), &Value::from(24 << 20))
    );
    let said = operator(&site, &["allow", "remove", "tester", "--now"])
        .done()
        .stdout;
    assert!(
        said.contains("is no longer allowed") && said.contains("stopped "),
        "{said}"
    );
    finish(pull)
        .expect(5)
        .says(&["the operator there removed this key"]);
    site.push(&[], site.contents(), "").expect(5);
}

#[test]
fn a_daemon_that_drains_ends_with_its_last_transfer() {
    let mut site = Site::daemon();
    paint(site.source().join("large"), 24 << 20);
    let relay = Proxy::start(site.the_daemon().address, 8 << 20);
    site.pin(&relay.address, site.the_daemon().fingerprint);
    let push = site.push_by(&relay.address, &[]).start();
    relay.wait_for_stall();
    wait_for(&site, has_moved);
    let said = operator(&site, &["drain"]).done().stdout;
    assert!(
        said.contains("accepts no new transfers and exits after 1 transfer in progress"),
        "{said}"
    );
    site.push(&["--timeout", "0"], site.contents(), "other")
        .expect(13)
        .says(&["is being stopped", "try again later"]);
    assert_eq!(status(&site)["draining"], true);
    relay.resume_without_busiest(0);
    finish(push).done();
    assert_same(&site.source(), &site.target());
    assert_eq!(site.take_daemon().wait(), Some(0));
    operator(&site, &["status"])
        .expect(10)
        .says(&["no daemon answers on this host", "control.sock"])
        .lines(1);
}

/// An idle daemon ends immediately and reports this first.
#[test]
fn a_daemon_that_is_idle_drains_and_answers() {
    let mut site = Site::daemon();
    let said = operator(&site, &["drain"]).done().stdout;
    assert!(
        said.contains("exits after 0 transfers in progress"),
        "{said}"
    );
    assert_eq!(site.take_daemon().wait(), Some(0));
}

#[test]
fn a_queued_transfer_is_listed_and_can_be_stopped() {
    let Occupied { site, mut long } = Occupied::new();
    let waiting = site
        .push_command(&["--json"], &[site.contents().as_ref()], "other")
        .start();
    let shown = wait_for(&site, |shown| shown["waits"] == true);
    assert!(
        shown["reason"]
            .as_str()
            .unwrap()
            .contains("limits.transfers = 1"),
        "{shown}"
    );
    operator(&site, &["stop", shown["id"].as_str().unwrap()]).done();
    let ended = finish(waiting)
        .expect(3)
        .says(&["the operator there stopped this transfer"]);
    let last: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["transfer"]),
        (&"error".into(), &shown["id"]),
        "{last}"
    );
    operator(&site, &["stop", "abcdef"])
        .expect(1)
        .says(&["no transfer on this host has the id abcdef"])
        .lines(1);
    operator(&site, &["stop", "xyz"]).expect(1);
    long.kill().unwrap();
    long.wait().unwrap();
}

#[test]
fn a_queued_transfer_does_not_begin_after_its_key_was_removed() {
    let Occupied { site, mut long } = Occupied::new();
    let waiting = site
        .push_command(&[], &[site.contents().as_ref()], "other")
        .start();
    wait_for(&site, |shown| shown["waits"] == true);
    operator(&site, &["allow", "remove", "tester"]).done();
    long.kill().unwrap();
    long.wait().unwrap();
    finish(waiting)
        .expect(5)
        .says(&["this key is not known here"]);
    assert!(!site.target().join("other").exists());
}

/// The log file contains only JSON lines. After it has been moved away, SIGHUP starts a new one, even if Landlock
/// confines the daemon to its roots.
#[test]
fn a_daemon_begins_a_new_log_file_after_rotation() {
    let mut site = Site::local();
    std::fs::create_dir(site.path("log")).unwrap();
    let log = site.path("log/zmove.log");
    let options = [
        "--log-file",
        log.to_str().unwrap(),
        "--log-format",
        "json",
        "--confine",
        "auto",
    ];
    site.start_daemon_with(&options);
    paint(site.source().join("f"), 1000);
    site.push_contents();
    let lines = |path: &Path| -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The daemon may be writing the last line.
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let wait_for = |path: &Path, event: &str| {
        let until = Instant::now() + PATIENCE;
        while !lines(path).iter().any(|line| line["event"] == event) {
            assert!(Instant::now() < until, "no {event} in {:?}", lines(path));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for(&log, "listening");
    wait_for(&log, "received");
    let old = site.path("log/zmove.log.1");
    std::fs::rename(&log, &old).unwrap();
    site.the_daemon().hang_up();
    wait_for(&log, "note");
    site.push(&[], site.contents(), "again").done();
    wait_for(&log, "received");
    assert_eq!(
        lines(&old)
            .iter()
            .filter(|line| line["event"] == "received")
            .count(),
        1
    );
}

/// A push with an unknown key is rejected on each of its connections, which appear as one line in the log. On a busy
/// machine the connections may take seconds. The log then has another line for each second.
#[test]
fn a_refused_push_is_one_line_of_the_log() {
    let mut site = Site::daemon();
    operator(&site, &["allow", "remove", "tester"]).done();
    let began = Instant::now();
    site.push(&["--streams", "12"], site.contents(), "")
        .expect(5);
    // When the daemon ends, it logs the lines that it has held back.
    let log = site.take_daemon().end_and_read_log();
    let lines_max = 1 + usize::try_from(began.elapsed().as_secs()).unwrap();
    let rejected = log.iter().filter(|line| line.contains("rejected "));
    assert!((1..=lines_max).contains(&rejected.count()), "{log:?}");
}

/// A push with `--no-wait` fails immediately. A waiting push reports the start and the reason of the wait.
#[test]
fn a_queued_push_reports_the_reason_and_no_wait_refuses_to_queue() {
    let Occupied { site, mut long } = Occupied::new();
    let at_once = site
        .push(&["--no-wait"], site.contents(), "other")
        .expect(13);
    at_once.says(&["limits.transfers = 1"]).lines(1);
    let waits = site
        .push(&["--json", "--timeout", "6s"], site.contents(), "other")
        .expect(13);
    let events = waits
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let progress: Vec<_> = events
        .filter(|event| event["event"] == "progress")
        .collect();
    let last = progress.last().expect("two seconds in line are told");
    assert_eq!(last["limited_by"], "queue");
    assert!(last["waiting"]["seconds"].as_f64().unwrap() > 0.5, "{last}");
    assert!(
        last["waiting"]["message"]
            .as_str()
            .unwrap()
            .contains("limits.transfers = 1"),
        "{last}"
    );
    long.kill().unwrap();
    long.wait().unwrap();
}

/// When a sender ahead in the queue leaves, the waiting sender and the operator are notified.
#[test]
fn a_queued_push_reports_its_new_position() {
    let Occupied { site, mut long } = Occupied::new();
    let first = site
        .push_command(&[], &[site.contents().as_ref()], "first")
        .start();
    let before = wait_for(&site, |shown| shown["waits"] == true);
    let mut second = site
        .push_command(&["--json"], &[site.contents().as_ref()], "second")
        .start();
    let told = LinesOf::new(&mut second);
    let message = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        event["waiting"]["message"].as_str().map(str::to_owned)
    };
    let is_behind = |text: &str| text.contains("of the same key");
    let has = |shown: &Value, words: &str| {
        shown["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains(words))
    };
    let behind = wait_for(&site, |shown| has(shown, "1 of the same key"));
    told.wait_for(|line| message(line).is_some_and(|text| text.contains("1 of the same key")));
    operator(&site, &["stop", before["id"].as_str().unwrap()]).done();
    finish(first).expect(3);
    wait_for(&site, |shown| {
        shown["id"] == behind["id"] && !has(shown, "of the same key")
    });
    told.wait_for(|line| message(line).is_some_and(|text| !is_behind(&text)));
    operator(&site, &["stop", behind["id"].as_str().unwrap()]).done();
    finish(second).expect(3);
    long.kill().unwrap();
    long.wait().unwrap();
}

/// A killed daemon leaves its socket, which the next daemon replaces. A second daemon does not replace the socket of a
/// running one.
#[test]
fn the_socket_of_a_killed_daemon_is_replaced_and_one_in_use_is_not() {
    let mut site = Site::daemon();
    let socket = site.path("server/control.sock");
    let before = inode(&socket);
    let second = crate::support::daemon::Daemon::start_with(
        &site.path("server"),
        &["--listen", "127.0.0.1:0", "--metrics", "off"],
        &crate::support::command::Runner::default(),
    );
    second.wait_for_log("another daemon is listening there");
    drop(second);
    assert_eq!(inode(&socket), before);
    site.take_daemon().kill();
    site.start_daemon();
    // The new daemon answers on the socket.
    status(&site);
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&path.symlink_metadata().unwrap())
}
