//! A push begins with the path measurements of the previous one.

use std::fs::{read_to_string, write};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::harness::Site;
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

/// The first line of the file.
const HEADER: &str = "# zmove paths 2";

fn site() -> Site {
    let site = Site::daemon();
    paint(site.source().join("f"), 1 << 20);
    site
}

/// Returns the line that a push has written.
#[track_caller]
fn remembered(site: &Site) -> String {
    let text = read_to_string(site.path("client").join("paths")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, HEADER), "{text}");
    assert!(
        lines[1].starts_with(&format!("{} {{", site.the_daemon().address)),
        "{text}"
    );
    lines[1].to_owned()
}

#[test]
fn the_next_push_starts_with_the_lanes_of_the_last() {
    let _quiet = quiet_machine();
    let site = site();
    site.push_contents();
    let line = remembered(&site);
    let (path, known) = line.split_once(' ').unwrap();
    let mut known: Value = serde_json::from_str(known).unwrap();
    known["lanes"] = 11.into();
    // This value is close to the round trip of this host to itself, even if the host is busy.
    known["round_trip"] = micros(1_000);
    let memory = format!("{HEADER}\n{path} {known}\n");
    // On a busy host, the measured round trip may differ too much from the remembered one.
    let started_there = (0..9).any(|number| {
        write(site.path("client").join("paths"), &memory).unwrap();
        paint(site.source().join(format!("g{number}")), 1 << 20);
        site.push_contents()["lanes"] == 11
    });
    assert!(started_there, "no push starts with 11 lanes: {memory}");
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_requested_number_of_lanes_is_not_remembered() {
    let site = site();
    site.push(&["--streams", "3"], site.contents(), "").done();
    assert!(!site.path("client").join("paths").exists());
}

#[test]
fn a_damaged_paths_file_is_reported_in_one_line() {
    let site = site();
    write(site.path("client").join("paths"), "lanes = many").unwrap();
    let outcome = site.push(&[], site.contents(), "").expect(0);
    outcome.says(&["zmove: ", "paths", "ignoring"]).lines(1);
    remembered(&site);
    assert_same(&site.source(), &site.target());
}

/// Records that a path to this host has just carried 32 MiB in one round trip. `changes` replaces values by their JSON
/// pointers.
fn remember(site: &Site, changes: &[(&str, Value)]) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let mut known = json!({
        "lanes": 2,
        "loss_tolerant": false,
        "round_trip": micros(400),
        "bytes_per_second": 1_000_000_000,
        "day": now / (24 * 60 * 60),
        "rates": { "tcp": 1_000_000_000, "quic": null },
        "window": {
            "bytes": 32 << 20,
            "round_trip": micros(400),
            "ends": { "here": "127.0.0.1", "there": "127.0.0.1" },
            "at": now,
        },
    });
    for (place, value) in changes {
        *known.pointer_mut(place).unwrap() = value.clone();
    }
    let path = site.the_daemon().address.to_string();
    let text = format!("{HEADER}\n{path} {known}\n");
    write(site.path("client").join("paths"), text).unwrap();
}

fn micros(round_trip: u64) -> Value {
    json!(Duration::from_micros(round_trip))
}

const WINDOW_ROUND_TRIP: &str = "/window/round_trip";
const QUIC_RATE: &str = "/rates/quic";

/// Pushes a file of 32 MiB plus `more` bytes and returns the summary.
fn remembering(site: &Site, more: u64, changes: &[(&str, Value)]) -> Value {
    remember(site, changes);
    paint(site.source().join("f"), (32 << 20) + more);
    site.push_contents()
}

#[test]
fn a_window_that_is_remembered_is_used() {
    let _quiet = quiet_machine();
    let site = Site::quic();
    // The round trip of a host to itself depends on its load.
    let trips = [400, 3000, 20_000].into_iter().cycle();
    let mut pushes = (0..12).zip(trips).map(|(more, round_trip)| {
        remembering(&site, more, &[(WINDOW_ROUND_TRIP, micros(round_trip))])
    });
    let summary = pushes.find(|summary| summary["resumed_window_bytes"].is_u64());
    let summary = summary.expect("one of several pushes jumps and says so");
    let bytes = summary["resumed_window_bytes"].as_u64().unwrap();
    assert!(
        bytes > 0 && bytes <= 16 << 20,
        "half of it at most: {bytes}"
    );
    assert_same(&site.source(), &site.target());
    let line = remembered(&site);
    assert!(!line.contains(r#""quic":null"#), "{line}");
    let has_lost =
        summary["resumed_window_refuted"] == true || summary["path"]["bytes_retransmitted"] != 0;
    assert!(
        has_lost || !line.contains(r#""window":null"#),
        "another push may use it: {line}, {summary}"
    );
}

#[test]
fn a_window_of_another_path_or_of_long_ago_is_not_used() {
    let site = Site::quic();
    for (more, place, other) in [
        (1, WINDOW_ROUND_TRIP, micros(900_000)),
        (2, WINDOW_ROUND_TRIP, micros(1)),
        (3, "/window/ends/here", json!("127.0.0.2")),
        (4, "/window/ends/there", json!("127.0.0.2")),
        (5, "/window/at", json!(1_790_000_000)),
        (6, "/window/at", json!(99_999_999_999_u64)),
    ] {
        assert!(
            remembering(&site, more, &[(place, other.clone())])["resumed_window_bytes"].is_null(),
            "{place}: {other}"
        );
    }
    assert_same(&site.source(), &site.target());
}

#[test]
fn an_impossible_window_is_reported_in_one_line() {
    let site = Site::quic();
    paint(site.source().join("f"), 1 << 20);
    remember(&site, &[("/window/bytes", json!(u64::MAX))]);
    let outcome = site.push(&[], site.contents(), "").expect(0);
    outcome.says(&["zmove: ", "paths", "ignoring"]).lines(1);
}

/// Remembered round trip in microseconds. The scan may take a third of it, and the handshake of QUIC three times as
/// long. Both limits hold on a busy machine.
const LONG_ROUND_TRIP: u64 = 300_000;

/// Pushes a file of `bytes` bytes on a path with a long remembered round trip.
fn transport(bytes: u64, quic: Option<u64>) -> Value {
    let site = Site::daemon();
    paint(site.source().join("f"), bytes);
    let changes = [
        (WINDOW_ROUND_TRIP, micros(LONG_ROUND_TRIP)),
        (QUIC_RATE, json!(quic)),
    ];
    remember(&site, &changes);
    let transport = site.push_contents()["transport"].take();
    assert_same(&site.source(), &site.target());
    transport
}

#[test]
fn the_remembered_path_decides_which_transport_is_tried_first() {
    assert_eq!(transport(8 << 20, None), "quic", "it saves round trips");
    assert_eq!(
        transport(8 << 20, Some(1_000_000)),
        "tcp",
        "it is too slow for so much"
    );
    assert_eq!(transport(8 << 20, Some(0)), "tcp", "it did not get through");
}

#[test]
fn a_daemon_without_quic_is_reached_by_tcp_although_quic_goes_first() {
    let mut site = Site::local();
    site.start_daemon_with(&["--transport", "tcp"]);
    paint(site.source().join("f"), 8 << 20);
    remember(&site, &[(WINDOW_ROUND_TRIP, micros(LONG_ROUND_TRIP))]);
    assert_eq!(site.push_contents()["transport"], "tcp");
    let line = remembered(&site);
    assert!(
        line.contains(r#""quic":0"#),
        "the next push does not try: {line}"
    );
}
