//! Peers that use too many resources: the daemon's memory stays bounded, and a concurrent push completes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zmove_transport::{AuthorizedKeys, Connection, HostPolicy, Identity, SocketConfig, TcpDialer};
use zmove_types::TransferId;
use zmove_wire::{Greeting, Role};

use crate::commands::jobs::wait_for;
use crate::support::command::finish;
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site};
use crate::support::proxy::Proxy;
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

/// Maximum growth of the daemon's memory, in KiB. A push of large files with default settings uses more.
const GROWTH_KIB_MAX: u64 = 200 << 10;
/// Settings that allow few authenticated connections to wait. Such a connection may wait for the whole greeting
/// timeout, which is longer than a busy machine needs for all handshakes.
const FEW_WAITING: &str = "waiting_per_identity = 64\nunproven_time = \"600s\"";
/// Maximum time for which a client that stays can hold a slot for a refusal, in seconds.
const REFUSAL_SECONDS: usize = 10;
/// Maximum number of attempts to read a refusal that the close may cut off.
const ASKED_MAX: u32 = 10;

fn site() -> Site {
    site_with(&[])
}

fn site_with(options: &[&str]) -> Site {
    let mut site = Site::local();
    site.start_daemon_with(options);
    for number in 0..20 {
        paint(site.source().join(format!("f{number}")), 100_000);
    }
    site
}

/// Pushes during the load, and asserts that the daemon's memory stays within the limit.
#[track_caller]
fn assert_well(site: &Site, resting_kib: u64) {
    site.push_contents();
    assert_same(&site.source(), &site.target());
    let now = site.the_daemon().memory_kib();
    assert!(
        now < resting_kib + GROWTH_KIB_MAX,
        "{resting_kib} KiB at rest, {now} KiB now"
    );
}

/// An authenticated connection of the client that sends nothing.
async fn prove(site: &Site) -> Connection {
    dial(
        site.the_daemon(),
        &Identity::load_or_create(&site.path("client")).unwrap(),
    )
    .await
}

/// An authenticated connection that sends nothing.
async fn dial(daemon: &Daemon, identity: &Identity) -> Connection {
    let policy = HostPolicy::Pinned(daemon.fingerprint);
    let port = daemon.address.port();
    let dialer = TcpDialer::new(identity, "127.0.0.1", port, policy, SocketConfig::default());
    dialer.await.unwrap().dial(PATIENCE).await.unwrap()
}

/// Measures the daemon's processor time for `count` connections of a stranger, all of which it refuses. The daemon has
/// seen the stranger before.
pub(crate) fn time_for_strangers(daemon: &Daemon, stranger: &Identity, count: u32) -> Duration {
    let knock = || {
        runtime().block_on(async {
            let mut connection = dial(daemon, stranger).await;
            let mut answer = Vec::new();
            // The close may truncate the message.
            drop(connection.read_to_end(&mut answer).await);
        });
    };
    knock();
    // The daemon reads a recently changed file again.
    let last = Instant::now();
    while last.elapsed() < Duration::from_millis(200) {
        knock();
    }
    let before = daemon.cpu_time();
    (0..count).for_each(|_| knock());
    daemon.cpu_time() - before
}

/// A daemon may have thousands of authorized keys, and must not read them for each connection.
#[test]
fn the_cost_of_an_unknown_key_does_not_depend_on_the_number_of_keys() {
    let _quiet = quiet_machine();
    let site = site();
    let stranger = Identity::load_or_create(&site.path("stranger")).unwrap();
    let with_few_keys = time_for_strangers(site.the_daemon(), &stranger, 30);
    let path = site.path("server/authorized_keys");
    let mut list = std::fs::read_to_string(&path).unwrap();
    for number in 0..20_000_u32 {
        let key = blake3::hash(&number.to_le_bytes());
        list.push_str(&format!(
            "{} name=user{number} root=/nowhere\n",
            zmove_transport::Fingerprint(key.into())
        ));
    }
    std::fs::write(&path, list).unwrap();
    let began = Instant::now();
    AuthorizedKeys::load(&site.path("server")).unwrap();
    let reading = began.elapsed();
    let with_many_keys = time_for_strangers(site.the_daemon(), &stranger, 30);
    // Reading the list for each connection would take three times as long.
    assert!(
        with_many_keys < with_few_keys + 10 * reading,
        "{with_few_keys:?} and {with_many_keys:?} for 30 connections, {reading:?} to read the list"
    );
    site.push_contents();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn two_thousand_silent_connections_do_not_stop_a_push() {
    let _quiet = quiet_machine();
    let site = site();
    let resting = site.the_daemon().memory_kib();
    let silent: Vec<_> = (0..2000)
        .map(|_| TcpStream::connect(site.the_daemon().address).unwrap())
        .collect();
    site.the_daemon()
        .wait_for_log("dropped to admit other connections");
    assert_well(&site, resting);
    drop(silent);
}

/// Invalid TLS data from many addresses produces few log lines, and the line of a push is among them.
#[test]
fn strangers_do_not_fill_the_log() {
    let _quiet = quiet_machine();
    let mut site = site();
    let knock = || {
        let mut stream = TcpStream::connect(site.the_daemon().address).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    };
    (0..500).for_each(|_| knock());
    site.push_contents();
    (0..500).for_each(|_| knock());
    site.the_daemon()
        .wait_for_log("more of this kind in one second");
    site.the_daemon().wait_for_log("received from");
    // When the daemon ends, it logs the lines that it has held back.
    let log = site.take_daemon().end_and_read_log();
    let count = |part: &str| log.iter().filter(|line| line.contains(part)).count();
    assert_eq!(count("received from"), 1);
    assert!((1..50).contains(&count("rejected")), "{log:?}");
}

/// The clients send the header of a TLS record repeatedly, one byte at a time.
#[test]
fn clients_that_send_one_byte_at_a_time_do_not_stop_a_push() {
    let _quiet = quiet_machine();
    let site = site();
    let resting = site.the_daemon().memory_kib();
    let address = site.the_daemon().address;
    let mut slow: Vec<_> = (0..300)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for byte in [22, 3, 1, 2, 0, 1] {
        for stream in &mut slow {
            // The daemon may have closed some of them in favor of others.
            drop(stream.write_all(&[byte]));
        }
    }
    assert_well(&site, resting);
    drop(slow);
}

/// Each record has the maximum length of TLS and is never sent.
#[test]
fn clients_that_announce_large_tls_records_do_not_stop_a_push() {
    let _quiet = quiet_machine();
    let site = site();
    let resting = site.the_daemon().memory_kib();
    let address = site.the_daemon().address;
    let mut promising: Vec<_> = (0..300)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for stream in &mut promising {
        drop(stream.write_all(&[22, 3, 1, 0x40, 0, 1, 0xFF, 0xFF, 0xFF]));
    }
    assert_well(&site, resting);
    drop(promising);
}

/// The key is known, and the message claims a length of 4 GiB.
#[test]
fn a_message_that_announces_4_gib_is_refused() {
    let site = site();
    let resting = site.the_daemon().memory_kib();
    runtime().block_on(async {
        let mut connection = prove(&site).await;
        let greeting = Greeting::new(Role::Control, TransferId([7; 16])).encode();
        connection
            .write_all(&[&greeting[..], &[0xFF; 8]].concat())
            .await
            .unwrap();
        connection.flush().await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut answer)).await;
        let _closed_or_reset = read.expect("the daemon ends the connection");
    });
    site.the_daemon().wait_for_log("broken off by tester");
    assert_well(&site, resting);
}

#[test]
fn idle_connections_of_one_key_are_limited() {
    let site = Site::limited(FEW_WAITING);
    paint(site.source().join("f"), 1000);
    let resting = site.the_daemon().memory_kib();
    let runtime = runtime();
    let waiting = runtime.block_on(async {
        let mut waiting = Vec::new();
        for _ in 0..64 {
            waiting.push(prove(&site).await);
        }
        let mut answer = Vec::new();
        for _ in 0..ASKED_MAX {
            let mut one_more = prove(&site).await;
            // The close may truncate or discard the answer.
            drop(one_more.read_to_end(&mut answer).await);
            if !answer.is_empty() {
                break;
            }
        }
        assert!(
            String::from_utf8_lossy(&answer).contains("waiting_per_identity = 64"),
            "{answer:?}"
        );
        waiting
    });
    site.the_daemon().wait_for_log("waiting_per_identity = 64");
    drop(waiting);
    assert_well(&site, resting);
}

/// Refused connections must not hold a descriptor for ten seconds without being counted.
#[test]
fn refused_connections_that_stay_open_hold_few_descriptors() {
    let _quiet = quiet_machine();
    let site = Site::limited(FEW_WAITING);
    paint(site.source().join("f"), 1000);
    let (told, rounds, open_files) = runtime().block_on(async {
        let mut connections = Vec::new();
        for _ in 0..64 {
            connections.push(prove(&site).await);
        }
        let resting = site.the_daemon().open_files();
        let mut told = 0;
        let began = Instant::now();
        for _ in 0..100 {
            let mut refused = prove(&site).await;
            let mut answer = Vec::new();
            drop(refused.read_to_end(&mut answer).await);
            told += usize::from(!answer.is_empty());
            connections.push(refused);
        }
        let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
        let rounds = 1 + seconds / REFUSAL_SECONDS;
        (told, rounds, site.the_daemon().open_files() - resting)
    });
    assert!(
        (8..20 * rounds).contains(&told),
        "{told} of 100 were told why"
    );
    assert!(
        open_files < 20,
        "{open_files} descriptors for those that are refused"
    );
    site.push_contents();
}

/// Starts a push that takes a long time.
fn begin_long(site: &Site) -> Child {
    paint(site.path("long"), 16 << 20);
    let child = site.push_command(
        &["--limit", "1Mbit", "--timeout", "0"],
        &[site.path("long").as_ref()],
        "",
    );
    let child = child.start();
    site.the_daemon().wait_for_log("begun by tester");
    child
}

/// Lanes greet before the sender knows how many are allowed.
#[test]
fn a_push_that_dials_too_many_lanes_uses_the_allowed_number() {
    let site = Site::limited("lanes_per_transfer = 8");
    paint(site.source().join("f"), 1000);
    for _ in 0..5 {
        let options = ["--json", "--streams", "12", "--checksum"];
        let pushed = site.push(&options, site.contents(), "").done().summary();
        assert!(
            (1..=8).contains(&pushed["lanes"].as_u64().unwrap()),
            "{pushed}"
        );
    }
    site.the_daemon().wait_for_logs("received from tester", 5);
    assert!(!site.the_daemon().has_logged("too many lanes"));
}

#[test]
fn limits_are_reloaded() {
    let mut site = Site::local();
    site.start_daemon();
    paint(site.source().join("f"), 1000);
    let mut long = begin_long(&site);
    site.limit("transfers = 1");
    site.the_daemon().hang_up();
    let line = site.the_daemon().wait_for_log("reloaded: ");
    assert!(line.contains("transfers: 1 (was transfers: 64)"), "{line}");
    site.push(&["--timeout", "0"], site.contents(), "")
        .expect(13)
        .says(&["limits.transfers = 1"]);
    site.limit("transfer = 1");
    site.the_daemon().hang_up();
    site.the_daemon().wait_for_log("reload: not changed: ");
    site.push(&["--timeout", "0"], site.contents(), "")
        .expect(13)
        .says(&["limits.transfers = 1"]);
    long.kill().unwrap();
    long.wait().unwrap();
}

#[test]
fn a_daemon_that_drains_lets_transfers_end_and_takes_no_more() {
    let mut site = site_with(&["--drain", "5min"]);
    let relay = Proxy::start(site.the_daemon().address, 512 << 10);
    site.pin(&relay.address, site.the_daemon().fingerprint);
    let long = site.push_by(&relay.address, &[]).start();
    relay.wait_for_stall();
    site.the_daemon().wait_for_log("begun by tester");
    site.the_daemon().ask_to_end();
    site.the_daemon()
        .wait_for_log("stopping: running transfers have 300 s");
    let refused = site.push(&[], site.contents(), "").expect(13);
    refused.says(&["being stopped"]);
    relay.resume_without_busiest(0);
    finish(long).done();
    assert_eq!(site.take_daemon().wait(), Some(0));
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_second_signal_ends_a_daemon_that_drains() {
    let mut site = site_with(&["--drain", "5min"]);
    let mut long = begin_long(&site);
    site.the_daemon().ask_to_end();
    site.the_daemon()
        .wait_for_log("stopping: running transfers have 300 s");
    assert_eq!(site.take_daemon().terminate(), Some(0));
    long.kill().unwrap();
    long.wait().unwrap();
}

/// Returns the daemon's response to a plain HTTP request.
fn ask(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn metrics_address(site: &Site) -> String {
    let line = site.the_daemon().wait_for_log("metrics at http://");
    line.split("http://")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned()
}

fn value(page: &str, name: &str) -> f64 {
    let found = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("no {name} in:\n{page}"))
        .parse()
        .unwrap()
}

#[test]
fn metrics_count_a_push() {
    let site = site_with(&["--metrics", "127.0.0.1:0"]);
    let address = metrics_address(&site);
    assert!(ask(&address, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(ask(&address, "/").starts_with("HTTP/1.1 404 "));
    site.push_contents();
    site.the_daemon().wait_for_log("received from tester");
    // The daemon logs a transfer before it removes the transfer from the running ones.
    wait_for("end of the transfer", || {
        value(&ask(&address, "/metrics"), "zmove_transfers_running") < 0.5
    });
    let page = ask(&address, "/metrics");
    assert!(page.contains("application/openmetrics-text"), "{page}");
    assert!(
        (value(&page, "zmove_bytes_received_total") - 2_000_000.0).abs() < 0.5,
        "{page}"
    );
    assert!(
        (value(&page, "zmove_files_received_total") - 20.0).abs() < 0.5,
        "{page}"
    );
    assert!(
        (value(&page, "zmove_transfers_total{result=\"complete\"}") - 1.0).abs() < 0.5,
        "{page}"
    );
    assert!(
        value(&page, "zmove_transfers_running").abs() < 0.5,
        "{page}"
    );
    assert!(
        value(
            &page,
            "zmove_stage_seconds_total{stage=\"store\",state=\"busy\"}"
        ) > 0.0,
        "{page}"
    );
    assert!(page.ends_with("# EOF\n"), "{page}");
    drop(TcpStream::connect(site.the_daemon().address).unwrap());
    site.the_daemon().wait_for_log("closed the connection");
    let page = ask(&address, "/metrics");
    // A lane that the push did not need counts too if its handshake was not complete.
    assert!(
        value(&page, "zmove_errors_total{kind=\"handshake\"}") > 0.5,
        "{page}"
    );
}

#[test]
fn metrics_count_a_pull() {
    let site = Site::reading(&[], &["--metrics", "127.0.0.1:0"]);
    paint(site.source().join("small"), 1000);
    paint(site.source().join("large"), 10 << 20);
    site.pull(&[], &[""], "").expect(0);
    site.the_daemon().wait_for_log("sent to tester");
    let page = ask(&metrics_address(&site), "/metrics");
    let (bytes, files) = (
        value(&page, "zmove_bytes_sent_total"),
        value(&page, "zmove_files_sent_total"),
    );
    assert!(
        (bytes - f64::from(1000 + (10 << 20))).abs() < 0.5 && (files - 2.0).abs() < 0.5,
        "{page}"
    );
    assert!(
        value(&page, "zmove_bytes_received_total").abs() < 0.5,
        "{page}"
    );
}
