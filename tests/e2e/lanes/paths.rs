//! What a push has learnt of its path is where the next begins.

use std::fs::{read_to_string, write};
use std::time::SystemTime;

use serde_json::Value;

use crate::support::harness::Site;
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

/// A round trip that is near that of this host to itself, also of a busy one.
const NEAR: &str = "rtt_us=1000";

fn site() -> Site {
    let site = Site::daemon();
    paint(site.source().join("f"), 1 << 20);
    site
}

/// The line that a push has left behind.
#[track_caller]
fn remembered(site: &Site) -> String {
    let text = read_to_string(site.path("client").join("paths")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "# zmove paths 1"), "{text}");
    assert!(
        lines[1].starts_with(&format!("{} lanes=", site.the_daemon().address)),
        "{text}"
    );
    lines[1].to_owned()
}

#[test]
fn the_next_push_starts_with_the_lanes_of_the_last() {
    let _quiet = quiet_machine();
    let site = site();
    site.push_contents();
    let change = |field: &str| match field.split('=').next() {
        Some("lanes") => "lanes=11".to_owned(),
        Some("rtt_us") => NEAR.to_owned(),
        _ => field.to_owned(),
    };
    let line: Vec<_> = remembered(&site).split(' ').map(change).collect();
    let memory = format!("# zmove paths 1\n{}\n", line.join(" "));
    // a host that is busy may take the path to itself for a longer one
    let started_there = (0..9).any(|number| {
        write(site.path("client").join("paths"), &memory).unwrap();
        paint(site.source().join(format!("g{number}")), 1 << 20);
        site.push_contents()["lanes"] == 11
    });
    assert!(started_there, "no push starts with 11 lanes: {memory}");
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_number_that_was_asked_for_teaches_nothing() {
    let site = site();
    site.push(&["--streams", "3"], site.contents(), "").done();
    assert!(!site.path("client").join("paths").exists());
}

#[test]
fn a_damaged_memory_costs_a_line() {
    let site = site();
    write(site.path("client").join("paths"), "lanes = many").unwrap();
    let outcome = site.push(&[], site.contents(), "").expect(0);
    outcome.says(&["zmove: ", "paths", "not used"]).lines(1);
    remembered(&site);
    assert_same(&site.source(), &site.target());
}

/// A path to this host itself that has carried 32 MiB in a round trip, a moment ago; `change` makes another of it.
fn remember(site: &Site, change: &dyn Fn(&'static str, String) -> String) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let day = now / (24 * 60 * 60);
    let fields = [
        ("lanes", "2".to_owned()),
        ("congestion", "usual".to_owned()),
        ("rtt_us", "400".to_owned()),
        ("bytes_per_second", "1000000000".to_owned()),
        ("day", day.to_string()),
        ("tcp", "1000000000".to_owned()),
        ("quic", "-".to_owned()),
        ("window", (32 << 20).to_string()),
        ("window_rtt_us", "400".to_owned()),
        ("here", "127.0.0.1".to_owned()),
        ("there", "127.0.0.1".to_owned()),
        ("at", now.to_string()),
    ];
    let fields = fields.map(|(name, value)| format!("{name}={}", change(name, value)));
    let line = format!("{} {}", site.the_daemon().address, fields.join(" "));
    write(
        site.path("client").join("paths"),
        format!("# zmove paths 1\n{line}\n"),
    )
    .unwrap();
}

/// The summary of the push of a file of 32 MiB and so many bytes.
fn remembering(site: &Site, more: u64, change: &dyn Fn(&'static str, String) -> String) -> Value {
    remember(site, change);
    paint(site.source().join("f"), (32 << 20) + more);
    site.push_contents()
}

#[test]
fn a_window_that_is_remembered_is_used() {
    let _quiet = quiet_machine();
    let site = Site::quic();
    // how long the path of a host to itself is depends on what else the host does
    let mut pushes =
        (0..12)
            .zip(["400", "3000", "20000"].iter().cycle())
            .map(|(more, round_trip)| {
                remembering(&site, more, &|name, value| {
                    if name == "window_rtt_us" {
                        (*round_trip).to_owned()
                    } else {
                        value
                    }
                })
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
    assert!(!line.contains(" quic=-"), "{line}");
    let has_lost =
        summary["resumed_window_refuted"] == true || summary["path"]["bytes_retransmitted"] != 0;
    assert!(
        has_lost || line.contains(" window="),
        "another push may use it: {line}, {summary}"
    );
}

#[test]
fn a_window_of_another_path_or_of_long_ago_is_not_used() {
    let site = Site::quic();
    for (more, field, other) in [
        (1, "window_rtt_us", "900000"),
        (2, "window_rtt_us", "1"),
        (3, "here", "127.0.0.2"),
        (4, "there", "127.0.0.2"),
        (5, "at", "1790000000"),
        (6, "at", "99999999999"),
    ] {
        let change = |name: &'static str, value: String| {
            if name == field {
                other.to_owned()
            } else {
                value
            }
        };
        assert!(
            remembering(&site, more, &change)["resumed_window_bytes"].is_null(),
            "{field}={other}"
        );
    }
    assert_same(&site.source(), &site.target());
}

#[test]
fn what_cannot_be_a_window_costs_a_line() {
    let site = Site::quic();
    paint(site.source().join("f"), 1 << 20);
    remember(&site, &|name, value| {
        if name == "window" {
            u64::MAX.to_string()
        } else {
            value
        }
    });
    let outcome = site.push(&[], site.contents(), "").expect(0);
    outcome.says(&["zmove: ", "paths", "not used"]).lines(1);
}

/// A push of this many bytes on a path that is remembered as 10 ms long.
fn transport(bytes: u64, quic: &str) -> Value {
    let site = Site::daemon();
    paint(site.source().join("f"), bytes);
    remember(&site, &|name, value| match name {
        "window_rtt_us" => "10000".to_owned(),
        "quic" => quic.to_owned(),
        _ => value,
    });
    let transport = site.push_contents()["transport"].take();
    assert_same(&site.source(), &site.target());
    transport
}

#[test]
fn the_memory_says_which_transport_goes_first() {
    assert_eq!(transport(8 << 20, "-"), "quic", "it saves round trips");
    assert_eq!(
        transport(8 << 20, "1000000"),
        "tcp",
        "it is too slow for so much"
    );
    assert_eq!(transport(8 << 20, "0"), "tcp", "it did not get through");
}

#[test]
fn a_daemon_without_quic_is_reached_by_tcp_although_quic_goes_first() {
    let mut site = Site::local();
    site.start_daemon_with(&["--transport", "tcp"]);
    paint(site.source().join("f"), 8 << 20);
    remember(&site, &|name, value| {
        if name == "window_rtt_us" {
            "10000".to_owned()
        } else {
            value
        }
    });
    assert_eq!(site.push_contents()["transport"], "tcp");
    let line = remembered(&site);
    assert!(
        line.contains(" quic=0"),
        "the next push does not try: {line}"
    );
}
